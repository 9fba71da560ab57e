//! `/nodes/{node}/storage/{storage}/content`: volumes (`API2/Storage/Content.pm`).

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::acl::{self, Who};
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, later, now, null};
use crate::state::{State, StorageKind, VmNumber, Volume, suffix_format};
use crate::tasks::{self, TaskKind};
use crate::{units, volumes};

pub(super) fn routes() -> Vec<Route> {
    let base = "/nodes/{node}/storage/{storage}/content";
    let one = "/nodes/{node}/storage/{storage}/content/{volume*}";
    vec![
        now("GET", base, list),
        later("POST", base, allocate),
        now("GET", one, get),
        now("PUT", one, set_attributes),
        later("DELETE", one, delete),
        now("POST", one, |_| Ok(null())),
    ]
}

/// `check_volume_access` for an image: may the caller use this volume for that VM (`None`: just see it)?
pub(crate) fn volume_access(
    state: &State,
    who: &Who,
    vmid: Option<VmNumber>,
    volid: &str,
) -> Result<(), Fail> {
    let (id, name) = volid.split_once(':').unwrap_or((volid, ""));
    let storage = state
        .storages
        .get(id)
        .ok_or_else(|| Fail::die(format!("storage '{id}' does not exist")))?;
    let owner = storage.parse_name(name)?.owner;
    let path = format!("/storage/{id}");
    if acl::has(state, who, &path, "Datastore.Allocate") || vmid == Some(owner) {
        return Ok(());
    }
    acl::need_all(state, who, &path, &["Datastore.Audit"])?;
    acl::need_all(state, who, &format!("/vms/{owner}"), &["VM.Config.Disk"])
}

fn row(volume: &Volume, storage: &crate::state::Storage) -> Value {
    let owner = storage
        .parse_name(&volume.name)
        .map(|parsed| parsed.owner)
        .unwrap_or_default();
    let mut row = json!({
        "volid": as_bytes(&volume.volid()), "format": volume.format, "size": volume.size, "vmid": owner, "content": "images",
    });
    if let Some(map) = row.as_object_mut() {
        match storage.kind {
            StorageKind::Dir | StorageKind::Nfs => {
                map.insert("ctime".into(), json!(volume.ctime));
                map.insert("parent".into(), Value::Null);
                map.insert("used".into(), json!(4096));
            }
            StorageKind::Lvm | StorageKind::LvmThin => {
                map.insert("ctime".into(), json!(volume.ctime.to_string()));
            }
            StorageKind::ZfsPool | StorageKind::Rbd => {
                map.insert("name".into(), json!(volume.name));
                map.insert("parent".into(), Value::Null);
            }
            StorageKind::Drbd => {}
        }
    }
    row
}

/// Names read from a directory reach JSON as bytes, each shown as one Latin-1 character (Perl does not decode them).
fn as_bytes(name: &str) -> String {
    name.bytes().map(char::from).collect()
}

fn list(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let (id, node) = (call.text("storage"), call.node());
    let storage = state.enabled_storage(id, &node)?;
    let holds = |kind: &str| {
        call.get("content")
            .is_none_or(|types| types.split(',').any(|t| t == kind))
            && storage.content.contains(kind)
    };
    let mut rows = Vec::new();
    let here = |v: &&Volume| {
        v.storage == id && (storage.shared || v.node.as_deref() == Some(node.as_str()))
    };
    for volume in state
        .volumes
        .iter()
        .filter(here)
        .filter(|_| holds("images"))
    {
        let Ok(parsed) = storage.parse_name(&volume.name) else {
            continue;
        };
        let asked = call
            .get("vmid")
            .is_none_or(|vmid| vmid == parsed.owner.to_string());
        if asked && volume_access(&state, &call.who, None, &volume.volid()).is_ok() {
            rows.push((volume.volid(), row(volume, storage)));
        }
    }
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(rows
        .into_iter()
        .map(|(_, row)| row)
        .collect::<Value>()
        .into())
}

