//! What has to be true whatever went wrong, read from what the simulated cluster really holds.

use pve_model::{Bytes, PublishContext, Slot};
use pve_sim::{SimHandle, State, VmFaults};

use super::{Answer, Volume};
use crate::truth::{Truth, volid};
use crate::world::OWNER;

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// There, and in no VM.
    Detached,
    /// There, and in its VM.
    Attached,
    /// Not there.
    Gone,
}

/// What is wrong after an RPC that said OK to the only volume of the driver.
pub fn broken(sim: &SimHandle, volume: &Volume, stage: Stage, answer: &Answer) -> Vec<String> {
    let truth = Truth::of(sim);
    let mut found = truth.violations();
    let disks: Vec<String> = truth.disks().into_iter().collect();
    let right = match stage {
        Stage::Gone => Vec::new(),
        Stage::Detached | Stage::Attached => vec![volid(&volume.handle)],
    };
    if disks != right {
        found.push(format!("the disks are {disks:?}, not {right:?}"));
    }
    let holders: Vec<u32> = truth.holders(&volume.handle).into_iter().collect();
    let right = match stage {
        Stage::Attached => vec![volume.vmid],
        Stage::Gone | Stage::Detached => Vec::new(),
    };
    if holders != right {
        found.push(format!("the holders are {holders:?}, not {right:?}"));
    }
    let slots = truth.slots(volume.vmid, &volume.handle);
    if slots.len() != right.len() {
        found.push(format!("it is in the slots {slots:?} of the VM"));
    }
    found.extend(sizes(&truth, volume, stage));
    found.extend(untrue(&truth, volume, answer));
    found
}

/// A size that differs from what was last answered: of the storage, in the VM's config, or of QEMU.
fn sizes(truth: &Truth, volume: &Volume, stage: Stage) -> Option<String> {
    let (handle, vmid) = (&volume.handle, volume.vmid);
    let mut all = Vec::new();
    if stage != Stage::Gone {
        all.push(truth.size(handle));
    }
    if stage == Stage::Attached {
        let slot = truth.slots(vmid, handle).pop().unwrap_or_default();
        all.push(truth.device(vmid, &slot).map(|device| device.size));
        let written = truth.config(vmid, &slot).and_then(written_size);
        all.push(written);
    }
    let right = u64::try_from(volume.bytes).ok();
    let same = all.iter().all(|size| *size == right);
    (!same).then(|| format!("storage, QEMU and config say {all:?} bytes, the answer was {right:?}"))
}

/// `size=` of a drive in a config.
fn written_size(drive: &str) -> Option<u64> {
    let size = drive
        .split(',')
        .find_map(|part| part.strip_prefix("size="))?;
    let digits = size.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match size.strip_prefix(digits)? {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => 40,
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

/// What the answer says that is not so.
fn untrue(truth: &Truth, volume: &Volume, answer: &Answer) -> Option<String> {
    match answer {
        // That the size is so is looked at in any case.
        Answer::Done | Answer::Grown(_) => None,
        Answer::Made(handle, bytes) => {
            let real = truth.size(handle);
            let same = real.is_some_and(|real| i64::try_from(real) == Ok(*bytes));
            (!same).then(|| format!("{handle} of {bytes} bytes was answered, {real:?} are there"))
        }
        Answer::Attached(map) => {
            let real = real_context(truth, volume);
            let said = PublishContext::from_map(map).ok();
            // The size may be left out.
            let same = said.zip(real).is_some_and(|(said, real)| {
                (said.wwn, said.lun) == (real.wwn, real.lun)
                    && said.size.is_none_or(|size| Some(size) == real.size)
            });
            (!same).then(|| format!("{said:?} was answered, {real:?} is"))
        }
    }
}

/// The context that leads the node plugin to the disk.
fn real_context(truth: &Truth, volume: &Volume) -> Option<PublishContext> {
    let slot = truth.slots(volume.vmid, &volume.handle).pop()?;
    let device = truth.device(volume.vmid, &slot)?;
    Some(PublishContext {
        wwn: device.wwn.as_ref()?.parse().ok()?,
        lun: Some(slot.parse::<Slot>().ok()?.index()),
        size: Some(Bytes::new(device.size)),
    })
}

/// Everything in the cluster that is not the driver's: other tenants' and administrators' disks and VMs.
pub fn foreign(sim: &SimHandle) -> State {
    let mut state = sim.state();
    let ours = format!("vm-{OWNER}-");
    state.volumes.retain(|volume| !volume.name.contains(&ours));
    for vm in state.vms.values_mut() {
        vm.config.retain(|_, value| !value.contains(&ours));
        vm.pending.retain(|_, value| !value.contains(&ours));
        vm.devices.retain(|_, device| !device.volid.contains(&ours));
        vm.leaked.clear();
        (vm.started, vm.pid, vm.faults) = (0, 0, VmFaults::default());
    }
    state
}

/// What is not as it was.
pub fn differs(before: &State, now: &State) -> Vec<String> {
    let mut found = Vec::new();
    if before.volumes != now.volumes {
        let (then, now) = (&before.volumes, &now.volumes);
        found.push(format!("disks of others were {then:?}, are {now:?}"));
    }
    for (vmid, then) in &before.vms {
        let now = now.vms.get(vmid);
        if now != Some(then) {
            found.push(format!("VM {vmid} was {then:?}, is {now:?}"));
        }
    }
    if found.is_empty() && before != now {
        found.push("hosts, storages, pools, users or rights have changed".to_owned());
    }
    found
}
