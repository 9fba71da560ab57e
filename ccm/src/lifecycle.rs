//! Nodes that are not ready: the taint of a VM that is shut down, and the end of a Node whose VM is proved gone, twice and
//! with a grace time between. A Node that is ready is never touched but for its taint.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{StreamExt, iter};
use pve_client::{Client, RunState, VmRef};
use pve_model::Region;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::bucket::Bucket;
use crate::engine::{Cluster, any_changed};
use crate::events::{Keep, Teller, Told};
use crate::inventory::{Doubt, RegionView, Vm};
use crate::machines::Machines;
use crate::metrics::Metrics;
use crate::node::NodeView;
use crate::nodes::Nodes;
use crate::plan::{self, Refusal};
use crate::proof::{Look, Lost, Prover};
use crate::shutdown;
use crate::unready::Memory;
use crate::witnesses::{Witnesses, witnesses};
use crate::writer::{WriteError, Writer};

/// Questions to PVE at the same time: a host that hangs holds up nobody but its own VMs.
const AT_A_TIME: usize = 8;
/// Changes of Nodes that come within this time are looked at together.
const TOGETHER: Duration = Duration::from_secs(1);
/// Without any change, all is looked at again after this time.
const IDLE: Duration = Duration::from_mins(5);

/// When a Node is deleted.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    /// How long a VM has to be gone.
    pub grace: Duration,
    /// Only tells what would be deleted.
    pub dry_run: bool,
}

/// Looks after the Nodes that are not ready.
#[derive(Debug)]
pub struct Lifecycle {
    /// The tenant's Nodes.
    pub nodes: Nodes,
    /// All PVE clusters.
    pub clusters: Vec<Cluster>,
    /// What the management cluster says of VMs.
    pub machines: Machines,
    /// Proves that VMs are gone.
    pub prover: Prover,
    /// When a Node is deleted.
    pub ending: Ending,
    /// How many Nodes may be deleted, whatever becomes of the config.
    pub deletions: Arc<Mutex<Bucket>>,
    /// Writes Nodes.
    pub writer: Writer,
    /// Tells the tenant.
    pub teller: Teller,
    /// Numbers.
    pub metrics: Metrics,
}

/// What is to be asked of PVE about a Node.
enum Question {
    Stopped {
        client: Client,
        vm: VmRef,
        region: Region,
        listed: Instant,
    },
    Gone {
        lost: Lost,
        look: Look,
    },
}

/// What PVE said.
enum Answer {
    Stopped(bool),
    Gone(Result<(), Keep>),
}

/// What follows for a Node from what is known.
enum Step {
    Nothing,
    Mark(bool),
    Ask(Question),
}

