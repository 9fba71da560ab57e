//! `/nodes/{node}/qemu`: creating and destroying VMs, as far as tests need it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::option_rights::{self, Place};
use crate::acl::{self, Who};
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now};
use crate::sim::Sim;
use crate::state::{State, Vm, VmNumber};
use crate::tasks::{self, TaskKind};
use crate::update::{self, Change};
use crate::{destroy, drive, qemu};

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("POST", "/nodes/{node}/qemu", create),
        now("DELETE", "/nodes/{node}/qemu/{vmid}", destroy),
    ]
}

/// Parameters that are no options of the config.
const CONTROL: &[&str] = &[
    "node",
    "vmid",
    "pool",
    "storage",
    "start",
    "unique",
    "bwlimit",
    "force",
    "ha-managed",
    "live-restore",
    "import-working-storage",
];

/// The rights that `create_vm` asks for by itself, in its order.
fn may_create(call: &Call, state: &State, set: &BTreeMap<String, String>) -> Result<(), Fail> {
    let pool = call.get("pool");
    if let Some(pool) = pool.filter(|pool| !state.pools.contains_key(*pool)) {
        return Err(Fail::denied(&format!("pool '{pool}' does not exist")));
    }
    let who = &call.who;
    if let Some(storage) = call.get("storage") {
        let path = format!("/storage/{storage}");
        acl::need_all(state, who, &path, &["Datastore.AllocateSpace"])?;
    }
    if call.flag("ha-managed") {
        acl::need_all(state, who, "/", &["Sys.Console"])?;
    }
    let place = Place {
        vmid: call.text("vmid"),
        pool,
    };
    if call.flag("start") {
        place.need(state, who, &["VM.PowerMgmt"], false)?;
    }
    if place.need(state, who, &["VM.Allocate"], false).is_err() {
        return Err(Fail::denied(""));
    }
    for (key, text) in set {
        super::config::storage_access(call, state, key, text)?;
    }
    option_rights::check(state, who, &place, set.keys())?;
    option_rights::check_devices(state, who, &place, set.iter())
}

