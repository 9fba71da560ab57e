use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::slots::Controller;

const VOLID: &str = "s:vm-9999-pvc-1";

fn mib(count: u64) -> Bytes {
    Bytes::new(count << 20)
}

fn range(wanted: u64, most: Option<u64>) -> SizeRange {
    SizeRange {
        wanted: mib(wanted),
        least: mib(wanted),
        most: most.map(mib),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn the_next_step_follows_from_both_sizes() {
    let grow = |size| Step::Grow(mib(size));
    for (sentence, wanted, most, unit, drive, storage, expected) in [
        (
            "smaller, by the config",
            128,
            None,
            1,
            Some(64),
            None,
            grow(128),
        ),
        (
            "large enough, by the config alone",
            128,
            None,
            1,
            Some(128),
            None,
            Step::Look,
        ),
        (
            "no size in the config",
            128,
            None,
            1,
            None,
            None,
            Step::Look,
        ),
        (
            "nothing is asked for",
            0,
            None,
            1,
            Some(64),
            None,
            Step::Look,
        ),
        (
            "nothing is asked for, both agree",
            0,
            None,
            1,
            Some(64),
            Some(64),
            Step::Done(mib(64)),
        ),
        (
            "both agree",
            128,
            None,
            1,
            Some(128),
            Some(128),
            Step::Done(mib(128)),
        ),
        (
            "both agree and are larger",
            128,
            None,
            1,
            Some(256),
            Some(256),
            Step::Done(mib(256)),
        ),
        (
            "both are smaller",
            128,
            None,
            1,
            Some(64),
            Some(64),
            grow(128),
        ),
        (
            "the storage grew and QEMU was not told",
            128,
            None,
            1,
            Some(64),
            Some(128),
            grow(129),
        ),
        (
            "the same on lvm",
            128,
            None,
            4,
            Some(64),
            Some(128),
            grow(132),
        ),
        (
            "the storage grew by more than is wanted",
            128,
            None,
            1,
            Some(64),
            Some(200),
            grow(201),
        ),
        (
            "the storage grew, to less than is wanted now",
            256,
            None,
            1,
            Some(64),
            Some(128),
            grow(256),
        ),
        (
            "the storage has a size and the config none",
            128,
            None,
            1,
            None,
            Some(128),
            grow(129),
        ),
        (
            "the config says much more than there is",
            128,
            None,
            1,
            Some(256),
            Some(128),
            grow(129),
        ),
        (
            "a size between two units",
            65,
            None,
            4,
            Some(64),
            None,
            grow(68),
        ),
        (
            "the unit goes over the limit",
            65,
            Some(66),
            4,
            Some(64),
            None,
            Step::Never,
        ),
        (
            "the limit is met",
            65,
            Some(68),
            4,
            Some(64),
            None,
            grow(68),
        ),
        (
            "larger than the limit",
            64,
            Some(128),
            1,
            Some(256),
            Some(256),
            Step::Never,
        ),
        (
            "half-way, and at the limit",
            128,
            Some(128),
            1,
            Some(64),
            Some(128),
            Step::Never,
        ),
    ] {
        let sizes = Sizes {
            drive: drive.map(mib),
            storage: storage.map(mib),
        };
        assert_eq!(
            step(&range(wanted, most), mib(unit), sizes),
            expected,
            "{sentence}"
        );
    }
}

#[test]
fn fewer_bytes_than_a_unit_are_no_reason_to_grow() {
    let wanted = SizeRange {
        wanted: mib(65),
        least: Bytes::new((64 << 20) + 1),
        most: None,
    };
    let real = Bytes::new((64 << 20) + 512);
    let sizes = Sizes {
        drive: Some(real),
        storage: Some(real),
    };
    assert_eq!(step(&wanted, Bytes::MIB, sizes), Step::Done(real));
}

#[test]
fn names_tell_the_unit_and_when_a_size_comes_out_as_asked() {
    let file: DiskName = "9999/vm-9999-a.raw".parse().unwrap();
    let block: DiskName = "vm-9999-a".parse().unwrap();
    assert_eq!((unit(&file), unit(&block)), (mib(1), mib(4)));
    for (size, exact) in [(65, [true, false]), (68, [true, false]), (96, [true, true])] {
        let found = [is_exact(&file, mib(size)), is_exact(&block, mib(size))];
        assert_eq!(found, exact, "{size} MiB");
    }
}

/// A volume group whose extents are larger than usual.
#[test]
fn every_unit_is_found_out_in_a_few_steps() {
    for extent in [1, 4, 8, 32, 64, 128, 1024] {
        for wanted in [65, 68, 92, 100, 1000] {
            let (mut storage, mut asked, mut unit) =
                (mib(64).round_up(mib(extent)).unwrap(), None, mib(4));
            let mut steps = 0;
            loop {
                let sizes = Sizes {
                    drive: asked,
                    storage: Some(storage),
                };
                match step(&range(wanted, None), unit, sizes) {
                    Step::Done(size) => break assert!(size >= mib(wanted)),
                    Step::Grow(target) => {
                        steps += 1;
                        storage = target.round_up(mib(extent)).unwrap();
                        asked = Some(target);
                        unit = larger_unit(unit, target, storage);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(steps <= 4, "{extent} MiB, {wanted}: {steps}");
        }
    }
}

fn seat(volid: &str) -> Seat {
    Seat {
        volid: volid.to_owned(),
        wwn: None,
        size: Some(mib(64)),
        read_only: false,
    }
}

fn row(slot: &str, now: Option<&str>, next: Option<&str>, changing: bool) -> Row {
    Row {
        slot: slot.parse().unwrap(),
        now: now.map(seat),
        next: next.map(seat),
        changing,
    }
}

fn picture(rows: &[Row], boot: &str) -> Picture {
    Picture {
        rows: rows.to_vec(),
        boot: boot.parse().into_iter().collect::<BTreeSet<Slot>>(),
        controller: Controller::PerDisk,
        hotplug: true,
        lock: None,
        template: false,
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn only_a_drive_that_is_settled_is_resized() {
    let ours = |slot| row(slot, Some(VOLID), Some(VOLID), false);
    let slot = |text: &str| text.parse::<Slot>().unwrap();
    for (sentence, rows, boot, expected) in [
        ("attached", vec![ours("scsi3")], "", Ok(slot("scsi3"))),
        (
            "not there",
            vec![row("scsi3", Some("s:b"), Some("s:b"), false)],
            "",
            Err(Unfit::NotThere),
        ),
        (
            "waits to be attached",
            vec![row("scsi3", None, Some(VOLID), true)],
            "",
            Err(Unfit::Half),
        ),
        (
            "waits to be detached",
            vec![row("scsi3", Some(VOLID), None, true)],
            "",
            Err(Unfit::Half),
        ),
        (
            "waits to be replaced",
            vec![row("scsi3", Some(VOLID), Some("s:b"), true)],
            "",
            Err(Unfit::Half),
        ),
        (
            "another option waits for a restart",
            vec![row("scsi3", Some(VOLID), Some(VOLID), true)],
            "",
            Err(Unfit::Half),
        ),
        (
            "attached, and waits to be attached again",
            vec![ours("scsi3"), row("scsi4", None, Some(VOLID), true)],
            "",
            Err(Unfit::Half),
        ),
        (
            "attached twice",
            vec![ours("scsi3"), ours("scsi4")],
            "",
            Err(Unfit::Refused(Refusal::Twice(slot("scsi3"), slot("scsi4")))),
        ),
        (
            "the disk that the VM boots from",
            vec![ours("scsi3")],
            "scsi3",
            Err(Unfit::Refused(Refusal::BootDisk(slot("scsi3")))),
        ),
        (
            "on a bus that the node plugin does not know",
            vec![ours("virtio3")],
            "",
            Err(Unfit::Refused(Refusal::NotScsi(slot("virtio3")))),
        ),
    ] {
        let picture = picture(&rows, boot);
        let found = drive(&picture, VOLID).map(|(slot, _)| slot);
        assert_eq!(found, expected, "{sentence}");
    }
}

proptest! {
    #[test]
    fn no_step_shrinks_or_leaves_the_range(
        wanted in 0_u64..=1 << 46,
        slack in proptest::option::of(0_u64..=1 << 40),
        unit in proptest::sample::select(vec![1_u64, 4, 32]),
        drive in proptest::option::of(0_u64..=1 << 46),
        storage in proptest::option::of(0_u64..=1 << 46),
    ) {
        let range = SizeRange {
            wanted: Bytes::new(wanted).round_up(Bytes::MIB).unwrap(),
            least: Bytes::new(wanted),
            most: slack.map(|slack| Bytes::new(wanted + slack)),
        };
        let sizes = Sizes { drive: drive.map(Bytes::new), storage: storage.map(Bytes::new) };
        match step(&range, mib(unit), sizes) {
            Step::Look => prop_assert_eq!(storage, None),
            Step::Done(size) => {
                prop_assert_eq!((sizes.drive, sizes.storage), (Some(size), Some(size)));
                prop_assert!(size >= range.least && range.most.is_none_or(|most| size <= most));
            }
            Step::Grow(size) => {
                let present = sizes.storage.or(sizes.drive).unwrap();
                prop_assert!(size > present && size >= range.wanted);
                prop_assert!(range.most.is_none_or(|most| size <= most));
                prop_assert_eq!(size.round_up(mib(unit)), Some(size));
            }
            Step::Never => prop_assert!(range.most.is_some()),
        }
    }
}
