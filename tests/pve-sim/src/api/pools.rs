//! `/pools`: members and their change (`API2/Pool.pm`).

use serde_json::{Map, Value, json};

use crate::acl;
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::schema;
use crate::state::{Pool, State};

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/pools", list),
        now("POST", "/pools", create),
        now("PUT", "/pools", update),
        now("DELETE", "/pools", delete),
        now("GET", "/pools/{poolid}", |call| {
            Ok(pool(call, call.text("poolid"))?.into())
        }),
        now("PUT", "/pools/{poolid}", update),
        now("DELETE", "/pools/{poolid}", delete),
    ]
}

fn absent(name: &str) -> Fail {
    Fail::die(format!("pool '{name}' does not exist"))
}

fn pool(call: &Call, name: &str) -> Result<Value, Fail> {
    let state = call.sim.lock();
    let mut known = call.sim.stats();
    known.refresh(&state, call.sim.clock.now());
    let pool = state.pools.get(name).ok_or_else(|| absent(name))?;
    let on = |kind: &str| call.get("type").is_none_or(|wanted| wanted == kind);
    let mut members = Vec::new();
    if on("qemu") {
        let vms = pool.vms.iter();
        members.extend(vms.filter_map(|vmid| super::cluster::vm_entry(&state, &known, *vmid)));
    }
    for id in pool.storages.iter().filter(|_| on("storage")) {
        // The answering node's own entry if it has the storage.
        let at = state.storages.get(id).and_then(|storage| {
            let own = std::iter::once(&call.here).filter(|node| storage.on_node(node));
            let node = own
                .chain(state.nodes.keys())
                .find(|node| storage.on_node(node))?;
            Some((storage, node))
        });
        members.extend(at.map(|(storage, node)| {
            let fresh = known.knows_node(node, call.sim.clock.now());
            super::storage::resource_row((&state, &known), (id, storage), node, fresh)
        }));
    }
    let mut map = Map::new();
    map.insert("members".into(), json!(members));
    map.insert("poolid".into(), json!(name));
    map.extend(
        pool.comment
            .iter()
            .map(|comment| ("comment".to_owned(), json!(comment))),
    );
    Ok(Value::Object(map))
}

/// One pool with its members is told to everybody: PVE throws the result of its check away.
fn list(call: &Call) -> ApiResult {
    if let Some(name) = call.get("poolid") {
        return Ok(json!([pool(call, name)?]).into());
    }
    let state = call.sim.lock();
    let visible = state
        .pools
        .iter()
        .filter(|(name, _)| acl::has(&state, &call.who, &format!("/pool/{name}"), "Pool.Audit"));
    let row = |(name, pool): (&String, &Pool)| match &pool.comment {
        Some(comment) => json!({"poolid": name, "comment": comment}),
        None => json!({"poolid": name}),
    };
    Ok(visible.map(row).collect::<Value>().into())
}

fn create(call: &Call) -> ApiResult {
    let name = call.text("poolid");
    let failed = |text: String| Err(Fail::die(format!("create pool failed: {text}")));
    let mut state = call.sim.lock();
    if state.pools.contains_key(name) {
        return failed(format!("pool '{name}' already exists"));
    }
    let (parent, leaf) = name
        .rsplit_once('/')
        .map_or((None, name), |(parent, leaf)| (Some(parent), leaf));
    if let Some(parent) = parent.filter(|parent| !state.pools.contains_key(*parent)) {
        return failed(format!("parent '{parent}' of pool '{name}' does not exist"));
    }
    if !leaf.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return failed("pool name must start with a letter".to_owned());
    }
    let comment = call
        .get("comment")
        .filter(|text| !text.is_empty())
        .map(str::to_owned);
    state.pools.insert(
        name.to_owned(),
        Pool {
            comment,
            ..Pool::default()
        },
    );
    Ok(null())
}

