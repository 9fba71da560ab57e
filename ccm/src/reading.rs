//! What is shown of one PVE cluster: the last list, with what is known of its VMs. Configs that are not known are read
//! beside the lists, host by host, so that a host that hangs holds up nobody but its own VMs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt, iter};
use pve_client::{ApiError, ErrorKind, Listing, VmConfig, VmEntry, VmRef};
use pve_model::{PveNode, VmId};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::cache::FactsCache;
use crate::facts::VmFacts;
use crate::ha::HaView;
use crate::inventory::{RegionView, Snapshot, is_worker};
use crate::poll::Source;

/// For one config. PVE itself gives up a request to a host that does not answer after 30 s.
const CONFIG_WITHIN: Duration = Duration::from_secs(10);
/// Configs of one host that are read at the same time. A host has 3 workers for all its tenants.
const AT_A_TIME: usize = 2;
/// While configs of a host are read, the others learn of them this often.
const STEP: Duration = Duration::from_millis(250);

/// What is remembered of a PVE cluster.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    facts: FactsCache,
    /// Hosts that did not tell a config, and when that was.
    mute: BTreeMap<PveNode, Instant>,
    /// What was logged last of hosts and VMs whose configs can't be read.
    hosts: BTreeMap<PveNode, &'static str>,
    vms: BTreeMap<VmId, &'static str>,
    ha: Option<Arc<HaView>>,
}

/// Shows lists, and reads configs, of one PVE cluster.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    source: &'a Source,
    views: &'a watch::Sender<RegionView>,
    /// For how long a host that told nothing is left alone.
    pause: Duration,
    state: Mutex<State>,
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    seen: Option<Arc<Seen>>,
    /// VMs of that list whose config was asked for.
    tried: BTreeSet<VmId>,
    /// Hosts whose VMs are being read.
    busy: BTreeSet<PveNode>,
    /// PVE told no newer list.
    failing: bool,
}

/// A list.
#[derive(Debug)]
struct Seen {
    asked: Instant,
    listed: Listing<VmEntry>,
}

/// A VM as it was listed at an instant.
#[derive(Debug)]
struct Listed {
    vm: VmEntry,
    asked: Instant,
}

/// Whose fault it is that a config is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The host is left alone for a while.
    Host,
    /// The next list is tried again.
    Region,
}

/// Why a config is not known.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("no answer in time")]
    Late,
    #[error(transparent)]
    Api(ApiError),
}

impl<'a> Reading<'a> {
    /// No list is there yet.
    pub(crate) fn new(
        source: &'a Source,
        views: &'a watch::Sender<RegionView>,
        pause: Duration,
    ) -> Self {
        Self {
            source,
            views,
            pause,
            state: Mutex::default(),
            more: Notify::new(),
        }
    }

    /// Shows this list, asked for at that instant. What is not known of it is read meanwhile.
    pub(crate) fn show(&self, asked: Instant, listed: Listing<VmEntry>) {
        if listed.undecodable == 0 {
            let present: BTreeSet<VmId> = listed.entries.iter().map(|guest| guest.vmid).collect();
            self.source.memory().keep(&present);
        }
        {
            let mut state = self.state();
            state.seen = Some(Arc::new(Seen { asked, listed }));
            state.tried.clear();
            state.failing = false;
        }
        self.publish();
        self.more.notify_one();
    }

    /// Says that there is no newer list because PVE told none.
    pub(crate) fn fails(&self) {
        self.state().failing = true;
        self.views.send_modify(|view| view.failing = true);
    }

    /// Shows what HA says, if that is known.
    pub(crate) fn show_ha(&self, view: Option<Arc<HaView>>) {
        let is_new = {
            let mut memory = self.source.memory();
            let is_new = memory.ha != view;
            memory.ha = view;
            is_new
        };
        if is_new {
            self.publish();
        }
    }

