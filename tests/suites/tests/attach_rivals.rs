//! B27: two controllers that write at the same moment, and what a killed one has left Proxmox to do. Proxmox compares only
//! the digest of the VM that is written.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::time::Duration;

use harness::caller::{Caller, until_ok};
use harness::truth::Truth;
use harness::world::{FILES, SHARED, World, tenant};
use pve_sim::{RequestEffect, RequestFault, TaskEffect, TaskFault};
use tokio::time::timeout;
use tonic::{Code, Status};

const PATIENCE: Duration = Duration::from_secs(30);
const CONFIG: &str = "/nodes/{node}/qemu/{vmid}/config";
const NONE: [String; 0] = [];

async fn world() -> World {
    World::start(tenant(&[(101, "pve1"), (102, "pve2"), (103, "pve1")]))
        .await
        .unwrap()
}

fn hold(world: &World, effect: RequestEffect) {
    world.sim.add_fault(RequestFault {
        method: "POST".to_owned(),
        path: CONFIG.to_owned(),
        nth: 1,
        times: 1,
        effect,
    });
}

fn hold_task(world: &World, task: &str) {
    world.sim.add_task_fault(TaskFault {
        task: task.to_owned(),
        id: None,
        nth: 1,
        times: 1,
        effect: TaskEffect::Hold,
    });
}

async fn held(world: &World) {
    let mut held = world.sim.held();
    let standing = held.wait_for(|held| !held.is_empty());
    drop(timeout(PATIENCE, standing).await.unwrap().unwrap());
}

/// Both have read that nobody has the volume. One writes, answers, and then the other's write takes place.
async fn overlap(effect: RequestEffect, storage: (&str, Option<&str>), second_vm: u32) {
    let world = world().await;
    let second = world.extra_controller("second").await.unwrap();
    let (first, second) = (world.caller(), second.caller.clone());
    let volume = first.create("pvc-a", storage.0, storage.1).await.unwrap();
    hold(&world, effect);
    let late = first.publish(&volume, 101);
    let meanwhile = async {
        held(&world).await;
        let answer = second.publish(&volume, second_vm).await;
        world.sim.release();
        answer
    };
    let (late, meanwhile) = tokio::join!(late, meanwhile);
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.violations(), NONE);
    let answers = [(101, late.is_ok()), (second_vm, meanwhile.is_ok())];
    let answered: Vec<u32> = answers
        .iter()
        .filter(|(_, ok)| *ok)
        .map(|(vm, _)| *vm)
        .collect();
    let holders: Vec<u32> = truth.holders(&volume).into_iter().collect();
    assert_eq!(holders, answered, "{late:?} {meanwhile:?}");
    assert_eq!(answered.len(), 1, "{late:?} {meanwhile:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_arrives_after_that_of_another_controller_is_taken_back() {
    overlap(RequestEffect::Hold, (SHARED, None), 102).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_one_host_too() {
    overlap(RequestEffect::Hold, (FILES, Some("pve1")), 103).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_another_controller_does_not_see_answered_refuses_it() {
    overlap(RequestEffect::HoldReply, (SHARED, None), 102).await;
}

/// Kills the controller while PVE's worker for its call waits for a lock; what the successor is asked is not answered with
/// success before that worker has ended.
async fn killed_during(
    world: &mut World,
    call: impl AsyncFn(&Caller) -> Result<(), Status>,
    asked: impl AsyncFn(&Caller) -> Result<(), Status>,
) {
    hold_task(world, "qmconfig");
    let doomed = world.caller();
    {
        let call = call(&doomed);
        tokio::pin!(call);
        tokio::select! {
            answer = &mut call => panic!("{answer:?} before PVE was at work"),
            () = held(world) => {}
        }
    }
    world.crash_controller().await.unwrap();
    let caller = world.caller();
    let status = asked(&caller).await.unwrap_err();
    assert!(
        matches!(
            status.code(),
            Code::Unavailable | Code::Aborted | Code::DeadlineExceeded
        ),
        "{status:?}"
    );
    world.sim.release();
    until_ok(PATIENCE, async || asked(&caller).await)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_not_called_detached_while_a_killed_controllers_attach_is_at_work() {
    let mut world = world().await;
    let volume = world.caller().create("pvc-a", SHARED, None).await.unwrap();
    killed_during(
        &mut world,
        async |caller| caller.publish(&volume, 101).await.map(drop),
        async |caller| caller.unpublish(&volume, 101).await,
    )
    .await;
    world.caller().publish(&volume, 102).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.holders(&volume), [102].into());
    assert_eq!(truth.violations(), NONE);
}

/// A volume is not called attached that is about to go.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_not_called_attached_while_a_killed_controllers_detach_is_at_work() {
    let mut world = world().await;
    let volume = world.caller().create("pvc-a", SHARED, None).await.unwrap();
    world.caller().publish(&volume, 101).await.unwrap();
    killed_during(
        &mut world,
        async |caller| caller.unpublish(&volume, 101).await,
        async |caller| caller.publish(&volume, 101).await.map(drop),
    )
    .await;
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.slots(101, &volume).len(), 1);
    assert_eq!(truth.violations(), NONE);
}

/// One frees the disk while the other attaches it: the reference must not stay.
#[tokio::test(flavor = "multi_thread")]
async fn an_attach_of_a_disk_that_another_controller_frees_leaves_no_reference() {
    let world = world().await;
    let second = world.extra_controller("second").await.unwrap();
    let (first, second) = (world.caller(), second.caller.clone());
    let volume = first.create("pvc-a", SHARED, None).await.unwrap();
    hold_task(&world, "imgdel");
    hold(&world, RequestEffect::HoldReply);
    let freed = first.delete(&volume);
    let attached = async {
        held(&world).await;
        let attaching = second.publish(&volume, 101);
        let letting_go = async {
            let mut held = world.sim.held();
            let both = held.wait_for(|held| held.len() == 2);
            drop(timeout(PATIENCE, both).await.unwrap().unwrap());
            world.sim.release();
        };
        tokio::join!(attaching, letting_go).0
    };
    let (freed, attached) = tokio::join!(freed, attached);
    freed.unwrap();
    assert_eq!(attached.unwrap_err().code(), Code::NotFound);
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.holders(&volume), [].into());
    assert_eq!(truth.violations(), NONE);
}
