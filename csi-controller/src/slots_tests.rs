use super::*;

pub(super) const OURS: &str = "store1:vm-9999-pvc-1";
const WWN: &str = "0x5c42a611aadbf50e";

pub(super) fn slot(key: &str) -> Slot {
    key.parse().unwrap()
}

fn seat(volid: &str) -> Option<Seat> {
    (!volid.is_empty()).then(|| Seat {
        volid: volid.to_owned(),
        wwn: WWN.parse().ok(),
        size: Some(Bytes::GIB),
        read_only: false,
    })
}

/// `(key, now, next)`; an empty volid is no drive.
pub(super) fn vm(rows: &[(&str, &str, &str)]) -> Picture {
    let row = |(key, now, next): &(&str, &str, &str)| Row {
        slot: slot(key),
        now: seat(now),
        next: seat(next),
        changing: now != next,
    };
    Picture {
        rows: rows.iter().map(row).collect(),
        boot: BTreeSet::from([slot("scsi0")]),
        controller: Controller::PerDisk,
        hotplug: true,
        lock: None,
        template: false,
    }
}

pub(super) fn running(keys: &[&str]) -> Real {
    Real::Running(keys.iter().map(|key| slot(key)).collect())
}

fn memory(poisoned: &[&str], last: u8) -> Memory {
    Memory {
        poisoned: poisoned.iter().map(|key| slot(key)).collect(),
        last,
        ..seen()
    }
}

/// Of a VM whose QEMU was looked at.
pub(super) fn seen() -> Memory {
    Memory {
        looked: true,
        ..Memory::default()
    }
}

pub(super) fn ours() -> (&'static str, Wwn) {
    (OURS, WWN.parse().unwrap())
}

fn done(key: &str) -> Attach {
    Attach::Done(Attached {
        slot: slot(key),
        wwn: WWN.parse().unwrap(),
        size: Some(Bytes::GIB),
        read_only: false,
    })
}

