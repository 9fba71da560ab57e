//! What happens by itself as the clock moves: hosts that die and come back, and what the HA stack makes of it (running.md 13f, 13h
//! and 14: times as seen there). It catches up whenever somebody looks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::crm;
use crate::qemu;
use crate::sim::Sim;
use crate::state::{Health, VmNumber};

/// After a power-off: connections are reset, then packets vanish until the neighbours forget the address.
const SILENT_AFTER: Duration = Duration::from_secs(1);
const NO_ROUTE_AFTER: Duration = Duration::from_secs(31);
/// When the HA manager takes a node that has left for dead, and when its guests are started elsewhere.
const FENCED_AFTER: Duration = Duration::from_mins(1);
const RECOVERED_AFTER: Duration = Duration::from_secs(130);
/// After a power-on: back in the cluster, all services up.
const MEMBER_AFTER: Duration = Duration::from_secs(3);
const UP_AFTER: Duration = Duration::from_secs(10);
/// From then until the first word of its pvestatd.
const TOLD_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Health { node: String, health: Health },
    Up { node: String },
    Fence { node: String },
    Recover { node: String },
    Power { vmid: VmNumber, on: bool },
    Move { vmid: VmNumber, target: String },
}

impl Event {
    fn is_of(&self, wanted: &str) -> bool {
        match self {
            Self::Health { node, .. }
            | Self::Up { node }
            | Self::Fence { node }
            | Self::Recover { node } => node == wanted,
            Self::Power { .. } | Self::Move { .. } => false,
        }
    }
}

/// What is to come, with its time on the simulator's clock.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<Vec<(Duration, Event)>>);

impl Events {
    fn change<T>(&self, code: impl FnOnce(&mut Vec<(Duration, Event)>) -> T) -> T {
        code(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn next(&self, now: Duration) -> Option<(Duration, Event)> {
        self.change(|list| {
            list.sort_by_key(|(at, _)| *at);
            let due = list.first().is_some_and(|(at, _)| *at <= now);
            due.then(|| list.remove(0))
        })
    }
}

impl Sim {
    pub(crate) fn later(&self, after: Duration, event: Event) {
        self.at(self.clock.now() + after, event);
    }

    fn at(&self, time: Duration, event: Event) {
        self.events.change(|list| list.push((time, event)));
    }

    /// Lets happen what is due.
    pub(crate) fn tick(self: &Arc<Self>) {
        while let Some((due, event)) = self.events.next(self.clock.now()) {
            tracing::debug!(?event, "it is time");
            self.happen(due, event);
        }
    }

    fn happen(self: &Arc<Self>, due: Duration, event: Event) {
        match event {
            Event::Health { node, health } => self.become_health(due, &node, health),
            Event::Up { node } => self.up(due, &node),
            Event::Fence { node } => crm::fence(self, &node),
            Event::Recover { node } => crm::recover(self, &node),
            Event::Power { vmid, on } => crm::power(self, vmid, on),
            Event::Move { vmid, target } => crm::migrate(self, vmid, &target),
        }
    }

    fn become_health(&self, due: Duration, name: &str, health: Health) {
        let was = {
            let mut state = self.lock();
            let Some(node) = state.nodes.get_mut(name) else {
                return;
            };
            std::mem::replace(&mut node.health, health)
        };
        let closed = matches!(health, Health::ProxyDown | Health::Isolated);
        if closed || health == Health::Online {
            self.doors.open(name, !closed);
        }
        if was.in_cluster() && !health.in_cluster() {
            let (fence, recover) = (name.to_owned(), name.to_owned());
            self.at(due + FENCED_AFTER, Event::Fence { node: fence });
            self.at(due + RECOVERED_AFTER, Event::Recover { node: recover });
        }
        if !was.in_cluster() && health.in_cluster() {
            self.events.change(|list| {
                list.retain(|(_, event)| {
                    !matches!(event, Event::Fence { node } | Event::Recover { node } if node == name)
                });
            });
            crm::back(&mut self.lock(), name);
        }
    }

    /// A host is in this state from now on, whatever was to come.
    pub(crate) fn set_health(&self, name: &str, health: Health) {
        self.events.change(|list| {
            list.retain(|(_, event)| {
                !event.is_of(name) || matches!(event, Event::Fence { .. } | Event::Recover { .. })
            });
        });
        self.become_health(self.clock.now(), name, health);
    }

    /// The power is gone: so are its QEMUs, and who talks to it notices bit by bit.
    pub(crate) fn power_off(&self, name: &str) {
        self.set_health(name, Health::Reset);
        self.doors.open(name, false);
        for vmid in self.running_on(name) {
            drop(qemu::stop(self, name, vmid));
        }
        for (after, health) in [
            (SILENT_AFTER, Health::Silent),
            (NO_ROUTE_AFTER, Health::Offline),
        ] {
            let node = name.to_owned();
            self.later(after, Event::Health { node, health });
        }
    }

    /// The power is back: a member after some seconds, its daemons later, its VMs are stopped.
    pub(crate) fn power_on(&self, name: &str) {
        self.set_health(name, Health::Offline);
        self.doors.open(name, false);
        let told = self.clock.now() + UP_AFTER + TOLD_AFTER;
        let state = self.lock();
        self.stats().restart(&state, name, told);
        drop(state);
        let (node, health) = (name.to_owned(), Health::ProxyDown);
        self.later(MEMBER_AFTER, Event::Health { node, health });
        let node = name.to_owned();
        self.later(UP_AFTER, Event::Up { node });
    }

    fn running_on(&self, name: &str) -> Vec<VmNumber> {
        let state = self.lock();
        let here = state
            .vms
            .iter()
            .filter(|(_, vm)| vm.node == name && vm.running);
        here.map(|(vmid, _)| *vmid).collect()
    }

    fn up(&self, due: Duration, name: &str) {
        self.become_health(due, name, Health::Online);
        let wanted: Vec<VmNumber> = {
            let state = self.lock();
            let here = state.vms.iter().filter(|(_, vm)| vm.node == name);
            let on_boot = here.filter(|(_, vm)| vm.config.get("onboot").is_some_and(|v| v == "1"));
            on_boot.map(|(vmid, _)| *vmid).collect()
        };
        for vmid in wanted {
            if let Err(fail) = qemu::start(self, name, vmid) {
                tracing::warn!(vmid, text = fail.exit_text(), "not started on boot");
            }
        }
    }

    /// The watchdog resets a host that is cut off and has guests of the HA stack.
    pub(crate) fn reset_by_watchdog(&self, name: &str) {
        for vmid in self.running_on(name) {
            drop(qemu::stop(self, name, vmid));
        }
        self.set_health(name, Health::Offline);
    }
}
