//! How many requests each RPC may cost PVE, whatever the number of other workers (design, section 4).

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panics")]

use std::future::Future;

use futures_util::future::join_all;
use harness::truth::Truth;
use harness::world::{FILES, SHARED, THIN, World, tenant};
use pve_sim::Timing;
use std::time::Duration;

/// The worker that all is about; the others have the numbers above.
const WORKER: u32 = 101;

/// `worker` and `others` more; `host_of` says where number n is.
fn workers(others: u32, host_of: fn(u32) -> &'static str) -> Vec<(u32, &'static str)> {
    (0..=others)
        .map(|number| (WORKER + number, host_of(number)))
        .collect()
}

fn on_one_host(_: u32) -> &'static str {
    "pve1"
}

fn on_two_hosts(number: u32) -> &'static str {
    if number.is_multiple_of(2) {
        "pve1"
    } else {
        "pve2"
    }
}

fn first_alone(number: u32) -> &'static str {
    if number == 0 { "pve1" } else { "pve2" }
}

/// Runs an RPC, which must succeed within `budget` requests.
async fn within<T>(
    world: &World,
    budget: usize,
    rpc: (&str, impl Future<Output = Result<T, tonic::Status>>),
) -> T {
    let (name, call) = rpc;
    let (answer, requests) = world.counted(call).await;
    let answer = answer.unwrap_or_else(|status| panic!("{name}: {status:?}"));
    assert!(
        requests <= budget,
        "{name} took {requests} requests of {budget}: {:#?}",
        world.sim.request_counts()
    );
    answer
}

/// The budget of a whole life with `others` workers that have to be read, on so many hosts. At the first attach QEMU is
/// looked at before anything is written, which is one of the `looks`.
async fn life(
    world: &World,
    (storage, zone): (&str, Option<&str>),
    (others, hosts): (usize, usize),
    mut looks: usize,
) {
    // At Delete the volume is attached nowhere: all workers that could have it are others.
    let read = others + 1;
    let caller = world.caller();
    // The second finds the controller's memory filled. With many workers the token bucket would make it slow.
    let names: &[&str] = if others < 50 {
        &["pvc-first", "pvc-second"]
    } else {
        &["pvc-first"]
    };
    for name in names {
        let volume = within(world, 3, ("Create", caller.create(name, storage, zone))).await;
        within(
            world,
            4 + others + hosts + looks,
            ("Publish", caller.publish(&volume, WORKER)),
        )
        .await;
        // Disks of the same owner that were freed just before make one look whether this one is there.
        looks = 1;
        within(
            world,
            5 + others,
            ("Publish again", caller.publish(&volume, WORKER)),
        )
        .await;
        within(world, 5, ("Unpublish", caller.unpublish(&volume, WORKER))).await;
        within(
            world,
            5,
            ("Unpublish again", caller.unpublish(&volume, WORKER)),
        )
        .await;
        within(world, 3 + read, ("Delete", caller.delete(&volume))).await;
    }
    let truth = Truth::of(&world.sim);
    assert!(truth.disks().is_empty());
    assert!(truth.violations().is_empty());
}

async fn budgets_hold(others: u32) {
    let world = World::start(tenant(&workers(others, on_one_host)))
        .await
        .unwrap();
    let number = usize::try_from(others).unwrap();
    life(&world, (FILES, Some("pve1")), (number, 1), 1).await;
    life(&world, (THIN, Some("pve1")), (number, 1), 0).await;
    let world = World::start(tenant(&workers(others, on_two_hosts)))
        .await
        .unwrap();
    life(&world, (SHARED, None), (number, 2), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budgets_hold_with_one_other_worker() {
    budgets_hold(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budgets_hold_with_twenty_other_workers() {
    budgets_hold(20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budgets_hold_with_a_hundred_other_workers() {
    budgets_hold(100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_reads_each_other_worker_once_and_not_itself() {
    let world = World::start(tenant(&workers(20, on_one_host)))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    within(&world, 6 + 20, ("Publish", caller.publish(&volume, WORKER))).await;
    let requests = world.sim.requests();
    for number in 1..=20 {
        let of_it = format!("/qemu/{}/", WORKER + number);
        let reads = requests
            .iter()
            .filter(|request| request.path.contains(&of_it))
            .count();
        assert_eq!(reads, 1, "VM {}", WORKER + number);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_on_another_host_are_not_read_for_a_local_volume() {
    let world = World::start(tenant(&workers(20, first_alone)))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = within(
        &world,
        3,
        ("Create", caller.create("pvc-1", THIN, Some("pve1"))),
    )
    .await;
    within(&world, 5, ("Publish", caller.publish(&volume, WORKER))).await;
    within(&world, 5, ("Unpublish", caller.unpublish(&volume, WORKER))).await;
    within(&world, 3 + 1, ("Delete", caller.delete(&volume))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_lives_at_once_on_one_vm_take_at_most_150_requests() {
    let timing = Timing {
        attach: Duration::from_millis(40),
        detach: Duration::from_millis(400),
        allocate: Duration::from_millis(10),
        ..Timing::ZERO
    };
    let builder = tenant(&workers(0, on_one_host)).timing(timing);
    let world = World::start(builder).await.unwrap();
    world.sim.clear_requests();
    let lives = (0..10).map(async |number| {
        let caller = world.caller();
        let name = format!("pvc-{number}");
        let volume = caller.create(&name, FILES, Some("pve1")).await.unwrap();
        caller.publish(&volume, WORKER).await.unwrap();
        caller.unpublish(&volume, WORKER).await.unwrap();
        caller.delete(&volume).await.unwrap();
    });
    join_all(lives).await;
    let requests = world.sim.requests().len();
    assert!(
        requests <= 150,
        "{requests}: {:#?}",
        world.sim.request_counts()
    );
    let truth = Truth::of(&world.sim);
    assert!(truth.disks().is_empty());
    assert!(truth.violations().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_controller_leaves_pve_alone() {
    let world = World::start(tenant(&workers(2, on_one_host)))
        .await
        .unwrap();
    world.sim.clear_requests();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        world.sim.request_counts(),
        std::collections::BTreeMap::new()
    );
}
