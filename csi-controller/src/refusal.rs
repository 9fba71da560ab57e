//! What a refused attach or detach means to the operator and to the tenant.

use pve_model::{Slot, VolumeId};

use crate::error::{Error, Exhausted, VmRefusal};
use crate::slots::Refusal;
use crate::vm::Pinned;

/// Why nothing was done, for both audiences.
pub fn refused(vm: &Pinned, volume: &VolumeId, refusal: &Refusal) -> Error {
    let vmid = vm.guest.vmid;
    let unsupported = |tenant, detail: String| Error::Unsupported {
        tenant,
        detail: format!("VM {vmid}: {detail}"),
    };
    let unrecognised = |slot: &Slot, why: &str| {
        unsupported(
            "the volume is attached to the Node's virtual machine in a way that the Node can't recognise; ask the \
             operator of Proxmox VE",
            format!("{} in {slot} {why}; detach it", volume.volid()),
        )
    };
    match refusal {
        Refusal::Locked(lock) => Error::VmLocked(format!("VM {vmid} ({lock})")),
        Refusal::Template => Error::VmRefused {
            why: VmRefusal::Template,
            detail: format!("VM {vmid} is a template"),
        },
        Refusal::Controller(found) => unsupported(
            "the Node's virtual machine has no virtio-scsi controller (option scsihw); ask the operator of Proxmox VE",
            format!("scsihw is {found}; set virtio-scsi-single or virtio-scsi-pci"),
        ),
        Refusal::HotplugOff => unsupported(
            "disks can't be plugged or unplugged while the Node's virtual machine runs (option hotplug); ask the operator \
             of Proxmox VE",
            "option hotplug does not include disk".to_owned(),
        ),
        Refusal::Twice(first, second) => unsupported(
            "the volume is attached twice to the Node's virtual machine; ask the operator of Proxmox VE",
            format!("{} is in {first} and {second}", volume.volid()),
        ),
        Refusal::BootDisk(slot) => unsupported(
            "the volume is the boot disk of the Node's virtual machine",
            format!("{} is the boot disk {slot}", volume.volid()),
        ),
        Refusal::NotScsi(slot) => unrecognised(slot, "is not on the scsi bus"),
        Refusal::NoWwn(slot) => unrecognised(slot, "has no wwn"),
        Refusal::ForeignWwn(slot) => unrecognised(slot, "has a wwn that is not the volume's"),
        Refusal::Claimed(slot) => unsupported(
            "another disk waits for the place of the volume in the Node's virtual machine; ask the operator of Proxmox \
             VE",
            format!(
                "{} is in {slot}, and another disk is pending there; revert that change",
                volume.volid()
            ),
        ),
        Refusal::NoFreeSlot => Error::Exhausted {
            why: Exhausted::Slots,
            detail: format!("VM {vmid} has no free scsi slot"),
        },
        Refusal::Orphan(slot) => Error::GuestBusy(format!(
            "QEMU of VM {vmid} still has {slot}, which its config did not name; it may be {} or not; a restart of the \
             VM brings both into line",
            volume.volid()
        )),
    }
}
