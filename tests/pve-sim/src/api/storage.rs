//! `/nodes/{node}/storage`: which storages a node has, and their capacity.

use serde_json::{Map, Value, json};

use crate::acl;
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now};
use crate::state::{Quirk, State, Storage, StorageKind};
use crate::stats::Stats;

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/nodes/{node}/storage", list),
        now("GET", "/nodes/{node}/storage/{storage}/status", status),
    ]
}

fn content(storage: &Storage) -> String {
    storage
        .content
        .iter()
        .cloned()
        .collect::<Vec<_>>()
        .join(",")
}

fn usable(call: &Call, state: &State, id: &str) -> bool {
    let path = format!("/storage/{id}");
    acl::has(state, &call.who, &path, "Datastore.Audit")
        || acl::has(state, &call.who, &path, "Datastore.AllocateSpace")
}

/// Bytes in use: the rest of the world's and, thick or thin, what our volumes count for.
pub(crate) fn used(state: &State, id: &str, storage: &Storage, node: &str) -> u64 {
    let ours = state
        .volumes
        .iter()
        .filter(|v| v.storage == id && (storage.shared || v.node.as_deref() == Some(node)));
    let files = u64::try_from(ours.count()).unwrap_or(0) * 4096;
    match storage.kind {
        StorageKind::Dir | StorageKind::Nfs => storage.used + files,
        kind if kind.is_thick() => storage.used + state.allocated(id, storage, node),
        _ => storage.used,
    }
}

fn figures(state: &State, id: &str, storage: &Storage, node: &str) -> Map<String, Value> {
    let enabled = !storage.disable && storage.on_node(node);
    let active = enabled && !storage.is(Quirk::Unreachable);
    let (total, used) = if active {
        (storage.total, used(state, id, storage, node))
    } else {
        (0, 0)
    };
    let value = json!({
        "type": storage.kind.name(), "content": content(storage), "shared": u8::from(storage.shared), "enabled": u8::from(enabled),
        "active": u8::from(active), "total": total, "used": used, "avail": total.saturating_sub(used),
    });
    value.as_object().cloned().unwrap_or_default()
}

/// Whether the list that all others are made of has the storage: asked for content types, only those that can be used here.
fn listed(call: &Call, storage: &Storage) -> bool {
    let Some(types) = call.get("content") else {
        return true;
    };
    let holds = crate::schema::list(types)
        .iter()
        .any(|kind| storage.content.contains(kind));
    holds && !storage.disable && storage.on_node(&call.node())
}

fn absent() -> Fail {
    Fail::param("storage", "No such storage.")
}

fn status(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let id = call.text("storage");
    let storage = state
        .storages
        .get(id)
        .filter(|storage| listed(call, storage));
    let storage = storage.ok_or_else(absent)?;
    Ok(Value::Object(figures(&state, id, storage, &call.node())).into())
}

/// For a target, only what both hosts share.
fn reaches(call: &Call, storage: &Storage) -> bool {
    let node = call.node();
    let target = call
        .get("target")
        .filter(|target| *target != node && *target != "localhost");
    target.is_none_or(|target| storage.shared && storage.on_node(&node) && storage.on_node(target))
}

fn list(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let node = call.node();
    let one = call.get("storage");
    if let Some(id) = one {
        let storage = state
            .storages
            .get(id)
            .filter(|storage| listed(call, storage));
        storage.ok_or_else(absent)?;
    }
    let mut rows = Vec::new();
    for (id, storage) in &state.storages {
        let asked = one.is_none_or(|wanted| wanted == id);
        let shown = !(call.flag("enabled") && storage.disable) && reaches(call, storage);
        if !asked || !shown || !listed(call, storage) || !usable(call, &state, id) {
            continue;
        }
        let mut row = figures(&state, id, storage, &node);
        row.insert("storage".into(), json!(id));
        if !storage.disable && storage.on_node(&node) {
            if storage.total > 0 {
                let used = used(&state, id, storage, &node);
                row.insert("used_fraction".into(), fraction(used, storage.total));
            }
            if call.flag("format") {
                row.extend(formats(storage.kind));
            }
        }
        rows.push(Value::Object(row));
    }
    Ok(Value::Array(rows).into())
}

/// Formats of images, in the new and in the old form.
fn formats(kind: StorageKind) -> Map<String, Value> {
    let names: &[&str] = match kind {
        StorageKind::Dir | StorageKind::Nfs => &["qcow2", "raw", "subvol", "vmdk"],
        StorageKind::ZfsPool => &["raw", "subvol"],
        _ => &["raw"],
    };
    let valid: Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), json!(1)))
        .collect();
    let new = json!({"supported": names, "default": "raw"});
    Map::from_iter([
        ("formats".to_owned(), new),
        ("format".to_owned(), json!([valid, "raw"])),
    ])
}

#[expect(
    clippy::cast_precision_loss,
    reason = "PVE prints a float of the same precision"
)]
fn fraction(part: u64, whole: u64) -> Value {
    json!(part as f64 / whole as f64)
}

/// A storage's line in `/cluster/resources`; a dead PVE node's stays as it was until it is forgotten.
pub(super) fn resource_row(
    (state, told): (&State, &Stats),
    (id, storage): (&str, &Storage),
    node: &str,
    known: bool,
) -> Value {
    let mut row = json!({
        "id": format!("storage/{node}/{id}"), "storage": id, "node": node, "type": "storage", "plugintype": storage.kind.name(),
        "shared": u8::from(storage.shared), "content": content(storage), "status": "unknown",
    });
    if let (true, Some(map)) = (
        known && !storage.is(Quirk::Unreachable),
        row.as_object_mut(),
    ) {
        map.insert("status".into(), json!("available"));
        let live = || (storage.total, used(state, id, storage, node));
        let (total, used) = told.storage(state, node, id).unwrap_or_else(live);
        map.insert("maxdisk".into(), json!(total));
        map.insert("disk".into(), json!(used));
    }
    row
}
