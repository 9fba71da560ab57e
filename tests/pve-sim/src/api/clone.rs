//! `POST …/clone` (full) and `/migrate`: what an administrator does to a VM that holds volumes (`Qemu.pm`, `QemuMigrate.pm`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::acl;
use crate::copies::{self, Copy};
use crate::drive::{self, Drive};
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Perm, Route, now};
use crate::schema::{Kind, opt, req};
use crate::sim::Sim;
use crate::state::{State, Vm, VmNumber, volume_owner};
use crate::tasks::{self, TaskKind, TaskLog};
use crate::update;

pub(super) fn routes() -> Vec<Route> {
    let clone_params = [
        req("newid", Kind::Vmid),
        opt("name", Kind::DnsName),
        opt("description", Kind::Str),
        opt("pool", Kind::Str),
        opt("full", Kind::Bool),
        opt("storage", Kind::Storage),
        opt("format", Kind::Enum(&["raw", "qcow2", "vmdk"])),
    ];
    let migrate_params = [
        req("target", Kind::Node),
        opt("online", Kind::Bool),
        opt("with-local-disks", Kind::Bool),
    ];
    let migrate = || Perm::All("/vms/{vmid}", &["VM.Migrate"]);
    let path = "/nodes/{node}/qemu/{vmid}/migrate";
    vec![
        now(
            "POST",
            "/nodes/{node}/qemu/{vmid}/clone",
            Perm::Custom(may_clone),
            &clone_params,
            clone,
        ),
        now(
            "GET",
            path,
            migrate(),
            &[opt("target", Kind::Node)],
            preconditions,
        ),
        now("POST", path, migrate(), &migrate_params, self::migrate),
    ]
}

fn may_clone(call: &Call) -> Result<(), Fail> {
    let state = call.sim.lock();
    acl::need_all(
        &state,
        &call.who,
        &format!("/vms/{}", call.text("vmid")),
        &["VM.Clone"],
    )?;
    let places = [
        format!("/vms/{}", call.text("newid")),
        format!("/pool/{}", call.text("pool")),
    ];
    let allowed = places
        .iter()
        .any(|path| acl::has(&state, &call.who, path, "VM.Allocate"));
    if allowed {
        Ok(())
    } else {
        Err(Fail::denied(""))
    }
}

/// Disks of a VM, CD drives left out.
fn disks(vm: &Vm) -> Vec<(String, Drive)> {
    let slots = vm
        .config
        .iter()
        .filter(|(key, _)| drive::slot(key).is_some());
    let parsed = slots.filter_map(|(key, text)| Some((key.clone(), Drive::parse(key, text).ok()?)));
    parsed
        .filter(|(_, drive)| !drive.is_cdrom() && drive.volid().is_some())
        .collect()
}

/// Takes the new VMID, locked until the copies are made.
fn reserve(call: &Call, newid: VmNumber, from: &[(String, Drive)]) -> Result<(), Fail> {
    let mut state = call.sim.lock();
    if state.vms.contains_key(&newid) {
        return Err(Fail::die(format!(
            "unable to create VM {newid}: config file already exists"
        )));
    }
    for (_, drive) in from {
        let path = format!(
            "/storage/{}",
            call.get("storage").unwrap_or(storage_of(drive))
        );
        acl::need_all(&state, &call.who, &path, &["Datastore.AllocateSpace"])?;
    }
    let locked = [("lock".to_owned(), "clone".to_owned())].into();
    state.vms.insert(
        newid,
        Vm {
            node: call.node(),
            config: locked,
            ..Vm::default()
        },
    );
    if let Some(pool) = call.get("pool").and_then(|pool| state.pools.get_mut(pool)) {
        pool.vms.insert(newid);
    }
    Ok(())
}

fn storage_of(drive: &Drive) -> &str {
    drive
        .file
        .split_once(':')
        .map_or("", |(storage, _)| storage)
}

/// The clone's config before its disks are copied.
fn new_config(call: &Call, mut config: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = ["parent", "vmgenid", "smbios1", "description"];
    config.retain(|key, _| !drive::is_unused(key) && !own.contains(&key.as_str()));
    for key in ["name", "description"] {
        if let Some(text) = call.get(key) {
            config.insert(key.to_owned(), text.to_owned());
        }
    }
    super::qemu::renew(&call.sim, &mut config);
    config
}

