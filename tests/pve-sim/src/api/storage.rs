//! `/storage` and `/nodes/{node}/storage`: definitions and capacity.

use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use crate::acl;
use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Perm, Route, now};
use crate::schema::{Kind, opt};
use crate::state::{State, Storage, StorageKind};
use crate::stats::Stats;
use crate::units;

pub(super) fn routes() -> Vec<Route> {
    let filter = [
        opt("storage", Kind::Storage),
        opt("content", Kind::ContentTypes),
        opt("enabled", Kind::Bool),
        opt("target", Kind::Node),
        opt("format", Kind::Bool),
    ];
    let use_it = Perm::Any(
        "/storage/{storage}",
        &["Datastore.Audit", "Datastore.AllocateSpace"],
    );
    vec![
        now(
            "GET",
            "/storage",
            Perm::User,
            &[opt("type", Kind::Str)],
            |call| Ok(definitions(call)),
        ),
        now(
            "GET",
            "/storage/{storage}",
            Perm::All("/storage/{storage}", &["Datastore.Allocate"]),
            &[],
            |call| {
                let state = call.sim.lock();
                let id = call.text("storage");
                let storage = state
                    .storages
                    .get(id)
                    .ok_or_else(|| Fail::die(format!("storage '{id}' does not exist")))?;
                Ok(definition(&state, id, storage).into())
            },
        ),
        now("GET", "/nodes/{node}/storage", Perm::User, &filter, list),
        now(
            "GET",
            "/nodes/{node}/storage/{storage}/status",
            use_it,
            &[],
            status,
        ),
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

fn nodes(storage: &Storage) -> String {
    storage.nodes.iter().cloned().collect::<Vec<_>>().join(",")
}

/// SHA1 over the definitions, as over `/etc/pve/storage.cfg`.
fn digest(state: &State) -> String {
    let text = serde_json::to_string(&state.storages).unwrap_or_default();
    units::hex(&Sha1::digest(text.as_bytes()))
}

fn definition(state: &State, id: &str, storage: &Storage) -> Value {
    let mut map = Map::new();
    map.insert("storage".into(), json!(id));
    map.insert("type".into(), json!(storage.kind.name()));
    map.insert("content".into(), json!(content(storage)));
    map.insert("digest".into(), json!(digest(state)));
    match storage.kind {
        StorageKind::Dir => {
            map.insert("path".into(), json!(storage.path));
        }
        StorageKind::LvmThin => {
            map.insert("vgname".into(), json!(storage.vgname));
            map.insert("thinpool".into(), json!(storage.thinpool));
        }
    }
    if storage.shared {
        map.insert("shared".into(), json!(1));
    }
    if storage.disable {
        map.insert("disable".into(), json!(1));
    }
    if !storage.nodes.is_empty() {
        map.insert("nodes".into(), json!(nodes(storage)));
    }
    Value::Object(map)
}

fn usable(call: &Call, state: &State, id: &str) -> bool {
    let path = format!("/storage/{id}");
    acl::has(state, &call.who, &path, "Datastore.Audit")
        || acl::has(state, &call.who, &path, "Datastore.AllocateSpace")
}

fn definitions(call: &Call) -> Answer {
    let state = call.sim.lock();
    let wanted = |s: &Storage| call.get("type").is_none_or(|kind| kind == s.kind.name());
    let rows = state
        .storages
        .iter()
        .filter(|(id, s)| wanted(s) && usable(call, &state, id));
    rows.map(|(id, storage)| definition(&state, id, storage))
        .collect::<Value>()
        .into()
}

/// Bytes in use: the rest of the world's and, thick or thin, what our volumes count for.
pub(crate) fn used(state: &State, id: &str, storage: &Storage, node: &str) -> u64 {
    let ours = state
        .volumes
        .iter()
        .filter(|v| v.storage == id && (storage.shared || v.node.as_deref() == Some(node)));
    let files = u64::try_from(ours.count()).unwrap_or(0) * 4096;
    match storage.kind {
        StorageKind::Dir => storage.used + files,
        StorageKind::LvmThin => storage.used,
    }
}

fn figures(state: &State, id: &str, storage: &Storage, node: &str) -> Map<String, Value> {
    let enabled = !storage.disable && storage.on_node(node);
    let (total, used) = if enabled {
        (storage.total, used(state, id, storage, node))
    } else {
        (0, 0)
    };
    let value = json!({
        "type": storage.kind.name(), "content": content(storage), "shared": u8::from(storage.shared), "enabled": u8::from(enabled),
        "active": u8::from(enabled), "total": total, "used": used, "avail": total.saturating_sub(used),
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
    if let (true, Some(map)) = (known, row.as_object_mut()) {
        map.insert("status".into(), json!("available"));
        let live = || (storage.total, used(state, id, storage, node));
        let (total, used) = told.storage(state, node, id).unwrap_or_else(live);
        map.insert("maxdisk".into(), json!(total));
        map.insert("disk".into(), json!(used));
    }
    row
}
