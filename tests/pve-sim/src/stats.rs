//! What pvestatd of each PVE node tells the cluster every 10 s about its VMs, and how long it is remembered (`pvestatd.pm`,
//! pmxcfs `status.c`: 5 min). `/cluster/resources` shows this, not the truth.

use std::collections::BTreeMap;
use std::time::Duration;

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
        if now.as_secs() / PUSH_EVERY.as_secs() > self.last.as_secs() / PUSH_EVERY.as_secs() {
            self.push(state, now);
        }
        self.vms.retain(|vmid, stat| {
            state.vms.contains_key(vmid) && now.saturating_sub(stat.at) < FORGET_AFTER
        });
    }

    pub(crate) fn push(&mut self, state: &State, now: Duration) {
        self.last = now;
        for (name, _) in state
            .nodes
            .iter()
            .filter(|(_, node)| node.health.in_cluster())
        {
            self.nodes.insert(name.clone(), now);
        }
        let online = |vm: &Vm| {
            state
                .nodes
                .get(&vm.node)
                .is_some_and(|node| node.health.in_cluster())
        };
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

    /// Whether what a PVE node last told is still remembered.
    pub(crate) fn knows_node(&self, name: &str, now: Duration) -> bool {
        self.nodes
            .get(name)
            .is_some_and(|at| now.saturating_sub(*at) < FORGET_AFTER)
    }

    pub(crate) fn get(&self, vmid: VmNumber) -> Option<&VmStat> {
        self.vms.get(&vmid)
    }
}
