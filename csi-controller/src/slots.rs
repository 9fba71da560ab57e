//! The decisions of attach and detach, without I/O: what a VM's config, its half-done changes and QEMU say together,
//! and the one next step that follows. `publish` and `unpublish` take the step, look again and ask again.
//!
//! Knows nothing of HTTP, of other VMs or of time.

use std::collections::BTreeSet;

use pve_model::{Bus, Bytes, Slot, Wwn};

/// What a drive line of the config says, as far as decisions go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// PVE's whole name of the disk, `<storage>:<disk>`. Only whole names are compared.
    pub volid: String,
    /// The name under which the guest sees the disk.
    pub wwn: Option<Wwn>,
    /// `size=`, filled in by PVE when the disk is attached.
    pub size: Option<Bytes>,
    /// `ro=1`.
    pub read_only: bool,
}

/// One drive key of the VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub slot: Slot,
    /// What the config holds now.
    pub now: Option<Seat>,
    /// What it holds once the pending changes are applied.
    pub next: Option<Seat>,
    /// Whether a change of the key is pending.
    pub changing: bool,
}

/// What `scsihw` makes of the `scsi` slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Controller {
    /// `virtio-scsi-pci`: one controller, LUN = slot number.
    Shared,
    /// `virtio-scsi-single`: a controller per disk, `iothread` works.
    PerDisk,
    /// Anything else: its guests number disks differently.
    Other(String),
}

/// A VM's config with its half-done changes: one read of `pending`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Every drive key that is set now or by a pending change, CD-ROMs too.
    pub rows: Vec<Row>,
    /// The drives that the VM boots from.
    pub boot: BTreeSet<Slot>,
    /// `scsihw`.
    pub controller: Controller,
    /// Whether `hotplug` includes disks.
    pub hotplug: bool,
    /// `lock`: an operation of PVE owns the config.
    pub lock: Option<String>,
    /// Templates never run.
    pub template: bool,
}

/// What QEMU has: `status/current`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Real {
    /// Not read since the last change.
    Unasked,
    /// The VM runs and QEMU did not answer.
    Silent,
    /// The VM does not run: the config is the truth.
    Stopped,
    /// The disks of a running QEMU.
    Running(BTreeSet<Slot>),
}

/// What is remembered about a VM, all of it about the QEMU that was looked at last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// Slots with left-overs of a failed plug; only a new QEMU process clears them.
    pub poisoned: BTreeSet<Slot>,
    /// Slots in which QEMU has disks that the config did not explain. Whatever the config says of them later: PVE does
    /// not touch a device that is there, and calls it success.
    pub orphans: BTreeSet<Slot>,
    /// Whether QEMU was looked at, so that the orphans are known.
    pub looked: bool,
    /// The slot number that was given last; the next one is tried first.
    pub last: u8,
}

/// Why nothing may be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The config is locked by an operation of PVE.
    Locked(String),
    /// The VM is a template.
    Template,
    /// `scsihw` is not one of the two that are supported.
    Controller(String),
    /// The VM runs and its `hotplug` option excludes disks: every change would only stay pending.
    HotplugOff,
    /// The disk is in two slots of the VM.
    Twice(Slot, Slot),
    /// The VM boots from the disk.
    BootDisk(Slot),
    /// The disk is on a bus where the node plugin can't prove it.
    NotScsi(Slot),
    /// The drive has no WWN: the node plugin could not prove the device.
    NoWwn(Slot),
    /// The drive has a WWN that is neither the volume's nor made of a slot: the node plugin would refuse the device.
    ForeignWwn(Slot),
    /// Another disk waits to take the slot of this one.
    Claimed(Slot),
    /// Every usable slot is taken or spoiled.
    NoFreeSlot,
    /// QEMU has a disk that neither config nor pending changes explain; it may be the one that is to go.
    Orphan(Slot),
}

/// The next step of an attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attach {
    /// Read what QEMU has, then ask again.
    Ask,
    /// QEMU does not say.
    Wait,
    /// Config, QEMU and WWN agree and nothing is pending.
    Done(Attached),
    /// Set the slot.
    Plug(Slot),
    /// Take the slot's pending change back.
    Revert(Slot),
    /// Delete the slot, which does not work as it is.
    Unplug(Slot),
    /// Give up before a write.
    Refuse(Refusal),
}

/// A disk that is really there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// Where.
    pub slot: Slot,
    /// Under which name.
    pub wwn: Wwn,
    /// How large, if the config says it.
    pub size: Option<Bytes>,
    /// Whether the guest can't write.
    pub read_only: bool,
}

