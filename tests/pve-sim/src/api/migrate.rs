//! `/nodes/{node}/qemu/{vmid}/migrate` (`Qemu.pm`, `QemuMigrate.pm`, `AbstractMigrate.pm`; running.md 13 and 13b).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::clone::disks;
use crate::acl::Who;
use crate::crm;
use crate::fail::{ApiResult, Fail};
use crate::qemu;
use crate::router::{Call, Route, now};
use crate::sim::Sim;
use crate::state::{Health, State, Vm, VmNumber, volume_owner};
use crate::tasks::{self, TaskKind, TaskLog};
use crate::update;

pub(super) fn routes() -> Vec<Route> {
    let path = "/nodes/{node}/qemu/{vmid}/migrate";
    vec![now("GET", path, preconditions), now("POST", path, migrate)]
}

/// The storages of a VM's disks that are not to be had on a node.
fn missing_storages(state: &State, vm: &Vm, target: &str) -> Vec<String> {
    let mut missing: Vec<String> = disks(vm)
        .iter()
        .filter_map(|(_, drive)| Some(drive.file.split_once(':')?.0.to_owned()))
        .filter(|id| state.enabled_storage(id, target).is_err())
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

fn preconditions(call: &Call) -> ApiResult {
    let node = call.node();
    call.sim.with_vm(&node, call.vmid(), |_| ())?;
    let state = call.sim.lock();
    let vm = state.vms.get(&call.vmid());
    let local: Vec<Value> = vm.map(|vm| local_disks(&state, vm)).unwrap_or_default();
    let mut allowed = Vec::new();
    let mut refused = serde_json::Map::new();
    for target in state.nodes.keys().filter(|name| **name != node) {
        let missing = vm.map(|vm| missing_storages(&state, vm, target));
        if let Some(missing) = missing.filter(|missing| !missing.is_empty()) {
            refused.insert(target.clone(), json!({"unavailable_storages": missing}));
        } else {
            refused.insert(target.clone(), json!({}));
            allowed.push(target);
        }
    }
    Ok(json!({
        "running": u8::from(vm.is_some_and(|vm| vm.running)), "allowed_nodes": allowed, "not_allowed_nodes": refused,
        "local_disks": local, "local_resources": [], "mapped-resources": [], "mapped-resource-info": {}, "has-dbus-vmstate": 1,
    })
    .into())
}

fn local_disks(state: &State, vm: &Vm) -> Vec<Value> {
    let is_local = |file: &str| {
        let storage = file
            .split_once(':')
            .and_then(|(id, _)| state.storages.get(id));
        storage.is_some_and(|storage| !storage.shared)
    };
    let local = disks(vm)
        .into_iter()
        .filter(|(_, drive)| is_local(&drive.file));
    let rows = local.map(|(slot, drive)| {
        json!({
            "volid": drive.file, "drivename": slot, "size": drive.option("size").and_then(crate::units::drive_size), "cdrom": 0, "is_attached": 1,
            "is_cloudinit": 0, "is_tpmstate": 0, "is_unused": 0, "is_vmstate": 0, "replicate": u8::from(drive.option("replicate") != Some("0")),
            "shared": 0,
        })
    });
    rows.collect()
}

fn migrate(call: &Call) -> ApiResult {
    let (node, vmid, target) = (call.node(), call.vmid(), call.text("target").to_owned());
    if target == node {
        return Err(Fail::param("target", "target is local node."));
    }
    call.sim.need_quorum(&node)?;
    if !call.sim.lock().nodes.contains_key(&target) {
        return Err(Fail::die(format!("no such cluster node '{target}'")));
    }
    let running = call.sim.with_vm(&node, vmid, |vm| {
        update::check_state(vm, None).map(|()| vm.running)
    })??;
    if running && !call.flag("online") {
        return Err(Fail::die("can't migrate running VM without --online"));
    }
    let managed = {
        let state = call.sim.lock();
        let missing = state
            .vms
            .get(&vmid)
            .map(|vm| missing_storages(&state, vm, &target));
        if let Some(id) = missing.unwrap_or_default().first() {
            state.enabled_storage(id, &target)?;
        }
        state.ha.manages(vmid)
    };
    if managed {
        return Ok(json!(ask_manager(call, (&node, vmid, &target))).into());
    }
    let order = Migration {
        node,
        vmid,
        target,
        local_disks: call.flag("with-local-disks"),
    };
    Ok(json!(order.fork(&call.sim, &call.who)).into())
}

/// The HA manager does it in its own time; the task only asks.
fn ask_manager(call: &Call, (node, vmid, target): (&str, VmNumber, &str)) -> String {
    let what = TaskKind {
        node: node.to_owned(),
        kind: "hamigrate",
        id: vmid.to_string(),
    };
    let (sim, target) = (Arc::clone(&call.sim), target.to_owned());
    tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        log.line(format!(
            "Requesting HA migration for VM {vmid} to node {target}"
        ));
        crm::ask_move(&sim, vmid, &target);
        Ok(())
    })
}