fn clone(call: &Call) -> ApiResult {
    let (node, vmid) = (call.node(), call.vmid());
    let newid: VmNumber = call.text("newid").parse().unwrap_or_default();
    let (config, from) = call.sim.with_vm(&node, vmid, |vm| {
        update::check_state(vm, None)?;
        Ok::<_, Fail>((vm.config.clone(), disks(vm)))
    })??;
    reserve(call, newid, &from)?;
    let mut config = new_config(call, config);
    let target = call.get("storage").map(str::to_owned);
    let what = TaskKind {
        node: node.clone(),
        kind: "qmclone",
        id: vmid.to_string(),
    };
    let sim = Arc::clone(&call.sim);
    let upid = tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        let _guard = sim.lock_vm(&node, vmid).await?;
        log.line(format!("creating a clone of VM {vmid} with ID {newid}"));
        for (slot, drive) in &from {
            let storage = target.as_deref().unwrap_or(storage_of(drive));
            let copy = Copy {
                node: &node,
                vmid: newid,
                storage,
                slot,
            };
            let made = copies::full(&sim, &copy, drive, &log).await?;
            config.insert(slot.clone(), made.print());
        }
        sim.with_vm(&node, newid, |vm| vm.config = config)
    });
    Ok(json!(upid).into())
}

fn preconditions(call: &Call) -> ApiResult {
    let node = call.node();
    call.sim.with_vm(&node, call.vmid(), |_| ())?;
    let state = call.sim.lock();
    let vm = state.vms.get(&call.vmid());
    let local: Vec<Value> = vm.map(|vm| local_disks(&state, vm)).unwrap_or_default();
    let nodes: Vec<&String> = state.nodes.keys().filter(|name| **name != node).collect();
    Ok(json!({
        "running": u8::from(vm.is_some_and(|vm| vm.running)), "allowed_nodes": nodes, "not_allowed_nodes": {}, "local_disks": local,
        "local_resources": [], "mapped-resources": [], "mapped-resource-info": {}, "has-dbus-vmstate": 1,
    })
    .into())
}

fn local_disks(state: &State, vm: &Vm) -> Vec<Value> {
    let is_local = |drive: &Drive| {
        drive
            .file
            .split_once(':')
            .and_then(|(id, _)| state.storages.get(id))
            .is_some_and(|s| !s.shared)
    };
    let rows = disks(vm).into_iter().filter(|(_, drive)| is_local(drive)).map(|(slot, drive)| {
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
    if !call.sim.lock().nodes.contains_key(&target) {
        return Err(Fail::die(format!("no such cluster node '{target}'")));
    }
    let running = call.sim.with_vm(&node, vmid, |vm| {
        update::check_state(vm, None).map(|()| vm.running)
    })??;
    if running && !call.flag("online") {
        return Err(Fail::die("can't migrate running VM without --online"));
    }
    let what = TaskKind {
        node: node.clone(),
        kind: "qmigrate",
        id: vmid.to_string(),
    };
    let sim = Arc::clone(&call.sim);
    let upid = tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        let order = Migration { node, vmid, target };
        order.run(&sim, &log).await
    });
    Ok(json!(upid).into())
}

struct Migration {
    node: String,
    vmid: VmNumber,
    target: String,
}

impl Migration {
    /// The VM is locked while it moves; its config is on the target at once afterwards.
    async fn run(&self, sim: &Arc<Sim>, log: &TaskLog) -> Result<(), Fail> {
        let foreign = {
            let state = sim.lock();
            let vm = state.vms.get(&self.vmid);
            let local = vm.map(|vm| local_disks(&state, vm)).unwrap_or_default();
            let ids: Vec<String> = local
                .iter()
                .filter_map(|row| Some(row.get("volid")?.as_str()?.to_owned()))
                .collect();
            ids.into_iter()
                .filter_map(|id| Some((volume_owner(&state, &id)?, id)))
                .collect::<Vec<_>>()
        };
        log.line(format!(
            "starting migration of VM {} to node '{}'",
            self.vmid, self.target
        ));
        for (owner, volid) in &foreign {
            if *owner != self.vmid {
                log.line(format!(
                    "can't migrate local disk '{volid}': owned by other VM (owner = VM {owner})"
                ));
            }
        }
        if foreign.iter().any(|(owner, _)| *owner != self.vmid) {
            return Err(Fail::die("can't migrate VM - check log"));
        }
        sim.with_vm(&self.node, self.vmid, |vm| {
            vm.config.insert("lock".to_owned(), "migrate".to_owned())
        })?;
        sim.clock.sleep(sim.timing.migrate).await;
        let mut state = sim.lock();
        for (_, volid) in &foreign {
            if let Some(volume) = state
                .volume_at(&self.node, volid)
                .and_then(|at| state.volumes.get_mut(at))
            {
                volume.node = Some(self.target.clone());
            }
        }
        let vm = state
            .vms
            .get_mut(&self.vmid)
            .ok_or_else(|| crate::sim::no_config(&self.node, self.vmid))?;
        vm.node.clone_from(&self.target);
        vm.config.remove("lock");
        Ok(())
    }
}
