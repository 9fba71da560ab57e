//! `/cluster/ha`: resources and the state of all (`API2/HA`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::state::State;
use crate::units;

pub(super) fn routes() -> Vec<Route> {
    let mut routes = vec![
        now("GET", "/cluster/ha", |call| Ok(index(call))),
        now("GET", "/cluster/ha/status/current", |call| Ok(status(call))),
        now("GET", "/cluster/ha/status/manager_status", |call| {
            let quorate = call.sim.lock().quorate(&call.here);
            let quorum = json!({"node": call.here, "quorate": quorate});
            Ok(json!({"manager_status": {"node_status": {}}, "quorum": quorum}).into())
        }),
    ];
    routes.extend(super::ha_groups::routes());
    routes.extend(resource_routes());
    routes.extend(super::ha_rules::routes());
    routes
}

fn index(call: &Call) -> Answer {
    let mut rows = vec![
        json!({"id": "status"}),
        json!({"id": "resources"}),
        json!({"id": "groups"}),
    ];
    if call.sim.lock().version.major() >= 9 {
        rows.push(json!({"id": "rules"}));
    }
    Value::Array(rows).into()
}

fn resource_routes() -> Vec<Route> {
    let base = "/cluster/ha/resources";
    let one = "/cluster/ha/resources/{sid}";
    let ask = |template| now("POST", template, request_move);
    vec![
        now("GET", base, |call| Ok(list(call))),
        now("POST", base, create),
        now("GET", one, get),
        now("PUT", one, update),
        now("DELETE", one, delete),
        ask("/cluster/ha/resources/{sid}/migrate"),
        ask("/cluster/ha/resources/{sid}/relocate"),
    ]
}

fn get(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let sid = full_sid(call.text("sid"));
    let found = state.ha.resources.get(&sid);
    let options = found.ok_or_else(|| Fail::die(format!("no such resource '{sid}'")))?;
    Ok(row(&state, &sid, options).into())
}

/// `100` is short for `vm:100`.
fn full_sid(text: &str) -> String {
    if text.contains(':') {
        text.to_owned()
    } else {
        format!("vm:{text}")
    }
}

fn digest(state: &State) -> String {
    units::hex(&Sha1::digest(
        format!("{:?}", state.ha.resources).as_bytes(),
    ))
}

fn row(state: &State, sid: &str, options: &BTreeMap<String, String>) -> Value {
    let migrated = state.groups_are_gone();
    let mut map: Map<String, Value> = options
        .iter()
        .filter(|(key, _)| !migrated || *key != "group")
        .map(|(key, text)| {
            (
                key.clone(),
                text.parse::<u64>()
                    .map_or_else(|_| json!(text), |n| json!(n)),
            )
        })
        .collect();
    map.insert("sid".into(), json!(sid));
    map.insert("type".into(), json!(sid.split(':').next()));
    map.insert("digest".into(), json!(digest(state)));
    Value::Object(map)
}

fn list(call: &Call) -> Answer {
    let state = call.sim.lock();
    let rows = state
        .ha
        .resources
        .iter()
        .map(|(sid, options)| row(&state, sid, options));
    rows.collect::<Value>().into()
}

fn given(call: &Call, state: &State) -> Result<BTreeMap<String, String>, Fail> {
    if call.get("group").is_some() && state.groups_are_gone() {
        return Err(Fail::die(
            "invalid parameter 'group': ha groups have been migrated to rules",
        ));
    }
    let keys = [
        "state",
        "max_restart",
        "max_relocate",
        "failback",
        "group",
        "comment",
    ];
    let pairs = keys
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), call.get(key)?.to_owned())));
    Ok(pairs.collect())
}

fn create(call: &Call) -> ApiResult {
    let sid = full_sid(call.text("sid"));
    let mut state = call.sim.lock();
    let options = given(call, &state)?;
    let exists = sid
        .split_once(':')
        .and_then(|(_, id)| id.parse().ok())
        .is_some_and(|id| state.vms.contains_key(&id));
    if !exists {
        return Err(Fail::die(format!(
            "resource '{sid}' does not exist in cluster"
        )));
    }
    if state.ha.resources.contains_key(&sid) {
        return Err(Fail::die(format!(
            "create resource failed: resource ID '{sid}' already defined"
        )));
    }
    state.ha.resources.insert(sid, options);
    Ok(null())
}

fn update(call: &Call) -> ApiResult {
    let sid = full_sid(call.text("sid"));
    let mut state = call.sim.lock();
    let options = given(call, &state)?;
    if let Some(group) = options
        .get("group")
        .filter(|group| !state.ha.groups.contains_key(*group))
    {
        return Err(Fail::die(format!("HA group '{group}' does not exist")));
    }
    let found = state.ha.resources.get_mut(&sid);
    found
        .ok_or_else(|| Fail::die(format!("update resource failed: no such resource '{sid}'")))?
        .extend(options);
    Ok(null())
}

