//! Initialise and refresh: has written what `plan` says, whenever a Node or what is known of the VMs has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use futures_util::stream::{StreamExt, iter};
use pve_client::RunState;
use pve_model::VmId;
use pve_runtime::config::Provider;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::agents::{Agents, Answer};
use crate::events::{Teller, Told};
use crate::inventory::{Doubt, RegionView, Vm};
use crate::metrics::Metrics;
use crate::node::NodeView;
use crate::nodes::Nodes;
use crate::plan::{self, Changes, Refusal, Rules};
use crate::poll::Source;
use crate::retry::{Paces, Retries};
use crate::writer::{WriteError, Writer};

/// Nodes that are written at the same time.
const AT_A_TIME: usize = 8;
/// Changes that come within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// How long a new Node waits for the first answer of its guest agent.
const AGENT: Duration = Duration::from_secs(3);
/// How long it is remembered that it has waited.
const REMEMBERED: Duration = Duration::from_mins(10);
/// Without any change, all is looked at again after this time.
const IDLE: Duration = Duration::from_mins(5);

/// One PVE cluster, for whoever decides about Nodes.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// How it is asked.
    pub source: Arc<Source>,
    /// What it showed.
    pub view: watch::Receiver<RegionView>,
    /// What its guest agents say.
    pub agents: Arc<Agents>,
    /// Wakes when one of them said something else.
    pub told: watch::Receiver<()>,
}

/// Which parts are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Nodes with the taint of initialisation.
    pub initialise: bool,
    /// Nodes without it.
    pub refresh: bool,
}

/// Initialise and refresh.
#[derive(Debug)]
pub struct Engine {
    /// The tenant's Nodes.
    pub nodes: Nodes,
    /// All PVE clusters.
    pub clusters: Vec<Cluster>,
    /// What the operator wants.
    pub rules: Rules,
    /// Which parts are on.
    pub parts: Parts,
    /// Writes Nodes.
    pub writer: Writer,
    /// Tells the tenant.
    pub teller: Teller,
    /// Numbers.
    pub metrics: Metrics,
}

/// What is remembered of Nodes between looks.
#[derive(Debug, Default)]
struct Memory {
    retries: Retries,
    paces: Paces,
    /// Since when a Node, by its uid, waits for the first answer of its guest agent.
    agents: BTreeMap<String, Instant>,
}

impl Memory {
    fn forget(&mut self, name: &str) {
        self.retries.done(name);
        self.paces.forget(name);
    }

    fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.retries.keep(&is_kept);
        self.paces.keep(is_kept);
        self.agents.retain(|_, since| since.elapsed() < REMEMBERED);
    }
}

/// A Node and what is to be written.
type Work = (Arc<NodeView>, Changes);

/// What came of looking at one Node.
enum Outcome {
    Nothing,
    Write(Changes),
    Wait(Refusal),
    Agent,
}

