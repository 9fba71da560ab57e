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

fn status(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let id = call.text("storage");
    let storage = state
        .storages
        .get(id)
        .ok_or_else(|| Fail::param("storage", "No such storage."))?;
    Ok(Value::Object(figures(&state, id, storage, &call.node())).into())
}

fn list(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let node = call.node();
    if let Some(id) = call.get("storage")
        && !state.storages.contains_key(id)
    {
        return Err(Fail::param("storage", "No such storage."));
    }
    let mut rows = Vec::new();
    for (id, storage) in &state.storages {
        let asked = call.get("storage").is_none_or(|wanted| wanted == id);
        let holds = call
            .get("content")
            .is_none_or(|types| types.split(',').any(|t| storage.content.contains(t)));
        let at_target = call
            .get("target")
            .is_none_or(|target| target == node || (storage.shared && storage.on_node(target)));
        let enabled = !storage.disable && storage.on_node(&node);
        let on_node = enabled || !call.flag("enabled");
        if !asked || !holds || !at_target || !on_node || !usable(call, &state, id) {
            continue;
        }
        let mut row = figures(&state, id, storage, &node);
        row.insert("storage".into(), json!(id));
        if enabled && storage.total > 0 {
            row.insert(
                "used_fraction".into(),
                fraction(used(&state, id, storage, &node), storage.total),
            );
        }
        rows.push(Value::Object(row));
    }
    Ok(Value::Array(rows).into())
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
