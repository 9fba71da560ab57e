//! A running QEMU: which disks it has, how plugging and unplugging go wrong, start and stop.

use std::sync::Arc;
use std::time::Duration;

use crate::drive::{self, Drive};
use crate::fail::Fail;
use crate::sim::{Sim, no_config};
use crate::state::{Device, State, Vm, VmNumber};
use crate::{update, volumes};

/// How long PVE polls for a disk to go (6 × 1 s) and for a controller (16 × 1 s).
const DISK_POLL: Duration = Duration::from_secs(6);
const CONTROLLER_POLL: Duration = Duration::from_secs(16);

type At<'a> = (&'a str, VmNumber);

/// The device as QEMU would have it; `size` from the storage.
fn device(drive: &Drive, size: u64) -> Device {
    Device {
        volid: drive.file.clone(),
        size,
        serial: drive.option("serial").map(crate::http::form::unescape),
        wwn: drive.option("wwn").map(str::to_owned),
        readonly: drive.option("ro") == Some("1"),
        ssd: drive.option("ssd") == Some("1"),
        visible: true,
    }
}

/// The controller that goes when this disk is unplugged, if one does.
fn leaving_controller(vm: &Vm, key: &str) -> Option<String> {
    let (bus, number) = drive::slot(key)?;
    if bus == "virtio" {
        return Some(key.to_owned());
    }
    if vm.scsihw() == "virtio-scsi-single" {
        return Some(format!("virtioscsi{number}"));
    }
    // Only disks that QEMU has and the config knows keep the controller (`qemu_deletescsihw`).
    let others = vm.devices.keys().any(|other| {
        other != key
            && vm.config.contains_key(other)
            && drive::slot(other).is_some_and(|(bus, _)| bus == "scsi")
    });
    (!others).then(|| "scsihw0".to_owned())
}

/// Makes the guest see a plugged disk. The memory hardware needs nothing for it.
fn show(
    sim: &Sim,
    state: &State,
    vmid: VmNumber,
    key: &str,
    device: &Device,
) -> Result<(), String> {
    let node = state
        .vms
        .get(&vmid)
        .map(|vm| vm.node.clone())
        .unwrap_or_default();
    let volume = state
        .volume(&node, &device.volid)
        .ok_or_else(|| format!("no volume {}", device.volid))?;
    sim.hardware
        .plug(vmid, key, device, &volumes::backing(volume))
}

/// `vm_deviceplug`. The inner error is the text behind `hotplug problem - `.
pub(crate) async fn plug(
    sim: &Arc<Sim>,
    (node, vmid): At<'_>,
    key: &str,
    drive: &Drive,
) -> Result<Result<(), String>, Fail> {
    sim.clock.sleep(sim.timing.attach).await;
    let virtio = key.starts_with("virtio");
    let refused = {
        let mut state = sim.lock();
        let size = state
            .volume(node, &drive.file)
            .map_or(0, |volume| volume.size);
        let vm = state
            .vms
            .get_mut(&vmid)
            .ok_or_else(|| no_config(node, vmid))?;
        // A disk that QEMU has in the slot ends it as a success, whatever volume it is (`QemuServer.pm` 3906-3907).
        if vm.devices.contains_key(key) || drive.volid().is_none() {
            return Ok(Ok(()));
        }
        if vm.leaked.contains(key) {
            return Ok(Err(format!(
                "VM {vmid} qmp command 'object-add' failed - attempt to add duplicate property 'throttle-drive-{key}' to object (type 'container')"
            )));
        }
        if count_down(&mut vm.faults.hotplug_fail) && !virtio {
            return Ok(Err(format!(
                "VM {vmid} qmp command 'blockdev-add' failed - Could not open '{}': Input/output error",
                drive.file
            )));
        }
        let silent = count_down(&mut vm.faults.hotplug_fail_silent);
        let mut new = device(drive, size);
        new.visible = !vm.paused;
        let visible = new.visible;
        let shown = if visible && !silent {
            show(sim, &state, vmid, key, &new)
        } else {
            Ok(())
        };
        if let Err(error) = &shown {
            tracing::warn!(vmid, key, %error, "the guest's disk could not be made");
        }
        let vm = state
            .vms
            .get_mut(&vmid)
            .ok_or_else(|| no_config(node, vmid))?;
        let refused = silent || shown.is_err();
        if refused {
            vm.leaked.insert(key.to_owned());
        } else {
            vm.devices.insert(key.to_owned(), new);
        }
        refused
    };
    if refused && virtio {
        sim.clock.sleep(DISK_POLL).await;
        return Ok(Err(format!("error on hotplug device '{key}'")));
    }
    Ok(Ok(()))
}

