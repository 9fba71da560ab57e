use pve_client::{GuestKind, RunState};

use super::*;

const NOW: u64 = 1_796_081_200;

fn guest(vmid: u32, host: &str) -> VmEntry {
    VmEntry {
        vmid: vmid.try_into().unwrap(),
        pve_node: host.parse().unwrap(),
        kind: GuestKind::Qemu,
        state: RunState::Running,
        name: None,
        pool: None,
        template: false,
        lock: None,
        hastate: None,
        max_cpu: None,
        max_memory: None,
        uptime: None,
    }
}

fn task(host: &str, (kind, id): (&str, &str), started: u64, ended: Option<u64>) -> TaskEntry {
    let upid = format!("UPID:{host}:000000CE:0006F6CC:{started:08X}:{kind}:{id}:a@pve!b:");
    TaskEntry {
        upid: upid.parse().unwrap(),
        started,
        ended,
    }
}

fn list(entries: Vec<TaskEntry>) -> Listing<TaskEntry> {
    Listing {
        entries,
        undecodable: 0,
    }
}

/// The VM 100 on pve1 was written at [`NOW`], its rivals were read two seconds before that.
fn judged(others: &[VmEntry], lists: &Lists) -> (Vec<u32>, usize) {
    let own = lists.get(&"pve1".parse::<PveNode>().unwrap());
    let recent = Recent::of(own, 100.try_into().unwrap(), Duration::from_secs(2));
    let suspects = recent.suspects(lists, others);
    let written = suspects.written.iter().map(|guest| guest.vmid.get());
    (written.collect(), suspects.running.len())
}

fn on_pve1(mut entries: Vec<TaskEntry>) -> Lists {
    entries.push(task("pve1", ("qmconfig", "100"), NOW, Some(NOW)));
    [("pve1".parse().unwrap(), list(entries))].into()
}

#[test]
fn only_vms_that_were_written_since_they_were_read_are_read_again() {
    let others = [guest(101, "pve1"), guest(102, "pve1")];
    let of_101 = |kind, started, ended| on_pve1(vec![task("pve1", (kind, "101"), started, ended)]);
    for (sentence, lists, written, running) in [
        ("nobody wrote", on_pve1(vec![]), vec![], 0),
        (
            "the write ended long before",
            of_101("qmconfig", NOW - 60, Some(NOW - 30)),
            vec![],
            0,
        ),
        (
            "it ended just before, by a clock that may differ",
            of_101("qmconfig", NOW - 60, Some(NOW - 7)),
            vec![101],
            0,
        ),
        (
            "it ended in between",
            of_101("qmconfig", NOW - 1, Some(NOW)),
            vec![101],
            0,
        ),
        ("it runs", of_101("qmconfig", NOW - 600, None), vec![101], 1),
        ("a snapshot", of_101("qmsnapshot", NOW, None), vec![], 0),
    ] {
        assert_eq!(judged(&others, &lists), (written, running), "{sentence}");
    }
}

#[test]
fn without_the_own_task_or_with_too_many_tasks_everything_counts() {
    let others = [guest(101, "pve1"), guest(102, "pve1")];
    let old = task("pve1", ("qmconfig", "101"), 5, Some(6));
    let unknown_now: Lists = [("pve1".parse().unwrap(), list(vec![old]))].into();
    assert_eq!(judged(&others, &unknown_now), (vec![101], 0));
    let many = (0..MOST_TASKS).map(|_| task("pve1", ("qmconfig", "555"), NOW, Some(NOW)));
    assert_eq!(
        judged(&others, &on_pve1(many.collect())),
        (vec![101, 102], 0)
    );
    let mut unreadable = on_pve1(vec![]);
    for list in unreadable.values_mut() {
        list.undecodable = 1;
    }
    assert_eq!(judged(&others, &unreadable), (vec![101, 102], 0));
}

#[test]
fn each_host_tells_of_its_own_vms() {
    let others = [guest(101, "pve1"), guest(201, "pve2")];
    let mut lists = on_pve1(vec![task("pve1", ("qmconfig", "201"), NOW, Some(NOW))]);
    assert_eq!(judged(&others, &lists), (vec![], 0));
    let there = list(vec![task("pve2", ("qmconfig", "201"), NOW, None)]);
    lists.insert("pve2".parse().unwrap(), there);
    assert_eq!(judged(&others, &lists), (vec![201], 1));
}

#[test]
fn a_disk_of_the_owner_that_is_freed_on_the_storage_makes_one_look() {
    let volume: VolumeId = "r1//shared/9999/vm-9999-pvc-a.raw".parse().unwrap();
    let recent = Recent(NOW - 8);
    for (id, begun, ended, frees) in [
        ("9999@shared", NOW, Some(NOW), true),
        ("9999@shared", NOW - 8, None, true),
        ("9999@shared", NOW - 9, None, false),
        ("9999@shared", NOW - 20, Some(NOW - 9), false),
        ("9999@other", NOW, Some(NOW), false),
        ("9998@shared", NOW, Some(NOW), false),
    ] {
        let lists = on_pve1(vec![task("pve1", ("imgdel", id), begun, ended)]);
        let found = recent.freeing(&lists, &volume);
        assert_eq!(!found.is_empty(), frees, "{id} {ended:?}");
    }
}
