//! What the guest agents say of their interfaces: asked once per period for each VM that is a Node, and less often where
//! none answers, because a silent agent holds one of the host's few workers for seconds. Those of new Nodes come first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use pve_client::{ApiError, ErrorKind, Interface, RunState, VmRef};
use pve_model::{PveNode, Region, VmId};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::inventory::RegionView;
use crate::poll::Source;

/// For one answer. PVE waits 3 s for an agent.
const WITHIN: Duration = Duration::from_secs(6);
/// Agents that are asked at the same time: one per host.
const AT_A_TIME: usize = 4;
/// Longest pause for an agent that does not answer, in periods.
const MOST_PERIODS: u32 = 10;
/// First pause for the agent of a new Node, which often starts after the kubelet. Each further one is twice as long.
const FIRST: Duration = Duration::from_secs(2);
/// How often is looked who is due.
const LOOK: Duration = Duration::from_secs(1);

/// What the agents of one PVE cluster's VMs said.
#[derive(Debug, Default)]
pub struct Agents {
    state: Mutex<State>,
    wanted: watch::Sender<()>,
    told: watch::Sender<()>,
}

/// What a guest agent said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was not asked yet.
    Unasked,
    /// It was asked and told nothing.
    Nothing,
    /// What it told.
    Interfaces(Arc<Vec<Interface>>),
}

#[derive(Debug, Default)]
struct State {
    /// Each with since when.
    wanted: BTreeMap<VmId, Instant>,
    book: BTreeMap<VmId, Entry>,
    /// Those that the token may not ask.
    forbidden: BTreeSet<VmId>,
}

#[derive(Debug, Clone)]
struct Entry {
    interfaces: Option<Arc<Vec<Interface>>>,
    /// How often it was not heard in a row, while its Node was new and later.
    first: u32,
    later: u32,
    due: Instant,
}

/// Who comes first: the least.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It was never asked. The newest: only a new Node waits for what its agent says.
    First(Reverse<Instant>),
    /// It is new and was asked in vain.
    Again(Instant),
    Regular(Instant),
}

impl Agents {
    /// Says whose agents are to be asked.
    pub fn want(&self, vms: &BTreeSet<VmId>) {
        let mut state = self.state();
        state.book.retain(|vmid, _| vms.contains(vmid));
        state.forbidden.retain(|vmid| vms.contains(vmid));
        if state.wanted.keys().eq(vms) {
            return;
        }
        state.wanted.retain(|vmid, _| vms.contains(vmid));
        let now = Instant::now();
        for vmid in vms {
            state.wanted.entry(*vmid).or_insert(now);
        }
        drop(state);
        self.wanted.send_replace(());
    }

    /// What an agent said the last time.
    pub fn said(&self, vmid: VmId) -> Answer {
        match self.state().book.get(&vmid).map(|entry| &entry.interfaces) {
            None => Answer::Unasked,
            Some(None) => Answer::Nothing,
            Some(Some(interfaces)) => Answer::Interfaces(Arc::clone(interfaces)),
        }
    }

    /// Wakes when an agent said something else than before.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.told.subscribe()
    }

    /// Asks until `stop`.
    pub async fn run(
        &self,
        source: &Source,
        view: watch::Receiver<RegionView>,
        period: Duration,
        stop: CancellationToken,
    ) {
        let mut wanted = self.wanted.subscribe();
        let mut busy: BTreeSet<PveNode> = BTreeSet::new();
        let mut asking = FuturesUnordered::new();
        loop {
            while asking.len() < AT_A_TIME {
                let next = self.next(&view.borrow(), &busy, period);
                let Some(at) = next else {
                    break;
                };
                busy.insert(at.pve_node.clone());
                asking.push(async move {
                    let answer = timeout(WITHIN, source.client().agent_interfaces(&at)).await;
                    self.note(&source.region, at.vmid, answer.ok(), period);
                    at.pve_node
                });
            }
            tokio::select! {
                () = stop.cancelled() => return,
                Some(host) = asking.next() => drop(busy.remove(&host)),
                _ = wanted.changed() => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    /// The running VM whose agent is to be asked next, if any is due on a host that is not busy.
    fn next(&self, view: &RegionView, busy: &BTreeSet<PveNode>, period: Duration) -> Option<VmRef> {
        let snapshot = view.snapshot.as_ref()?;
        let state = self.state();
        let now = Instant::now();
        let turns = state.wanted.iter().filter_map(|(vmid, since)| {
            let guest = snapshot.guests.get(vmid)?;
            let turn = match state.book.get(vmid) {
                None => Turn::First(Reverse(*since)),
                Some(entry) if entry.due > now => return None,
                Some(entry) if entry.interfaces.is_none() && since.elapsed() < period => {
                    Turn::Again(entry.due)
                }
                Some(entry) => Turn::Regular(entry.due),
            };
            let may = guest.state == RunState::Running && !busy.contains(&guest.pve_node);
            may.then_some((turn, guest))
        });
        let (_, guest) = turns.min_by(|(one, _), (other, _)| one.cmp(other))?;
        Some(VmRef {
            pve_node: guest.pve_node.clone(),
            vmid: guest.vmid,
        })
    }

    fn note(
        &self,
        region: &Region,
        vmid: VmId,
        answer: Option<Result<Vec<Interface>, ApiError>>,
        period: Duration,
    ) {
        let mut state = self.state();
        let Some(since) = state.wanted.get(&vmid).copied() else {
            return;
        };
        state.tell(region, vmid, answer.as_ref());
        let interfaces = match answer {
            Some(Ok(interfaces)) if !interfaces.is_empty() => Some(Arc::new(interfaces)),
            _ => None,
        };
        let before = state.book.get(&vmid);
        let (mut first, mut later) = before.map_or((0, 0), |before| (before.first, before.later));
        let pause = if interfaces.is_some() {
            (first, later) = (0, 0);
            period
        } else if since.elapsed() < period {
            first = first.saturating_add(1);
            let doubled = 2_u32.saturating_pow(first - 1);
            FIRST.saturating_mul(doubled).min(period)
        } else {
            later = (later + 1).min(MOST_PERIODS);
            period * later
        };
        let changed = before.is_none_or(|before| before.interfaces != interfaces);
        let entry = Entry {
            interfaces,
            first,
            later,
            due: Instant::now() + pause,
        };
        state.book.insert(vmid, entry);
        drop(state);
        if changed {
            self.told.send_replace(());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tells the operator when there is an agent that may not be asked, and when there is none any more.
    fn tell(
        &mut self,
        region: &Region,
        vmid: VmId,
        answer: Option<&Result<Vec<Interface>, ApiError>>,
    ) {
        let were = !self.forbidden.is_empty();
        match answer {
            Some(Err(error)) if matches!(error.kind, ErrorKind::PermissionDenied { .. }) => {
                self.forbidden.insert(vmid);
                if !were {
                    tracing::warn!(
                        %region,
                        vm.id = %vmid,
                        %error,
                        "guest agents may not be asked: Nodes keep the addresses that they have"
                    );
                }
            }
            Some(Err(error)) => {
                tracing::debug!(vm.id = %vmid, %error, "the guest agent does not tell its interfaces");
            }
            Some(Ok(_)) => {
                self.forbidden.remove(&vmid);
                if were && self.forbidden.is_empty() {
                    tracing::info!(%region, "guest agents may be asked again");
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
