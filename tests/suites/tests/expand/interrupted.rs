//! Requests that go wrong, controllers that die, and VMs that change while a volume grows.

use std::time::Duration;

use harness::caller::until_ok;
use harness::world::{SHARED, World};
use pve_sim::{RequestEffect, RequestFault, TaskEffect};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use crate::world::{
    MIB, NOT_FINAL, PATIENCE, all, attached, converges, settled, sizes, task_fault, world,
};

const RESIZE: &str = "/nodes/{node}/qemu/{vmid}/resize";
const PENDING: &str = "/nodes/{node}/qemu/{vmid}/pending";

fn request_fault(world: &World, (method, path): (&str, &str), nth: u32, effect: RequestEffect) {
    world.sim.add_fault(RequestFault {
        method: method.to_owned(),
        path: path.to_owned(),
        nth,
        times: 1,
        effect,
    });
}

fn request_effects() -> Vec<RequestEffect> {
    let before = |status, message: &str| RequestEffect::FailBefore {
        status,
        message: message.to_owned(),
    };
    let after = |status, message: &str| RequestEffect::FailAfter {
        status,
        message: message.to_owned(),
    };
    vec![
        RequestEffect::LostRequest,
        RequestEffect::LostReply,
        before(500, "got timeout"),
        before(595, "No route to host"),
        before(503, "Service Unavailable"),
        after(596, "Connection timed out"),
        after(500, "interrupted by signal"),
    ]
}

/// Every request goes wrong once, in every way.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_becomes_of_a_request_the_sizes_are_right_in_the_end() {
    let world = world().await;
    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    let mut size = 64 * MIB;
    let mut hits = 0;
    for effect in request_effects() {
        for nth in 1.. {
            let sentence = format!("request {nth}: {effect:?}");
            // So that each call pays for its own list.
            size += 32 * MIB;
            request_fault(&world, ("*", "*"), nth, effect.clone());
            world.sim.clear_requests();
            let first = world.caller().expand(&volume, size).await;
            let hit = world.sim.requests().len() >= usize::try_from(nth).unwrap();
            world.sim.clear_faults();
            if let Err(status) = &first {
                let wrong = [Code::InvalidArgument, Code::NotFound, Code::OutOfRange];
                assert!(!wrong.contains(&status.code()), "{sentence}: {status:?}");
            }
            let answer = converges(&world, &volume, size, &sentence).await;
            size = size.max(answer);
            settled(&world, &volume, size, answer, &sentence);
            if !hit {
                break;
            }
            hits += 1;
        }
    }
    assert!(hits >= 20, "{hits}");
}

async fn hangs(world: &World, nth: usize) {
    let deadline = Instant::now() + PATIENCE;
    while world.sim.requests().len() < nth - 1 {
        assert!(Instant::now() < deadline, "request {nth} never came");
        sleep(Duration::from_millis(2)).await;
    }
    sleep(Duration::from_millis(60)).await;
}

/// What was under way is carried out beside the successor's requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_at_any_request_leaves_nothing_that_its_successor_does_not_complete()
{
    let mut world = world().await;
    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    let mut size = 64 * MIB;
    for nth in 1..=4 {
        for slow_task in [false, true] {
            let sentence = format!("died at request {nth}, slow task: {slow_task}");
            size += 32 * MIB;
            world.sim.clear_requests();
            let effect = RequestEffect::Delay { ms: 300 };
            request_fault(&world, ("*", "*"), nth, effect);
            if slow_task {
                task_fault(&world, TaskEffect::Slow { ms: 800 });
            }
            let (caller, of) = (world.caller(), volume.clone());
            let work = tokio::spawn(async move { caller.expand(&of, size).await });
            hangs(&world, usize::try_from(nth).unwrap()).await;
            world.crash_controller().await.unwrap();
            drop(work.await);
            let caller = world.caller();
            let grow = async || caller.expand(&volume, size).await;
            let answer = until_ok(PATIENCE, grow).await.unwrap();
            sleep(Duration::from_millis(900)).await;
            world.sim.clear_faults();
            assert!(answer >= size, "{sentence}");
            let truth = sizes(&world, 101, &volume);
            assert_eq!(truth, all(truth.0), "{sentence}");
            assert!(
                truth.0 >= answer && truth.0 <= size + 8 * MIB,
                "{sentence}: {truth:?}"
            );
            size = size.max(truth.0);
        }
    }
}

/// Between the look at the config and the task.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_is_stopped_started_moved_or_changed_meanwhile_is_judged_again() {
    type Happens = fn(&World);
    let rows: [(&str, Happens); 4] = [
        ("stopped", |world| world.sim.stop_vm(101).unwrap()),
        ("restarted", |world| {
            world.sim.stop_vm(101).unwrap();
            world.sim.start_vm(101).unwrap();
        }),
        ("moved", |world| {
            world.sim.with_vm(101, |vm| "pve2".clone_into(&mut vm.node));
        }),
        ("changed", |world| {
            world.sim.with_vm(101, |vm| {
                vm.config.insert("description".to_owned(), "x".to_owned())
            });
        }),
    ];
    for (what, happens) in rows {
        for (at, request) in [("task", ("PUT", RESIZE)), ("look", ("GET", PENDING))] {
            let sentence = format!("{what}, before the {at}");
            let world = world().await;
            let volume = attached(&world, "pvc-1", (SHARED, None)).await;
            let nth = if at == "look" { 2 } else { 1 };
            request_fault(&world, request, nth, RequestEffect::Delay { ms: 400 });
            let caller = world.caller();
            let meanwhile = async {
                sleep(Duration::from_millis(250)).await;
                happens(&world);
            };
            let (first, ()) = tokio::join!(caller.expand(&volume, 128 * MIB), meanwhile);
            if let Err(status) = &first {
                assert!(NOT_FINAL.contains(&status.code()), "{sentence}: {status:?}");
            }
            let answer = converges(&world, &volume, 128 * MIB, &sentence).await;
            if what == "stopped" {
                world.sim.start_vm(101).unwrap();
            }
            settled(&world, &volume, 128 * MIB, answer, &sentence);
        }
    }
}

/// Two calls for one volume, and two volumes of one VM.
#[tokio::test(flavor = "multi_thread")]
async fn calls_at_once_exclude_each_other_for_a_volume_and_queue_for_a_vm() {
    let world = world().await;
    let caller = world.caller();
    let first = attached(&world, "pvc-1", (SHARED, None)).await;
    let second = attached(&world, "pvc-2", (SHARED, None)).await;
    task_fault(&world, TaskEffect::Slow { ms: 400 });
    let late = async |volume: &str| -> Result<i64, Status> {
        sleep(Duration::from_millis(100)).await;
        caller.expand(volume, 128 * MIB).await
    };
    let (one, again, other) = tokio::join!(
        caller.expand(&first, 128 * MIB),
        late(&first),
        late(&second)
    );
    assert_eq!((one.unwrap(), other.unwrap()), (128 * MIB, 128 * MIB));
    assert_eq!(again.unwrap_err().code(), Code::Aborted);
    for volume in [&first, &second] {
        assert_eq!(sizes(&world, 101, volume), all(128 * MIB));
    }
}