    /// Reads configs for ever.
    pub(crate) async fn run(&self) {
        let mut readers = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = self.more.notified() => {}
                Some(()) = readers.next() => {}
            }
            for (host, vms) in self.due() {
                {
                    let mut state = self.state();
                    state.tried.extend(vms.iter().map(|listed| listed.vm.vmid));
                    state.busy.insert(host.clone());
                }
                readers.push(self.read_host(host, vms));
            }
        }
    }

    /// The workers whose config has to be read, by host: not those of hosts that are being read or that told nothing a
    /// short while ago.
    fn due(&self) -> BTreeMap<PveNode, Vec<Listed>> {
        let state = self.state();
        let mut due: BTreeMap<PveNode, Vec<Listed>> = BTreeMap::new();
        let Some(seen) = &state.seen else {
            return due;
        };
        let mut memory = self.source.memory();
        memory.mute.retain(|_, at| at.elapsed() < self.pause);
        for vm in self.workers(seen) {
            let host = &vm.pve_node;
            let may = !state.busy.contains(host) && !memory.mute.contains_key(host);
            let is_known = memory.facts.get(vm, seen.asked).is_some();
            if may && !is_known && !state.tried.contains(&vm.vmid) {
                due.entry(host.clone()).or_default().push(Listed {
                    vm: vm.clone(),
                    asked: seen.asked,
                });
            }
        }
        due
    }

    fn workers<'s>(&self, seen: &'s Seen) -> impl Iterator<Item = &'s VmEntry> + use<'s, 'a> {
        let pool = &self.source.policy.pool;
        let all = seen.listed.entries.iter();
        all.filter(move |guest| is_worker(guest, pool))
    }

    /// Reads the configs of one host's VMs, and leaves the rest when the host does not tell one.
    async fn read_host(&self, host: PveNode, vms: Vec<Listed>) {
        let mut shown = Instant::now();
        let reads = iter(vms).map(|listed| self.read(listed));
        let mut reads = reads.buffer_unordered(AT_A_TIME);
        while let Some((listed, read)) = reads.next().await {
            match read {
                Ok(config) => self.note(&listed, &config),
                Err(error) => {
                    if let Some(fault) = fault_of_host(&error) {
                        self.gave_up(&host, &error, fault);
                        break;
                    }
                    self.refused(&listed.vm, &error);
                }
            }
            if shown.elapsed() >= STEP {
                shown = Instant::now();
                self.publish();
            }
        }
        drop(reads);
        self.state().busy.remove(&host);
        self.publish();
    }

    async fn read(&self, listed: Listed) -> (Listed, Result<VmConfig, ReadError>) {
        let at = VmRef {
            pve_node: listed.vm.pve_node.clone(),
            vmid: listed.vm.vmid,
        };
        let read = timeout(CONFIG_WITHIN, self.source.client().vm_config(&at)).await;
        let read = match read {
            Ok(read) => read.map_err(ReadError::Api),
            Err(_) => Err(ReadError::Late),
        };
        (listed, read)
    }

    fn note(&self, Listed { vm, asked }: &Listed, config: &VmConfig) {
        let facts = VmFacts::of(config, &self.source.policy);
        let mut memory = self.source.memory();
        memory.facts.note(vm, *asked, Arc::new(facts));
        memory.vms.remove(&vm.vmid);
        let again = memory.hosts.remove(&vm.pve_node).is_some();
        drop(memory);
        if again {
            let (region, host) = (&self.source.region, &vm.pve_node);
            tracing::info!(%region, pve.node = %host, "the host tells configs of VMs again");
        }
    }

    fn gave_up(&self, host: &PveNode, error: &ReadError, fault: Fault) {
        let mut memory = self.source.memory();
        if fault == Fault::Host {
            memory.mute.insert(host.clone(), Instant::now());
        }
        let is_new = memory.hosts.insert(host.clone(), error.label()) != Some(error.label());
        drop(memory);
        if is_new {
            tracing::info!(
                region = %self.source.region,
                pve.node = %host,
                %error,
                "the host tells no configs of VMs: Nodes that need them wait"
            );
        }
    }

    fn refused(&self, vm: &VmEntry, error: &ReadError) {
        let before = self.source.memory().vms.insert(vm.vmid, error.label());
        if before != Some(error.label()) {
            tracing::info!(
                region = %self.source.region,
                pve.node = %vm.pve_node,
                vm.id = %vm.vmid,
                %error,
                "the VM's config can't be read: its Node waits"
            );
        }
    }

    /// Shows the last list with all that is known now.
    fn publish(&self) {
        let settled = self.state().busy.is_empty() && self.due().is_empty();
        let (seen, failing) = {
            let state = self.state();
            (state.seen.clone(), state.failing)
        };
        let Some(seen) = seen else {
            return;
        };
        let (facts, ha) = {
            let mut memory = self.source.memory();
            let workers = self.workers(&seen);
            let facts = workers
                .filter_map(|vm| Some((vm.vmid, memory.facts.get(vm, seen.asked)?)))
                .collect();
            (facts, memory.ha.clone())
        };
        let pool = &self.source.policy.pool;
        let mut snapshot = Snapshot::new(seen.asked, &seen.listed, facts, pool);
        snapshot.settled = settled;
        snapshot.ha = ha.filter(|_| self.source.looks_at_ha());
        self.views.send_modify(|view| {
            view.snapshot = Some(Arc::new(snapshot));
            view.failing = failing;
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// Forgets the VMs that are not listed any more.
    fn keep(&mut self, present: &BTreeSet<VmId>) {
        self.facts.keep(|vmid| present.contains(&vmid));
        self.vms.retain(|vmid, _| present.contains(vmid));
    }
}

impl ReadError {
    fn label(&self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Api(error) => error.kind.label(),
        }
    }
}

/// Whose fault it is that a config is not known, if not the VM's: reading the next one would end like this one.
fn fault_of_host(error: &ReadError) -> Option<Fault> {
    let ReadError::Api(error) = error else {
        return Some(Fault::Host);
    };
    match error.kind {
        ErrorKind::HostUnreachable | ErrorKind::HostUnknown | ErrorKind::OutcomeUnknown => {
            Some(Fault::Host)
        }
        ErrorKind::Unreachable | ErrorKind::Unauthenticated | ErrorKind::Throttled => {
            Some(Fault::Region)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
