//! What must hold of whatever PVE answers, and of drive strings and task names: for tests here, and for the targets
//! under `fuzz/`.

#![expect(
    clippy::missing_panics_doc,
    reason = "a check panics where something does not hold"
)]

use std::collections::BTreeSet;
use std::fmt::Debug;

use pve_model::{Bytes, Slot};
use serde_json::Value;

use crate::agent::{MOST_ADDRESSES, MOST_INTERFACES, Said};
use crate::cluster::{GuestKind, RunState, VmEntry, node_entry, storage_entry, vm_entry};
use crate::drive::Drive;
use crate::pending::VmPending;
use crate::qemu::{VmConfig, VmStatus};
use crate::resources::Resources;
use crate::storage::{content_entry, disk_info};
use crate::task::{Started, TaskOutcome, Upid, task_state};
use crate::wire::{self, Fields, Listing};

/// A drive string that is accepted comes out as it went in and names one volume, which it keeps whatever is set.
pub fn drive(text: &str) {
    let Ok(read) = text.parse::<Drive>() else {
        return;
    };
    assert_eq!(
        read.to_string(),
        text,
        "printing is not the inverse of parsing"
    );
    let volid = read.volid();
    assert!(!volid.is_empty() && !volid.contains(','));
    let file = format!("file={volid}");
    let volume = format!("volume={volid}");
    let items: Vec<&str> = text.split(',').collect();
    let naming = |item: &&&str| [volid, &file, &volume].contains(*item);
    assert_eq!(items.iter().filter(naming).count(), 1, "one part names it");
    assert!(read.is_of(volid) && !read.is_of(&format!("{volid}0")) && !read.is_of(""));
    if let Some(size) = read.size() {
        let written = read.get("size").unwrap_or_default();
        assert!(
            written.starts_with(|c: char| c.is_ascii_digit()),
            "{size:?} of {written}"
        );
    }
    let mut changed = read.clone();
    assert!(
        changed.set("iops", "100").is_ok(),
        "an option that holds no separator"
    );
    assert_eq!((changed.volid(), changed.get("iops")), (volid, Some("100")));
    assert_eq!(changed.to_string().parse().as_ref(), Ok(&changed));
    let others = |drive: &Drive| {
        let text = drive.to_string();
        let kept = text.split(',').filter(|item| !item.starts_with("iops="));
        kept.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(others(&changed), others(&read), "an option was lost");
}

/// A task name that is accepted comes out as it went in, and can stand in a URL or a log line.
pub fn upid(text: &str) {
    let Ok(read) = text.parse::<Upid>() else {
        return;
    };
    assert_eq!(
        read.to_string(),
        text,
        "printing is not the inverse of parsing"
    );
    assert!(
        text.bytes().all(|b| b.is_ascii_graphic() && b != b'/'),
        "{text:?}"
    );
    let parts: Vec<&str> = text.split(':').collect();
    assert_eq!(parts.len(), 9);
    let expected = (Some("UPID"), Some(read.pve_node().as_str()), Some(""));
    let seen = (
        parts.first().copied(),
        parts.get(1).copied(),
        parts.get(8).copied(),
    );
    assert_eq!(seen, expected);
    let expected = (Some(read.kind()), Some(read.id()));
    assert_eq!((parts.get(5).copied(), parts.get(6).copied()), expected);
    assert!(!read.kind().is_empty());
}

/// Whatever a body holds: each entry of a list is read by itself, what can't be read is counted or an error, and what
/// is said was in the body.
pub fn answer(body: &[u8]) {
    let Ok(data) = wire::data(body) else {
        return;
    };
    guests(&data);
    each_by_itself(&data, storage_entry);
    each_by_itself(&data, node_entry);
    each_by_itself(&data, content_entry);
    each_by_itself(&data, crate::task_list::entry);
    each_by_itself(&data, crate::ha::group);
    ha(&data);
    agent(&data);
    resources(&data);
    pending(&data);
    config(&data);
    status(&data);
    task(&data);
    snapshots(&data);
    disk(&data);
}

fn each_by_itself<T: PartialEq + Debug>(
    data: &Value,
    read: fn(Fields<'_>) -> Option<T>,
) -> Vec<(&Value, T)> {
    let (list, values) = match (wire::listing(data, read), data.as_array()) {
        (Ok(list), Some(values)) => (list, values),
        (Err(_), None) => return Vec::new(),
        (list, _) => unreachable!("{list:?} of {data}"),
    };
    assert_eq!(
        list.entries.len() + list.undecodable,
        values.len(),
        "an entry was dropped"
    );
    let alone = |value: &Value| wire::listing(&Value::Array(vec![value.clone()]), read);
    let mut pairs = Vec::new();
    for value in values {
        let Ok(Listing {
            entries,
            undecodable,
        }) = alone(value)
        else {
            unreachable!("a list of one is a list")
        };
        assert_eq!(entries.len() + undecodable, 1);
        pairs.extend(entries.into_iter().map(|entry| (value, entry)));
    }
    let together = pairs.iter().map(|(_, entry)| entry);
    assert!(
        together.eq(&list.entries),
        "an entry is read otherwise among others"
    );
    pairs
}

fn guests(data: &Value) {
    for (value, entry) in each_by_itself(data, vm_entry) {
        guest(value, &entry);
    }
}

fn guest(value: &Value, entry: &VmEntry) {
    let text = |key: &str| value.get(key).and_then(wire::scalar);
    assert_eq!(text("vmid"), Some(entry.vmid.to_string()));
    assert_eq!(text("node").as_deref(), Some(entry.pve_node.as_str()));
    let kind = text("type");
    let expected = match entry.kind {
        GuestKind::Qemu => "qemu",
        GuestKind::Lxc => "lxc",
    };
    assert_eq!(kind.as_deref(), Some(expected));
    assert_eq!(
        entry.state == RunState::Running,
        text("status").as_deref() == Some("running")
    );
    assert_eq!(
        entry.state == RunState::Stopped,
        text("status").as_deref() == Some("stopped")
    );
    let said = |key: &str| value.get(key).is_some_and(|value| !value.is_null());
    assert!(entry.pool.is_some() || !said("pool") || text("pool").as_deref() == Some(""));
    let no = ["", "0", "off", "no", "false"];
    // JSON has a zero below zero, too.
    let zero = value.get("template").and_then(Value::as_f64) == Some(0.0);
    let template = said("template")
        && !zero
        && text("template").is_none_or(|t| !no.contains(&t.trim_end_matches(".0")));
    assert_eq!(entry.template, template, "{value}");
}

fn resources(data: &Value) {
    let Ok(seen) = Resources::read(data) else {
        assert!(!data.is_array());
        return;
    };
    let kinds = data.as_array().into_iter().flatten();
    let kinds: Vec<Option<String>> = kinds
        .map(|v| v.get("type").and_then(wire::scalar))
        .collect();
    let count = |wanted: fn(&str) -> bool| {
        let of = |kind: &&Option<String>| kind.as_deref().is_none_or(wanted);
        kinds.iter().filter(of).count()
    };
    let known = |kind: &str| ["node", "pool", "sdn", "network", "storage"].contains(&kind);
    let guests = kinds
        .iter()
        .filter(|kind| kind.as_deref().is_none_or(|kind| !known(kind)))
        .count();
    assert_eq!(
        seen.guests.entries.len() + seen.guests.undecodable,
        guests,
        "{data}"
    );
    let storages = count(|kind| kind == "storage");
    assert_eq!(
        seen.storages.entries.len() + seen.storages.undecodable,
        storages,
        "{data}"
    );
    assert!(seen.storages.undecodable == 0 || seen.shared().is_empty());
}

fn pending(data: &Value) {
    let Ok(read) = VmPending::read(data) else {
        return;
    };
    let rows: Vec<&Value> = data.as_array().into_iter().flatten().collect();
    let mut seen = BTreeSet::new();
    for row in rows {
        let text = |key: &str| row.get(key).and_then(wire::scalar);
        let Some(key) = text("key") else {
            unreachable!("a row without key was passed over: {row}")
        };
        assert!(
            seen.insert(key.clone()),
            "{key} stands twice, and one row was dropped"
        );
        if key == "digest" {
            assert_eq!(text("value").as_ref(), Some(&read.digest));
            continue;
        }
        let (value, waits) = (text("value"), text("pending"));
        assert_eq!(read.current(&key), value.as_deref());
        assert!(waits.is_none() || read.has_change(&key));
        let Ok(slot) = key.parse::<Slot>() else {
            continue;
        };
        let named = value.is_some() || waits.is_some();
        assert_eq!(read.occupied_slots().contains(&slot), named, "{row}");
        assert_eq!(read.drives_current().contains_key(&slot), value.is_some());
        for drive in [
            read.drives_current().get(&slot),
            read.drives_after().get(&slot),
        ] {
            assert!(drive.is_none_or(|drive| read.keys_of(drive.volid()).contains(&key)));
        }
    }
    assert!(seen.contains("digest"));
}

fn config(data: &Value) {
    let Ok(read) = VmConfig::read(data) else {
        return;
    };
    let Some(options) = data.as_object() else {
        unreachable!("no object was read as a config: {data}")
    };
    for (key, value) in options {
        let text = wire::scalar(value);
        let seen = if key == "digest" {
            Some(&*read.digest)
        } else {
            read.get(key)
        };
        assert!(text.is_some() && seen == text.as_deref(), "{key} of {data}");
        let slot = key.parse::<Slot>().ok();
        assert!(slot.is_none_or(|slot| read.drives().contains_key(&slot)));
    }
}

fn status(data: &Value) {
    let Ok(read) = VmStatus::read(data) else {
        return;
    };
    let stat = data.get("blockstat").and_then(Value::as_object);
    let keys = stat.map(|stat| stat.keys().cloned().collect::<BTreeSet<_>>());
    assert_eq!(read.blockstat, keys, "no blockstat is unknown, never empty");
    let running = data.get("status").and_then(Value::as_str) == Some("running");
    assert_eq!(read.state == RunState::Running, running);
}

fn task(data: &Value) {
    if let Ok(state) = task_state(data) {
        let text = |key: &str| data.get(key).and_then(wire::scalar).unwrap_or_default();
        assert_eq!(state.is_none(), text("status") == "running");
        let exit = text("exitstatus");
        assert_eq!(
            state == Some(TaskOutcome::Ok),
            state.is_some() && exit == "OK"
        );
        let warned = matches!(state, Some(TaskOutcome::Warnings(_)));
        assert!(!warned || exit.starts_with("WARNINGS: "));
        assert_ne!(state, Some(TaskOutcome::StillRunning));
    }
    match Started::read(data) {
        Ok(Started::Done) => assert!(data.is_null()),
        Ok(Started::Running(task)) => assert_eq!(data.as_str(), Some(&*task.to_string())),
        Err(_) => assert!(!data.is_null()),
    }
}

fn snapshots(data: &Value) {
    if let Ok(names) = crate::snapshot::names(data) {
        let listed = data.as_array().into_iter().flatten();
        let listed = listed.filter_map(|entry| entry.get("name").and_then(wire::scalar));
        let listed: BTreeSet<String> = listed.filter(|name| name != "current").collect();
        assert_eq!(names, listed);
    }
    if let Ok(disks) = crate::snapshot::disks(data) {
        let slots = data.as_object().into_iter().flatten();
        let slots = slots.filter(|(key, _)| key.parse::<Slot>().is_ok()).count();
        assert!(disks.len() <= slots && (slots == 0) == disks.is_empty());
    }
}

fn ha(data: &Value) {
    for (value, rule) in each_by_itself(data, crate::ha::rule) {
        let said = value.get("resources").and_then(wire::scalar);
        let said = said.unwrap_or_default();
        assert!(rule.vms.iter().all(|vm| said.contains(&format!("vm:{vm}"))));
        let errors = value.get("errors").is_some_and(|errors| !errors.is_null());
        assert_eq!(rule.feasible, !errors, "{value}");
    }
    for (value, resource) in each_by_itself(data, crate::ha::resource) {
        let sid = value.get("sid").and_then(wire::scalar).unwrap_or_default();
        assert_eq!(resource.vm.is_some(), sid.starts_with("vm:"), "{value}");
    }
}

fn agent(data: &Value) {
    let list = data.get("result").and_then(Value::as_array);
    match crate::agent::read(data) {
        Ok(Said::Interfaces(read)) => {
            assert!(list.is_some_and(|list| read.len() <= list.len()));
            let addresses: usize = read.iter().map(|one| one.addresses.len()).sum();
            assert!(read.len() <= MOST_INTERFACES && addresses <= MOST_ADDRESSES);
        }
        Ok(Said::Refused(words)) => assert!(list.is_none() && !words.contains('\n')),
        Err(_) => assert!(list.is_none() || !data.is_object()),
    }
}

fn disk(data: &Value) {
    let Ok(info) = disk_info(data) else {
        return;
    };
    let exact = data
        .get("size")
        .and_then(wire::scalar)
        .and_then(|text| text.trim().parse().ok());
    assert!(
        exact.is_none_or(|size: u64| info.size == Bytes::new(size)),
        "{data}"
    );
}

#[cfg(test)]
mod tests;
