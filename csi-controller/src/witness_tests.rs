use pve_client::{GuestKind, RunState};
use tokio::time::advance;

use super::*;

const V: &str = "shared:9999/vm-9999-pvc-1.raw";
const W: &str = "shared:9999/vm-9999-pvc-2.raw";

fn guest(vmid: u32) -> VmEntry {
    VmEntry {
        vmid: vmid.try_into().unwrap(),
        pve_node: "pve3".parse().unwrap(),
        kind: GuestKind::Qemu,
        state: RunState::Unknown,
        name: Some(format!("worker-{vmid}")),
        pool: None,
        template: false,
        lock: None,
        hastate: None,
        max_cpu: None,
        max_memory: None,
        uptime: None,
    }
}

/// What happens to the witness of VM 102, each a minute after the one before.
#[derive(Debug, Clone, Copy)]
enum Event {
    Made,
    Attaching,
    Detached,
    Removed,
    /// Read with these disks.
    Read(&'static [&'static str]),
    /// The same of a VM that has snapshots.
    ReadWithSnapshot(&'static [&'static str]),
    /// Another VM is read.
    ReadAnother(&'static [&'static str]),
    Gone,
}

use Event::*;

fn read(witness: &Witness, vmid: u32, disks: &[&str], snapshots: bool) {
    let seen = Seen {
        asked: Instant::now(),
        name: Some(format!("worker-{vmid}")),
        uuid: None,
        disks: disks.iter().map(|disk| (*disk).to_owned()).collect(),
        snapshots,
    };
    witness.memory().saw(vmid.try_into().unwrap(), seen);
}

async fn play(events: &[Event]) -> Witness {
    let witness = Witness::default();
    let vmid = guest(102).vmid;
    for event in events {
        advance(Duration::from_secs(61)).await;
        match event {
            Made => witness.made(V.to_owned()),
            Attaching => witness.attaching(V.to_owned(), vmid),
            Detached => witness.detached(V, vmid),
            Removed => witness.removed(V),
            Read(disks) => read(&witness, 102, disks, false),
            ReadWithSnapshot(disks) => read(&witness, 102, disks, true),
            ReadAnother(disks) => read(&witness, 103, disks, false),
            Gone => witness.gone(vmid),
        }
    }
    witness
}