fn create(call: &Call) -> ApiResult {
    let (node, vmid) = (call.node(), call.vmid());
    if call.get("archive").is_some() {
        return Err(Fail::die("restoring from a backup is not simulated"));
    }
    let set: BTreeMap<String, String> = call
        .params
        .iter()
        .filter(|(key, _)| !CONTROL.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    {
        let mut state = call.sim.lock();
        may_create(call, &state, &set)?;
        if let Some(vm) = state.vms.get(&vmid) {
            return Err(Fail::die(format!(
                "unable to create VM {vmid} - VM {vmid} already exists on node '{}'",
                vm.node
            )));
        }
        let vm = Vm {
            node: node.clone(),
            config: BTreeMap::from([("lock".to_owned(), "create".to_owned())]),
            ..Vm::default()
        };
        state.vms.insert(vmid, vm);
        if let Some(pool) = call.get("pool").and_then(|pool| state.pools.get_mut(pool)) {
            pool.vms.insert(vmid);
        }
        if call.flag("ha-managed") {
            state
                .ha
                .resources
                .insert(format!("vm:{vmid}"), BTreeMap::new());
        }
    }
    let what = TaskKind {
        node,
        kind: "qmcreate",
        id: vmid.to_string(),
    };
    let (sim, who) = (call.sim.clone(), call.who.clone());
    let (node, start) = (what.node.clone(), call.flag("start"));
    let upid = tasks::fork(&call.sim, &call.who, &what, move |_| async move {
        write(&sim, who, (&node, vmid), set).await?;
        if start {
            qemu::start(&sim, &node, vmid)
        } else {
            Ok(())
        }
    });
    Ok(json!(upid).into())
}

/// Fills the reserved config; if that fails, the VM is gone again.
async fn write(
    sim: &Arc<Sim>,
    who: Who,
    (node, vmid): (&str, VmNumber),
    set: BTreeMap<String, String>,
) -> Result<(), Fail> {
    let set = complete(sim, set);
    sim.with_vm(node, vmid, |vm| vm.config.clear())?;
    let change = Change {
        who,
        node: node.to_owned(),
        vmid,
        digest: None,
        delete: Vec::new(),
        force: false,
        revert: Vec::new(),
        set,
    };
    let made = update::apply(sim, change).await;
    if made.is_err() {
        forget(sim, vmid);
    }
    made
}

/// What PVE adds to a new config: MAC addresses, boot order, identity.
fn complete(sim: &Sim, mut set: BTreeMap<String, String>) -> BTreeMap<String, String> {
    fill_macs(sim, &mut set, Macs::Missing);
    if !set.contains_key("boot") {
        let pick = |test: &dyn Fn(&str, &str) -> bool| {
            set.iter().find(|(k, v)| test(k, v)).map(|(k, _)| k.clone())
        };
        let cdrom = |value: &str| value.contains("media=cdrom");
        let order: Vec<String> = [
            pick(&|key, value| drive::slot(key).is_some() && !cdrom(value)),
            pick(&|key, value| drive::slot(key).is_some() && cdrom(value)),
            pick(&|key, _| key.strip_prefix("net").and_then(drive::index).is_some()),
        ]
        .into_iter()
        .flatten()
        .collect();
        set.insert("boot".to_owned(), update::print_boot(&order));
    }
    set.entry("smbios1".to_owned())
        .or_insert_with(|| format!("uuid={}", sim.uuid()));
    set.entry("vmgenid".to_owned())
        .or_insert_with(|| sim.uuid());
    set.insert(
        "meta".to_owned(),
        format!("creation-qemu=10.0.13,ctime={}", sim.clock.epoch()),
    );
    set
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Macs {
    Missing,
    All,
}

fn fill_macs(sim: &Sim, set: &mut BTreeMap<String, String>, which: Macs) {
    let is_net = |key: &str| key.strip_prefix("net").and_then(drive::index).is_some();
    for (_, value) in set.iter_mut().filter(|(key, _)| is_net(key)) {
        let (model, rest) = value.split_once(',').unwrap_or((value.as_str(), ""));
        let (name, mac) = model.split_once('=').unwrap_or((model, ""));
        if mac.is_empty() || which == Macs::All {
            let hex = sim.random_hex(3).to_uppercase();
            let octet = |at: usize| hex.get(at..at + 2).unwrap_or("00").to_owned();
            let comma = if rest.is_empty() { "" } else { "," };
            *value = format!(
                "{name}=BC:24:11:{}:{}:{}{comma}{rest}",
                octet(0),
                octet(2),
                octet(4)
            );
        }
    }
}

/// A clone's own identity: MAC addresses, SMBIOS uuid, generation id.
pub(super) fn renew(sim: &Sim, config: &mut BTreeMap<String, String>) {
    fill_macs(sim, config, Macs::All);
    let before = config.get("smbios1").map_or("", String::as_str);
    let others = before
        .split(',')
        .filter(|part| !part.is_empty() && !part.starts_with("uuid="));
    let uuid = format!("uuid={}", sim.uuid());
    let smbios: Vec<&str> = others.chain([uuid.as_str()]).collect();
    config.insert("smbios1".to_owned(), smbios.join(","));
    config.insert("vmgenid".to_owned(), sim.uuid());
}

/// The VM with its ACLs and pool membership.
fn forget(sim: &Sim, vmid: VmNumber) {
    let mut state = sim.lock();
    state.vms.remove(&vmid);
    state.ha.forget(&format!("vm:{vmid}"));
    let path = format!("/vms/{vmid}");
    state.acl.retain(|entry| entry.path != path);
    for pool in state.pools.values_mut() {
        pool.vms.remove(&vmid);
    }
}

fn destroy(call: &Call) -> ApiResult {
    super::only_root(call, "skiplock")?;
    let order = destroy::Order {
        node: call.node(),
        vmid: call.vmid(),
        purge: call.flag("purge"),
        unreferenced: call.flag("destroy-unreferenced-disks"),
    };
    destroy::check(&call.sim.lock(), &order)?;
    let what = TaskKind {
        node: order.node.clone(),
        kind: "qmdestroy",
        id: order.vmid.to_string(),
    };
    let sim = call.sim.clone();
    let upid = tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        destroy::run(&sim, &order, &log).await?;
        forget(&sim, order.vmid);
        Ok(())
    });
    Ok(json!(upid).into())
}
