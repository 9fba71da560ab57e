//! Many volumes at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use harness::caller::{Caller, until_ok};
use harness::truth::Truth;
use harness::world::{FILES, THIN, World, tenant};
use pve_sim::Timing;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::NONE;

const VOLUMES: u32 = 112;
const WORKERS: [(u32, &str); 4] = [(101, "pve1"), (102, "pve1"), (103, "pve2"), (104, "pve2")];
/// What one volume costs at most (design 4): 3 for CreateVolume, 5 and the three other workers for Publish.
const REQUESTS: usize = 3 + 5 + 3;

/// Creates and attaches one volume, calling again as the sidecars do.
async fn volume(caller: &Caller, sidecar: &Semaphore, number: u32) -> Result<String, Status> {
    let _slot = sidecar.acquire().await.unwrap();
    let (vmid, host) = WORKERS[usize::try_from(number).unwrap() % WORKERS.len()];
    let storage = if number % 8 < 4 { FILES } else { THIN };
    let name = format!("pvc-{number}");
    let limit = Duration::from_secs(90);
    let made = until_ok(limit, async || {
        caller.create(&name, storage, Some(host)).await
    })
    .await?;
    until_ok(limit, async || caller.publish(&made, vmid).await).await?;
    Ok(made)
}

/// The most workers that ran at one moment on one host, seen every few milliseconds until `done`.
async fn most_workers(
    world: &World,
    done: impl Future<Output = Vec<Result<String, Status>>>,
) -> (Vec<Result<String, Status>>, usize) {
    let mut most = 0;
    let mut done = std::pin::pin!(done);
    loop {
        let pause = tokio::time::sleep(Duration::from_millis(4));
        tokio::select! {
            made = &mut done => return (made, most),
            () = pause => {
                let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
                for upid in world.sim.running_tasks() {
                    *hosts.entry(upid.split(':').nth(1).unwrap().to_owned()).or_default() += 1;
                }
                most = most.max(hosts.into_values().max().unwrap_or_default());
            }
        }
    }
}

/// B13: PVE has three workers per host for all its tenants.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_and_twelve_volumes_at_once_are_made_and_attached_without_a_storm() {
    let timing = Timing {
        attach: Duration::from_millis(60),
        allocate: Duration::from_millis(20),
        ..Timing::ZERO
    };
    let world = World::start(tenant(&WORKERS).timing(timing)).await.unwrap();
    let caller = world.caller();
    world.sim.clear_requests();
    // As many worker threads as the provisioner and the attacher have together.
    let sidecar = Arc::new(Semaphore::new(20));
    let all = join_all((0..VOLUMES).map(|number| volume(&caller, &sidecar, number)));
    let (made, most) = most_workers(&world, all).await;
    let made: Vec<String> = made.into_iter().map(Result::unwrap).collect();
    assert!(
        (1..=2).contains(&most),
        "{most} workers at once on one host"
    );
    let requests = world.sim.requests();
    let refused = requests
        .iter()
        .filter(|request| request.status >= 400 || request.status == 0);
    assert_eq!(refused.count(), 0, "PVE was never at its limit");
    let bound = made.len() * REQUESTS;
    assert!(
        requests.len() <= bound,
        "{} requests, {bound} expected",
        requests.len()
    );
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.disks().len(), made.len());
    for (number, volume) in made.iter().enumerate() {
        let (vmid, _) = WORKERS[number % WORKERS.len()];
        assert_eq!(truth.slots(vmid, volume).len(), 1, "{volume}");
    }
    assert_eq!(truth.violations(), NONE);
}
