//! Two controllers at once on one PVE cluster: a partition or a hand-over. Nothing but PVE keeps them apart.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use harness::caller::until_ok;
use harness::truth::Truth;
use harness::world::{SHARED, THIN, World, tenant};
use pve_sim::{RequestEffect, RequestFault};
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(30);
const NONE: [String; 0] = [];
const PENDING: &str = "/nodes/{node}/qemu/{vmid}/pending";

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
