//! Every request of every RPC goes wrong once, in every way; the sidecar calls again; the outcome is the same as ever.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panics")]

use std::time::Duration;

use futures_util::future::join_all;
use harness::caller::{Caller, until_ok};
use harness::truth::Truth;
use harness::world::{SHARED, World, tenant};
use pve_sim::{RequestEffect, RequestFault, TaskEffect, TaskFault};
use tonic::{Code, Status};

const PATIENCE: Duration = Duration::from_secs(20);
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
        Rpc::Create => caller.create("pvc-step", SHARED, None).await,
        Rpc::Publish => caller.publish(handle, 101).await.map(|_| handle.to_owned()),
        Rpc::Unpublish => caller
            .unpublish(handle, 101)
            .await
            .map(|()| handle.to_owned()),
        Rpc::Delete => caller.delete(handle).await.map(|()| handle.to_owned()),
    }
}

fn effects() -> Vec<RequestEffect> {
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
        before(
            500,
            "cfs-lock 'storage-shared' error: got lock request timeout",
        ),
        before(500, "VM is locked (backup)"),
        before(595, "No route to host"),
        before(503, "Service Unavailable"),
        after(596, "Connection timed out"),
        after(500, "interrupted by signal"),
    ]
}

/// What has to be true after each RPC that said OK.
fn holds(world: &World, rpc: Rpc, handle: &str) {
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.violations(), NONE, "{rpc:?}");
    let found = (truth.disks().len(), truth.slots(101, handle).len());
    let right = match rpc {
        Rpc::Create | Rpc::Unpublish => (1, 0),
        Rpc::Publish => (1, 1),
        Rpc::Delete => (0, 0),
    };
    assert_eq!(found, right, "{rpc:?}");
}

/// One whole life in which the given fault hits request `nth` of `rpc`. Says whether it hit any.
async fn life(world: &World, rpc: Rpc, nth: u32, effect: &RequestEffect) -> bool {
    let caller = world.caller();
    let mut handle = String::new();
    let mut hit = false;
    for step in [Rpc::Create, Rpc::Publish, Rpc::Unpublish, Rpc::Delete] {
        if step == rpc {
            world.sim.clear_requests();
            world.sim.add_fault(RequestFault {
                method: "*".to_owned(),
                path: "*".to_owned(),
                nth,
                times: 1,
                effect: effect.clone(),
            });
            let first = call(&caller, rpc, &handle).await;
            hit = world.sim.requests().len() >= usize::try_from(nth).unwrap();
            world.sim.clear_faults();
            if let Err(status) = &first {
                // Nothing here is for ever: no answer may say so.
                let wrong = [
                    Code::InvalidArgument,
                    Code::NotFound,
                    Code::Unimplemented,
                    Code::Unknown,
                ];
                assert!(
                    !wrong.contains(&status.code()),
                    "{rpc:?} {nth} {effect:?}: {status:?}"
                );
            }
        }
        let answer = until_ok(PATIENCE, async || call(&caller, step, &handle).await).await;
        handle = answer
            .unwrap_or_else(|status| panic!("{step:?}, {rpc:?} {nth} {effect:?}: {status:?}"));
        holds(world, step, &handle);
    }
    hit
}

async fn everything_goes_wrong_once(rpc: Rpc) {
    let lives = effects().into_iter().map(async |effect| {
        let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
            .await
            .unwrap();
        for nth in 1.. {
            if !life(&world, rpc, nth, &effect).await {
                assert!(nth > 2, "{rpc:?} makes no requests");
                assert_eq!(world.leaks().unwrap(), NONE);
                return;
            }
        }
    });
    join_all(lives).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_create_may_fail_once() {
    everything_goes_wrong_once(Rpc::Create).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_publish_may_fail_once() {
    everything_goes_wrong_once(Rpc::Publish).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_unpublish_may_fail_once() {
    everything_goes_wrong_once(Rpc::Unpublish).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_delete_may_fail_once() {
    everything_goes_wrong_once(Rpc::Delete).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_task_may_fail_once() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
        .await
        .unwrap();
    let text = || "got timeout".to_owned();
    let effects = [
        TaskEffect::Fail { text: text() },
        TaskEffect::FailAfter { text: text() },
        TaskEffect::Kill,
        TaskEffect::Vanish,
        TaskEffect::Warn { count: 2 },
    ];
    for effect in effects {
        for (task, nth) in [("qmconfig", 1), ("qmconfig", 2), ("imgdel", 1)] {
            world.sim.add_task_fault(TaskFault {
                task: task.to_owned(),
                id: None,
                nth,
                times: 1,
                effect: effect.clone(),
            });
            let caller = world.caller();
            let mut handle = String::new();
            for step in [Rpc::Create, Rpc::Publish, Rpc::Unpublish, Rpc::Delete] {
                let answer = until_ok(PATIENCE, async || call(&caller, step, &handle).await).await;
                handle = answer.unwrap_or_else(|status| {
                    panic!("{step:?} {task} {nth} {effect:?}: {status:?}")
                });
                holds(&world, step, &handle);
            }
            world.sim.clear_faults();
        }
    }
}