/// What the HA manager starts.
pub(crate) fn migrate_now(sim: &Arc<Sim>, who: &Who, (node, vmid, target): (&str, VmNumber, &str)) {
    let order = Migration {
        node: node.to_owned(),
        vmid,
        target: target.to_owned(),
        local_disks: false,
    };
    order.fork(sim, who);
}

struct Migration {
    node: String,
    vmid: VmNumber,
    target: String,
    local_disks: bool,
}

impl Migration {
    fn fork(self, sim: &Arc<Sim>, who: &Who) -> String {
        let what = TaskKind {
            node: self.node.clone(),
            kind: "qmigrate",
            id: self.vmid.to_string(),
        };
        let inner = Arc::clone(sim);
        tasks::fork(sim, who, &what, move |log| async move {
            self.run(
                &inner,
                &Told {
                    sim: inner.clone(),
                    log,
                },
            )
            .await
        })
    }

    /// What was told ends in one of two short texts; the reason is in the log only.
    async fn run(&self, sim: &Arc<Sim>, told: &Told) -> Result<(), Fail> {
        let _guard = sim.lock_vm(&self.node, self.vmid).await?;
        let begun = sim.clock.now();
        let ip = {
            let state = sim.lock();
            state.nodes.get(&self.target).map(|node| node.ip.clone())
        };
        told.line(&format!(
            "starting migration of VM {} to node '{}' ({})",
            self.vmid,
            self.target,
            ip.unwrap_or_default()
        ));
        let moved = match self.prepare(sim, told) {
            Ok(local) => self.transfer(sim, told, &local).await,
            Err(reason) => Err(("aborting phase 1 - cleanup resources", reason)),
        };
        let took = sim.clock.now().saturating_sub(begun).as_secs();
        let took = format!("{:02}:{:02}:{:02}", took / 3600, took / 60 % 60, took % 60);
        match moved {
            Ok(()) => {
                told.line(&format!(
                    "migration finished successfully (duration {took})"
                ));
                Ok(())
            }
            Err((phase, reason)) if phase.contains("phase 1") => {
                told.line(&format!("ERROR: {reason}"));
                told.line(phase);
                told.line(&format!(
                    "ERROR: migration aborted (duration {took}): {reason}"
                ));
                Err(Fail::die("migration aborted"))
            }
            Err((phase, reason)) => {
                told.line(&format!("ERROR: online migrate failure - {reason}"));
                told.line(phase);
                told.line(&format!(
                    "ERROR: migration finished with problems (duration {took})"
                ));
                Err(Fail::die("migration problems"))
            }
        }
    }