fn count_down(left: &mut u32) -> bool {
    let hit = *left > 0;
    *left = left.saturating_sub(1);
    hit
}

enum Unplug {
    Absent,
    Goes,
    Stuck(String),
    /// The disk goes, its controller does not.
    Controller(String),
}

/// `vm_deviceunplug`. The inner error is the text behind `hotplug problem - `.
pub(crate) async fn unplug(
    sim: &Arc<Sim>,
    (node, vmid): At<'_>,
    key: &str,
) -> Result<Result<(), String>, Fail> {
    let busy =
        |what: &str| format!("error on hot-unplugging device '{what}' - still busy in guest?");
    let plan = sim.with_vm(node, vmid, |vm| {
        if !vm.devices.contains_key(key) {
            return Ok(Unplug::Absent);
        }
        if update::boots_from(vm, key) {
            return Err(format!("can't unplug bootdisk '{key}'"));
        }
        if count_down(&mut vm.faults.unplug_stuck) {
            return Ok(Unplug::Stuck(key.to_owned()));
        }
        let Some(controller) = leaving_controller(vm, key) else {
            return Ok(Unplug::Goes);
        };
        if !vm.paused && !count_down(&mut vm.faults.unplug_busy) {
            return Ok(Unplug::Goes);
        }
        vm.ejecting.insert(controller.clone());
        Ok(if key.starts_with("virtio") {
            Unplug::Stuck(controller)
        } else {
            Unplug::Controller(controller)
        })
    })?;
    match plan {
        Err(text) => Ok(Err(text)),
        Ok(Unplug::Absent) => Ok(Ok(())),
        Ok(Unplug::Stuck(what)) => {
            sim.clock.sleep(DISK_POLL).await;
            Ok(Err(busy(&what)))
        }
        Ok(Unplug::Goes) => {
            sim.clock.sleep(sim.timing.detach).await;
            remove(sim, vmid, key);
            Ok(Ok(()))
        }
        Ok(Unplug::Controller(controller)) => {
            sim.clock.sleep(sim.timing.detach).await;
            remove(sim, vmid, key);
            sim.clock.sleep(CONTROLLER_POLL).await;
            Ok(Err(busy(&controller)))
        }
    }
}

fn remove(sim: &Sim, vmid: VmNumber, key: &str) {
    if let Some(vm) = sim.lock().vms.get_mut(&vmid) {
        vm.devices.remove(key);
    }
    sim.hardware.unplug(vmid, key);
}

/// Starts QEMU with all drives of the config; pending changes are applied by the caller.
pub(crate) fn start(sim: &Sim, node: &str, vmid: VmNumber) -> Result<(), Fail> {
    let mut state = sim.lock();
    let vm = state
        .vms
        .get(&vmid)
        .filter(|vm| vm.node == node)
        .ok_or_else(|| no_config(node, vmid))?;
    if vm.running {
        return Err(Fail::die(format!("VM {vmid} already running")));
    }
    let mut devices = std::collections::BTreeMap::new();
    for (key, value) in vm
        .config
        .iter()
        .filter(|(key, _)| drive::slot(key).is_some())
    {
        let drive = Drive::parse(key, value).unwrap_or_default();
        if let Some(volid) = drive.volid().filter(|_| !drive.is_cdrom()) {
            let size = volumes::activate(&state, node, volid)?;
            devices.insert(key.clone(), device(&drive, size));
        }
    }
    let uuid = vm.uuid();
    sim.hardware.boot(vmid, uuid).map_err(Fail::die)?;
    for (key, device) in &devices {
        if let Err(text) = show(sim, &state, vmid, key, device) {
            for key in devices.keys() {
                sim.hardware.unplug(vmid, key);
            }
            return Err(Fail::die(text));
        }
    }
    let (now, pid) = (sim.clock.epoch(), sim.next_pid());
    let vm = state
        .vms
        .get_mut(&vmid)
        .ok_or_else(|| no_config(node, vmid))?;
    vm.devices = devices;
    (vm.running, vm.paused, vm.started, vm.pid) = (true, false, now, pid);
    Ok(())
}