/// The next step of a detach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detach {
    /// Read what QEMU has, then ask again.
    Ask,
    /// QEMU does not say.
    Wait,
    /// Neither config, pending changes nor QEMU have the disk.
    Done,
    /// Take the pending changes of the slots back.
    Revert(Vec<Slot>),
    /// Delete the slots.
    Unplug(Vec<Slot>),
    /// Give up before a write.
    Refuse(Refusal),
}

impl Row {
    fn now_is(&self, volid: &str) -> bool {
        self.now.as_ref().is_some_and(|seat| seat.volid == volid)
    }

    /// Whether what is pending for the slot is another disk: other hands' business.
    fn is_claimed(&self, volid: &str) -> bool {
        self.now_is(volid) && self.next.as_ref().is_some_and(|seat| seat.volid != volid)
    }

    /// Whether the disk waits to take the slot.
    pub fn is_planned(&self, volid: &str) -> bool {
        self.next_is(volid) && !self.now_is(volid)
    }

    fn next_is(&self, volid: &str) -> bool {
        self.next.as_ref().is_some_and(|seat| seat.volid == volid)
    }
}

impl Picture {
    /// The drive keys that hold the disk, now or by a pending change.
    pub fn holding(&self, volid: &str) -> Vec<&Row> {
        self.rows
            .iter()
            .filter(|row| row.now_is(volid) || row.next_is(volid))
            .collect()
    }

    fn occupied(&self, slot: Slot) -> bool {
        self.rows.iter().any(|row| row.slot == slot)
    }
}

impl Real {
    fn has(&self, slot: Slot) -> bool {
        matches!(self, Self::Running(slots) if slots.contains(&slot))
    }

    /// The disks that QEMU is known to have.
    pub fn devices(&self) -> BTreeSet<Slot> {
        match self {
            Self::Running(devices) => devices.clone(),
            Self::Unasked | Self::Silent | Self::Stopped => BTreeSet::new(),
        }
    }
}

/// The next step towards `volid` being attached under the volume's own `wwn`, or one that was made of a slot.
pub fn attach(
    picture: &Picture,
    real: &Real,
    memory: &Memory,
    (volid, wwn): (&str, Wwn),
) -> Attach {
    let holding = picture.holding(volid);
    if let Some(row) = holding.iter().find(|row| picture.boot.contains(&row.slot)) {
        return Attach::Refuse(Refusal::BootDisk(row.slot));
    }
    let step = match holding.as_slice() {
        [] => plug(picture, real, memory),
        [row] => settle(row, real, memory, (volid, wwn)),
        [first, second, ..] => match holding.iter().find(|row| !row.now_is(volid)) {
            Some(planned) => Attach::Revert(planned.slot),
            None => Attach::Refuse(Refusal::Twice(first.slot, second.slot)),
        },
    };
    let writes = matches!(
        step,
        Attach::Plug(_) | Attach::Revert(_) | Attach::Unplug(_)
    );
    match &picture.lock {
        Some(lock) if writes => Attach::Refuse(Refusal::Locked(lock.clone())),
        _ => step,
    }
}

/// The disk is in one slot: is it really, and if not, what puts it right?
fn settle(row: &Row, real: &Real, memory: &Memory, (volid, wwn): (&str, Wwn)) -> Attach {
    if row.slot.bus() != Bus::Scsi {
        return Attach::Refuse(Refusal::NotScsi(row.slot));
    }
    let Some(seat) = row.now.as_ref().filter(|seat| seat.volid == volid) else {
        // A plug that failed: PVE would try it again when the VM starts (`vmconfig_hotplug_pending`).
        return Attach::Revert(row.slot);
    };
    if row.is_claimed(volid) {
        return Attach::Refuse(Refusal::Claimed(row.slot));
    }
    match real {
        Real::Unasked => Attach::Ask,
        Real::Silent => Attach::Wait,
        Real::Running(_) if real.has(row.slot) && memory.orphans.contains(&row.slot) => {
            Attach::Refuse(Refusal::Orphan(row.slot))
        }
        // A silent failure, or an unplug that went half way: the guest has nothing, so nothing is lost.
        Real::Running(_) if !real.has(row.slot) => Attach::Unplug(row.slot),
        Real::Running(_) | Real::Stopped if row.changing => Attach::Revert(row.slot),
        Real::Running(_) | Real::Stopped => match seat.wwn {
            Some(found) if found == wwn || found.is_slot_made() => Attach::Done(Attached {
                slot: row.slot,
                wwn: found,
                size: seat.size,
                read_only: seat.read_only,
            }),
            Some(_) => Attach::Refuse(Refusal::ForeignWwn(row.slot)),
            None => Attach::Refuse(Refusal::NoWwn(row.slot)),
        },
    }
}

