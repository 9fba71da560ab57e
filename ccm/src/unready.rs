//! What is remembered of Nodes that are not ready, and how often PVE is asked about them. The tenant can have as many of
//! them as it likes, of VMs that never were: all together get few questions, and each is asked about later every time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pve_model::{Region, VmId};
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::node::NodeView;
use crate::retry::{self, Paces};

/// Nodes whose VM may be asked for at once.
const PROOFS: u32 = 16;
/// And then one in each of these: a deletion needs two.
const ONE_PROOF: Duration = Duration::from_secs(5);
/// Of the former, those that are for Nodes that were not asked about in vain yet.
const FOR_NEW: u32 = 8;

/// What is remembered of the Nodes that are not ready, by their uid.
#[derive(Debug)]
pub(crate) struct Memory {
    unready: BTreeMap<String, Unready>,
    stopped: BTreeMap<(Region, VmId), Stopped>,
    proofs: Bucket,
    /// Nodes that would be deleted, as was said.
    told: BTreeSet<String>,
    marks: Paces,
}

/// A Node that is not ready.
#[derive(Debug, Clone, Copy)]
struct Unready {
    since: Instant,
    /// When its VM was first seen to be gone.
    gone: Option<Instant>,
    /// When PVE was last asked for its VM.
    asked: Option<Instant>,
    /// How often it was asked in vain.
    vain: u32,
}

/// What PVE said of a VM that a list calls stopped.
#[derive(Debug, Clone, Copy)]
struct Stopped {
    listed: Instant,
    is: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            unready: BTreeMap::new(),
            stopped: BTreeMap::new(),
            proofs: Bucket::new(PROOFS, ONE_PROOF),
            told: BTreeSet::new(),
            marks: Paces::default(),
        }
    }
}

