//! `/cluster`: resources, next id, status.

use serde_json::{Map, Value, json};

use crate::acl;
use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Route, now};
use crate::state::{Node, Pool, State, VmNumber};
use crate::stats::{Stats, VmStat};

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/cluster/resources", |call| Ok(resources(call))),
        now("GET", "/cluster/nextid", nextid),
        now("GET", "/cluster/log", |call| Ok(log(call))),
        now("GET", "/cluster/backup", |_| Ok(json!([]).into())),
        now("GET", "/cluster/replication", |_| Ok(json!([]).into())),
        now("GET", "/cluster/status", |call| Ok(status(call))),
    ]
}

/// Lines of others only for those with Sys.Syslog.
fn log(call: &Call) -> Answer {
    let all = acl::has(&call.sim.lock(), &call.who, "/", "Sys.Syslog");
    let id = call.who.id();
    let most = call.number("max").and_then(|max| usize::try_from(max).ok());
    let user = (!all).then_some(id.as_str());
    call.sim
        .cluster_log()
        .newest(user, most.unwrap_or(50))
        .into()
}

fn nextid(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    if let Some(text) = call.get("vmid") {
        return if state.vms.contains_key(&call.vmid()) {
            Err(Fail::param("vmid", format!("VM {text} already exists")))
        } else {
            Ok(json!(text).into())
        };
    }
    let free: Option<VmNumber> = (100..1_000_000).find(|vmid| !state.vms.contains_key(vmid));
    free.map(|vmid| json!(vmid).into())
        .ok_or_else(|| Fail::die("unable to get any free VMID in range [100, 1000000]"))
}

/// A VM as `/cluster/resources` and pools show it: known only as far as pvestatd has told.
pub(super) fn vm_entry(state: &State, known: &Stats, vmid: VmNumber) -> Option<Value> {
    let vm = state.vms.get(&vmid)?;
    let mut entry = json!({"id": format!("qemu/{vmid}"), "vmid": vmid, "node": vm.node, "type": "qemu", "status": "unknown"});
    if let (Some(stat), Some(map)) = (known.get(vmid), entry.as_object_mut()) {
        let more = json!({
            "status": stat.status, "name": stat.name, "uptime": stat.uptime, "template": u8::from(stat.template),
            "maxcpu": stat.cpus, "cpu": 0, "maxmem": stat.memory, "mem": 0, "memhost": 0, "maxdisk": 0, "disk": 0,
            "netin": 0, "netout": 0, "diskread": 0, "diskwrite": 0,
        });
        map.extend(more.as_object().cloned().unwrap_or_default());
    }
    Some(entry)
}

fn resources(call: &Call) -> Answer {
    let state = call.sim.lock();
    let mut known = call.sim.stats();
    let now = call.sim.clock.now();
    known.refresh(&state, now);
    let on = |kind: &str| call.get("type").is_none_or(|wanted| wanted == kind);
    let mut rows = Vec::new();
    if call.get("type").is_none() {
        let audits =
            |pool: &str| acl::has(&state, &call.who, &format!("/pool/{pool}"), "Pool.Audit");
        let visible = state.pools.iter().filter(|(name, _)| audits(name));
        rows.extend(visible.map(|(name, pool)| pool_row(name, pool, &known)));
    }
    if on("vm") {
        rows.extend(vm_rows(call, &state, &known));
    }
    if on("node") {
        rows.extend(
            state
                .nodes
                .iter()
                .map(|(name, node)| node_row(call, &state, name, node)),
        );
    }
    if on("storage") {
        rows.extend(storage_rows(call, &state, &known));
    }
    // Every host has this zone; networks are only in the whole list.
    let zone = "/sdn/zones/localnetwork";
    if call.get("type").is_none() && acl::has(&state, &call.who, zone, "SDN.Audit") {
        rows.extend(state.nodes.keys().map(|node| {
            json!({
                "id": format!("network/{node}/zone/localnetwork"), "type": "network", "network-type": "zone",
                "network": "localnetwork", "node": node, "status": "ok",
            })
        }));
    }
    Value::Array(rows).into()
}

