//! PVE requests of attach and detach, with 1, 20 and 100 other workers in the pool.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::time::Duration;

use harness::truth::Truth;
use harness::world::{FILES, SHARED, World, tenant};
use pve_sim::Timing;

/// Longer than the inventory is shared, so that each RPC pays for its own.
const FORGOTTEN: Duration = Duration::from_millis(2100);

async fn costs(others: u32, (storage, zone): (&str, Option<&str>)) {
    let workers: Vec<(u32, &str)> = (0..=others).map(|n| (200 + n, "pve1")).collect();
    let world = World::start(tenant(&workers)).await.unwrap();
    let caller = world.caller();
    let most = usize::try_from(others).unwrap() + 5;
    let volume = caller.create("pvc-1", storage, zone).await.unwrap();
    tokio::time::sleep(FORGOTTEN).await;
    // QEMU is looked at once before anything is written.
    let (answer, requests) = world.counted(caller.publish(&volume, 200)).await;
    answer.unwrap();
    assert!(
        requests <= most + 1,
        "first attach to the VM: {requests} > {most} + 1: {:?}",
        world.sim.request_counts()
    );
    tokio::time::sleep(FORGOTTEN).await;
    let (answer, requests) = world.counted(caller.publish(&volume, 200)).await;
    answer.unwrap();
    assert!(
        requests < most,
        "attached already: {requests}: {:?}",
        world.sim.request_counts()
    );
    tokio::time::sleep(FORGOTTEN).await;
    let (answer, requests) = world.counted(caller.unpublish(&volume, 200)).await;
    answer.unwrap();
    assert!(
        requests <= 5,
        "detach: {requests}: {:?}",
        world.sim.request_counts()
    );
    assert!(Truth::of(&world.sim).holders(&volume).is_empty());
    tokio::time::sleep(FORGOTTEN).await;
    let (answer, requests) = world.counted(caller.publish(&volume, 200)).await;
    answer.unwrap();
    assert!(
        requests <= most,
        "attach: {requests} > {most}: {:?}",
        world.sim.request_counts()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_other_worker() {
    costs(1, (SHARED, None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_twenty_other_workers() {
    costs(20, (FILES, Some("pve1"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_hundred_other_workers() {
    costs(100, (SHARED, None)).await;
}

/// A local volume asks the VMs of its own host only.
#[tokio::test(flavor = "multi_thread")]
async fn a_local_volume_does_not_ask_other_hosts() {
    let workers: Vec<(u32, &str)> = (0..20)
        .map(|n| (200 + n, if n == 0 { "pve1" } else { "pve2" }))
        .collect();
    let world = World::start(tenant(&workers)).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    let (answer, requests) = world.counted(caller.publish(&volume, 200)).await;
    answer.unwrap();
    assert!(requests <= 5, "{:?}", world.sim.request_counts());
}

/// Ten at once share the list of guests.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_guests_is_asked_for_once_whoever_needs_it() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let mut volumes = Vec::new();
    for number in 0..10 {
        volumes.push(
            caller
                .create(&format!("pvc-{number}"), FILES, Some("pve1"))
                .await
                .unwrap(),
        );
    }
    tokio::time::sleep(FORGOTTEN).await;
    world.sim.clear_requests();
    let all = volumes.iter().map(|volume| caller.publish(volume, 101));
    for answer in futures_util::future::join_all(all).await {
        answer.unwrap();
    }
    let lists = world
        .sim
        .request_counts()
        .remove("GET /cluster/resources")
        .unwrap_or_default();
    assert!(
        lists <= 2,
        "{lists} lists for ten attaches: {:?}",
        world.sim.request_counts()
    );
}

/// PVE's own time for an unplug, 2.1 s, is longer than it may hold a worker for us.
#[tokio::test(flavor = "multi_thread")]
async fn attach_and_detach_at_the_pace_of_a_real_pve_keep_to_their_numbers() {
    let world = World::start(tenant(&[(101, "pve1")]).timing(Timing::REAL))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    tokio::time::sleep(FORGOTTEN).await;
    let (answer, requests) = world.counted(caller.publish(&volume, 101)).await;
    answer.unwrap();
    assert!(requests <= 5, "attach: {:?}", world.sim.request_counts());
    let begun = tokio::time::Instant::now();
    tokio::time::sleep(FORGOTTEN).await;
    let (answer, requests) = world.counted(caller.unpublish(&volume, 101)).await;
    answer.unwrap();
    assert!(requests <= 5, "detach: {:?}", world.sim.request_counts());
    assert!(
        begun.elapsed() < FORGOTTEN + Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
}