    /// What stands in the way, else the local volumes that have to go along.
    fn prepare(&self, sim: &Sim, told: &Told) -> Result<Vec<String>, String> {
        let state = sim.lock();
        let health = state.nodes.get(&self.target).map(|node| node.health);
        if health.is_none_or(|health| !health.in_cluster() || health == Health::Reset) {
            return Err(format!(
                "Can't connect to destination address using public key authentication ({})",
                self.target
            ));
        }
        let Some(vm) = state.vms.get(&self.vmid) else {
            return Err(format!("VM {} is gone", self.vmid));
        };
        let ids: Vec<String> = local_disks(&state, vm)
            .iter()
            .filter_map(|row| Some(row.get("volid")?.as_str()?.to_owned()))
            .collect();
        let mut errors: BTreeMap<&str, String> = BTreeMap::new();
        for id in &ids {
            told.line(&format!("found local disk '{id}' (attached)"));
            let owner = volume_owner(&state, id);
            if vm.running && !self.local_disks {
                errors.insert(
                    id,
                    "can't live migrate attached local disks without with-local-disks option"
                        .to_owned(),
                );
            } else if owner != Some(self.vmid) {
                let owner = owner.unwrap_or_default();
                errors.insert(id, format!("owned by other VM (owner = VM {owner})"));
            }
        }
        for (id, text) in &errors {
            told.line(&format!("can't migrate local disk '{id}': {text}"));
        }
        if errors.is_empty() {
            Ok(ids)
        } else {
            Err("Problem found while scanning volumes - can't migrate VM - check log".to_owned())
        }
    }

    /// Locked while it moves. The config is on the target first, and loses its lock there (running.md 13b).
    async fn transfer(
        &self,
        sim: &Arc<Sim>,
        told: &Told,
        local: &[String],
    ) -> Result<(), (&'static str, String)> {
        let first = |fail: Fail| ("aborting phase 1 - cleanup resources", fail.exit_text());
        sim.may_write(&self.node, self.vmid).map_err(first)?;
        let lock = |node: &str| {
            sim.with_vm(node, self.vmid, |vm| {
                vm.config.insert("lock".to_owned(), "migrate".to_owned());
                vm.running
            })
        };
        let running = lock(&self.node).map_err(first)?;
        if running {
            told.line(&format!(
                "starting VM {} on remote node '{}'",
                self.vmid, self.target
            ));
        }
        sim.clock.sleep(sim.timing.migrate).await;
        let arrived = sim
            .may_write(&self.node, self.vmid)
            .and_then(|()| self.arrive(sim, local));
        if let Err(fail) = arrived {
            drop(sim.with_vm(&self.node, self.vmid, |vm| vm.config.remove("lock")));
            return Err(("aborting phase 2 - cleanup resources", fail.exit_text()));
        }
        sim.clock.sleep(sim.timing.migrate / 8).await;
        drop(sim.with_vm(&self.target, self.vmid, |vm| vm.config.remove("lock")));
        Ok(())
    }

    fn arrive(&self, sim: &Sim, local: &[String]) -> Result<(), Fail> {
        let running = sim.with_vm(&self.node, self.vmid, |vm| vm.running)?;
        if running {
            qemu::continue_elsewhere(sim, (&self.node, self.vmid))?;
        }
        let mut state = sim.lock();
        for volid in local {
            let at = state.volume_at(&self.node, volid);
            if let Some(volume) = at.and_then(|at| state.volumes.get_mut(at)) {
                let from = crate::volumes::backing(volume);
                volume.node = Some(self.target.clone());
                let to = crate::volumes::backing(volume);
                sim.hardware.rename(&from, &to).map_err(Fail::die)?;
            }
        }
        if let Some(vm) = state.vms.get_mut(&self.vmid) {
            vm.node.clone_from(&self.target);
        }
        Ok(())
    }
}

/// A log whose lines bear the time.
struct Told {
    sim: Arc<Sim>,
    log: TaskLog,
}

impl Told {
    fn line(&self, text: &str) {
        let seconds = i64::try_from(self.sim.clock.epoch()).unwrap_or_default();
        let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
        self.log
            .line(format!("{} {text}", time.strftime("%Y-%m-%d %H:%M:%S")));
    }
}
