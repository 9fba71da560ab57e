//! How long each RPC takes beside what PVE itself takes (design, section 4), with the times of a real PVE 9.2.
//!
//! The best of a few tries counts: the machine may have other work too.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panics, and say what they measured"
)]

use std::time::Duration;

use futures_util::future::join_all;
use harness::truth::Truth;
use harness::world::{FILES, World, tenant};
use pve_sim::{TaskEffect, TaskFault, Timing};
use tokio::time::Instant;

const TRIES: usize = 3;

async fn timed<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> (T, Duration) {
    let start = Instant::now();
    let answer = call.await.unwrap();
    (answer, start.elapsed())
}

/// What a call answered, how long it took and how many requests.
async fn measured<T>(
    world: &World,
    call: impl Future<Output = Result<T, tonic::Status>>,
) -> (T, Duration, usize) {
    let ((answer, time), count) = Box::pin(world.counted(timed(call))).await;
    (answer, time, count)
}

fn best(times: &[Duration]) -> Duration {
    times.iter().copied().min().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rpc_takes_little_longer_than_pve_itself() {
    let builder = tenant(&[(101, "pve1")]).timing(Timing::REAL);
    let world = World::start(builder).await.unwrap();
    let caller = world.caller();
    let mut times: [Vec<Duration>; 4] = Default::default();
    let mut requests: [Vec<usize>; 4] = Default::default();
    for number in 0..TRIES {
        let name = format!("pvc-{number}");
        let create = measured(&world, caller.create(&name, FILES, Some("pve1"))).await;
        let volume = create.0;
        let publish = measured(&world, caller.publish(&volume, 101)).await;
        let unpublish = measured(&world, caller.unpublish(&volume, 101)).await;
        let delete = measured(&world, caller.delete(&volume)).await;
        let rpcs = [
            (create.1, create.2),
            (publish.1, publish.2),
            (unpublish.1, unpublish.2),
            (delete.1, delete.2),
        ];
        for (at, (time, count)) in rpcs.into_iter().enumerate() {
            times[at].push(time);
            requests[at].push(count);
        }
    }
    println!("create, publish, unpublish, delete: {times:?}, {requests:?} requests");
    for (most, requests) in [3, 5, 5, 4].into_iter().zip(&requests) {
        assert!(
            requests.iter().all(|count| *count <= most),
            "{requests:?}, at most {most}"
        );
    }
    let limits = [
        (
            "create",
            2 * Timing::REAL.allocate.max(Duration::from_millis(40)),
        ),
        ("publish", Timing::REAL.attach * 3 / 2),
        ("unpublish", Timing::REAL.detach * 11 / 10),
        ("delete", Duration::from_millis(100)),
    ];
    for ((what, limit), times) in limits.into_iter().zip(&times) {
        assert!(best(times) <= limit, "{what}: {times:?}, at most {limit:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_lives_at_once_take_little_longer_than_pve_needs_one_after_the_other() {
    let builder = tenant(&[(101, "pve1")]).timing(Timing::REAL);
    let world = World::start(builder).await.unwrap();
    world.sim.clear_requests();
    let start = Instant::now();
    let lives = (0..10).map(async |number| {
        let caller = world.caller();
        let name = format!("pvc-{number}");
        let volume = caller.create(&name, FILES, Some("pve1")).await.unwrap();
        caller.publish(&volume, 101).await.unwrap();
        caller.unpublish(&volume, 101).await.unwrap();
        caller.delete(&volume).await.unwrap();
    });
    join_all(lives).await;
    let (took, requests) = (start.elapsed(), world.sim.requests().len());
    println!("ten lives: {took:?}, {requests} requests");
    let pve = 10 * (Timing::REAL.attach + Timing::REAL.detach + Timing::REAL.allocate);
    assert!(took <= pve * 115 / 100, "{took:?}, PVE needs {pve:?}");
    assert!(
        requests <= 150,
        "{requests}: {:#?}",
        world.sim.request_counts()
    );
    assert!(Truth::of(&world.sim).violations().is_empty());
}

/// How long an attach, a detach and a deletion take at best when PVE's tasks take `task`.
async fn with_tasks_of(task: Duration) -> [Duration; 3] {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    for kind in ["qmconfig", "imgdel"] {
        world.sim.add_task_fault(TaskFault {
            task: kind.to_owned(),
            id: None,
            nth: 1,
            times: 1000,
            effect: TaskEffect::Slow {
                ms: u64::try_from(task.as_millis()).unwrap(),
            },
        });
    }
    let mut times: [Vec<Duration>; 3] = Default::default();
    for number in 0..2 {
        let name = format!("pvc-{number}");
        let volume = caller.create(&name, FILES, Some("pve1")).await.unwrap();
        times[0].push(timed(caller.publish(&volume, 101)).await.1);
        times[1].push(timed(caller.unpublish(&volume, 101)).await.1);
        times[2].push(timed(caller.delete(&volume)).await.1);
    }
    println!("tasks of {task:?}: {times:?}");
    times.map(|times| best(&times))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_task_is_not_waited_for_longer_than_it_takes() {
    for time in with_tasks_of(Duration::from_millis(200)).await {
        assert!(
            time >= Duration::from_millis(190),
            "the fault did not take effect: {time:?}"
        );
        assert!(time <= Duration::from_millis(350), "{time:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_outlasts_the_request_is_noticed_soon_after_its_end() {
    for time in with_tasks_of(Duration::from_millis(2600)).await {
        assert!(
            time >= Duration::from_millis(2590),
            "the fault did not take effect: {time:?}"
        );
        assert!(time <= Duration::from_millis(3100), "{time:?}");
    }
}
