//! Whole lives of volumes on one VM, and two controllers at work at once.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use harness::caller::{Caller, until_ok};
use harness::truth::Truth;
use harness::world::{FILES, World, tenant};
use pve_sim::Timing;
use tonic::Status;

const NONE: [String; 0] = [];
const PATIENCE: Duration = Duration::from_mins(1);

async fn life(caller: &Caller, name: &str) -> Result<(), Status> {
    let volume = caller.create(name, FILES, Some("pve1")).await?;
    until_ok(PATIENCE, async || caller.publish(&volume, 101).await).await?;
    until_ok(PATIENCE, async || caller.unpublish(&volume, 101).await).await?;
    caller.delete(&volume).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_lives_in_parallel_on_one_vm_cost_150_requests_at_most() {
    let world = World::start(tenant(&[(101, "pve1")]).timing(Timing::REAL))
        .await
        .unwrap();
    let caller = world.caller();
    let names: Vec<String> = (0..10).map(|number| format!("pvc-{number}")).collect();
    let lives = names.iter().map(|name| life(&caller, name));
    let (ended, requests) = world.counted(join_all(lives)).await;
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert!(
        requests <= 150,
        "{requests}: {:?}",
        world.sim.request_counts()
    );
    let truth = Truth::of(&world.sim);
    assert!(truth.disks().is_empty());
    assert_eq!(truth.violations(), NONE);
}

/// B11: two controllers during a hand-over.
#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_on_one_vm_never_take_each_others_slots() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let other = world.extra_controller("second").await.unwrap();
    let callers = [world.caller(), other.caller.clone()];
    let mut volumes = Vec::new();
    for number in 0..20 {
        let name = format!("pvc-{number}");
        volumes.push(callers[0].create(&name, FILES, Some("pve1")).await.unwrap());
    }
    let attach = |number: usize| {
        let (caller, volume) = (&callers[number % 2], &volumes[number]);
        until_ok(PATIENCE, async move || caller.publish(volume, 101).await)
    };
    let attached = join_all((0..volumes.len()).map(attach)).await;
    let luns: BTreeSet<String> = attached
        .into_iter()
        .map(|context| context.unwrap()["lun"].clone())
        .collect();
    assert_eq!(luns.len(), volumes.len());
    let truth = Truth::of(&world.sim);
    assert!(
        volumes
            .iter()
            .all(|volume| truth.slots(101, volume).len() == 1)
    );
    assert_eq!(truth.violations(), NONE);
}