fn check_attach(rows: Vec<(&str, Picture, Real, Memory, Attach)>) {
    for (sentence, picture, real, memory, wanted) in rows {
        assert_eq!(
            attach(&picture, &real, &memory, ours()),
            wanted,
            "{sentence}"
        );
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of decisions")]
fn attach_takes_a_slot_that_nothing_uses() {
    let root = ("scsi0", "store1:vm-104-disk-0", "store1:vm-104-disk-0");
    let full: Vec<_> = (0..31)
        .map(|i| (format!("scsi{i}"), format!("s:vm-9-a{i}")))
        .collect();
    let full: Vec<_> = full
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str(), v.as_str()))
        .collect();
    let none = seen;
    check_attach(vec![
        (
            "an empty VM gets the first slot after the boot disk's",
            vm(&[root]),
            Real::Unasked,
            none(),
            Attach::Plug(slot("scsi1")),
        ),
        (
            "scsi0 is never given, even if it is free",
            vm(&[]),
            Real::Unasked,
            memory(&[], 30),
            Attach::Plug(slot("scsi1")),
        ),
        (
            "an empty slot that the boot order names is left alone",
            Picture {
                boot: BTreeSet::from([slot("scsi0"), slot("scsi1")]),
                ..vm(&[root])
            },
            Real::Unasked,
            none(),
            Attach::Plug(slot("scsi2")),
        ),
        (
            "slots go round instead of being used again at once",
            vm(&[root]),
            Real::Unasked,
            memory(&[], 4),
            Attach::Plug(slot("scsi5")),
        ),
        (
            "a slot with another disk is left alone",
            vm(&[
                root,
                ("scsi1", "store1:vm-9999-pvc-10", "store1:vm-9999-pvc-10"),
            ]),
            Real::Unasked,
            none(),
            Attach::Plug(slot("scsi2")),
        ),
        (
            "a slot that is only pending is taken",
            vm(&[root, ("scsi1", "", "store1:vm-9999-pvc-2")]),
            Real::Unasked,
            none(),
            Attach::Plug(slot("scsi2")),
        ),
        (
            "a slot whose deletion is pending is taken",
            vm(&[root, ("scsi1", "store1:vm-9999-pvc-2", "")]),
            Real::Unasked,
            none(),
            Attach::Plug(slot("scsi2")),
        ),
        (
            "a slot that only QEMU knows is taken",
            vm(&[root]),
            running(&["scsi0", "scsi1"]),
            none(),
            Attach::Plug(slot("scsi2")),
        ),
        (
            "a slot that a failed plug spoiled is skipped",
            vm(&[root]),
            Real::Unasked,
            memory(&["scsi1", "scsi2"], 0),
            Attach::Plug(slot("scsi3")),
        ),
        (
            "31 used slots leave none",
            vm(&full),
            Real::Unasked,
            none(),
            Attach::Refuse(Refusal::NoFreeSlot),
        ),
        (
            "spoiled slots count as used only while the same QEMU runs",
            vm(&full[..30]),
            Real::Unasked,
            memory(&["scsi30"], 0),
            Attach::Ask,
        ),
        (
            "spoiled slots of a running QEMU are never given",
            vm(&full[..30]),
            running(&[]),
            memory(&["scsi30"], 0),
            Attach::Refuse(Refusal::NoFreeSlot),
        ),
        (
            "one free slot among 31 is found",
            vm(&full[..30]),
            Real::Unasked,
            memory(&[], 7),
            Attach::Plug(slot("scsi30")),
        ),
    ]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of decisions")]
fn attach_refuses_before_it_writes() {
    let none = seen;
    let with = |change: fn(&mut Picture)| {
        let mut picture = vm(&[]);
        change(&mut picture);
        picture
    };
    let refuse = Attach::Refuse;
    check_attach(vec![
        (
            "a locked VM is not written to",
            with(|p| p.lock = Some("migrate".to_owned())),
            Real::Unasked,
            none(),
            refuse(Refusal::Locked("migrate".to_owned())),
        ),
        (
            "a template gets no disk",
            with(|p| p.template = true),
            Real::Unasked,
            none(),
            refuse(Refusal::Template),
        ),
        (
            "a controller that is not virtio-scsi is refused",
            with(|p| p.controller = Controller::Other("lsi".to_owned())),
            Real::Unasked,
            none(),
            refuse(Refusal::Controller("lsi".to_owned())),
        ),
        (
            "without disk hotplug it matters whether the VM runs",
            with(|p| p.hotplug = false),
            Real::Unasked,
            none(),
            Attach::Ask,
        ),
        (
            "a running VM without disk hotplug is refused",
            with(|p| p.hotplug = false),
            running(&[]),
            none(),
            refuse(Refusal::HotplugOff),
        ),
        (
            "a VM without disk hotplug whose QEMU is silent is refused",
            with(|p| p.hotplug = false),
            Real::Silent,
            none(),
            refuse(Refusal::HotplugOff),
        ),
        (
            "a stopped VM needs no hotplug",
            with(|p| p.hotplug = false),
            Real::Stopped,
            none(),
            Attach::Plug(slot("scsi1")),
        ),
        (
            "the boot disk is no volume",
            vm(&[("scsi0", OURS, OURS)]),
            Real::Unasked,
            none(),
            refuse(Refusal::BootDisk(slot("scsi0"))),
        ),
        (
            "the boot disk in a second slot is still the boot disk",
            vm(&[("scsi1", OURS, OURS), ("scsi0", OURS, OURS)]),
            Real::Unasked,
            none(),
            refuse(Refusal::BootDisk(slot("scsi0"))),
        ),
        (
            "the same disk in two slots is refused",
            vm(&[("scsi1", OURS, OURS), ("scsi2", OURS, OURS)]),
            Real::Unasked,
            none(),
            refuse(Refusal::Twice(slot("scsi1"), slot("scsi2"))),
        ),
        (
            "a disk on another bus is refused, not attached again",
            vm(&[("virtio1", OURS, OURS)]),
            Real::Unasked,
            none(),
            refuse(Refusal::NotScsi(slot("virtio1"))),
        ),
    ]);
}

#[test]
fn attach_is_done_when_config_qemu_and_wwn_agree() {
    let none = seen;
    let held = || vm(&[("scsi3", OURS, OURS)]);
    let mut nameless = held();
    nameless.rows[0].now.as_mut().unwrap().wwn = None;
    let mut locked = held();
    locked.lock = Some("backup".to_owned());
    check_attach(vec![
        (
            "what the config says is not believed before QEMU is asked",
            held(),
            Real::Unasked,
            none(),
            Attach::Ask,
        ),
        (
            "an attached disk is reported where it is",
            held(),
            running(&["scsi0", "scsi3"]),
            none(),
            done("scsi3"),
        ),
        (
            "a stopped VM's config is the truth",
            held(),
            Real::Stopped,
            none(),
            done("scsi3"),
        ),
        (
            "a silent QEMU is waited for",
            held(),
            Real::Silent,
            none(),
            Attach::Wait,
        ),
        (
            "a lock is no obstacle where nothing has to be written",
            locked,
            running(&["scsi3"]),
            none(),
            done("scsi3"),
        ),
        (
            "a drive without WWN can't be proved in the guest",
            nameless,
            running(&["scsi3"]),
            none(),
            Attach::Refuse(Refusal::NoWwn(slot("scsi3"))),
        ),
    ]);
}

#[test]
fn attach_repairs_what_went_half_way() {
    let none = seen;
    check_attach(vec![
        (
            "config has it and QEMU has not: it is taken out first",
            vm(&[("scsi2", OURS, OURS)]),
            running(&["scsi0"]),
            none(),
            Attach::Unplug(slot("scsi2")),
        ),
        (
            "a plug that failed and stayed pending is taken back",
            vm(&[("scsi2", "", OURS)]),
            Real::Unasked,
            none(),
            Attach::Revert(slot("scsi2")),
        ),
        (
            "a pending eviction of another disk is taken back",
            vm(&[("scsi2", "store1:vm-9999-pvc-2", OURS)]),
            Real::Unasked,
            none(),
            Attach::Revert(slot("scsi2")),
        ),
        (
            "a pending second seat is taken back before anything else",
            vm(&[("scsi1", OURS, OURS), ("scsi2", "", OURS)]),
            Real::Unasked,
            none(),
            Attach::Revert(slot("scsi2")),
        ),
        (
            "an open deletion of a disk that QEMU still has is taken back",
            vm(&[("scsi2", OURS, "")]),
            running(&["scsi2"]),
            none(),
            Attach::Revert(slot("scsi2")),
        ),
        (
            "an open deletion of a disk that QEMU has lost is completed",
            vm(&[("scsi2", OURS, "")]),
            running(&[]),
            none(),
            Attach::Unplug(slot("scsi2")),
        ),
        (
            "an open deletion needs QEMU's word",
            vm(&[("scsi2", OURS, "")]),
            Real::Unasked,
            none(),
            Attach::Ask,
        ),
    ]);
    let mut locked = vm(&[("scsi2", "", OURS)]);
    locked.lock = Some("snapshot".to_owned());
    assert_eq!(
        attach(&locked, &Real::Unasked, &none(), ours()),
        Attach::Refuse(Refusal::Locked("snapshot".to_owned())),
        "a repair waits for the lock"
    );
}
