//! `/nodes/{node}/qemu/{vmid}/config`, `/pending`, `/unlink`, `/resize` (`API2/Qemu.pm`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::option_rights::{self, Place};
use crate::acl;
use crate::drive::{self, Drive};
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, later, now, null};
use crate::sim::no_config;
use crate::state::Vm;
use crate::tasks::{self, TaskKind};
use crate::update::{self, Change};
use crate::{hotplug, options, resize};

const CONFIG: &str = "/nodes/{node}/qemu/{vmid}/config";
const CONTROL: &[&str] = &[
    "node",
    "vmid",
    "digest",
    "skiplock",
    "force",
    "delete",
    "revert",
    "background_delay",
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", CONFIG, get),
        now("GET", "/nodes/{node}/qemu/{vmid}/pending", pending),
        later("PUT", CONFIG, put),
        later("POST", CONFIG, post),
        later("PUT", "/nodes/{node}/qemu/{vmid}/unlink", unlink),
        now("PUT", "/nodes/{node}/qemu/{vmid}/resize", resize),
    ]
}

/// A config value as JSON: integers and booleans are numbers, the rest strings.
pub(super) fn value(key: &str, text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(number) if options::is_number(key) => json!(number),
        _ => json!(text),
    }
}

fn get(call: &Call) -> ApiResult {
    let snapshot = call.get("snapshot").map(str::to_owned);
    let current = call.flag("current");
    let (view, digest) = call.sim.with_vm(&call.node(), call.vmid(), |vm| {
        let view = match &snapshot {
            Some(name) => vm.snapshots.get(name).cloned(),
            None if current => Some(vm.config.clone()),
            None => Some(hotplug::with_pending(vm)),
        };
        (view, vm.digest())
    })?;
    let view = view.ok_or_else(|| {
        Fail::die(format!(
            "snapshot '{}' does not exist",
            snapshot.unwrap_or_default()
        ))
    })?;
    let mut map: Map<String, Value> = view
        .iter()
        .map(|(key, text)| (key.clone(), value(key, text)))
        .collect();
    if let Some(Value::String(time)) = map.get("snaptime") {
        let time = time.parse::<u64>().unwrap_or_default();
        map.insert("snaptime".into(), json!(time));
    }
    map.insert("digest".into(), json!(digest));
    Ok(Value::Object(map).into())
}

fn pending(call: &Call) -> ApiResult {
    call.sim.with_vm(&call.node(), call.vmid(), |vm| {
        Value::Array(pending_rows(vm)).into()
    })
}

fn pending_rows(vm: &Vm) -> Vec<Value> {
    let mut rows = vec![json!({"key": "digest", "value": vm.digest()})];
    for (key, text) in &vm.config {
        let mut row = Map::new();
        row.insert("key".into(), json!(key));
        row.insert("value".into(), value(key, text));
        if let Some(new) = vm.pending.get(key) {
            row.insert("pending".into(), value(key, new));
        }
        if let Some(force) = vm.pending_delete.get(key) {
            row.insert("delete".into(), json!(if *force { 2 } else { 1 }));
        }
        rows.push(Value::Object(row));
    }
    let only = vm
        .pending
        .iter()
        .filter(|(key, _)| !vm.config.contains_key(*key));
    rows.extend(only.map(|(key, text)| json!({"key": key, "pending": value(key, text)})));
    rows
}

