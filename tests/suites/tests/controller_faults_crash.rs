//! The controller dies between any two of its requests: whoever comes next finds out what happened.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panics")]

use std::time::Duration;

use harness::caller::{Caller, until_ok};
use harness::truth::Truth;
use harness::world::{SHARED, World, tenant};
use pve_sim::{RequestEffect, RequestFault};
use tokio::time::{Instant, sleep};
use tonic::Status;

const PATIENCE: Duration = Duration::from_secs(15);
/// A request that is under way when the controller dies is carried out this much later, beside its successor.
const UNDER_WAY: Duration = Duration::from_millis(300);
const NONE: [String; 0] = [];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rpc {
    Create,
    Publish,
    Unpublish,
    Delete,
}

async fn call(caller: &Caller, rpc: Rpc, handle: &str) -> Result<String, Status> {
    match rpc {
        Rpc::Create => caller.create("pvc-crash", SHARED, None).await,
        Rpc::Publish => caller.publish(handle, 101).await.map(|_| handle.to_owned()),
        Rpc::Unpublish => caller
            .unpublish(handle, 101)
            .await
            .map(|()| handle.to_owned()),
        Rpc::Delete => caller.delete(handle).await.map(|()| handle.to_owned()),
    }
}

/// Waits until request number `nth` has reached PVE and hangs there; false if the RPC ended without it.
async fn hangs(
    world: &World,
    nth: usize,
    work: &tokio::task::JoinHandle<Result<String, Status>>,
) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if work.is_finished() {
            return false;
        }
        // The log shows what was answered: one less, and nothing more for a while.
        if world.sim.requests().len() >= nth - 1 {
            sleep(Duration::from_millis(60)).await;
            return !work.is_finished();
        }
        sleep(Duration::from_millis(2)).await;
    }
    panic!("request {nth} never came");
}

/// Lets the controller die at each request of the RPC in turn; after each the same RPC is repeated to its end, and
/// `undo` brings the world back. Returns at how many requests it died.
async fn dies_at_every_step(world: &mut World, rpc: Rpc, undo: Rpc, mut handle: String) -> usize {
    for nth in 1.. {
        world.sim.clear_requests();
        world.sim.add_fault(RequestFault {
            method: "*".to_owned(),
            path: "*".to_owned(),
            nth: u32::try_from(nth).unwrap(),
            times: 1,
            effect: RequestEffect::Delay {
                ms: u64::try_from(UNDER_WAY.as_millis()).unwrap(),
            },
        });
        let (caller, of) = (world.caller(), handle.clone());
        let work = tokio::spawn(async move { call(&caller, rpc, &of).await });
        let died = hangs(world, nth, &work).await;
        if died {
            world.crash_controller().await.unwrap();
            drop(work.await);
        }
        world.sim.clear_faults();
        let caller = world.caller();
        let again = until_ok(PATIENCE, async || call(&caller, rpc, &handle).await).await;
        handle =
            again.unwrap_or_else(|status| panic!("{rpc:?} after a death at {nth}: {status:?}"));
        sleep(UNDER_WAY).await;
        holds(world, rpc, &handle, nth);
        if !died {
            assert_eq!(world.leaks().unwrap(), NONE);
            return nth - 1;
        }
        let back = until_ok(PATIENCE, async || call(&caller, undo, &handle).await).await;
        handle = back
            .unwrap_or_else(|status| panic!("{undo:?} after {rpc:?} died at {nth}: {status:?}"));
    }
    unreachable!("an RPC has an end")
}

fn holds(world: &World, rpc: Rpc, handle: &str, nth: usize) {
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.violations(), NONE, "{rpc:?}, death at {nth}");
    let (disks, slots) = (truth.disks().len(), truth.slots(101, handle).len());
    let right = match rpc {
        Rpc::Create | Rpc::Unpublish => (1, 0),
        Rpc::Publish => (1, 1),
        Rpc::Delete => (0, 0),
    };
    assert_eq!((disks, slots), right, "{rpc:?}, death at {nth}");
}

async fn world() -> World {
    World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_step_of_create_leaves_one_disk() {
    let mut world = world().await;
    let deaths = dies_at_every_step(&mut world, Rpc::Create, Rpc::Delete, String::new()).await;
    assert!(deaths >= 2, "{deaths}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_step_of_publish_leaves_one_holder() {
    let mut world = world().await;
    let handle = call(&world.caller(), Rpc::Create, "").await.unwrap();
    let deaths = dies_at_every_step(&mut world, Rpc::Publish, Rpc::Unpublish, handle).await;
    assert!(deaths >= 4, "{deaths}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_step_of_unpublish_leaves_no_holder() {
    let mut world = world().await;
    let handle = call(&world.caller(), Rpc::Create, "").await.unwrap();
    call(&world.caller(), Rpc::Publish, &handle).await.unwrap();
    let deaths = dies_at_every_step(&mut world, Rpc::Unpublish, Rpc::Publish, handle).await;
    assert!(deaths >= 3, "{deaths}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_step_of_delete_leaves_no_disk() {
    let mut world = world().await;
    let handle = call(&world.caller(), Rpc::Create, "").await.unwrap();
    let deaths = dies_at_every_step(&mut world, Rpc::Delete, Rpc::Create, handle).await;
    assert!(deaths >= 3, "{deaths}");
}