fn said(witness: &Witness) -> &'static str {
    match witness.excludes(V, &guest(102)) {
        Ok(Proof::Read(_)) => "read without it",
        Ok(Proof::Made) => "made and never there",
        Err(Doubt::Attached) => "attached",
        Err(Doubt::Held) => "held",
        Err(Doubt::Snapshots) => "snapshots",
        Err(Doubt::Unread) => "unread",
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_excluded_only_by_what_is_known_of_it_or_of_the_volume() {
    let rows: &[(&[Event], &str)] = &[
        (&[], "unread"),
        (&[ReadAnother(&[])], "unread"),
        (&[Read(&[])], "read without it"),
        (&[Read(&[W])], "read without it"),
        (&[Read(&[V])], "held"),
        (&[Read(&[V]), Read(&[])], "read without it"),
        (&[Read(&[]), Read(&[V])], "held"),
        (&[Made], "made and never there"),
        (&[Made, Read(&[V])], "held"),
        (&[Made, ReadAnother(&[V])], "made and never there"),
        (&[Made, Attaching], "attached"),
        (&[Read(&[]), Attaching], "attached"),
        (&[Attaching, Read(&[])], "read without it"),
        (&[Attaching, Read(&[V])], "attached"),
        (&[Attaching, Read(&[V]), Detached], "read without it"),
        (&[Made, Attaching, Detached], "unread"),
        (&[Read(&[]), Made, Attaching, Detached], "read without it"),
        (&[Made, Attaching, Detached, Read(&[])], "read without it"),
        (&[Made, Attaching, Detached, Attaching], "attached"),
        (&[Attaching, Detached], "unread"),
    ];
    for (events, expected) in rows {
        assert_eq!(said(&play(events).await), *expected, "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_with_snapshots_is_excluded_only_if_it_never_had_the_volume() {
    let rows: &[(&[Event], &str)] = &[
        (&[ReadWithSnapshot(&[])], "snapshots"),
        (&[Made, ReadWithSnapshot(&[])], "made and never there"),
        (
            &[Made, Attaching, ReadWithSnapshot(&[V]), Detached],
            "snapshots",
        ),
        (
            &[
                Made,
                ReadWithSnapshot(&[]),
                Attaching,
                ReadWithSnapshot(&[]),
            ],
            "snapshots",
        ),
        // Its snapshots are gone by now.
        (
            &[Made, Attaching, ReadWithSnapshot(&[V]), Detached, Read(&[])],
            "read without it",
        ),
    ];
    for (events, expected) in rows {
        assert_eq!(said(&play(events).await), *expected, "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_gone_and_made_again_is_not_free_where_it_was_attached() {
    let rows: &[(&[Event], &str)] = &[
        (&[Made, Removed], "unread"),
        (&[Made, Attaching, Removed, Made], "attached"),
        (
            &[Made, Attaching, Removed, Made, Gone],
            "made and never there",
        ),
        (&[Read(&[V]), Removed, Made], "held"),
        (&[Read(&[]), Gone], "unread"),
    ];
    for (events, expected) in rows {
        assert_eq!(said(&play(events).await), *expected, "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attach_may_come_a_minute_after_it_was_asked_for() {
    let witness = play(&[Read(&[]), Attaching]).await;
    for (seconds, expected) in [(10, "attached"), (49, "attached"), (3, "read without it")] {
        advance(Duration::from_secs(seconds)).await;
        read(&witness, 102, &[], false);
        assert_eq!(said(&witness), expected, "after {seconds} s more");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_process_before_this_one_asked_for_may_come_within_its_first_minute() {
    let witness = Witness::default();
    read(&witness, 102, &[], false);
    advance(Duration::from_secs(90)).await;
    assert_eq!(said(&witness), "unread", "read too early");
    read(&witness, 102, &[], false);
    assert_eq!(said(&witness), "read without it");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_is_not_the_newest() {
    let witness = Witness::default();
    let asked = |seconds| Seen {
        asked: Instant::now() + Duration::from_secs(seconds),
        name: None,
        uuid: None,
        disks: if seconds > 100 {
            [V.to_owned()].into()
        } else {
            BTreeSet::new()
        },
        snapshots: false,
    };
    let vmid = guest(102).vmid;
    witness.memory().saw(vmid, asked(120));
    witness.memory().saw(vmid, asked(90));
    assert_eq!(said(&witness), "held");
}

#[tokio::test(start_paused = true)]
async fn another_vm_of_the_same_number_was_not_read() {
    let witness = play(&[Read(&[])]).await;
    let renamed = VmEntry {
        name: Some("somebody-else".to_owned()),
        ..guest(102)
    };
    assert_eq!(witness.excludes(V, &renamed), Err(Doubt::Unread));
    // PVE forgets the name some minutes after a host died.
    let nameless = VmEntry {
        name: None,
        ..guest(102)
    };
    assert!(witness.excludes(V, &nameless).is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_in_mind_has_a_bound_beyond_which_nothing_is_excluded() {
    let witness = play(&[Made, Read(&[])]).await;
    for number in 0..=MOST {
        witness.attaching(format!("s:vm-9999-pvc-x{number}"), guest(103).vmid);
    }
    assert_eq!(said(&witness), "unread");
    assert!(witness.memory().attaches.len() <= MOST);
    read(&witness, 102, &[], false);
    assert_eq!(
        said(&witness),
        "unread",
        "what was asked for before may come late"
    );
    advance(Duration::from_secs(61)).await;
    read(&witness, 102, &[], false);
    assert_eq!(said(&witness), "read without it");

    witness.made(V.to_owned());
    for number in 0..MOST_MADE {
        advance(Duration::from_millis(1)).await;
        witness.made(format!("s:vm-9999-pvc-x{number}"));
    }
    assert_eq!(witness.memory().made.len(), MOST_MADE);
    assert!(
        !witness.memory().made.contains_key(V),
        "the oldest goes first"
    );
}

#[tokio::test(start_paused = true)]
async fn a_host_is_silent_from_its_first_silence_to_its_first_answer() {
    let witness = Witness::default();
    let host: PveNode = "pve3".parse().unwrap();
    assert!(!witness.answered(&host));
    let begin = Instant::now();
    witness.silent(&host);
    advance(Duration::from_secs(30)).await;
    witness.clone().silent(&host);
    let silence = witness.silence(&host).unwrap();
    assert_eq!(silence.since, begin);
    assert_eq!(silence.asked, begin + Duration::from_secs(30));
    assert!(witness.answered(&host));
    assert_eq!(witness.silence(&host), None);
}

#[tokio::test(start_paused = true)]
async fn a_disk_in_two_vms_is_seen_if_both_were_read_since() {
    let witness = play(&[Read(&[V, W]), ReadAnother(&[V])]).await;
    let since = Instant::now() - Duration::from_secs(61);
    let both = [102, 103].map(|vmid| guest(vmid).vmid).to_vec();
    assert_eq!(witness.in_two(since), [(V.to_owned(), both)]);
    assert!(witness.in_two(Instant::now()).is_empty());
}