fn names(text: Option<&str>) -> Vec<String> {
    text.unwrap_or_default()
        .split([',', ';', ' '])
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The checks that both PUT and POST make before anything is forked, in PVE's order (`Qemu.pm` `update_vm_api`).
fn prepare(call: &Call) -> Result<Change, Fail> {
    super::only_root(call, "skiplock")?;
    let set: BTreeMap<String, String> = call
        .params
        .iter()
        .filter(|(key, _)| !CONTROL.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let change = Change {
        who: call.who.clone(),
        node: call.node(),
        vmid: call.vmid(),
        digest: call.get("digest").map(str::to_owned),
        delete: names(call.get("delete")),
        force: call.flag("force"),
        revert: names(call.get("revert")),
        set,
    };
    if change.set.is_empty() && change.delete.is_empty() && change.revert.is_empty() {
        return Err(Fail::die("no options specified"));
    }
    check_lists(&change)?;
    for (key, text) in change
        .set
        .iter()
        .filter(|(key, _)| drive::slot(key).is_some())
    {
        let drive = Drive::parse(key, text)
            .map_err(|text| Fail::param(key, format!("invalid format - {text}")))?;
        if !drive.combines() {
            return Err(Fail::param(key, "unable to parse drive options"));
        }
    }
    let state = call.sim.lock();
    let place = Place {
        vmid: call.text("vmid"),
        pool: None,
    };
    option_rights::check(&state, &call.who, &place, change.delete.iter())?;
    option_rights::check(&state, &call.who, &place, change.set.keys())?;
    for (key, text) in &change.set {
        storage_access(call, &state, key, text)?;
    }
    option_rights::check_devices(&state, &call.who, &place, change.set.iter())?;
    let vm = state
        .vms
        .get(&change.vmid)
        .filter(|vm| vm.node == change.node)
        .ok_or_else(|| no_config(&change.node, change.vmid))?;
    update::check_state(vm, change.digest.as_deref())?;
    drop(state);
    Ok(change)
}

fn check_lists(change: &Change) -> Result<(), Fail> {
    for key in &change.revert {
        if options::shape(key).is_none() {
            return Err(Fail::param("revert", format!("unknown option '{key}'")));
        }
        if change.set.contains_key(key) {
            return Err(Fail::param(
                "delete",
                format!("you can't use '-{key}' and -revert {key}' at the same time"),
            ));
        }
    }
    for key in &change.delete {
        if change.set.contains_key(key) {
            return Err(Fail::param(
                "delete",
                format!("you can't use '-{key}' and -delete {key}' at the same time"),
            ));
        }
        if change.revert.contains(key) {
            return Err(Fail::param(
                "revert",
                format!("you can't use '-delete {key}' and -revert {key}' at the same time"),
            ));
        }
        if options::shape(key).is_none() {
            return Err(Fail::param("delete", format!("unknown option '{key}'")));
        }
    }
    Ok(())
}

/// `check_storage_access` for one option.
pub(super) fn storage_access(
    call: &Call,
    state: &crate::state::State,
    key: &str,
    text: &str,
) -> Result<(), Fail> {
    let drive = if drive::is_unused(key) {
        Drive {
            file: text.to_owned(),
            ..Drive::default()
        }
    } else if drive::slot(key).is_some() {
        Drive::parse(key, text).unwrap_or_default()
    } else {
        return Ok(());
    };
    if matches!(drive.file.as_str(), "none" | "cdrom") {
        return Ok(());
    }
    if drive.file.starts_with('/') && !call.who.is_root() {
        return Err(Fail::die(
            "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.",
        ));
    }
    if let Some((storage, _)) = drive.allocation() {
        acl::need_all(
            state,
            &call.who,
            &format!("/storage/{storage}"),
            &["Datastore.AllocateSpace"],
        )?;
        let found = state
            .storages
            .get(storage)
            .ok_or_else(|| Fail::die(format!("storage '{storage}' does not exist")))?;
        if !found.content.contains("images") {
            return Err(Fail::param(
                "storage",
                format!("storage '{storage}' does not support vm images"),
            ));
        }
        return Ok(());
    }
    super::volume_access(state, &call.who, Some(call.vmid()), &drive.file)
}

async fn put(call: Call) -> ApiResult {
    let change = prepare(&call)?;
    update::run(&call.sim, change).await?;
    Ok(null())
}

async fn post(call: Call) -> ApiResult {
    let change = prepare(&call)?;
    let vmid = change.vmid;
    let what = TaskKind {
        node: change.node.clone(),
        kind: "qmconfig",
        id: vmid.to_string(),
    };
    let sim = call.sim.clone();
    let upid = tasks::fork(&call.sim, &call.who, &what, move |_| async move {
        update::run(&sim, change).await
    });
    let Some(delay) = call.number("background_delay") else {
        return Ok(json!(upid).into());
    };
    match tasks::wait(&call.sim, &upid, Duration::from_secs(delay)).await {
        None => Ok(json!(upid).into()),
        Some(exit) if tasks::succeeded(&exit) => Ok(null()),
        Some(exit) => Err(Fail::die(format!("failed to update VM {vmid}: {exit}"))),
    }
}

async fn unlink(mut call: Call) -> ApiResult {
    let list = call.params.remove("idlist").unwrap_or_default();
    call.params.insert("delete".to_owned(), list);
    let change = prepare(&call)?;
    update::run(&call.sim, change).await?;
    Ok(null())
}

fn resize(call: &Call) -> ApiResult {
    super::only_root(call, "skiplock")?;
    let order = resize::Order {
        who: call.who.clone(),
        node: call.node(),
        vmid: call.vmid(),
        disk: call.text("disk").to_owned(),
        size: call.text("size").to_owned(),
        digest: call.get("digest").map(str::to_owned),
    };
    let what = TaskKind {
        node: order.node.clone(),
        kind: "resize",
        id: order.vmid.to_string(),
    };
    let sim = call.sim.clone();
    let upid = tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        resize::run(&sim, &order, &log).await
    });
    Ok(json!(upid).into())
}