impl Memory {
    /// Remembers these and no others; whether one of them is new.
    pub(crate) fn note<'a>(&mut self, nodes: impl Iterator<Item = &'a Arc<NodeView>>) -> bool {
        let now = Instant::now();
        let before = std::mem::take(&mut self.unready);
        let mut some = false;
        for node in nodes {
            let known = before.get(&node.uid).copied();
            some |= known.is_none();
            let new = Unready {
                since: now,
                gone: None,
                asked: None,
                vain: 0,
            };
            self.unready.insert(node.uid.clone(), known.unwrap_or(new));
        }
        let unready = &self.unready;
        self.told.retain(|uid| unready.contains_key(uid));
        some
    }

    /// Those first that are to be looked at first: whose VM is gone, then who was not asked about for the longest time.
    pub(crate) fn sort(&self, nodes: &mut [Arc<NodeView>]) {
        nodes.sort_by_key(|node| {
            let unready = self.unready.get(&node.uid);
            let is_gone = unready.is_some_and(|unready| unready.gone.is_some());
            (!is_gone, unready.and_then(|unready| unready.asked))
        });
    }

    /// When the VM of the Node was first seen to be gone.
    pub(crate) fn first_gone(&self, node: &NodeView) -> Option<Instant> {
        self.unready.get(&node.uid)?.gone
    }

    /// From when on lists count: what was listed before a Node became unready says nothing about why it did.
    pub(crate) fn counts_from(&self, node: &NodeView, grace: Duration) -> Option<Instant> {
        let unready = self.unready.get(&node.uid)?;
        Some(unready.gone.map_or(unready.since, |first| first + grace))
    }

    /// The VM of the Node was seen to be gone.
    pub(crate) fn gone(&mut self, node: &NodeView) {
        if let Some(unready) = self.unready.get_mut(&node.uid) {
            unready.gone = Some(Instant::now());
            unready.vain = 0;
        }
    }

    /// It is not, as far as is known.
    pub(crate) fn not_gone(&mut self, node: &NodeView) {
        if let Some(unready) = self.unready.get_mut(&node.uid) {
            unready.gone = None;
        }
    }

    /// The VM of the Node is there.
    pub(crate) fn found(&mut self, node: &NodeView) {
        if let Some(unready) = self.unready.get_mut(&node.uid) {
            (unready.gone, unready.vain) = (None, 0);
        }
    }

    /// PVE was asked and gave no proof.
    pub(crate) fn in_vain(&mut self, node: &NodeView) {
        if let Some(unready) = self.unready.get_mut(&node.uid) {
            unready.vain = unready.vain.saturating_add(1);
        }
    }

    /// Whether PVE may be asked for the VM of the Node now; then it counts as asked.
    pub(crate) fn may_ask(&mut self, node: &NodeView) -> bool {
        let now = Instant::now();
        let Some(unready) = self.unready.get_mut(&node.uid) else {
            return false;
        };
        let pause = retry::pause(unready.vain);
        let is_due = unready.asked.is_none_or(|asked| asked + pause <= now);
        let reserved = if unready.vain > 0 { FOR_NEW } else { 0 };
        let may = is_due && self.proofs.left(now) > reserved && self.proofs.take(now).is_ok();
        if may {
            unready.asked = Some(now);
        }
        may
    }

    /// The Node would be deleted; whether that is new. It is not asked about again soon.
    pub(crate) fn would_end(&mut self, node: &NodeView) -> bool {
        self.in_vain(node);
        self.told.insert(node.uid.clone())
    }

    /// Whether the taint of shutdown of the Node may be written now; then it counts as written.
    pub(crate) fn may_mark(&mut self, node: &NodeView, now: Instant) -> bool {
        self.marks.expire(now);
        let may = self.marks.due(&node.uid, now).is_none();
        if may {
            self.marks.wrote(&node.uid, now);
        }
        may
    }

    /// The next end of a grace time, or the next time that a taint may be written again.
    pub(crate) fn next(&self, grace: Duration) -> Option<Instant> {
        let gone = self.unready.values().filter_map(|unready| unready.gone);
        let due = gone.map(|first| first + grace).chain(self.marks.next());
        due.filter(|due| *due > Instant::now()).min()
    }

    /// What PVE said of a VM that was listed as stopped at that instant, if it was asked since.
    pub(crate) fn stopped(&self, region: &Region, vmid: VmId, listed: Instant) -> Option<bool> {
        let said = self.stopped.get(&(region.clone(), vmid))?;
        (said.listed == listed).then_some(said.is)
    }

    /// Remembers it until it is listed anew.
    pub(crate) fn note_stopped(&mut self, region: &Region, vmid: VmId, listed: Instant, is: bool) {
        self.stopped
            .retain(|(other, _), said| other != region || said.listed == listed);
        self.stopped
            .insert((region.clone(), vmid), Stopped { listed, is });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    fn nodes(count: u32) -> Vec<Arc<NodeView>> {
        (0..count).map(|id| Arc::new(node(100 + id))).collect()
    }

    /// How many questions there are in `seconds`, none of which proves anything.
    async fn asked(memory: &mut Memory, nodes: &mut [Arc<NodeView>], seconds: u32) -> usize {
        let mut asked = 0;
        for _ in 0..seconds {
            memory.note(nodes.iter());
            memory.sort(nodes);
            for node in nodes.iter() {
                if memory.may_ask(node) {
                    memory.in_vain(node);
                    asked += 1;
                }
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        asked
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_nodes_there_are_few_questions_are_asked_about_them() {
        let asked = asked(&mut Memory::default(), &mut nodes(400), 600).await;
        assert!((130..=137).contains(&asked), "{asked} in ten minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_is_asked_about_less_and_less_often() {
        let (mut memory, mut nodes) = (Memory::default(), nodes(1));
        assert_eq!(asked(&mut memory, &mut nodes, 255).await, 8);
        let later = asked(&mut memory, &mut nodes, 3600).await;
        assert!((12..=13).contains(&later), "{later} in an hour");
    }

    #[tokio::test(start_paused = true)]
    async fn each_of_many_nodes_is_asked_about_in_its_turn() {
        let (mut memory, mut nodes) = (Memory::default(), nodes(60));
        asked(&mut memory, &mut nodes, 250).await;
        let all: Vec<u32> = memory
            .unready
            .values()
            .map(|unready| unready.vain)
            .collect();
        assert!(all.iter().all(|vain| (1..=2).contains(vain)), "{all:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_whose_vm_was_seen_to_be_gone_come_first_and_without_a_pause() {
        let (mut memory, mut nodes) = (Memory::default(), nodes(100));
        let last = nodes[99].clone();
        asked(&mut memory, &mut nodes, 100).await;
        memory.gone(&last);
        tokio::time::advance(ONE_PROOF).await;
        memory.sort(&mut nodes);
        assert_eq!(nodes[0].uid, last.uid);
        assert!(memory.may_ask(&last));
        assert!(memory.first_gone(&last).is_some());
        memory.not_gone(&last);
        assert!(memory.first_gone(&last).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_of_a_stopped_vm_holds_until_the_next_list() {
        let mut memory = Memory::default();
        let (region, vmid) = ("r1".parse().unwrap(), 101.try_into().unwrap());
        let listed = Instant::now();
        assert_eq!(memory.stopped(&region, vmid, listed), None);
        memory.note_stopped(&region, vmid, listed, true);
        assert_eq!(memory.stopped(&region, vmid, listed), Some(true));
        let again = listed + Duration::from_secs(1);
        assert_eq!(memory.stopped(&region, vmid, again), None);
        memory.note_stopped(&region, 102.try_into().unwrap(), again, false);
        assert_eq!(memory.stopped.len(), 1, "what is outdated is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_were_asked_about_in_vain_leave_some_questions_to_others() {
        let (mut memory, mut old) = (Memory::default(), nodes(40));
        asked(&mut memory, &mut old, 300).await;
        let new: Vec<Arc<NodeView>> = (0..8).map(|id| Arc::new(node(900 + id))).collect();
        memory.note(old.iter().chain(&new));
        let may = new.iter().filter(|node| memory.may_ask(node)).count();
        assert_eq!(may, 8, "at once, whatever the others do");
    }
}