fn plug(picture: &Picture, real: &Real, memory: &Memory) -> Attach {
    if picture.template {
        return Attach::Refuse(Refusal::Template);
    }
    if let Controller::Other(name) = &picture.controller {
        return Attach::Refuse(Refusal::Controller(name.clone()));
    }
    if !picture.hotplug {
        match real {
            Real::Unasked => return Attach::Ask,
            Real::Silent | Real::Running(_) => return Attach::Refuse(Refusal::HotplugOff),
            Real::Stopped => {}
        }
    }
    match real {
        Real::Unasked if !memory.looked => return Attach::Ask,
        Real::Silent if !memory.looked => return Attach::Wait,
        Real::Unasked | Real::Silent | Real::Stopped | Real::Running(_) => {}
    }
    match free_slot(picture, real, memory) {
        Some(slot) => Attach::Plug(slot),
        // The VM may have been restarted since, which clears what is remembered.
        None if *real == Real::Unasked
            && !(memory.poisoned.is_empty() && memory.orphans.is_empty()) =>
        {
            Attach::Ask
        }
        None => Attach::Refuse(Refusal::NoFreeSlot),
    }
}

/// The first free slot after the one that was given last: what QEMU left of a detached disk has time to go. `scsi0` is
/// the boot disk's by custom.
fn free_slot(picture: &Picture, real: &Real, memory: &Memory) -> Option<Slot> {
    let usable = || Slot::all_scsi().skip(1);
    usable()
        .filter(|slot| slot.index() > memory.last)
        .chain(usable().filter(|slot| slot.index() <= memory.last))
        .find(|slot| {
            let spoiled = memory.poisoned.contains(slot) || memory.orphans.contains(slot);
            // A boot order may name a slot that is empty: what is put there becomes a boot disk, which PVE never unplugs.
            let boots = picture.boot.contains(slot);
            !picture.occupied(*slot) && !real.has(*slot) && !spoiled && !boots
        })
}

/// The next step towards `volid` being in no slot of the VM. `freed` are the slots that this operation has deleted; with
/// none, any disk of QEMU that the config does not explain, or did not once, may be ours.
pub fn detach(
    picture: &Picture,
    real: &Real,
    (memory, freed): (&Memory, &BTreeSet<Slot>),
    volid: &str,
) -> Detach {
    let holding = picture.holding(volid);
    if holding.is_empty() {
        return vanished(picture, real, memory, freed);
    }
    if let Some(row) = holding.iter().find(|row| picture.boot.contains(&row.slot)) {
        return Detach::Refuse(Refusal::BootDisk(row.slot));
    }
    if let Some(lock) = &picture.lock {
        return Detach::Refuse(Refusal::Locked(lock.clone()));
    }
    let slots = |wanted: fn(&Row, &str) -> bool| -> Vec<Slot> {
        holding
            .iter()
            .filter(|row| wanted(row, volid))
            .map(|row| row.slot)
            .collect()
    };
    let planned = slots(|row, volid| !row.now_is(volid));
    if !planned.is_empty() {
        return Detach::Revert(planned);
    }
    if let Some(row) = holding.iter().find(|row| row.is_claimed(volid)) {
        return Detach::Refuse(Refusal::Claimed(row.slot));
    }
    let seated = slots(Row::now_is);
    // PVE hotplugs neither `sata` nor `ide`, and nothing at all without `disk` in `hotplug`.
    let stays = |slot: &Slot| !picture.hotplug || matches!(slot.bus(), Bus::Sata | Bus::Ide);
    if seated.iter().any(stays) {
        match real {
            Real::Unasked => return Detach::Ask,
            Real::Silent | Real::Running(_) => return Detach::Refuse(Refusal::HotplugOff),
            Real::Stopped => {}
        }
    }
    Detach::Unplug(seated)
}

fn vanished(picture: &Picture, real: &Real, memory: &Memory, freed: &BTreeSet<Slot>) -> Detach {
    match real {
        Real::Unasked => Detach::Ask,
        Real::Silent => Detach::Wait,
        Real::Stopped => Detach::Done,
        Real::Running(devices) => {
            let ours = |slot: &&Slot| freed.is_empty() || freed.contains(slot);
            devices
                .iter()
                .filter(ours)
                .find(|slot| !picture.occupied(**slot) || memory.orphans.contains(slot))
                .map_or(Detach::Done, |slot| Detach::Refuse(Refusal::Orphan(*slot)))
        }
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "slots_detach_tests.rs"]
mod detach_tests;

#[cfg(test)]
#[path = "slots_orphan_tests.rs"]
mod orphan_tests;