impl Engine {
    /// Works until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut nodes = self.nodes.changes();
        let mut memory = Memory::default();
        loop {
            let retries = &memory.retries;
            let everything = tokio::select! {
                () = stop.cancelled() => return,
                _ = nodes.changed() => false,
                () = any_changed(&mut self.clusters) => true,
                () = sleep_until(retries.next().unwrap_or_else(|| Instant::now() + IDLE)) => false,
            };
            tokio::time::sleep(TOGETHER).await;
            if !self.nodes.are_listed() {
                continue;
            }
            nodes.mark_unchanged();
            let mut names = self.nodes.take_changed();
            names.extend(memory.retries.due(Instant::now()));
            let pass = self.pass((!everything).then_some(names), &mut memory);
            if stop.run_until_cancelled(pass).await.is_none() {
                return;
            }
        }
    }

    /// Looks at these Nodes, or at all.
    async fn pass(&self, names: Option<BTreeSet<String>>, memory: &mut Memory) {
        let views: Vec<RegionView> = self
            .clusters
            .iter()
            .map(|cluster| cluster.view.borrow().clone())
            .collect();
        let nodes = self.chosen(names.as_ref(), memory);
        let now = Instant::now();
        let mut agents = names.is_none();
        let mut work = Vec::new();
        for node in nodes {
            let has_waited = memory.agents.get(&node.uid);
            let patient = has_waited.is_none_or(|since| *since + AGENT > now);
            match self.look(&node, &views, patient) {
                Outcome::Nothing => {
                    memory.retries.done(&node.name);
                    memory.paces.calm(&node.name, now);
                }
                Outcome::Write(changes) => match memory.paces.due(&node.name, now) {
                    None => work.push((node, changes)),
                    Some(due) => memory.retries.at(&node.name, due),
                },
                Outcome::Wait(refusal) => self.wait(&node, refusal, &mut memory.retries),
                Outcome::Agent => {
                    agents = true;
                    let since = *memory.agents.entry(node.uid.clone()).or_insert(now);
                    memory.retries.at(&node.name, since + AGENT);
                }
            }
        }
        if agents {
            self.want_agents(&self.nodes.all(), &views);
        }
        let written = iter(work).map(|work| self.write(work));
        let mut written = written.buffer_unordered(AT_A_TIME);
        while let Some((name, well)) = written.next().await {
            let now = Instant::now();
            if well {
                memory.retries.done(&name);
                memory.paces.wrote(&name, now);
            } else {
                memory.retries.again(&name, now);
            }
        }
    }

    /// These Nodes, or all; what is no more is forgotten.
    fn chosen(&self, names: Option<&BTreeSet<String>>, memory: &mut Memory) -> Vec<Arc<NodeView>> {
        let Some(names) = names else {
            let nodes = self.nodes.all();
            let all: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            memory.keep(|name| all.contains(name));
            self.count(&nodes);
            return nodes;
        };
        let mut nodes = Vec::new();
        for name in names {
            match self.nodes.get(name) {
                Some(node) => nodes.push(node),
                None => memory.forget(name),
            }
        }
        nodes
    }

    fn look(&self, node: &NodeView, views: &[RegionView], patient: bool) -> Outcome {
        let initialise = node.is_uninitialised();
        let is_off = if initialise {
            !self.parts.initialise
        } else {
            !self.parts.refresh
        };
        if node.is_foreign() || is_off {
            return Outcome::Nothing;
        }
        let uuid = match plan::identity(node) {
            Ok(uuid) => uuid,
            Err(refusal) => return refused(initialise, refusal),
        };
        let vm = match plan::vm_of(views, &uuid) {
            Ok(vm) => vm,
            Err(refusal) => return refused(initialise, refusal),
        };
        // An id that names a VMID is for ever: no other VM may have the UUID.
        if initialise && !vm.snapshot.settled && self.rules.provider == Provider::Default {
            return Outcome::Wait(Refusal::Doubt(Doubt::Unread));
        }
        let agent = self.agent(&vm);
        let interfaces = match &agent {
            Answer::Unasked if initialise && patient => return Outcome::Agent,
            Answer::Unasked | Answer::Nothing => None,
            Answer::Interfaces(all) => Some(all.as_slice()),
        };
        let wanted = plan::wanted(node, &uuid, &vm, interfaces, &self.rules);
        let changes = plan::changes(node, &wanted, &self.rules);
        if changes.are_none() {
            Outcome::Nothing
        } else {
            Outcome::Write(changes)
        }
    }

    /// What the guest agent said, if it is to be heard.
    fn agent(&self, vm: &Vm<'_>) -> Answer {
        if !self.rules.nodes.addresses.agent || vm.entry.state != RunState::Running {
            return Answer::Nothing;
        }
        let mut clusters = self.clusters.iter();
        clusters
            .find(|cluster| cluster.source.region == *vm.region)
            .map_or(Answer::Nothing, |cluster| {
                cluster.agents.said(vm.entry.vmid)
            })
    }

    fn wait(&self, node: &NodeView, refusal: Refusal, retries: &mut Retries) {
        let now = Instant::now();
        if !retries.is_due(&node.name, now) {
            return;
        }
        let tries = retries.again(&node.name, now);
        if let Refusal::Doubt(Doubt::Silent | Doubt::Unread | Doubt::Unknown) = refusal {
            for cluster in &self.clusters {
                cluster.source.demand.ask();
            }
        }
        // The VM of a Node that has just come is often one that has just been made.
        let first = if matches!(refusal, Refusal::Doubt(_)) {
            4
        } else {
            1
        };
        if tries >= first {
            self.teller.tell(node, Told::Waits(refusal));
        }
        if tries == first {
            tracing::info!(node = node.name, ?refusal, "the Node is not initialised");
        }
    }

    async fn write(&self, (node, changes): Work) -> (String, bool) {
        let initialise = changes.lifts_taint();
        match self.writer.change(&node, &changes).await {
            Ok(written) => {
                if let Some(written) = written {
                    self.nodes.see_written(&node, written);
                }
                if initialise {
                    tracing::info!(node = node.name, "the Node is initialised");
                    self.teller.tell(&node, Told::Initialised);
                }
                (node.name.clone(), true)
            }
            // Its change wakes us, unless it came before.
            Err(WriteError::Outdated | WriteError::Passive) => (node.name.clone(), false),
            Err(WriteError::Request(error)) => {
                tracing::warn!(node = node.name, %error, "the Node can't be written");
                (node.name.clone(), false)
            }
        }
    }

    /// Tells the agents whose Nodes there are.
    fn want_agents(&self, nodes: &[Arc<NodeView>], views: &[RegionView]) {
        if !self.rules.nodes.addresses.agent {
            return;
        }
        let mut wanted: BTreeMap<&str, BTreeSet<VmId>> = BTreeMap::new();
        for node in nodes.iter().filter(|node| !node.is_foreign()) {
            let Ok(uuid) = plan::identity(node) else {
                continue;
            };
            if let Ok(vm) = plan::vm_of(views, &uuid) {
                let vms = wanted.entry(vm.region.as_str()).or_default();
                vms.insert(vm.entry.vmid);
            }
        }
        for cluster in &self.clusters {
            let region = cluster.source.region.as_str();
            cluster
                .agents
                .want(&wanted.remove(region).unwrap_or_default());
        }
    }

    fn count(&self, nodes: &[Arc<NodeView>]) {
        let count = |is: fn(&NodeView) -> bool| nodes.iter().filter(|node| is(node)).count();
        self.metrics.nodes([
            (
                "initialised",
                count(|n| !n.is_foreign() && !n.is_uninitialised()),
            ),
            (
                "uninitialised",
                count(|n| !n.is_foreign() && n.is_uninitialised()),
            ),
            ("foreign", count(NodeView::is_foreign)),
            ("left_out", self.nodes.left_out()),
        ]);
    }
}

/// A Node that is initialised stays as it is; one that is not waits.
fn refused(initialise: bool, refusal: Refusal) -> Outcome {
    if initialise {
        Outcome::Wait(refusal)
    } else {
        Outcome::Nothing
    }
}

/// Wakes when a PVE cluster showed something or one of its agents said something else.
pub(crate) async fn any_changed(clusters: &mut [Cluster]) {
    let changes = clusters.iter_mut().map(|cluster| {
        Box::pin(async {
            tokio::select! {
                _ = cluster.view.changed() => {}
                _ = cluster.told.changed() => {}
            }
        })
    });
    let all: Vec<_> = changes.collect();
    if all.is_empty() {
        return std::future::pending().await;
    }
    select_all(all).await;
}
