//! `/nodes`: the list and what a PVE node says about itself.

use serde_json::{Map, Value, json};

use crate::acl;
use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Route, now};
use crate::state::Health;

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/nodes", |call| Ok(list(call))),
        now("GET", "/nodes/{node}/version", |call| {
            Ok(super::version(call).into())
        }),
        now("GET", "/nodes/{node}/status", |call| Ok(status(call))),
        now("GET", "/nodes/{node}/time", time),
        now("GET", "/nodes/{node}/lxc", |_| Ok(json!([]).into())),
    ]
}

/// Load figures of a PVE node, as shown to those with Sys.Audit on it; of a dead one only its sizes are left.
pub(super) fn figures(health: Health, uptime: u64) -> Map<String, Value> {
    let mut value =
        json!({"maxcpu": 2, "maxmem": 25_276_502_016_u64, "maxdisk": 270_553_174_016_u64});
    let live = json!({
        "cpu": 0.05, "mem": 1_090_760_704, "disk": 34_439_151_616_u64, "uptime": 4570 + uptime,
    });
    if let (true, Some(map), Some(live)) =
        (health.in_cluster(), value.as_object_mut(), live.as_object())
    {
        map.extend(live.clone());
    }
    value.as_object().cloned().unwrap_or_default()
}

fn list(call: &Call) -> Answer {
    let state = call.sim.lock();
    let mut rows = Vec::new();
    for (name, node) in &state.nodes {
        let mut row = Map::new();
        let online = node.health.in_cluster();
        row.insert("id".into(), json!(format!("node/{name}")));
        row.insert("node".into(), json!(name));
        row.insert("type".into(), json!("node"));
        row.insert("level".into(), json!(""));
        row.insert(
            "status".into(),
            json!(if online { "online" } else { "offline" }),
        );
        if let Some(identity) = call.sim.certificates.current() {
            row.insert("ssl_fingerprint".into(), json!(identity.fingerprint));
        }
        if acl::has(&state, &call.who, &format!("/nodes/{name}"), "Sys.Audit") {
            row.extend(figures(node.health, call.sim.clock.now().as_secs()));
        }
        rows.push(Value::Object(row));
    }
    Value::Array(rows).into()
}

/// PVE asks systemd for the time zone; on a host without it nothing is told.
fn time(call: &Call) -> ApiResult {
    let zone = {
        let state = call.sim.lock();
        state
            .nodes
            .get(&call.node())
            .and_then(|node| node.timezone.clone())
    };
    let zone = zone.ok_or_else(|| {
        Fail::die("command 'timedatectl show '--property=Timezone' --value' failed: exit code 1")
    })?;
    let now = i64::try_from(call.sim.clock.epoch()).unwrap_or_default();
    let offset = jiff::tz::TimeZone::get(&zone)
        .ok()
        .zip(jiff::Timestamp::from_second(now).ok())
        .map_or(0, |(zone, at)| i64::from(zone.to_offset(at).seconds()));
    Ok(json!({"timezone": zone, "time": now, "localtime": now + offset}).into())
}

fn status(call: &Call) -> Answer {
    let uptime = call.sim.clock.now().as_secs();
    let version = call.sim.lock().version.as_str().to_owned();
    let body = json!({
        "uptime": 4570 + uptime, "loadavg": ["0.10", "0.67", "2.78"], "cpu": 0.05, "wait": 0, "idle": 0, "ksm": {"shared": 0},
        "kversion": "Linux 6.17.2-1-pve #1 SMP PREEMPT_DYNAMIC", "pveversion": format!("pve-manager/{version}/14a22df35955d97d"),
        "current-kernel": {"machine": "x86_64", "release": "6.17.2-1-pve", "sysname": "Linux", "version": "#1 SMP PREEMPT_DYNAMIC"},
        "boot-info": {"mode": "legacy-bios"}, "memory": {"total": 25_276_502_016_u64, "used": 1_090_760_704, "free": 24_185_741_312_u64, "available": 24_185_741_312_u64},
        "swap": {"total": 0, "used": 0, "free": 0}, "rootfs": {"total": 270_553_174_016_u64, "used": 34_439_151_616_u64, "avail": 63_353_266_176_u64, "free": 236_114_022_400_u64},
        "cpuinfo": {"cpus": 2, "cores": 2, "sockets": 1, "model": "simulated", "mhz": "2000.000", "user_hz": 100, "flags": "", "hvm": "1"},
    });
    body.into()
}
