use super::tests::{OURS, ours, running, seen, slot, vm};
use super::*;

const OTHER: &str = "store1:vm-9999-pvc-2";

fn orphan(key: &str) -> Memory {
    Memory {
        orphans: [slot(key)].into(),
        ..seen()
    }
}

#[test]
fn no_slot_is_written_before_qemu_was_looked_at() {
    let unseen = Memory::default();
    for (sentence, real, wanted) in [
        ("it is asked first", Real::Unasked, Attach::Ask),
        ("and waited for", Real::Silent, Attach::Wait),
        (
            "a stopped VM has none",
            Real::Stopped,
            Attach::Plug(slot("scsi1")),
        ),
        (
            "what it has is left alone",
            running(&["scsi1"]),
            Attach::Plug(slot("scsi2")),
        ),
    ] {
        assert_eq!(
            attach(&vm(&[]), &real, &unseen, ours()),
            wanted,
            "{sentence}"
        );
    }
    assert_eq!(
        attach(&vm(&[]), &Real::Unasked, &orphan("scsi1"), ours()),
        Attach::Plug(slot("scsi2")),
        "an orphan's slot is not used"
    );
}

#[test]
fn an_orphan_is_not_explained_by_what_the_config_says_of_its_slot_later() {
    let none = BTreeSet::new();
    let refused = |key| Refusal::Orphan(slot(key));
    let other = vm(&[("scsi1", OTHER, OTHER)]);
    let real = running(&["scsi1"]);
    let memory = orphan("scsi1");
    assert_eq!(
        detach(&other, &real, (&memory, &none), OURS),
        Detach::Refuse(refused("scsi1"))
    );
    assert_eq!(detach(&other, &real, (&seen(), &none), OURS), Detach::Done);
    let freed = [slot("scsi4")].into();
    assert_eq!(
        detach(&other, &real, (&memory, &freed), OURS),
        Detach::Done,
        "ours was elsewhere"
    );
    let held = vm(&[("scsi1", OURS, OURS)]);
    assert_eq!(
        attach(&held, &real, &memory, ours()),
        Attach::Refuse(refused("scsi1"))
    );
}

#[test]
fn a_disk_under_another_name_than_its_own_or_one_of_a_slot_is_refused() {
    for (wwn, done) in [
        ("0x5c42a611aadbf50e", true),
        ("0x5056432d49443033", true),
        ("0x5000c500a1b2c3d4", false),
    ] {
        let mut picture = vm(&[("scsi3", OURS, OURS)]);
        for row in &mut picture.rows {
            row.now.as_mut().unwrap().wwn = wwn.parse().ok();
        }
        let step = attach(&picture, &running(&["scsi3"]), &seen(), ours());
        let refused = Attach::Refuse(Refusal::ForeignWwn(slot("scsi3")));
        assert_eq!(matches!(step, Attach::Done(_)), done, "{wwn}: {step:?}");
        assert_eq!(step == refused, !done, "{wwn}: {step:?}");
    }
}

#[test]
fn what_other_hands_have_pending_for_the_slot_is_left_to_them() {
    let refusal = Refusal::Claimed(slot("scsi2"));
    let claimed = vm(&[("scsi2", OURS, OTHER)]);
    let real = running(&["scsi2"]);
    assert_eq!(
        attach(&claimed, &real, &seen(), ours()),
        Attach::Refuse(refusal.clone())
    );
    let freed = BTreeSet::new();
    assert_eq!(
        detach(&claimed, &real, (&seen(), &freed), OURS),
        Detach::Refuse(refusal)
    );
    for next in ["", OURS] {
        let mut picture = vm(&[("scsi2", OURS, next)]);
        for row in &mut picture.rows {
            row.changing = true;
        }
        let step = attach(&picture, &real, &seen(), ours());
        assert_eq!(step, Attach::Revert(slot("scsi2")), "{next}");
    }
}

#[test]
fn attach_compares_whole_volume_names() {
    for other in [
        "store1:vm-9999-pvc-10",
        "store2:vm-9999-pvc-1",
        "store1:vm-9999-pvc-1.qcow2",
        "store1:vm-999-pvc-1",
    ] {
        let picture = vm(&[("scsi1", other, other)]);
        assert_eq!(
            attach(&picture, &Real::Unasked, &seen(), ours()),
            Attach::Plug(slot("scsi2")),
            "{other}"
        );
        assert_eq!(
            detach(&picture, &Real::Stopped, (&seen(), &BTreeSet::new()), OURS),
            Detach::Done,
            "{other}"
        );
    }
}
