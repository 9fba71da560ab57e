//! Two controllers at once on one PVE cluster: a partition or a hand-over. Nothing but PVE keeps them apart.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use harness::caller::until_ok;
use harness::sweep::pair::{self, Job, Pair, Still};
use harness::sweep::tally;
use harness::truth::Truth;
use harness::world::{SHARED, THIN, World, tenant};
use pve_sim::{RequestEffect, RequestFault};
use tonic::Code;

/// Worlds at the same time.
const LANES: usize = 4;
const PATIENCE: Duration = Duration::from_secs(30);
const NONE: [String; 0] = [];
const PENDING: &str = "/nodes/{node}/qemu/{vmid}/pending";

async fn both(pair: Pair, what: &str) {
    both_where(pair, what, |_| true).await;
}

async fn both_where(pair: Pair, what: &str, which: fn(&Job) -> bool) {
    let jobs = pair::all(pair).into_iter().filter(which);
    let tally = tally::in_lanes(LANES, jobs, pair::sweep);
    tally.await.unwrap().verdict(what);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_two_make_is_one() {
    both(Pair::CreateCreate, "two controllers make one disk").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_two_attach_is_in_one_vm() {
    both(Pair::PublishPublish, "two controllers attach to two VMs").await;
}

/// Not held: an attach that begins and ends between the last read of a VM and the removal. PVE frees a disk whoever has
/// it, and a removal that has not reached it yet is seen by nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_one_attaches_and_the_other_frees_is_either_there_or_not() {
    let begun = |job: &Job| job.swapped || job.still == Still::InTheTask;
    let what = "one controller attaches, one frees";
    both_where(Pair::DeletePublish, what, begun).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_one_grows_and_the_other_detaches_has_one_size() {
    both(Pair::ExpandUnpublish, "one controller grows, one detaches").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_one_detaches_and_the_other_attaches_moves() {
    both(
        Pair::UnpublishPublish,
        "one controller detaches, one attaches elsewhere",
    )
    .await;
}

/// B11: both choose slots of one VM at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_volumes_of_two_controllers_get_thirty_slots() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let second = world.extra_controller("second").await.unwrap();
    let callers = [world.caller(), second.caller.clone()];
    let creates = (0..30).map(async |number| {
        let name = format!("pvc-{number}");
        callers[number % 2]
            .create(&name, THIN, Some("pve1"))
            .await
            .unwrap()
    });
    let volumes = join_all(creates).await;
    // Reads are old by the time of the write.
    world.sim.add_fault(RequestFault {
        method: "GET".to_owned(),
        path: PENDING.to_owned(),
        nth: 1,
        times: 60,
        effect: RequestEffect::Delay { ms: 50 },
    });
    let publishes = volumes.iter().enumerate().map(async |(number, volume)| {
        let caller = &callers[number % 2];
        until_ok(PATIENCE, async || caller.publish(volume, 101).await)
            .await
            .unwrap()
    });
    join_all(publishes).await;
    let truth = Truth::of(&world.sim);
    let slots: Vec<Vec<String>> = volumes
        .iter()
        .map(|volume| truth.slots(101, volume))
        .collect();
    assert!(slots.iter().all(|slots| slots.len() == 1), "{slots:?}");
    let distinct: BTreeSet<&String> = slots.iter().flatten().collect();
    assert_eq!(distinct.len(), 30);
    assert_eq!(truth.violations(), NONE);
}

/// B27: what one has attached, the other finds, whatever it remembers.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_one_controller_attached_is_refused_by_the_other() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
        .await
        .unwrap();
    let second = world.extra_controller("second").await.unwrap();
    let (first, second) = (world.caller(), second.caller.clone());
    let volume = first.create("pvc-both", SHARED, None).await.unwrap();
    for _ in 0..3 {
        first.publish(&volume, 101).await.unwrap();
        let status = second.publish(&volume, 102).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        let status = second.delete(&volume).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        assert_eq!(Truth::of(&world.sim).holders(&volume), [101].into());
        second.unpublish(&volume, 101).await.unwrap();
        second.publish(&volume, 102).await.unwrap();
        first.unpublish_as(&volume, "").await.unwrap();
        let truth = Truth::of(&world.sim);
        assert!(truth.holders(&volume).is_empty());
        assert_eq!(truth.violations(), NONE);
    }
}

/// B11: both make and delete the same names.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_names_made_by_two_controllers_are_the_same_disks() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let second = world.extra_controller("second").await.unwrap();
    let callers = [world.caller(), second.caller.clone()];
    let creates = (0..20).map(async |number: usize| {
        let name = format!("pvc-{}", number / 2);
        let caller = &callers[number % 2];
        until_ok(PATIENCE, async || {
            caller.create(&name, THIN, Some("pve1")).await
        })
        .await
        .unwrap()
    });
    let handles: BTreeSet<String> = join_all(creates).await.into_iter().collect();
    assert_eq!(handles.len(), 10);
    assert_eq!(Truth::of(&world.sim).disks().len(), 10);
    let deletes = handles
        .iter()
        .flat_map(|handle| callers.iter().map(move |caller| (handle, caller)));
    let deletes = deletes.map(async |(handle, caller)| {
        until_ok(PATIENCE, async || caller.delete(handle).await)
            .await
            .unwrap();
    });
    join_all(deletes).await;
    assert!(Truth::of(&world.sim).disks().is_empty());
}
