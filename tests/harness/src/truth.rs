//! What the simulated cluster really holds, against which every answer of a program is judged.

use std::collections::{BTreeMap, BTreeSet};

use pve_sim::{Device, RequestEntry, SimHandle, State, Vm, VmNumber};

use crate::world::OWNER;

/// A copy of the cluster's state.
#[derive(Debug, Clone)]
pub struct Truth {
    state: State,
}

/// The PVE volume that a handle names: `storage:disk`.
pub fn volid(handle: &str) -> String {
    let mut parts = handle.splitn(4, '/').skip(2);
    let (storage, disk) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    format!("{storage}:{disk}")
}

/// The requests that can change something, as `METHOD path`.
pub fn mutations(requests: &[RequestEntry]) -> Vec<String> {
    requests
        .iter()
        .filter(|request| request.method != "GET")
        .map(|request| format!("{} {}", request.method, request.path))
        .collect()
}

impl Truth {
    /// As it is now.
    pub fn of(sim: &SimHandle) -> Self {
        Self { state: sim.state() }
    }

    /// The disks in the driver's name, as `storage:disk`.
    pub fn disks(&self) -> BTreeSet<String> {
        let ours = format!("vm-{OWNER}-");
        self.state
            .volumes
            .iter()
            .filter(|volume| volume.name.contains(&ours))
            .map(|volume| format!("{}:{}", volume.storage, volume.name))
            .collect()
    }

    /// Bytes of the disk of a handle; none if there is no such disk.
    pub fn size(&self, handle: &str) -> Option<u64> {
        let volid = volid(handle);
        self.state
            .volumes
            .iter()
            .find(|volume| format!("{}:{}", volume.storage, volume.name) == volid)
            .map(|volume| volume.size)
    }

    /// The VMs that have the disk of a handle: in the config, pending, or in QEMU.
    pub fn holders(&self, handle: &str) -> BTreeSet<VmNumber> {
        self.holders_of(&volid(handle))
    }

    /// The slots of a running VM in which both its config and QEMU have the disk of a handle.
    pub fn slots(&self, vmid: VmNumber, handle: &str) -> Vec<String> {
        let volid = volid(handle);
        let Some(vm) = self.state.vms.get(&vmid) else {
            return Vec::new();
        };
        vm.devices
            .iter()
            .filter(|(slot, device)| {
                device.volid == volid && vm.config.get(*slot).is_some_and(|v| file(v) == volid)
            })
            .map(|(slot, _)| slot.clone())
            .collect()
    }

    /// What QEMU has in a slot of a VM.
    pub fn device(&self, vmid: VmNumber, slot: &str) -> Option<&Device> {
        self.state.vms.get(&vmid)?.devices.get(slot)
    }

    /// The value of a config key of a VM.
    pub fn config(&self, vmid: VmNumber, key: &str) -> Option<&str> {
        self.state
            .vms
            .get(&vmid)?
            .config
            .get(key)
            .map(String::as_str)
    }

    /// What is wrong in any case: changes left pending, disks in two VMs or twice in one, QEMU and config at odds.
    pub fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (vmid, vm) in &self.state.vms {
            let pending = vm.pending.keys().chain(vm.pending_delete.keys());
            found.extend(pending.map(|key| format!("{key} of VM {vmid} is pending")));
            if vm.running {
                found.extend(
                    at_odds(vm)
                        .into_iter()
                        .map(|text| format!("VM {vmid}: {text}")),
                );
            }
        }
        for volid in self.disks() {
            let holders = self.holders_of(&volid);
            if holders.len() > 1 {
                found.push(format!("{volid} is in the VMs {holders:?}"));
            }
        }
        found
    }

    fn holders_of(&self, volid: &str) -> BTreeSet<VmNumber> {
        self.state
            .vms
            .iter()
            .filter(|(_, vm)| holds(vm, volid))
            .map(|(vmid, _)| *vmid)
            .collect()
    }
}

fn file(drive: &str) -> &str {
    drive.split(',').next().unwrap_or_default()
}

fn holds(vm: &Vm, volid: &str) -> bool {
    let written = vm.config.iter().chain(&vm.pending);
    let really = vm.devices.values().any(|device| device.volid == volid);
    really || written.into_iter().any(|(_, value)| file(value) == volid)
}

fn at_odds(vm: &Vm) -> Vec<String> {
    let mut intended: BTreeMap<&str, &str> = BTreeMap::new();
    for (key, value) in &vm.config {
        if ["scsi", "virtio"].iter().any(|bus| is_slot(key, bus)) {
            intended.insert(key, file(value));
        }
    }
    let real: BTreeMap<&str, &str> = vm
        .devices
        .iter()
        .map(|(slot, device)| (slot.as_str(), device.volid.as_str()))
        .collect();
    let twice = real.values().collect::<BTreeSet<_>>().len() != real.len();
    let mut found = Vec::new();
    if intended != real {
        found.push(format!("config {intended:?}, QEMU {real:?}"));
    }
    if twice {
        found.push(format!("a disk twice: {real:?}"));
    }
    found
}

fn is_slot(key: &str, bus: &str) -> bool {
    key.strip_prefix(bus)
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}
