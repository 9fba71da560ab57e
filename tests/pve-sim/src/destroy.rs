//! Destroying a VM: which volumes go with it (`QemuServer.pm` `destroy_vm`), and what a scan of the storages finds again
//! (`rescan`). api.md 10.6 to 10.8.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::drive;
use crate::fail::Fail;
use crate::sim::{Sim, no_config};
use crate::state::{State, Vm, VmNumber, volume_owner};
use crate::tasks::TaskLog;
use crate::{units, update, volumes};

/// A VM that is to go.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) node: String,
    pub(crate) vmid: VmNumber,
    pub(crate) purge: bool,
    pub(crate) unreferenced: bool,
}

/// What is refused before a task is forked; a `lock:` is not among it.
pub(crate) fn check(state: &State, order: &Order) -> Result<(), Fail> {
    let vmid = order.vmid;
    let vm = find(state, order)?;
    if vm.protected() {
        return Err(Fail::die(format!(
            "can't remove VM {vmid} - protection mode enabled"
        )));
    }
    let managed = state.ha.resources.contains_key(&format!("vm:{vmid}"));
    if managed && !order.purge {
        return Err(Fail::die(format!(
            "unable to remove VM {vmid} - used in HA resources and purge parameter not set."
        )));
    }
    if vm.running {
        return Err(Fail::die(format!("VM {vmid} is running - destroy failed")));
    }
    Ok(())
}

fn find<'a>(state: &'a State, order: &Order) -> Result<&'a Vm, Fail> {
    let vm = state.vms.get(&order.vmid);
    vm.filter(|vm| vm.node == order.node)
        .ok_or_else(|| no_config(&order.node, order.vmid))
}

/// Frees what the VM owns: in the config, unused, pending; with `unreferenced` all that bears its number on any enabled storage.
/// What cannot be freed is only warned of.
pub(crate) async fn run(sim: &Arc<Sim>, order: &Order, log: &TaskLog) -> Result<(), Fail> {
    let _guard = sim.lock_vm(&order.node, order.vmid).await?;
    let referenced = {
        let state = sim.lock();
        check(&state, order)?;
        let vm = find(&state, order)?;
        update::check_state(vm, None)?;
        base_in_use(&state, vm)?;
        owned(&state, vm, order)
    };
    for volid in &referenced {
        if let Err(fail) = volumes::free(sim, &order.node, volid, Some(log)).await {
            let why = fail.exit_text();
            log.line(format!(
                "WARN: Could not remove disk '{volid}', check manually: {why}"
            ));
        }
    }
    if order.unreferenced {
        let rest = on_storages(&sim.lock(), &order.node, order.vmid);
        for volid in rest.keys() {
            if let Err(fail) = volumes::free(sim, &order.node, volid, Some(log)).await {
                log.line(format!("WARN: {}", fail.exit_text()));
            }
        }
    }
    sim.may_write(&order.node, order.vmid)?;
    if order.purge {
        let vmid = order.vmid;
        log.line(format!("purging VM {vmid} from related configurations.."));
        if sim.lock().ha.resources.contains_key(&format!("vm:{vmid}")) {
            log.line(format!(
                "NOTE: removed VM {vmid} from HA resource configuration."
            ));
        }
    }
    Ok(())
}

/// The base of a linked clone stays, and its VM with it.
fn base_in_use(state: &State, vm: &Vm) -> Result<(), Fail> {
    if vm.config.get("template").is_none_or(|flag| flag != "1") {
        return Ok(());
    }
    let mut disks = vm
        .config
        .iter()
        .filter(|(key, _)| drive::slot(key).is_some());
    let used = disks.find_map(|(_, value)| {
        let volid = value.split(',').next()?;
        volumes::has_clones(state, volid).then(|| volid.to_owned())
    });
    used.map_or(Ok(()), |volid| {
        Err(Fail::die(format!(
            "base volume '{volid}' is still in use by linked cloned"
        )))
    })
}

fn owned(state: &State, vm: &Vm, order: &Order) -> BTreeSet<String> {
    let lines = vm.config.iter().chain(&vm.pending);
    let disks = lines.filter(|(key, value)| {
        (drive::slot(key).is_some() || drive::is_unused(key)) && !value.contains("media=cdrom")
    });
    disks
        .filter_map(|(_, value)| value.split(',').next().map(str::to_owned))
        .filter(|volid| {
            volume_owner(state, volid) == Some(order.vmid)
                && state.volume(&order.node, volid).is_some()
        })
        .collect()
}

/// Volumes with this owner on the storages for images that are enabled on the PVE node, with their sizes (`vdisk_list`).
fn on_storages(state: &State, node: &str, vmid: VmNumber) -> BTreeMap<String, u64> {
    let listed = |id: &str| {
        let storage = state.active_storage(id, node);
        storage.is_ok_and(|storage| storage.content.contains("images"))
    };
    let there = state
        .volumes
        .iter()
        .filter(|volume| listed(&volume.storage));
    there
        .map(|volume| (volume.volid(), volume.size))
        .filter(|(volid, _)| {
            volume_owner(state, volid) == Some(vmid) && state.volume(node, volid).is_some()
        })
        .collect()
}

/// `qm rescan --vmid`: sizes of the config's disks are set right, what is used is no longer unused, and every other volume of the
/// VM's number becomes `unusedN`. Returns what it prints.
pub(crate) async fn rescan(sim: &Arc<Sim>, vmid: VmNumber) -> Result<Vec<String>, Fail> {
    let node = sim.lock().vms.get(&vmid).map(|vm| vm.node.clone());
    let node = node.ok_or_else(|| no_config("", vmid))?;
    let _guard = sim.lock_vm(&node, vmid).await?;
    let found = on_storages(&sim.lock(), &node, vmid);
    sim.may_write(&node, vmid)?;
    sim.with_vm(&node, vmid, |vm| {
        update::check_state(vm, None)?;
        Ok(update_disks(vm, vmid, &found))
    })?
}

fn update_disks(vm: &mut Vm, vmid: VmNumber, found: &BTreeMap<String, u64>) -> Vec<String> {
    let mut told = vec!["rescan volumes...".to_owned()];
    let mut referenced = BTreeSet::new();
    for (key, value) in &mut vm.config {
        let Ok(mut parsed) = drive::Drive::parse(key, value) else {
            continue;
        };
        if drive::slot(key).is_none() {
            continue;
        }
        referenced.insert(parsed.file.clone());
        let Some(size) = found.get(&parsed.file).map(|size| units::print_size(*size)) else {
            continue;
        };
        let old = parsed.option("size").unwrap_or("0").to_owned();
        if old != size {
            told.push(format!(
                "VM {vmid} ({key}): size of disk '{}' updated from {old} to {size}",
                parsed.file
            ));
            parsed.options.insert("size".to_owned(), size);
            *value = parsed.print();
        }
    }
    vm.config.retain(|key, value| {
        let drop = drive::is_unused(key) && referenced.contains(value);
        if drop {
            told.push(format!(
                "VM {vmid} remove entry '{key}', its volume '{value}' is in use"
            ));
        } else if drive::is_unused(key) {
            referenced.insert(value.clone());
        }
        !drop
    });
    for volid in found.keys().filter(|volid| !referenced.contains(*volid)) {
        vm.add_unused(volid);
        let key = vm
            .config
            .iter()
            .find(|(key, value)| drive::is_unused(key) && *value == volid);
        let key = key.map_or("", |(key, _)| key.as_str());
        told.push(format!(
            "VM {vmid} add unreferenced volume '{volid}' as '{key}' to config"
        ));
    }
    told
}