/// A pool, with the sums over its running members if there are any.
fn pool_row(name: &str, pool: &Pool, known: &Stats) -> Value {
    let mut row = Map::new();
    row.insert("id".into(), json!(format!("/pool/{name}")));
    row.insert("pool".into(), json!(name));
    row.insert("type".into(), json!("pool"));
    let running: Vec<&VmStat> = pool
        .vms
        .iter()
        .filter_map(|vmid| known.get(*vmid))
        .filter(|stat| stat.status != "stopped")
        .collect();
    if !running.is_empty() {
        row.insert(
            "maxcpu".into(),
            json!(running.iter().map(|stat| stat.cpus).sum::<u64>()),
        );
        row.insert(
            "maxmem".into(),
            json!(running.iter().map(|stat| stat.memory).sum::<u64>()),
        );
        row.insert(
            "uptime".into(),
            json!(running.iter().map(|stat| stat.uptime).max()),
        );
        row.insert("cpu".into(), json!(0));
        row.insert("mem".into(), json!(0));
    }
    Value::Object(row)
}

fn node_row(call: &Call, state: &State, name: &str, node: &Node) -> Value {
    let online = node.health.in_cluster();
    let mut row = Map::new();
    row.insert("id".into(), json!(format!("node/{name}")));
    row.insert("node".into(), json!(name));
    row.insert("type".into(), json!("node"));
    row.insert("level".into(), json!(""));
    row.insert(
        "status".into(),
        json!(if online { "online" } else { "offline" }),
    );
    row.insert("cgroup-mode".into(), json!(1));
    if acl::has(state, &call.who, &format!("/nodes/{name}"), "Sys.Audit") {
        row.extend(super::nodes::figures(
            node.health,
            call.sim.clock.now().as_secs(),
        ));
    }
    Value::Object(row)
}

fn vm_rows(call: &Call, state: &State, known: &Stats) -> Vec<Value> {
    let mut ids: Vec<VmNumber> = state.vms.keys().copied().collect();
    ids.sort_by_key(ToString::to_string);
    let mut rows = Vec::new();
    for vmid in ids
        .into_iter()
        .filter(|vmid| acl::has(state, &call.who, &format!("/vms/{vmid}"), "VM.Audit"))
    {
        let Some(mut row) = vm_entry(state, known, vmid) else {
            continue;
        };
        if let (Some(map), Some(vm)) = (row.as_object_mut(), state.vms.get(&vmid)) {
            let pool = state
                .pool_of_vm(vmid)
                .filter(|pool| acl::has(state, &call.who, &format!("/pool/{pool}"), "Pool.Audit"));
            if let Some(pool) = pool {
                map.insert("pool".into(), json!(pool));
            }
            if let Some(asked) = super::ha::managed(state, vmid) {
                map.insert("hastate".into(), json!(asked));
            }
            for key in ["lock", "tags"] {
                if let Some(value) = vm.config.get(key) {
                    map.insert(key.into(), json!(value));
                }
            }
        }
        rows.push(row);
    }
    rows
}

fn storage_rows(call: &Call, state: &State, known: &Stats) -> Vec<Value> {
    let mut rows = Vec::new();
    for (id, storage) in state.storages.iter().filter(|(_, s)| !s.disable) {
        if !acl::has(
            state,
            &call.who,
            &format!("/storage/{id}"),
            "Datastore.Audit",
        ) {
            continue;
        }
        for node in state.nodes.keys().filter(|node| storage.on_node(node)) {
            let fresh = known.knows_node(node, call.sim.clock.now());
            rows.push(super::storage::resource_row(
                (state, known),
                (id, storage),
                node,
                fresh,
            ));
        }
    }
    rows
}

fn status(call: &Call) -> Answer {
    let state = call.sim.lock();
    let clustered = state.nodes.len() > 1;
    let mut rows = Vec::new();
    if clustered {
        let quorate = u8::from(state.quorate(&call.here));
        rows.push(json!({"type": "cluster", "id": "cluster", "name": "sim", "nodes": state.nodes.len(), "version": 1, "quorate": quorate}));
    }
    for (at, (name, node)) in state.nodes.iter().enumerate() {
        rows.push(json!({
            "type": "node", "id": format!("node/{name}"), "name": name, "nodeid": if clustered { at + 1 } else { 0 }, "ip": node.ip,
            "local": u8::from(*name == call.here), "online": u8::from(node.health.in_cluster()), "level": "",
        }));
    }
    Value::Array(rows).into()
}