/// All or nothing: PVE writes the file once, at the end.
fn update(call: &Call) -> ApiResult {
    let mut state = call.sim.lock();
    let mut changed = state.clone();
    change(call, &mut changed).map_err(|fail| fail.within("update pools failed"))?;
    state.pools = changed.pools;
    Ok(null())
}

fn may_change(call: &Call, state: &State, path: &str) -> Result<(), Fail> {
    let more = acl::modify_too(path).into_iter();
    let wanted: Vec<&str> = std::iter::once("Permissions.Modify").chain(more).collect();
    acl::need_any(state, &call.who, path, &wanted)
}

fn change(call: &Call, state: &mut State) -> Result<(), Fail> {
    let name = call.text("poolid");
    let pool = state.pools.get_mut(name).ok_or_else(|| absent(name))?;
    if let Some(comment) = call.get("comment") {
        pool.comment = Some(comment.to_owned()).filter(|text| !text.is_empty());
    }
    for text in schema::list(call.text("vms")) {
        may_change(call, state, &format!("/vms/{text}"))?;
        change_vm(call, state, name, &text)?;
    }
    for id in schema::list(call.text("storage")) {
        may_change(call, state, &format!("/storage/{id}"))?;
        let Some(pool) = state.pools.get_mut(name) else {
            continue;
        };
        match (call.flag("delete"), pool.storages.contains(&id)) {
            (true, false) => return Err(Fail::die(format!("Storage '{id}' is not a pool member"))),
            (false, true) => {
                return Err(Fail::die(format!(
                    "Storage '{id}' is already a pool member"
                )));
            }
            (true, true) => pool.storages.remove(&id),
            (false, false) => pool.storages.insert(id),
        };
    }
    Ok(())
}

/// A VMID need not have a VM; it is in one pool at most.
fn change_vm(call: &Call, state: &mut State, name: &str, text: &str) -> Result<(), Fail> {
    let vmid = text.parse().unwrap_or_default();
    let holder = state.pool_of_vm(vmid).map(str::to_owned);
    match (call.flag("delete"), holder) {
        (true, Some(holder)) if holder == name => {}
        (true, _) => return Err(Fail::die(format!("VM {vmid} is not a pool member"))),
        (false, Some(holder)) if holder == name => {
            return Err(Fail::die(format!("VM {vmid} is already a pool member")));
        }
        (false, Some(holder)) if !call.flag("allow-move") => {
            return Err(Fail::die(format!(
                "VM {vmid} belongs already to pool '{holder}' and 'allow-move' is not set"
            )));
        }
        (false, Some(holder)) => {
            let path = format!("/pool/{holder}");
            acl::need_all(state, &call.who, &path, &["Pool.Allocate"])?;
        }
        (false, None) => {}
    }
    for pool in state.pools.values_mut() {
        pool.vms.remove(&vmid);
    }
    if let (false, Some(pool)) = (call.flag("delete"), state.pools.get_mut(name)) {
        pool.vms.insert(vmid);
    }
    Ok(())
}

fn delete(call: &Call) -> ApiResult {
    let name = call.text("poolid");
    let mut state = call.sim.lock();
    let failed = |fail: Fail| fail.within("delete pool failed");
    let pool = state.pools.get(name).ok_or_else(|| failed(absent(name)))?;
    let below = format!("{name}/");
    let held = state
        .pools
        .keys()
        .find(|other| other.starts_with(&below))
        .map(|other| format!("pool '{other}'"))
        .or_else(|| {
            let vmid = pool.vms.iter().find(|vmid| state.vms.contains_key(vmid))?;
            Some(format!("VM {vmid}"))
        })
        .or_else(|| {
            let id = pool
                .storages
                .iter()
                .find(|id| state.storages.contains_key(*id))?;
            Some(format!("storage '{id}'"))
        });
    if let Some(held) = held {
        return Err(failed(Fail::die(format!(
            "pool '{name}' is not empty (contains {held})"
        ))));
    }
    state.pools.remove(name);
    let path = format!("/pool/{name}");
    state.acl.retain(|entry| entry.path != path);
    Ok(null())
}
