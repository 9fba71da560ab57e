//! `POST …/move_disk`: to another storage, or to another VM under a new name (`Qemu.pm` `move_vm_disk`).

use std::sync::Arc;

use serde_json::json;

use crate::acl;
use crate::copies::{self, Copy};
use crate::drive::{self, Drive};
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now};
use crate::sim::Sim;
use crate::state::{State, Vm, VmNumber};
use crate::tasks::{self, TaskKind, TaskLog};
use crate::{update, volumes};

pub(super) fn routes() -> Vec<Route> {
    vec![now(
        "POST",
        "/nodes/{node}/qemu/{vmid}/move_disk",
        move_disk,
    )]
}

fn move_disk(call: &Call) -> ApiResult {
    match (call.get("storage"), call.get("target-vmid")) {
        (Some(_), Some(_)) => {
            let text = "either set 'storage' or 'target-vmid', but not both";
            Err(Fail::params(
                ["storage", "target-vmid"]
                    .map(|key| (key.to_owned(), text.to_owned()))
                    .into(),
            ))
        }
        (None, None) => {
            let text = "either 'storage' or 'target-vmid' needs to be set";
            Err(Fail::params(
                ["storage", "target-vmid"]
                    .map(|key| (key.to_owned(), text.to_owned()))
                    .into(),
            ))
        }
        (Some(storage), None) => to_storage(call, storage),
        (None, Some(_)) => to_vm(call),
    }
}

fn to_storage(call: &Call, storage: &str) -> ApiResult {
    let (node, vmid, disk) = (call.node(), call.vmid(), call.text("disk").to_owned());
    acl::need_all(
        &call.sim.lock(),
        &call.who,
        &format!("/storage/{storage}"),
        &["Datastore.AllocateSpace"],
    )?;
    let digest = call.get("digest").map(str::to_owned);
    call.sim.with_vm(&node, vmid, |vm| {
        update::check_state(vm, digest.as_deref())?;
        vm.config
            .get(&disk)
            .map(|_| ())
            .ok_or_else(|| Fail::die(format!("disk '{disk}' does not exist")))
    })??;
    call.sim.lock().enabled_storage(storage, &node)?;
    let what = TaskKind {
        node: node.clone(),
        kind: "qmmove",
        id: vmid.to_string(),
    };
    let (sim, storage, drop_source) = (
        Arc::clone(&call.sim),
        storage.to_owned(),
        call.flag("delete"),
    );
    let upid = tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        let _guard = sim.lock_vm(&node, vmid).await?;
        let order = StorageMove {
            node,
            vmid,
            disk,
            storage,
            drop_source,
        };
        order.run(&sim, &log).await
    });
    Ok(json!(upid).into())
}

struct StorageMove {
    node: String,
    vmid: VmNumber,
    disk: String,
    storage: String,
    drop_source: bool,
}

impl StorageMove {
    async fn run(&self, sim: &Arc<Sim>, log: &TaskLog) -> Result<(), Fail> {
        let text = sim.with_vm(&self.node, self.vmid, |vm| {
            vm.config.get(&self.disk).cloned()
        })?;
        let text = text.ok_or_else(|| Fail::die(format!("disk '{}' does not exist", self.disk)))?;
        let drive = Drive::parse(&self.disk, &text).map_err(Fail::die)?;
        let source = drive.file.clone();
        let from = source.split_once(':').map_or("", |(storage, _)| storage);
        log.line(format!(
            "copying volume '{source}' from current storage '{from}' to target storage '{}'",
            self.storage
        ));
        let copy = Copy {
            node: &self.node,
            vmid: self.vmid,
            storage: &self.storage,
            slot: &self.disk,
        };
        let made = copies::full(sim, &copy, &drive, log).await?;
        let plugged = sim.with_vm(&self.node, self.vmid, |vm| {
            vm.devices.contains_key(&self.disk)
        })?;
        if plugged {
            sim.hardware
                .mirror(self.vmid, &self.disk)
                .map_err(|text| Fail::die(format!("storage migration failed: {text}")))?;
        }
        sim.with_vm(&self.node, self.vmid, |vm| {
            vm.config.insert(self.disk.clone(), made.print());
            if let Some(device) = vm.devices.get_mut(&self.disk) {
                device.volid.clone_from(&made.file);
            }
        })?;
        if self.drop_source {
            log.line(format!(
                "removing source volume '{source}' after successful copy"
            ));
            return volumes::free(sim, &self.node, &source, None).await;
        }
        // Without a look at who owns the volume.
        let key = sim.with_vm(&self.node, self.vmid, |vm| {
            vm.add_unused(&source);
            vm.config
                .iter()
                .find(|(key, value)| drive::is_unused(key) && **value == source)
                .map(|(key, _)| key.clone())
        })?;
        log.line(format!(
            "adding source volume '{source}' as '{}' to config",
            key.unwrap_or_default()
        ));
        Ok(())
    }
}

