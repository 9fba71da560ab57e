//! What pvestatd of each PVE node tells the cluster every 10 s about its VMs, and how long it is remembered (`pvestatd.pm`,
//! pmxcfs `status.c`: 5 min). `/cluster/resources` shows this, not the truth.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api;
use crate::state::{State, Vm, VmNumber};

const PUSH_EVERY: Duration = Duration::from_secs(10);
const FORGET_AFTER: Duration = Duration::from_mins(5);

#[derive(Debug, Clone)]
pub(crate) struct VmStat {
    pub(crate) status: &'static str,
    pub(crate) name: String,
    pub(crate) cpus: u64,
    pub(crate) memory: u64,
    pub(crate) template: bool,
    pub(crate) uptime: u64,
    at: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    vms: BTreeMap<VmNumber, VmStat>,
    /// When each PVE node last told anything.
    nodes: BTreeMap<String, Duration>,
    /// PVE nodes whose pvestatd starts, until then.
    starting: BTreeMap<String, Duration>,
    /// Bytes of storages as they were when all was frozen, by PVE node and storage.
    frozen: Option<BTreeMap<(String, String), (u64, u64)>>,
    last: Duration,
}

/// `qmpstatus` of a VM.
pub(crate) fn qmp_status(vm: &Vm) -> &'static str {
    match (vm.running, vm.paused) {
        (false, _) => "stopped",
        (true, true) => "paused",
        (true, false) => "running",
    }
}

pub(crate) fn memory_bytes(vm: &Vm) -> u64 {
    vm.config
        .get("memory")
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(512)
        << 20
}

pub(crate) fn cpus(vm: &Vm) -> u64 {
    let number = |key: &str| {
        vm.config
            .get(key)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(1)
    };
    number("cores") * number("sockets")
}

impl Stats {
    /// All VMs of the scenario have been there long enough to be known.
    pub(crate) fn first(state: &State, now: Duration) -> Self {
        let mut known = Self::default();
        known.push(state, now);
        known
    }

    /// Catches up with the pushes that are due.
    pub(crate) fn refresh(&mut self, state: &State, now: Duration) {
        if self.frozen.is_some() {
            return;
        }
        if now.as_secs() / PUSH_EVERY.as_secs() > self.last.as_secs() / PUSH_EVERY.as_secs() {
            self.push(state, now);
        }
        self.vms.retain(|vmid, stat| {
            state.vms.contains_key(vmid) && now.saturating_sub(stat.at) < FORGET_AFTER
        });
    }

    pub(crate) fn push(&mut self, state: &State, now: Duration) {
        self.last = now;
        self.starting.retain(|_, until| *until > now);
        let starting = &self.starting;
        let tells = |name: &str| {
            let node = state.nodes.get(name);
            node.is_some_and(|node| node.health.in_cluster()) && !starting.contains_key(name)
        };
        for name in state.nodes.keys().filter(|name| tells(name)) {
            self.nodes.insert(name.clone(), now);
        }
        let online = |vm: &Vm| tells(&vm.node);
        for (vmid, vm) in state.vms.iter().filter(|(_, vm)| online(vm)) {
            let stat = VmStat {
                status: qmp_status(vm),
                name: vm.name(*vmid),
                cpus: cpus(vm),
                memory: memory_bytes(vm),
                template: vm.config.get("template").is_some_and(|t| t == "1"),
                uptime: if vm.running { now.as_secs() + 60 } else { 0 },
                at: now,
            };
            self.vms.insert(*vmid, stat);
        }
    }

    /// A PVE node starts anew: what it told is forgotten, and it tells nothing until then (facts 29).
    pub(crate) fn restart(&mut self, state: &State, name: &str, until: Duration) {
        self.starting.insert(name.to_owned(), until);
        let there = |vmid: &VmNumber| state.vms.get(vmid).is_some_and(|vm| vm.node == name);
        self.vms.retain(|vmid, _| !there(vmid));
        self.nodes.remove(name);
    }

    /// Nothing is told, forgotten or measured any more while frozen.
    pub(crate) fn freeze(&mut self, state: &State, now: Duration, frozen: bool) {
        self.refresh(state, now);
        self.frozen = frozen.then(|| {
            let pairs = state.storages.iter().flat_map(|(id, storage)| {
                let nodes = state.nodes.keys();
                nodes.map(move |node| {
                    let used = api::used(state, id, storage, node);
                    ((node.clone(), id.clone()), (storage.total, used))
                })
            });
            pairs.collect()
        });
        if !frozen {
            self.push(state, now);
        }
    }

    /// Size and use of a storage as `/cluster/resources` knows them.
    pub(crate) fn storage(&self, state: &State, node: &str, id: &str) -> Option<(u64, u64)> {
        let storage = state.storages.get(id)?;
        let now = || (storage.total, api::used(state, id, storage, node));
        let known = self.frozen.as_ref()?.get(&(node.to_owned(), id.to_owned()));
        Some(known.copied().unwrap_or_else(now))
    }

    /// Whether what a PVE node last told is still remembered.
    pub(crate) fn knows_node(&self, name: &str, now: Duration) -> bool {
        let fresh = |at: &Duration| now.saturating_sub(*at) < FORGET_AFTER;
        self.nodes
            .get(name)
            .is_some_and(|at| self.frozen.is_some() || fresh(at))
    }

    pub(crate) fn get(&self, vmid: VmNumber) -> Option<&VmStat> {
        self.vms.get(&vmid)
    }
}
