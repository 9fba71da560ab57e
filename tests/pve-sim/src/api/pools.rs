//! `/pools`: members and their change.

use serde_json::{Value, json};

use crate::acl;
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Perm, Route, now, null};
use crate::schema::{Kind, opt, req};

pub(super) fn routes() -> Vec<Route> {
    let list_params = [
        opt("poolid", Kind::Str),
        opt("type", Kind::Enum(&["qemu", "lxc", "storage"])),
    ];
    let change = [
        req("poolid", Kind::Str),
        opt("vms", Kind::List),
        opt("storage", Kind::List),
        opt("delete", Kind::Bool),
        opt("allow-move", Kind::Bool),
        opt("comment", Kind::Str),
    ];
    vec![
        now("GET", "/pools", Perm::User, &list_params, list),
        now(
            "PUT",
            "/pools",
            Perm::All("/pool/{poolid}", &["Pool.Allocate"]),
            &change,
            update,
        ),
        now(
            "DELETE",
            "/pools",
            Perm::All("/pool/{poolid}", &["Pool.Allocate"]),
            &[req("poolid", Kind::Str)],
            delete,
        ),
        now(
            "GET",
            "/pools/{poolid}",
            Perm::All("/pool/{poolid}", &["Pool.Audit"]),
            &[],
            |call| {
                let mut pool = pool(call, call.text("poolid"))?;
                if let Some(map) = pool.as_object_mut() {
                    map.insert("poolid".into(), json!(call.text("poolid")));
                }
                Ok(pool.into())
            },
        ),
    ]
}

fn pool(call: &Call, name: &str) -> Result<Value, Fail> {
    let state = call.sim.lock();
    let mut known = call.sim.stats();
    known.refresh(&state, call.sim.clock.now());
    let pool = state
        .pools
        .get(name)
        .ok_or_else(|| Fail::die(format!("pool '{name}' does not exist")))?;
    let mut members: Vec<Value> = pool
        .vms
        .iter()
        .filter_map(|vmid| super::cluster::vm_entry(&state, &known, *vmid))
        .collect();
    for id in &pool.storages {
        let at = state
            .storages
            .get(id)
            .and_then(|s| Some((s, state.nodes.keys().find(|node| s.on_node(node))?)));
        members.extend(at.map(|(storage, node)| {
            let fresh = known.knows_node(node, call.sim.clock.now());
            super::storage::resource_row((&state, &known), (id, storage), node, fresh)
        }));
    }
    let mut value = json!({"members": members});
    if let (Some(comment), Some(map)) = (&pool.comment, value.as_object_mut()) {
        map.insert("comment".into(), json!(comment));
    }
    Ok(value)
}

fn list(call: &Call) -> ApiResult {
    let Some(name) = call.get("poolid") else {
        let state = call.sim.lock();
        let visible = state.pools.iter().filter(|(name, _)| {
            acl::has(&state, &call.who, &format!("/pool/{name}"), "Pool.Audit")
        });
        let row = |(name, pool): (&String, &crate::state::Pool)| match &pool.comment {
            Some(comment) => json!({"poolid": name, "comment": comment}),
            None => json!({"poolid": name}),
        };
        return Ok(visible.map(row).collect::<Value>().into());
    };
    let mut found = pool(call, name)?;
    let kind = call.get("type");
    if let Some(map) = found.as_object_mut() {
        map.insert("poolid".into(), json!(name));
        if let (Some(kind), Some(Value::Array(members))) = (kind, map.get_mut("members")) {
            members.retain(|member| member.get("type").and_then(Value::as_str) == Some(kind));
        }
    }
    Ok(json!([found]).into())
}

fn items(text: Option<&str>) -> Vec<String> {
    text.unwrap_or_default()
        .split([',', ';', ' '])
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

fn update(call: &Call) -> ApiResult {
    let name = call.text("poolid");
    let failed = |text: String| Fail::die(format!("update pools failed: {text}"));
    let mut state = call.sim.lock();
    if !state.pools.contains_key(name) {
        return Err(failed(format!("pool '{name}' does not exist")));
    }
    for text in items(call.get("vms")) {
        acl::need_any(
            &state,
            &call.who,
            &format!("/vms/{text}"),
            &["Permissions.Modify", "VM.Allocate"],
        )?;
        let vmid = text
            .parse()
            .map_err(|_| failed(format!("invalid VMID '{text}'")))?;
        let holder = state.pool_of_vm(vmid).map(str::to_owned);
        match (call.flag("delete"), holder) {
            (true, Some(holder)) if holder == name => {}
            (true, _) => return Err(failed(format!("VM {vmid} is not a pool member"))),
            (false, Some(holder)) if holder == name => {
                return Err(failed(format!("VM {vmid} is already a pool member")));
            }
            (false, Some(holder)) if !call.flag("allow-move") => {
                return Err(failed(format!(
                    "VM {vmid} belongs already to pool '{holder}' and 'allow-move' is not set"
                )));
            }
            (false, _) => {}
        }
        state.pools.values_mut().for_each(|pool| {
            pool.vms.remove(&vmid);
        });
        if let (false, Some(pool)) = (call.flag("delete"), state.pools.get_mut(name)) {
            pool.vms.insert(vmid);
        }
    }
    for id in items(call.get("storage")) {
        acl::need_any(
            &state,
            &call.who,
            &format!("/storage/{id}"),
            &["Permissions.Modify", "Datastore.Allocate"],
        )?;
        let Some(pool) = state.pools.get_mut(name) else {
            continue;
        };
        match (call.flag("delete"), pool.storages.contains(&id)) {
            (true, false) => return Err(failed(format!("Storage '{id}' is not a pool member"))),
            (false, true) => {
                return Err(failed(format!("Storage '{id}' is already a pool member")));
            }
            (true, true) => pool.storages.remove(&id),
            (false, false) => pool.storages.insert(id),
        };
    }
    if let (Some(comment), Some(pool)) = (call.get("comment"), state.pools.get_mut(name)) {
        pool.comment = Some(comment.to_owned());
    }
    Ok(null())
}

fn delete(call: &Call) -> ApiResult {
    let name = call.text("poolid");
    let mut state = call.sim.lock();
    let failed = |text: String| Fail::die(format!("delete pool failed: {text}"));
    let pool = state
        .pools
        .get(name)
        .ok_or_else(|| failed(format!("pool '{name}' does not exist")))?;
    if let Some(vmid) = pool.vms.iter().find(|vmid| state.vms.contains_key(vmid)) {
        return Err(failed(format!(
            "pool '{name}' is not empty (contains VM {vmid})"
        )));
    }
    state.pools.remove(name);
    Ok(null())
}