/// A live migration: another QEMU, made from the config, goes on with the guest. It takes no disk that the config lacks (its
/// state would find no device); one that the config has is in it, and nothing is left over from the old one.
pub(crate) fn continue_elsewhere(sim: &Sim, (node, vmid): At<'_>) -> Result<(), Fail> {
    let mut state = sim.lock();
    let vm = state
        .vms
        .get(&vmid)
        .filter(|vm| vm.node == node)
        .ok_or_else(|| no_config(node, vmid))?;
    if let Some(slot) = vm
        .devices
        .keys()
        .find(|slot| !vm.config.contains_key(*slot))
    {
        return Err(Fail::die(format!(
            "aborting, unknown device {slot} in migration stream"
        )));
    }
    let mut fresh = std::collections::BTreeMap::new();
    let disks = vm
        .config
        .iter()
        .filter(|(key, _)| drive::slot(key).is_some());
    for (key, value) in disks.filter(|(key, _)| !vm.devices.contains_key(*key)) {
        let drive = Drive::parse(key, value).unwrap_or_default();
        if let Some(volid) = drive.volid().filter(|_| !drive.is_cdrom()) {
            let size = volumes::activate(&state, node, volid)?;
            let device = device(&drive, size);
            show(sim, &state, vmid, key, &device).map_err(Fail::die)?;
            fresh.insert(key.clone(), device);
        }
    }
    let pid = sim.next_pid();
    if let Some(vm) = state.vms.get_mut(&vmid) {
        vm.devices.extend(fresh);
        vm.leaked.clear();
        vm.ejecting.clear();
        vm.pid = pid;
    }
    Ok(())
}

pub(crate) fn stop(sim: &Sim, node: &str, vmid: VmNumber) -> Result<(), Fail> {
    let slots: Vec<String> = sim.with_vm(node, vmid, |vm| {
        (vm.running, vm.paused, vm.pid) = (false, false, 0);
        vm.leaked.clear();
        vm.ejecting.clear();
        std::mem::take(&mut vm.devices).into_keys().collect()
    })?;
    for slot in slots {
        sim.hardware.unplug(vmid, &slot);
    }
    Ok(())
}

pub(crate) fn pause(sim: &Sim, node: &str, vmid: VmNumber) -> Result<(), Fail> {
    sim.with_vm(node, vmid, |vm| vm.paused = vm.running)
}

/// The guest goes on: ejected controllers leave with whatever was plugged into them meanwhile, other new disks are seen.
pub(crate) fn resume(sim: &Sim, node: &str, vmid: VmNumber) -> Result<(), Fail> {
    let (gone, fresh) = sim.with_vm(node, vmid, |vm| {
        vm.paused = false;
        let ejecting = std::mem::take(&mut vm.ejecting);
        let on_ejected = |key: &str| {
            let number = drive::slot(key).map_or(0, |(_, number)| number);
            ejecting.contains(key)
                || ejecting.contains(&format!("virtioscsi{number}"))
                || (key.starts_with("scsi") && ejecting.contains("scsihw0"))
        };
        let gone: Vec<String> = vm
            .devices
            .keys()
            .filter(|key| on_ejected(key))
            .cloned()
            .collect();
        for key in &gone {
            vm.devices.remove(key);
            vm.leaked.insert(key.clone());
        }
        let fresh: Vec<(String, Device)> = vm
            .devices
            .iter()
            .filter(|(_, d)| !d.visible)
            .map(|(k, d)| (k.clone(), d.clone()))
            .collect();
        for device in vm.devices.values_mut() {
            device.visible = true;
        }
        (gone, fresh)
    })?;
    for key in gone {
        sim.hardware.unplug(vmid, &key);
    }
    let state = sim.lock();
    for (key, device) in fresh {
        show(sim, &state, vmid, &key, &device).map_err(Fail::die)?;
    }
    Ok(())
}