fn to_vm(call: &Call) -> ApiResult {
    let (node, vmid, disk) = (call.node(), call.vmid(), call.text("disk").to_owned());
    let target: VmNumber = call.text("target-vmid").parse().unwrap_or_default();
    let key = call.get("target-disk").unwrap_or(&disk).to_owned();
    let order = Reassign {
        vmid,
        disk,
        target,
        key,
    };
    {
        let state = call.sim.lock();
        acl::need_all(
            &state,
            &call.who,
            &format!("/vms/{target}"),
            &["VM.Config.Disk"],
        )?;
        let volid = order.check(&state, &node)?;
        let storage = volid.split_once(':').map_or("", |(storage, _)| storage);
        acl::need_all(
            &state,
            &call.who,
            &format!("/storage/{storage}"),
            &["Datastore.AllocateSpace"],
        )?;
    }
    let id = format!("{vmid}-{}>{target}-{}", order.disk, order.key);
    let what = TaskKind {
        node: node.clone(),
        kind: "qmmove",
        id,
    };
    let sim = Arc::clone(&call.sim);
    let upid = tasks::fork(&call.sim, &call.who, &what, move |_| async move {
        let _source = sim.lock_vm(&node, vmid).await?;
        let _target = sim.lock_vm(&node, target).await?;
        order.run(&sim, &node)
    });
    Ok(json!(upid).into())
}

struct Reassign {
    vmid: VmNumber,
    disk: String,
    target: VmNumber,
    key: String,
}

impl Reassign {
    fn vms<'a>(&self, state: &'a State) -> Result<(&'a Vm, &'a Vm), Fail> {
        let target = state.vms.get(&self.target);
        let target =
            target.ok_or_else(|| Fail::die(format!("could not find target VM {}", self.target)))?;
        let source = state.vms.get(&self.vmid);
        source
            .map(|source| (source, target))
            .ok_or_else(|| crate::sim::no_config("", self.vmid))
    }

    /// The volume that would move.
    fn check(&self, state: &State, node: &str) -> Result<String, Fail> {
        let (source, target) = self.vms(state)?;
        if source.node != target.node || source.node != node {
            return Err(Fail::die(format!(
                "Both VMs need to be on the same node ({} != {})",
                source.node, target.node
            )));
        }
        update::check_state(source, None)?;
        update::check_state(target, None)?;
        let text = source.config.get(&self.disk);
        let text = text.ok_or_else(|| {
            Fail::die(format!(
                "Disk '{}' for VM '{}' does not exist",
                self.disk, self.vmid
            ))
        })?;
        if target.config.contains_key(&self.key) {
            return Err(Fail::die(format!(
                "Target disk key '{}' is already in use for VM '{}'",
                self.key, self.target
            )));
        }
        if source.running && !drive::is_unused(&self.disk) {
            return Err(Fail::die(
                "Cannot move disk to another VM while the source VM is running - detach first",
            ));
        }
        Ok(text.split(',').next().unwrap_or_default().to_owned())
    }

    /// The volume gets the next free name of the target.
    fn run(&self, sim: &Sim, node: &str) -> Result<(), Fail> {
        let mut state = sim.lock();
        let volid = self.check(&state, node)?;
        let (storage, name) = volid.split_once(':').unwrap_or((&volid, ""));
        let definition = state.enabled_storage(storage, node)?;
        let at = state
            .volume_at(node, &volid)
            .ok_or_else(|| Fail::die(definition.absent_text(&volid, name)))?;
        let wanted = volumes::Wanted {
            node,
            storage,
            vmid: self.target,
            file: None,
            format: None,
            bytes: 0,
        };
        let new_name = volumes::free_name(&state, &wanted)?;
        let new_id = format!("{storage}:{new_name}");
        if let Some(volume) = state.volumes.get_mut(at) {
            let from = volumes::backing(volume);
            volume.name = new_name;
            sim.hardware
                .rename(&from, &volumes::backing(volume))
                .map_err(Fail::die)?;
        }
        let moved = state
            .vms
            .get_mut(&self.vmid)
            .and_then(|vm| vm.config.remove(&self.disk))
            .unwrap_or_default();
        let text = match moved.split_once(',') {
            Some((_, options)) if !drive::is_unused(&self.key) => format!("{new_id},{options}"),
            _ => new_id,
        };
        if let Some(vm) = state.vms.get_mut(&self.target) {
            vm.config.insert(self.key.clone(), text);
        }
        Ok(())
    }
}
