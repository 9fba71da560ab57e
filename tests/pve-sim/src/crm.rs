//! What the HA manager does with the guests that it has (running.md 14). It acts only where `ha.running` says that its daemons run.

use std::sync::Arc;
use std::time::Duration;

use crate::acl::Who;
use crate::api;
use crate::events::Event;
use crate::qemu;
use crate::sim::Sim;
use crate::state::{Health, State, VmNumber};

/// How often the manager looks at what it has to do.
const ROUND: Duration = Duration::from_secs(10);

/// Guests of the HA stack on a PVE node that are to run.
fn wanted_on(state: &State, node: &str) -> Vec<VmNumber> {
    let to_run = |asked: Option<&String>| {
        asked.is_none_or(|asked| ["started", "enabled"].contains(&asked.as_str()))
    };
    let services = state.ha.resources.iter();
    let mine = services.filter(|(_, options)| to_run(options.get("state")));
    mine.filter_map(|(sid, _)| sid.strip_prefix("vm:")?.parse().ok())
        .filter(|vmid| state.vms.get(vmid).is_some_and(|vm| vm.node == node))
        .collect()
}

fn sid(vmid: VmNumber) -> String {
    format!("vm:{vmid}")
}

/// A node that has been away for a minute is fenced: taken for dead, and its own watchdog makes it so.
pub(crate) fn fence(sim: &Arc<Sim>, node: &str) {
    let isolated = {
        let mut state = sim.lock();
        let guests = wanted_on(&state, node);
        if !state.ha.running || guests.is_empty() {
            return;
        }
        for vmid in guests {
            state.ha.services.insert(sid(vmid), "fence".to_owned());
        }
        state
            .nodes
            .get(node)
            .is_some_and(|node| node.health == Health::Isolated)
    };
    if isolated {
        sim.reset_by_watchdog(node);
    }
}

/// Its guests' configs move to a node that is there, and they are started.
pub(crate) fn recover(sim: &Arc<Sim>, node: &str) {
    let (guests, majority) = {
        let state = sim.lock();
        let alive = state.nodes.iter().filter(|(_, n)| n.health.in_cluster());
        let majority = alive.clone().any(|(name, _)| state.quorate(name));
        if !state.ha.running {
            return;
        }
        (wanted_on(&state, node), majority)
    };
    if !majority {
        let node = node.to_owned();
        sim.later(ROUND, Event::Recover { node });
        return;
    }
    for vmid in guests {
        let target = {
            let mut state = sim.lock();
            let Some(target) = place(&state, vmid, node) else {
                continue;
            };
            if let Some(vm) = state.vms.get_mut(&vmid) {
                vm.node.clone_from(&target);
                vm.config.remove("lock");
            }
            target
        };
        let started = qemu::start(sim, &target, vmid);
        let mut state = sim.lock();
        if started.is_ok() {
            state.ha.services.remove(&sid(vmid));
        } else {
            state.ha.services.insert(sid(vmid), "error".to_owned());
        }
    }
}

/// The first node that is there, of those that a strict rule leaves.
fn place(state: &State, vmid: VmNumber, from: &str) -> Option<String> {
    let sid = sid(vmid);
    let rules = state.ha.all_rules();
    let rule = rules.iter().find(|rule| {
        let on = |key: &str| rule.options.get(key).is_some_and(|value| value == "1");
        rule.kind == "node-affinity"
            && rule.resources.contains(&sid)
            && !on("disable")
            && on("strict")
    });
    let allowed = |name: &str| {
        rule.and_then(|rule| rule.options.get("nodes"))
            .is_none_or(|nodes| {
                let mut names = nodes.split(',').map(|item| item.split(':').next());
                names.any(|listed| listed == Some(name))
            })
    };
    let there = state
        .nodes
        .iter()
        .filter(|(_, node)| node.health == Health::Online);
    there
        .map(|(name, _)| name)
        .find(|name| *name != from && allowed(name))
        .cloned()
}

/// A node is back before its guests were moved.
pub(crate) fn back(state: &mut State, node: &str) {
    for vmid in wanted_on(state, node) {
        state.ha.services.remove(&sid(vmid));
    }
}

/// What was asked by `hastart` and `hastop` is done in the manager's next round.
pub(crate) fn ask_power(sim: &Sim, vmid: VmNumber, on: bool) {
    let mut state = sim.lock();
    let asked = if on { "started" } else { "stopped" };
    if let Some(options) = state.ha.resources.get_mut(&sid(vmid)) {
        options.insert("state".to_owned(), asked.to_owned());
    }
    let verbose = if on { "starting" } else { "request_stop" };
    state.ha.services.insert(sid(vmid), verbose.to_owned());
    drop(state);
    sim.later(ROUND, Event::Power { vmid, on });
}

pub(crate) fn power(sim: &Sim, vmid: VmNumber, on: bool) {
    let Some(node) = sim.lock().vms.get(&vmid).map(|vm| vm.node.clone()) else {
        return;
    };
    let done = if on {
        qemu::start(sim, &node, vmid)
    } else {
        qemu::stop(sim, &node, vmid)
    };
    let mut state = sim.lock();
    if done.is_ok() {
        state.ha.services.remove(&sid(vmid));
    } else {
        state.ha.services.insert(sid(vmid), "error".to_owned());
    }
}

pub(crate) fn ask_move(sim: &Sim, vmid: VmNumber, target: &str) {
    let target = target.to_owned();
    sim.later(ROUND, Event::Move { vmid, target });
}

/// The manager's own migration runs as root@pam.
pub(crate) fn migrate(sim: &Arc<Sim>, vmid: VmNumber, target: &str) {
    let who = Who {
        user: "root@pam".to_owned(),
        token: None,
    };
    let node = sim.lock().vms.get(&vmid).map(|vm| vm.node.clone());
    if let Some(node) = node.filter(|node| node != target) {
        api::migrate_now(sim, &who, (&node, vmid, target));
    }
}
