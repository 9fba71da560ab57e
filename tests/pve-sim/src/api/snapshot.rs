//! `/nodes/{node}/qemu/{vmid}/snapshot`: taking, listing and dropping snapshots of a VM.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::drive;
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now};
use crate::sim::Sim;
use crate::state::{State, StorageKind, Vm, VmNumber, suffix_format};
use crate::tasks::{self, TaskKind};
use crate::update;

pub(super) fn routes() -> Vec<Route> {
    let base = "/nodes/{node}/qemu/{vmid}/snapshot";
    vec![
        now("GET", base, list),
        now("POST", base, create),
        now(
            "DELETE",
            "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}",
            delete,
        ),
        now(
            "GET",
            "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}/config",
            config,
        ),
    ]
}

fn absent(name: &str) -> Fail {
    Fail::die(format!("snapshot '{name}' does not exist"))
}

fn list(call: &Call) -> ApiResult {
    let rows = call.sim.with_vm(&call.node(), call.vmid(), |vm| {
        let mut rows: Vec<Value> = vm
            .snapshots
            .iter()
            .map(|(name, section)| snapshot_row(name, section))
            .collect();
        let mut current = Map::new();
        current.insert("name".into(), json!("current"));
        current.insert("description".into(), json!("You are here!"));
        current.insert("digest".into(), json!(vm.digest()));
        current.insert("running".into(), json!(u8::from(vm.running)));
        if let Some(parent) = vm.config.get("parent") {
            current.insert("parent".into(), json!(parent));
        }
        rows.push(Value::Object(current));
        rows
    })?;
    Ok(Value::Array(rows).into())
}

fn snapshot_row(name: &str, section: &std::collections::BTreeMap<String, String>) -> Value {
    let time = section
        .get("snaptime")
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or_default();
    let description = section.get("description").map_or("", String::as_str);
    let mut row = Map::new();
    row.insert("name".into(), json!(name));
    row.insert("snaptime".into(), json!(time));
    row.insert("description".into(), json!(description));
    row.insert(
        "vmstate".into(),
        json!(u8::from(section.contains_key("vmstate"))),
    );
    if let Some(parent) = section.get("parent") {
        row.insert("parent".into(), json!(parent));
    }
    Value::Object(row)
}

fn config(call: &Call) -> ApiResult {
    let name = call.text("snapname");
    let section = call
        .sim
        .with_vm(&call.node(), call.vmid(), |vm| {
            vm.snapshots.get(name).cloned()
        })?
        .ok_or_else(|| absent(name))?;
    let map: Map<String, Value> = section
        .iter()
        .map(|(key, text)| (key.clone(), super::config::value(key, text)))
        .collect();
    Ok(Value::Object(map).into())
}

/// Whether every disk can be snapshotted: thin LVs and qcow2 files can (`volume_has_feature`).
fn has_feature(state: &State, vm: &Vm) -> bool {
    let disks = vm
        .config
        .iter()
        .filter(|(key, value)| drive::slot(key).is_some() && !value.contains("media=cdrom"));
    disks
        .filter_map(|(_, value)| value.split(',').next()?.split_once(':'))
        .all(|(storage, name)| {
            let kind = state.storages.get(storage).map(|found| found.kind);
            kind == Some(StorageKind::LvmThin) || suffix_format(name) == Some("qcow2")
        })
}

fn fork(
    call: &Call,
    kind: &'static str,
    work: impl FnOnce(&Sim, &str, VmNumber) -> Result<(), Fail> + Send + 'static,
) -> ApiResult {
    let (node, vmid, sim) = (call.node(), call.vmid(), Arc::clone(&call.sim));
    call.sim.with_vm(&node, vmid, |_| ())?;
    let what = TaskKind {
        node: node.clone(),
        kind,
        id: vmid.to_string(),
    };
    let upid = tasks::fork(&call.sim, &call.who, &what, move |_| async move {
        let _guard = sim.lock_vm(&node, vmid).await?;
        work(&sim, &node, vmid)
    });
    Ok(json!(upid).into())
}

fn create(call: &Call) -> ApiResult {
    let name = call.text("snapname").to_owned();
    if ["current", "pending"].contains(&name.as_str()) {
        return Err(Fail::die(format!(
            "unable to use snapshot name '{name}' (reserved name)"
        )));
    }
    let description = call.get("description").map(str::to_owned);
    fork(call, "qmsnapshot", move |sim, node, vmid| {
        let feature = {
            let state = sim.lock();
            state
                .vms
                .get(&vmid)
                .is_none_or(|vm| has_feature(&state, vm))
        };
        let now = sim.clock.epoch();
        sim.with_vm(node, vmid, |vm| {
            update::check_state(vm, None)?;
            if vm.snapshots.contains_key(&name) {
                return Err(Fail::die(format!("snapshot name '{name}' already used")));
            }
            if !feature {
                return Err(Fail::die("snapshot feature is not available"));
            }
            let mut section = vm.config.clone();
            section.retain(|key, _| !drive::is_unused(key));
            section.insert("snaptime".into(), now.to_string());
            if let Some(text) = description {
                section.insert("description".into(), text);
            }
            vm.config.insert("parent".into(), name.clone());
            vm.snapshots.insert(name, section);
            Ok(())
        })?
    })
}

fn delete(call: &Call) -> ApiResult {
    let name = call.text("snapname").to_owned();
    fork(call, "qmdelsnapshot", move |sim, node, vmid| {
        sim.with_vm(node, vmid, |vm| {
            update::check_state(vm, None)?;
            let section = vm.snapshots.remove(&name).ok_or_else(|| absent(&name))?;
            let parent = section.get("parent").cloned();
            let children = std::iter::once(&mut vm.config).chain(vm.snapshots.values_mut());
            for child in children.filter(|child| child.get("parent") == Some(&name)) {
                match &parent {
                    Some(parent) => child.insert("parent".into(), parent.clone()),
                    None => child.remove("parent"),
                };
            }
            // Volumes that only the snapshot knew become unused, whoever owns them.
            for (_, value) in section
                .iter()
                .filter(|(key, value)| drive::slot(key).is_some() && value.contains(':'))
            {
                let volid = value.split(',').next().unwrap_or_default();
                if !vm
                    .config
                    .values()
                    .any(|other| other.split(',').next() == Some(volid))
                {
                    vm.add_unused(volid);
                }
            }
            Ok(())
        })?
    })
}
