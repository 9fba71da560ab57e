use super::tests::{OURS, running, seen, slot, vm};
use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "one table of decisions")]
fn detach_ends_when_neither_config_nor_qemu_has_the_disk() {
    let other = ("scsi1", "store1:vm-9999-pvc-10", "store1:vm-9999-pvc-10");
    let freed = |keys: &[&str]| -> BTreeSet<Slot> { keys.iter().map(|key| slot(key)).collect() };
    let rows = [
        (
            "absence in the config is checked in QEMU",
            vm(&[other]),
            Real::Unasked,
            freed(&[]),
            Detach::Ask,
        ),
        (
            "nothing anywhere is done",
            vm(&[other]),
            running(&["scsi1"]),
            freed(&[]),
            Detach::Done,
        ),
        (
            "a stopped VM's config is the truth",
            vm(&[other]),
            Real::Stopped,
            freed(&["scsi2"]),
            Detach::Done,
        ),
        (
            "a silent QEMU is waited for",
            vm(&[]),
            Real::Silent,
            freed(&["scsi2"]),
            Detach::Wait,
        ),
        (
            "QEMU still has the slot that was deleted",
            vm(&[]),
            running(&["scsi2"]),
            freed(&["scsi2"]),
            Detach::Refuse(Refusal::Orphan(slot("scsi2"))),
        ),
        (
            "a disk that only QEMU knows may be ours",
            vm(&[other]),
            running(&["scsi1", "scsi4"]),
            freed(&[]),
            Detach::Refuse(Refusal::Orphan(slot("scsi4"))),
        ),
        (
            "once our slot is known, other left-overs don't matter",
            vm(&[]),
            running(&["scsi4"]),
            freed(&["scsi2"]),
            Detach::Done,
        ),
        (
            "a disk in the config is deleted",
            vm(&[other, ("scsi2", OURS, OURS)]),
            Real::Unasked,
            freed(&[]),
            Detach::Unplug(vec![slot("scsi2")]),
        ),
        (
            "a disk on the virtio bus is deleted too",
            vm(&[("virtio3", OURS, OURS)]),
            Real::Unasked,
            freed(&[]),
            Detach::Unplug(vec![slot("virtio3")]),
        ),
        (
            "an open deletion is not the end",
            vm(&[("scsi2", OURS, "")]),
            running(&["scsi2"]),
            freed(&["scsi2"]),
            Detach::Unplug(vec![slot("scsi2")]),
        ),
        (
            "a pending attach is taken back",
            vm(&[("scsi2", "", OURS)]),
            Real::Unasked,
            freed(&[]),
            Detach::Revert(vec![slot("scsi2")]),
        ),
        (
            "a pending eviction of another disk is taken back, not deleted",
            vm(&[("scsi2", "s:vm-9-x", OURS)]),
            Real::Unasked,
            freed(&[]),
            Detach::Revert(vec![slot("scsi2")]),
        ),
        (
            "all its slots go",
            vm(&[("scsi2", OURS, OURS), ("scsi5", OURS, OURS)]),
            Real::Unasked,
            freed(&[]),
            Detach::Unplug(vec![slot("scsi2"), slot("scsi5")]),
        ),
        (
            "the boot disk stays",
            vm(&[("scsi0", OURS, OURS)]),
            Real::Unasked,
            freed(&[]),
            Detach::Refuse(Refusal::BootDisk(slot("scsi0"))),
        ),
        (
            "a disk that can't be unplugged while the VM runs is asked about",
            vm(&[("sata1", OURS, OURS)]),
            Real::Unasked,
            freed(&[]),
            Detach::Ask,
        ),
        (
            "and refused while it runs",
            vm(&[("sata1", OURS, OURS)]),
            running(&["sata1"]),
            freed(&[]),
            Detach::Refuse(Refusal::HotplugOff),
        ),
        (
            "and deleted when it is stopped",
            vm(&[("sata1", OURS, OURS)]),
            Real::Stopped,
            freed(&[]),
            Detach::Unplug(vec![slot("sata1")]),
        ),
    ];
    for (sentence, picture, real, freed, wanted) in rows {
        assert_eq!(
            detach(&picture, &real, (&seen(), &freed), OURS),
            wanted,
            "{sentence}"
        );
    }
}

#[test]
fn detach_refuses_a_locked_vm_and_one_without_hotplug() {
    let mut picture = vm(&[("scsi2", OURS, OURS)]);
    picture.hotplug = false;
    let decide =
        |picture: &Picture, real| detach(picture, &real, (&seen(), &BTreeSet::new()), OURS);
    assert_eq!(decide(&picture, Real::Unasked), Detach::Ask);
    assert_eq!(
        decide(&picture, running(&["scsi2"])),
        Detach::Refuse(Refusal::HotplugOff)
    );
    assert_eq!(
        decide(&picture, Real::Stopped),
        Detach::Unplug(vec![slot("scsi2")])
    );
    picture.lock = Some("backup".to_owned());
    assert_eq!(
        decide(&picture, Real::Stopped),
        Detach::Refuse(Refusal::Locked("backup".to_owned()))
    );
}