async fn allocate(call: Call) -> ApiResult {
    let file = call.text("filename");
    let mut format = call.get("format");
    if let Some(suffix) = suffix_format(file) {
        if let Some(other) = format.filter(|other| *other != suffix) {
            return Err(Fail::param(
                "format",
                format!("different storage formats ({other} != {suffix})"),
            ));
        }
        format = Some(suffix);
    }
    let bytes = units::content_size(call.text("size")).unwrap_or_default();
    let node = call.node();
    let wanted = volumes::Wanted {
        node: &node,
        storage: call.text("storage"),
        vmid: call.vmid(),
        file: Some(file),
        format,
        bytes,
    };
    let volid = volumes::allocate(&call.sim, &wanted).await?;
    Ok(json!(volid).into())
}

/// The path's volume as a full id.
fn volid(call: &Call) -> Result<String, Fail> {
    let (storage, volume) = (call.text("storage"), call.text("volume"));
    match volume.split_once(':') {
        Some((other, _)) if other != storage => Err(Fail::param(
            "volume",
            format!("storage ID mismatch ({other} != {storage})\n"),
        )),
        Some(_) => Ok(volume.to_owned()),
        None => Ok(format!("{storage}:{volume}")),
    }
}

/// Looks at the file or the LV alone: whether the storage may be used does not matter.
fn get(call: &Call) -> ApiResult {
    let volid = volid(call)?;
    let node = call.node();
    let state = call.sim.lock();
    volume_access(&state, &call.who, None, &volid)?;
    let name = volid.split_once(':').map_or("", |(_, name)| name);
    let id = call.text("storage");
    let storage = state.storages.get(id).ok_or_else(|| absent(id))?;
    let volume = state
        .volume(&node, &volid)
        .ok_or_else(|| Fail::die(storage.no_size_text(&volid, name)))?;
    if volume.size == 0 {
        return Err(Fail::die(format!("volume '{volid}' has size zero")));
    }
    let used = if storage.kind.is_file() { 4096 } else { 0 };
    Ok(json!({"path": storage.path_of(name), "size": volume.size, "used": used, "format": volume.format}).into())
}

fn absent(storage: &str) -> Fail {
    Fail::die(format!("storage '{storage}' does not exist"))
}

fn set_attributes(call: &Call) -> ApiResult {
    let volid = volid(call)?;
    volume_access(&call.sim.lock(), &call.who, None, &volid)?;
    if call.get("notes").is_some() {
        return Err(Fail::die("only backups can have notes"));
    }
    if call.get("protected").is_some() {
        return Err(Fail::die("only backups support attribute 'protected'"));
    }
    Ok(null())
}

async fn delete(call: Call) -> ApiResult {
    let volid = volid(&call)?;
    let (id, node) = (call.text("storage").to_owned(), call.node());
    let owner = {
        let state = call.sim.lock();
        let storage = state.storages.get(&id).ok_or_else(|| absent(&id))?;
        let name = volid.split_once(':').map_or("", |(_, name)| name);
        let owner = storage.parse_name(name)?.owner;
        acl::need_all(
            &state,
            &call.who,
            &format!("/storage/{id}"),
            &["Datastore.Allocate"],
        )?;
        owner
    };
    let what = TaskKind {
        node: node.clone(),
        kind: "imgdel",
        id: format!("{owner}@{id}"),
    };
    let sim = call.sim.clone();
    let upid = tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        volumes::free(&sim, &node, &volid, Some(&log)).await?;
        log.line(format!("Removed volume '{volid}'"));
        Ok(())
    });
    let Some(delay) = call.number("delay") else {
        return Ok(json!(upid).into());
    };
    match tasks::wait(&call.sim, &upid, Duration::from_secs(delay)).await {
        None => Ok(json!(upid).into()),
        Some(exit) if tasks::succeeded(&exit) => Ok(null()),
        Some(exit) => Err(Fail::die(exit)),
    }
}

/// Empty object for callers that build rows.
pub(super) fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}
