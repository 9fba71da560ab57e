//! The parts of the program while it is the active one, with one generation of them for each config.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pve_kube::{Holding, Tenant};
use pve_region::Fences;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::agents::Agents;
use crate::bucket::Bucket;
use crate::engine::{Cluster, Engine, Parts};
use crate::events::Teller;
use crate::health::Health;
use crate::inventory::RegionView;
use crate::lifecycle::{Ending, Lifecycle};
use crate::machines::Machines;
use crate::metrics::Metrics;
use crate::nodes::Nodes;
use crate::proof::Prover;
use crate::said::Said;
use crate::sources::{Files, Settings};
use crate::writer::{Active, Writer};

/// How often files are read again: the kubelet takes up to a minute to bring a changed Secret into a pod.
const FILES: Duration = Duration::from_secs(5);
/// How often is looked for a kubeconfig that is not there yet.
const WAITING: Duration = Duration::from_secs(2);

/// Which controllers run, and at what pace.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Initialise and refresh.
    pub parts: Parts,
    /// Whether Nodes that are not ready are looked after.
    pub lifecycle: bool,
    /// Between two lists of VMs.
    pub period: Duration,
    /// When a Node is deleted.
    pub ending: Ending,
}

/// A part of the program has ended by a fault in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a part of the program has failed")]
pub struct Failed;

/// All that outlives a change of the config.
#[derive(Debug, Clone)]
pub struct Program {
    /// The config.
    pub files: Files,
    /// The tenant's API server.
    pub tenant: Tenant,
    /// What the management cluster says of VMs.
    pub machines: Machines,
    /// What the operator states.
    pub fences: Fences,
    /// Which controllers run.
    pub pace: Pace,
    /// The tenant's Nodes.
    pub nodes: Nodes,
    /// Tells the tenant.
    pub teller: Teller,
    /// How many Nodes may be deleted, whatever becomes of the config.
    pub deletions: Arc<Mutex<Bucket>>,
    /// Numbers.
    pub metrics: Metrics,
    /// For `/readyz`.
    pub health: Health,
}

/// Waits for a kubeconfig that is there and is accepted.
pub async fn tenant(path: &Path, stop: &CancellationToken) -> Option<Tenant> {
    let said = Said::default();
    loop {
        match Tenant::of_kubeconfig(path).await {
            Ok(tenant) => return Some(tenant),
            Err(error) => {
                let error = error.to_string();
                if said.is_new(Some(&error)) {
                    tracing::warn!(error, "waiting for the tenant's kubeconfig");
                }
            }
        }
        stop.run_until_cancelled(sleep(WAITING)).await?;
    }
}

impl Program {
    /// Works until `stop`, with whatever config is in force; writes only while `holding` says so, if there is a Lease.
    pub async fn run(
        &self,
        settings: Settings,
        stop: CancellationToken,
        holding: Option<Holding>,
    ) -> Result<(), Failed> {
        self.metrics.leading(true);
        self.health.looks_at_nodes(&self.nodes);
        let watching = self.nodes.follow(&self.tenant, stop.clone());
        let working = async {
            let worked = self.generations(settings, &stop, holding).await;
            stop.cancel();
            worked
        };
        let ((), worked) = tokio::join!(watching, working);
        self.metrics.leading(false);
        worked
    }

    async fn generations(
        &self,
        mut settings: Settings,
        stop: &CancellationToken,
        holding: Option<Holding>,
    ) -> Result<(), Failed> {
        while !stop.is_cancelled() {
            let active = Active {
                stop: stop.child_token(),
                holding: holding.clone(),
            };
            let generation = active.stop.clone();
            let changing = async {
                let next = self.changed(&settings, generation.clone()).await;
                generation.cancel();
                next
            };
            let (worked, next) = tokio::join!(self.generation(&settings, active), changing);
            worked?;
            if let Some(next) = next {
                tracing::info!("the config has changed and is in force");
                settings = next;
            }
        }
        Ok(())
    }

    /// Everything that depends on the config. A part that fails ends all of it.
    async fn generation(&self, settings: &Settings, active: Active) -> Result<(), Failed> {
        let stop = active.stop.clone();
        let mut parts = JoinSet::new();
        let clusters = self.clusters(settings, &stop, &mut parts);
        self.health.looks_at(&clusters);
        let writer = Writer::new(self.tenant.clone(), active, self.metrics.clone());
        let engine = Engine {
            nodes: self.nodes.clone(),
            clusters: clusters.clone(),
            rules: settings.rules.clone(),
            parts: self.pace.parts,
            writer: writer.clone(),
            teller: self.teller.clone(),
            metrics: self.metrics.clone(),
        };
        parts.spawn(engine.run(stop.clone()));
        if self.pace.lifecycle {
            let lifecycle = Lifecycle {
                nodes: self.nodes.clone(),
                prover: Prover::new(clusters.clone(), self.fences.clone()),
                clusters,
                machines: self.machines.clone(),
                ending: self.pace.ending,
                deletions: Arc::clone(&self.deletions),
                writer,
                teller: self.teller.clone(),
                metrics: self.metrics.clone(),
            };
            parts.spawn(lifecycle.run(stop.clone()));
        }
        while let Some(ended) = parts.join_next().await {
            if ended.is_err() {
                stop.cancel();
                return Err(Failed);
            }
        }
        Ok(())
    }

    /// One poller for each PVE cluster, and one for its guest agents if they are to be heard.
    fn clusters(
        &self,
        settings: &Settings,
        stop: &CancellationToken,
        parts: &mut JoinSet<()>,
    ) -> Vec<Cluster> {
        let period = self.pace.period;
        let hears_agents = settings.rules.nodes.addresses.agent;
        let mut clusters = Vec::new();
        for source in &settings.sources {
            let (views, view) = watch::channel(source.blank());
            let agents = Arc::<Agents>::default();
            let cluster = Cluster {
                source: Arc::clone(source),
                view,
                told: agents.changes(),
                agents,
            };
            parts.spawn(poll(cluster.clone(), views, period, stop.clone()));
            if hears_agents {
                parts.spawn(hear(cluster.clone(), period, stop.clone()));
            }
            clusters.push(cluster);
        }
        clusters
    }

    /// Waits for another config than this one, or for `stop`. One that is refused changes nothing and is logged once.
    async fn changed(&self, now: &Settings, stop: CancellationToken) -> Option<Settings> {
        let said = Said::default();
        loop {
            stop.run_until_cancelled(sleep(FILES)).await?;
            self.tenant.follow().await;
            match self.files.load(Some(now)) {
                Ok(new) if !new.are(now) => return Some(new),
                Ok(_) => drop(said.is_new(None)),
                Err(error) => {
                    let error = error.to_string();
                    if said.is_new(Some(&error)) {
                        tracing::error!(
                            error,
                            "the changed config is refused, the former stays in force"
                        );
                    }
                }
            }
        }
    }
}

/// One that waits for PVE when it is told to end does not go on waiting.
async fn poll(
    cluster: Cluster,
    views: watch::Sender<RegionView>,
    period: Duration,
    stop: CancellationToken,
) {
    let polling = cluster.source.run(period, views, stop.clone());
    stop.run_until_cancelled(Box::pin(polling)).await;
}

async fn hear(cluster: Cluster, period: Duration, stop: CancellationToken) {
    let Cluster {
        source,
        view,
        agents,
        ..
    } = cluster;
    agents.run(&source, view, period, stop).await;
}
