//! A steady load: volumes live and die, Nodes come and go.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::caller::Caller;
use harness::ccm::{has_taint, registered};
use harness::csi::{Csi, mount_capability};
use harness::world::{FILES, uuid};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use pve_model::topology::UNINITIALIZED_TAINT;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::world::{VMS, World};

/// One for each VM but the last.
const WORKERS: usize = 3;
/// A Node that is not initialised by then has failed: the cloud-controller-manager lists VMs each second.
const INITIALISED: Duration = Duration::from_secs(10);

/// What became of all calls.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Lives of volumes: four RPCs each.
    pub(crate) volumes: u64,
    pub(crate) nodes: u64,
    pub(crate) failed: Vec<String>,
}

#[derive(Debug, Default)]
struct Counts {
    volumes: [AtomicU64; WORKERS],
    nodes: AtomicU64,
    failed: Mutex<Vec<String>>,
}

pub(crate) struct Load {
    counts: Arc<Counts>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Counts {
    fn failed(&self, what: &str, why: &str) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.push(format!("{what}: {why}"));
    }

    fn lives(&self) -> [u64; WORKERS] {
        self.volumes
            .each_ref()
            .map(|one| one.load(Ordering::SeqCst))
    }

    fn tally(&self) -> Tally {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        Tally {
            volumes: self.lives().into_iter().sum(),
            nodes: self.nodes.load(Ordering::SeqCst),
            failed: failed.clone(),
        }
    }
}

impl Load {
    pub(crate) fn start(world: &World) -> Self {
        let (counts, stop) = (Arc::<Counts>::default(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        for (worker, (vmid, pve_node)) in VMS.into_iter().take(WORKERS).enumerate() {
            let caller = Caller::new(Csi::at(&world.socket()));
            let (counts, stop) = (Arc::clone(&counts), stop.clone());
            tasks.spawn(async move {
                let vm = (vmid, pve_node);
                volumes(caller, vm, (&counts, worker), stop).await;
            });
        }
        let nodes: Api<Node> = Api::all(world.cluster().client());
        tasks.spawn(come_and_go(nodes, Arc::clone(&counts), stop.clone()));
        Self {
            counts,
            stop,
            tasks,
        }
    }

    /// Waits, and then on until each kind of work was done at least once more.
    pub(crate) async fn goes_on(&self, time: Duration) -> Result<()> {
        let before = self.counts.tally();
        let deadline = Instant::now() + time + Duration::from_mins(1);
        sleep(time).await;
        loop {
            let now = self.counts.tally();
            ensure!(now.failed.is_empty(), "{:#?}", now.failed);
            // What had begun before does not count.
            if now.volumes >= before.volumes + 4 && now.nodes >= before.nodes + 2 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "nothing goes on: {now:?}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until every call that had begun when this is called has ended.
    pub(crate) async fn began_anew(&self) -> Result<()> {
        let before = self.counts.lives();
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            let failed = self.counts.tally().failed;
            ensure!(failed.is_empty(), "{failed:#?}");
            let now = self.counts.lives();
            if now.iter().zip(&before).all(|(now, before)| now > before) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "nothing goes on: {now:?}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    pub(crate) async fn stop(mut self) -> Tally {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.counts.tally()
    }
}

async fn volumes(
    caller: Caller,
    (vmid, pve_node): (u32, &'static str),
    (counts, worker): (&Counts, usize),
    stop: CancellationToken,
) {
    let mut number = 0;
    while !stop.is_cancelled() {
        number += 1;
        let name = format!("pvc-{vmid}-{number}");
        match life(&caller, &name, vmid, pve_node).await {
            Ok(()) => drop(counts.volumes[worker].fetch_add(1, Ordering::SeqCst)),
            Err(status) => {
                counts.failed(&name, &format!("{:?} {}", status.code(), status.message()));
                sleep(Duration::from_millis(500)).await;
            }
        }
    }
}

/// The node id is that of the former driver: the tenant's API server is asked for each attach and detach.
async fn life(caller: &Caller, name: &str, vmid: u32, pve_node: &str) -> Result<(), Status> {
    let node = format!("worker-{vmid}");
    let volume = caller.create(name, FILES, Some(pve_node)).await?;
    caller
        .publish_as(&volume, &node, mount_capability())
        .await?;
    caller.unpublish_as(&volume, &node).await?;
    caller.delete(&volume).await
}

async fn come_and_go(nodes: Api<Node>, counts: Arc<Counts>, stop: CancellationToken) {
    let mut number = 0;
    while !stop.is_cancelled() {
        number += 1;
        let name = format!("fresh-{number}");
        match come(&nodes, &name).await {
            Ok(()) => drop(counts.nodes.fetch_add(1, Ordering::SeqCst)),
            Err(error) => counts.failed(&name, &format!("{error:#}")),
        }
    }
}

/// A Node registers as a kubelet does it, is initialised, and goes.
async fn come(nodes: &Api<Node>, name: &str) -> Result<()> {
    let (vmid, _) = VMS[3];
    let node = registered(name, &uuid(vmid), true);
    let node: Node = serde_json::from_value(node)?;
    nodes.create(&PostParams::default(), &node).await?;
    let deadline = Instant::now() + INITIALISED;
    loop {
        let node = nodes.get(name).await?;
        if !has_taint(&node, UNINITIALIZED_TAINT) {
            break;
        }
        ensure!(Instant::now() < deadline, "it is not initialised");
        sleep(Duration::from_millis(100)).await;
    }
    nodes.delete(name, &DeleteParams::default()).await?;
    Ok(())
}