fn delete(call: &Call) -> ApiResult {
    let sid = full_sid(call.text("sid"));
    if call.sim.lock().ha.forget(&sid) {
        Ok(null())
    } else {
        Err(Fail::die(format!(
            "cannot delete service '{sid}', not HA managed!"
        )))
    }
}

/// Only asks the manager; nobody checks the node here.
fn request_move(call: &Call) -> ApiResult {
    let sid = full_sid(call.text("sid"));
    if !call.sim.lock().ha.resources.contains_key(&sid) {
        return Err(Fail::die(format!("service '{sid}' not managed by HA")));
    }
    Ok(json!({"sid": sid, "requested-node": call.text("node")}).into())
}

/// `/cluster/ha/status/current` (running.md 13g and 14).
fn status(call: &Call) -> Answer {
    let state = call.sim.lock();
    let (here, epoch) = (&call.here, call.sim.clock.epoch());
    let quorate = state.quorate(here);
    let told = if quorate {
        "OK".to_owned()
    } else {
        format!("No quorum on node '{here}'!")
    };
    let mut rows = vec![
        json!({"id": "quorum", "type": "quorum", "node": here, "status": told, "quorate": u8::from(quorate)}),
    ];
    let acts = state.ha.running && quorate;
    if acts {
        rows.extend(master(&state, epoch));
    }
    let (armed, word) = if acts && !state.ha.resources.is_empty() {
        ("armed", "active")
    } else {
        ("standby", "standby")
    };
    let fencing = format!("{armed} (CRM watchdog {word})");
    rows.push(json!({"id": "fencing", "type": "fencing", "node": here, "status": fencing, "armed-state": armed}));
    if acts {
        rows.extend(state.nodes.keys().map(|name| lrm(&state, name, epoch)));
    }
    if quorate {
        let services = state.ha.resources.iter();
        rows.extend(services.map(|(sid, options)| service(&state, sid, options)));
    }
    Value::Array(rows).into()
}

fn date(epoch: u64) -> String {
    let seconds = i64::try_from(epoch).unwrap_or_default();
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    time.strftime("%a %b %e %H:%M:%S %Y").to_string()
}

/// The first node that is there.
fn master(state: &State, epoch: u64) -> Option<Value> {
    let mut there = state
        .nodes
        .iter()
        .filter(|(_, node)| node.health.in_cluster());
    let (name, _) = there.next()?;
    Some(json!({
        "id": "master", "type": "master", "node": name, "timestamp": epoch, "status": format!("{name} (active, {})", date(epoch)),
    }))
}

fn lrm(state: &State, name: &str, epoch: u64) -> Value {
    let there = state
        .nodes
        .get(name)
        .is_some_and(|node| node.health.in_cluster());
    let busy = state
        .vms
        .iter()
        .any(|(vmid, vm)| vm.node == name && state.ha.manages(*vmid));
    let word = match (there, busy) {
        (false, _) => "old timestamp - dead?, watchdog standby",
        (true, true) => "active, watchdog active",
        (true, false) => "idle, watchdog standby",
    };
    json!({
        "id": format!("lrm:{name}"), "type": "lrm", "node": name, "timestamp": epoch, "status": format!("{name} ({word}, {})", date(epoch)),
    })
}

fn service(state: &State, sid: &str, options: &BTreeMap<String, String>) -> Value {
    let vm = sid
        .split_once(':')
        .and_then(|(_, id)| state.vms.get(&id.parse().ok()?));
    let node = vm.map_or("", |vm| vm.node.as_str());
    let number = |key: &str| {
        options
            .get(key)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(1)
    };
    let asked = options.get("state").map_or("started", String::as_str);
    let about = state.ha.services.get(sid).map(String::as_str);
    let verbose = match about {
        Some(about) => about,
        None if !state.ha.running => "queued",
        None => asked,
    };
    let mut row = super::content::object(&json!({
        "id": format!("service:{sid}"), "type": "service", "sid": sid, "node": node, "state": verbose,
        "request_state": asked, "status": format!("{sid} ({node}, {verbose})"),
        "max_restart": number("max_restart"), "max_relocate": number("max_relocate"), "failback": number("failback"),
    }));
    if state.ha.running {
        row.insert("crm_state".into(), json!(about.unwrap_or(asked)));
    }
    Value::Object(row)
}

/// What the manager says of a VM that it has, else the state asked for (JSON null if none was).
pub(super) fn managed(state: &State, vmid: crate::state::VmNumber) -> Option<Value> {
    let sid = format!("vm:{vmid}");
    let options = state.ha.resources.get(&sid)?;
    let about = state.ha.services.get(&sid);
    Some(json!(about.or_else(|| options.get("state"))))
}
