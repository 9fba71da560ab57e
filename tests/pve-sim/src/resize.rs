//! `PUT …/resize`: all of it happens in the worker, also the verdict (`Qemu.pm` `resize_vm`).

use std::sync::Arc;

use crate::acl::{self, Who};
use crate::drive::Drive;
use crate::fail::Fail;
use crate::sim::{Sim, no_config};
use crate::state::{StorageKind, VmNumber};
use crate::tasks::TaskLog;
use crate::{units, update, volumes};

#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) who: Who,
    pub(crate) node: String,
    pub(crate) vmid: VmNumber,
    pub(crate) disk: String,
    pub(crate) size: String,
    pub(crate) digest: Option<String>,
}

pub(crate) async fn run(sim: &Arc<Sim>, order: &Order, log: &TaskLog) -> Result<(), Fail> {
    let (node, vmid, disk) = (order.node.as_str(), order.vmid, order.disk.as_str());
    let _guard = sim.lock_vm(node, vmid).await?;
    let mut drive = sim.with_vm(node, vmid, |vm| {
        update::check_state(vm, order.digest.as_deref())?;
        let text = vm
            .config
            .get(disk)
            .ok_or_else(|| Fail::die(format!("disk '{disk}' does not exist")))?;
        Drive::parse(disk, text).map_err(Fail::die)
    })??;
    let volid = drive
        .volid()
        .map(str::to_owned)
        .ok_or_else(|| Fail::die(format!("disk '{disk}' has no associated volume")))?;
    let (storage, name) = volid
        .split_once(':')
        .map(|(s, n)| (s.to_owned(), n.to_owned()))
        .unwrap_or_default();
    let current = {
        let state = sim.lock();
        acl::need_all(
            &state,
            &order.who,
            &format!("/storage/{storage}"),
            &["Datastore.AllocateSpace"],
        )?;
        let found = state.enabled_storage(&storage, node)?;
        let volume = state.volume(node, &volid);
        volume
            .map(|volume| volume.size)
            .ok_or_else(|| Fail::die(found.no_size_text(&volid, &name)))?
    };
    let (plus, bytes) =
        units::resize_size(&order.size).ok_or_else(|| Fail::die("unable to parse the size"))?;
    let wanted = if plus {
        current.saturating_add(bytes)
    } else {
        bytes
    };
    if wanted < current {
        return Err(Fail::die("shrinking disks is not supported"));
    }
    if wanted == current {
        return Ok(());
    }
    grow(sim, order, (&storage, &name, &volid), wanted, log)?;
    sim.may_write(node, vmid)?;
    drive
        .options
        .insert("size".to_owned(), units::print_size(wanted));
    sim.with_vm(node, vmid, |vm| {
        vm.config.insert(disk.to_owned(), drive.print());
    })
}

fn grow(
    sim: &Arc<Sim>,
    order: &Order,
    (storage, name, volid): (&str, &str, &str),
    wanted: u64,
    log: &TaskLog,
) -> Result<(), Fail> {
    let mut state = sim.lock();
    let definition = state.enabled_storage(storage, &order.node)?.clone();
    let real = definition.round(wanted);
    let taken = definition.used + state.allocated(storage, &definition, &order.node);
    let grown = real.saturating_sub(state.volume(&order.node, volid).map_or(0, |v| v.size));
    if definition.kind.is_thick() && definition.total.saturating_sub(taken) < grown {
        let text = definition.no_room_to_grow(name, grown);
        return Err(Fail::die(text));
    }
    let running = state.vms.get(&order.vmid).is_some_and(|vm| vm.running);
    let at = state
        .volume_at(&order.node, volid)
        .ok_or_else(|| Fail::die(definition.no_size_text(volid, name)))?;
    if let Some(volume) = state.volumes.get_mut(at) {
        sim.hardware
            .resize(&volumes::backing(volume), real)
            .map_err(Fail::die)?;
        volume.size = real;
    }
    match definition.kind {
        // The file of a running VM is grown by its QEMU.
        StorageKind::Dir | StorageKind::Nfs if running => {}
        StorageKind::Dir | StorageKind::Nfs => log.line("Image resized."),
        StorageKind::Lvm | StorageKind::LvmThin => log.line(format!(
            "  Logical volume {}/{name} successfully resized.",
            definition.vgname
        )),
        StorageKind::ZfsPool | StorageKind::Rbd | StorageKind::Drbd => {}
    }
    let vm = state
        .vms
        .get_mut(&order.vmid)
        .ok_or_else(|| no_config(&order.node, order.vmid))?;
    if !vm.running {
        return Ok(());
    }
    let Some(device) = vm.devices.get_mut(&order.disk) else {
        return Err(Fail::die(format!(
            "no block node inserted for drive '{}'",
            order.disk
        )));
    };
    device.size = wanted;
    sim.hardware.grow(order.vmid, &order.disk, wanted);
    Ok(())
}