impl Lifecycle {
    /// Works until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.nodes.changes();
        let mut memory = Memory::default();
        loop {
            let next = memory.next(self.ending.grace);
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changes.changed() => {}
                () = any_changed(&mut self.clusters) => {}
                () = sleep_until(next.unwrap_or_else(|| Instant::now() + IDLE)) => self.demand(),
            }
            tokio::time::sleep(TOGETHER).await;
            changes.mark_unchanged();
            let pass = self.pass(&mut memory);
            if stop.run_until_cancelled(pass).await.is_none() {
                return;
            }
        }
    }

    fn views(&self) -> Vec<RegionView> {
        let views = self.clusters.iter();
        views.map(|cluster| cluster.view.borrow().clone()).collect()
    }

    fn demand(&self) {
        for cluster in &self.clusters {
            cluster.source.demand.ask();
        }
    }

    async fn pass(&self, memory: &mut Memory) {
        if !self.nodes.are_listed() {
            return;
        }
        let views = self.views();
        let ours = self.nodes.all().into_iter();
        let ours = ours.filter(|node| !node.is_foreign());
        let (ready, mut unready): (Vec<_>, Vec<_>) = ours.partition(|node| node.ready);
        if memory.note(unready.iter()) {
            self.demand();
        }
        memory.sort(&mut unready);
        let nodes = ready.iter().chain(&unready);
        let nodes = nodes.filter_map(|node| plan::identity(node).ok());
        let witnesses = witnesses(nodes.chain(self.machines.uuids()), &views);
        let shut_down = ready.into_iter().filter(|node| node.is_shut_down());
        let mut marks: Vec<(Arc<NodeView>, bool)> = shut_down.map(|node| (node, false)).collect();
        let mut questions = Vec::new();
        for node in unready {
            match self.look(&node, &views, memory) {
                Step::Nothing => {}
                Step::Mark(is) => marks.push((node, is)),
                Step::Ask(question) => questions.push((node, question)),
            }
        }
        self.mark(std::mem::take(&mut marks), memory).await;
        let asked = iter(questions).map(|(node, question)| async {
            let answer = self.ask(&question, &views, &witnesses).await;
            (node, question, answer)
        });
        let mut asked = asked.buffer_unordered(AT_A_TIME);
        while let Some((node, question, answer)) = asked.next().await {
            if self.take(&node, question, answer, memory).await {
                marks.push((node, true));
            }
        }
        self.mark(marks, memory).await;
    }

    /// Writes taints of shutdown, or takes them back; that of one Node less and less often if somebody undoes it.
    async fn mark(&self, marks: Vec<(Arc<NodeView>, bool)>, memory: &mut Memory) {
        let now = Instant::now();
        let due = marks
            .into_iter()
            .filter(|(node, _)| memory.may_mark(node, now));
        let written =
            iter(due.collect::<Vec<_>>()).for_each_concurrent(AT_A_TIME, async |(node, is)| {
                shutdown::mark(&self.nodes, &self.writer, &self.teller, (&node, is)).await;
            });
        written.await;
    }

    /// One Node that is not ready.
    fn look(&self, node: &NodeView, views: &[RegionView], memory: &mut Memory) -> Step {
        let uuid = match plan::identity(node) {
            Ok(uuid) => uuid,
            Err(refusal) => return self.keep(node, Keep::Refused(refusal), memory),
        };
        match plan::vm_of(views, &uuid) {
            Ok(vm) => {
                memory.found(node);
                self.state(node, &vm, memory)
            }
            Err(Refusal::Doubt(Doubt::Unknown)) => {
                let machine = self.machines.vmid_of(&uuid);
                match Lost::of(node, uuid, machine, views) {
                    Ok(lost) => self.lost(node, lost, views, memory),
                    Err(keep) => self.keep(node, keep, memory),
                }
            }
            // More is known in a moment.
            Err(Refusal::Doubt(Doubt::Silent | Doubt::Unread))
                if !views.iter().all(RegionView::is_known) =>
            {
                Step::Nothing
            }
            Err(refusal) => self.keep(node, Keep::Refused(refusal), memory),
        }
    }

    fn keep(&self, node: &NodeView, keep: Keep, memory: &mut Memory) -> Step {
        memory.not_gone(node);
        // Initialisation tells why it waits.
        if !node.is_uninitialised() {
            self.kept(node, keep);
        }
        Step::Nothing
    }

    fn kept(&self, node: &NodeView, keep: Keep) {
        self.metrics.kept(keep.label());
        tracing::debug!(node = node.name, why = keep.label(), "the Node is kept");
        self.teller.tell(node, Told::Kept(keep));
    }

    /// The VM of a Node that is not ready is there. PVE is asked once per list whether it is stopped, however many Nodes say
    /// that it is theirs.
    fn state(&self, node: &NodeView, vm: &Vm<'_>, memory: &mut Memory) -> Step {
        let marked = node.is_shut_down();
        let (vmid, listed) = (vm.entry.vmid, vm.snapshot.asked);
        match vm.entry.state {
            RunState::Running if marked => Step::Mark(false),
            RunState::Stopped if !marked => match memory.stopped(vm.region, vmid, listed) {
                Some(true) => Step::Mark(true),
                Some(false) => Step::Nothing,
                None => {
                    // Until it is answered: all Nodes are looked at before the first answer comes.
                    memory.note_stopped(vm.region, vmid, listed, false);
                    self.question(vm, listed).map_or(Step::Nothing, Step::Ask)
                }
            },
            _ => Step::Nothing,
        }
    }

    fn question(&self, vm: &Vm<'_>, listed: Instant) -> Option<Question> {
        let mut clusters = self.clusters.iter();
        let cluster = clusters.find(|cluster| cluster.source.region == *vm.region)?;
        Some(Question::Stopped {
            client: cluster.source.client().clone(),
            vm: VmRef {
                pve_node: vm.entry.pve_node.clone(),
                vmid: vm.entry.vmid,
            },
            region: vm.region.clone(),
            listed,
        })
    }

    /// No worker has the UUID.
    fn lost(&self, node: &NodeView, lost: Lost, views: &[RegionView], memory: &mut Memory) -> Step {
        let Some(since) = memory.counts_from(node, self.ending.grace) else {
            return Step::Nothing;
        };
        if !views.iter().all(|view| view.shows_since(since)) {
            return Step::Nothing;
        }
        let look = match memory.first_gone(node) {
            None => Look::First,
            Some(_) => Look::Second,
        };
        let may_end = look == Look::First || self.deletions().left(Instant::now()) > 0;
        if may_end && memory.may_ask(node) {
            Step::Ask(Question::Gone { lost, look })
        } else {
            Step::Nothing
        }
    }

    async fn ask(
        &self,
        question: &Question,
        views: &[RegionView],
        witnesses: &Witnesses,
    ) -> Answer {
        match question {
            Question::Stopped { client, vm, .. } => {
                Answer::Stopped(shutdown::is_stopped(client, vm).await)
            }
            Question::Gone { lost, look } => {
                Answer::Gone(self.prover.gone(lost, *look, views, witnesses).await)
            }
        }
    }

    /// Does what follows from an answer; whether the Node gets the taint of shutdown.
    async fn take(
        &self,
        node: &NodeView,
        question: Question,
        answer: Answer,
        memory: &mut Memory,
    ) -> bool {
        match (question, answer) {
            (
                Question::Stopped {
                    region, vm, listed, ..
                },
                Answer::Stopped(is),
            ) => {
                memory.note_stopped(&region, vm.vmid, listed, is);
                return is;
            }
            (Question::Gone { .. }, Answer::Gone(Err(keep))) => {
                memory.in_vain(node);
                self.keep(node, keep, memory);
            }
            (Question::Gone { lost, look }, Answer::Gone(Ok(()))) => match look {
                Look::First => {
                    tracing::info!(node = node.name, vm.id = %lost.vmid, "the VM of the Node is gone");
                    memory.gone(node);
                    self.kept(node, Keep::Grace);
                }
                Look::Second => self.end(node, &lost, memory).await,
            },
            (Question::Stopped { .. }, Answer::Gone(_))
            | (Question::Gone { .. }, Answer::Stopped(_)) => {}
        }
        false
    }

    async fn end(&self, node: &NodeView, lost: &Lost, memory: &mut Memory) {
        let vmid = lost.vmid;
        if self.ending.dry_run {
            if memory.would_end(node) {
                tracing::info!(node = node.name, vm.id = %vmid, "would delete the Node: its VM is gone");
            }
            self.teller.tell(node, Told::WouldDelete);
            return;
        }
        let current = self.nodes.get(&node.name);
        let is_other = current.is_none_or(|now| now.ready || now.uid != node.uid);
        // The proof took its time, and lists may have come meanwhile.
        let is_found = plan::vm_of(&self.views(), &lost.uuid)
            .map_or_else(|why| why != Refusal::Doubt(Doubt::Unknown), |_| true);
        if is_other || is_found || self.deletions().take(Instant::now()).is_err() {
            return;
        }
        match self.writer.delete(node).await {
            Ok(()) => {
                tracing::info!(node = node.name, vm.id = %vmid, "the Node is deleted: its VM is gone");
                self.teller.tell(node, Told::Deleted);
            }
            Err(WriteError::Outdated | WriteError::Passive) => {}
            Err(WriteError::Request(error)) => {
                tracing::warn!(node = node.name, %error, "the Node can't be deleted");
                memory.in_vain(node);
                self.teller.tell(node, Told::NotDeleted);
            }
        }
    }

    fn deletions(&self) -> std::sync::MutexGuard<'_, Bucket> {
        self.deletions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
