//! The control API (`/_sim/…`, plain HTTP on loopback): faults, clock, log and state for tests in other processes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::clock::ClockMode;
use crate::faults::{Faults, RequestFault, TaskFault};
use crate::handle::hold;
use crate::http::server::{self, Endpoint, Service};
use crate::http::{Reply, Request};
use crate::qemu;
use crate::sim::Sim;
use crate::state::{Health, Node, State, VmFaults, VmNumber};

/// Serves until the simulator stops.
pub(crate) async fn serve(sim: &Arc<Sim>, address: SocketAddr) -> std::io::Result<SocketAddr> {
    let inner = sim.clone();
    let service: Service = Arc::new(move |request| {
        let sim = inner.clone();
        Box::pin(async move {
            Some(match answer(&sim, &request) {
                Ok(value) => Reply::json(200, "OK", &value),
                Err((status, text)) => Reply::json(status, &text, &json!({"error": text})),
            })
        })
    });
    server::serve(
        address,
        Endpoint {
            service,
            tls: None,
            reachable: None,
            stop: sim.stop.clone(),
            tracker: sim.tracker.clone(),
        },
    )
    .await
}

type Outcome = Result<Value, (u16, String)>;

fn body<T: DeserializeOwned>(request: &Request) -> Result<T, (u16, String)> {
    let text: &[u8] = if request.body.is_empty() {
        b"{}"
    } else {
        &request.body
    };
    serde_json::from_slice(text).map_err(|error| (400, error.to_string()))
}

fn to_value<T: serde::Serialize>(value: &T) -> Outcome {
    serde_json::to_value(value).map_err(|error| (500, error.to_string()))
}

fn answer(sim: &Arc<Sim>, request: &Request) -> Outcome {
    sim.tick();
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    match (request.method.as_str(), path.as_slice()) {
        ("GET", ["_sim", "requests"]) => {
            let log = sim.log();
            Ok(json!({"counts": log.counts(), "requests": log.entries}))
        }
        ("DELETE", ["_sim", "requests"]) => {
            sim.log().entries.clear();
            Ok(json!({}))
        }
        ("GET", ["_sim", "state"]) => to_value(&*sim.lock()),
        ("PUT", ["_sim", "state"]) => {
            let mut state: State = body(request)?;
            state.users.entry("root@pam".to_owned()).or_default();
            *sim.lock() = state;
            Ok(json!({}))
        }
        ("GET", ["_sim", "clock"]) => Ok(
            json!({"now_ms": ms(sim.clock.now()), "epoch": sim.clock.epoch(), "mode": mode(sim.clock.mode())}),
        ),
        ("POST", ["_sim", "clock"]) => {
            let step: Step = body(request)?;
            sim.clock.advance(Duration::from_millis(step.advance_ms));
            Ok(json!({"now_ms": ms(sim.clock.now())}))
        }
        (method, ["_sim", "faults", kind @ ..]) => faults(sim, (method, kind), request),
        (method, ["_sim", "tasks", what @ ..]) => tasks(sim, (method, what), request),
        ("GET", ["_sim", "held"]) => to_value(&*sim.holds.subscribe().borrow()),
        ("POST", ["_sim", "release"]) => {
            sim.holds.release();
            Ok(json!({}))
        }
        ("PUT", ["_sim", "nodes", name]) => {
            let wanted: NodeHealth = body(request)?;
            known(&mut sim.lock(), name)?;
            sim.set_health(name, wanted.health);
            Ok(json!({}))
        }
        ("POST", ["_sim", "nodes", name, what]) => power(sim, name, what),
        ("PUT", ["_sim", "resources"]) => {
            let wanted: Freeze = body(request)?;
            let state = sim.lock();
            sim.stats().freeze(&state, sim.clock.now(), wanted.frozen);
            Ok(json!({}))
        }
        ("PUT", ["_sim", "quorum"]) => quorum(sim, request),
        ("POST", ["_sim", "certificate", what]) => certificate(sim, what),
        ("PUT", ["_sim", "reachable"]) => {
            let wanted: Reachable = body(request)?;
            sim.doors.open_all(wanted.reachable);
            Ok(json!({}))
        }
        (method, ["_sim", "vms", vmid, what]) => vm(sim, (method, vmid, what), request),
        _ => unknown(request),
    }
}

fn unknown(request: &Request) -> Outcome {
    let path = request.path.join("/");
    Err((
        404,
        format!("no such control endpoint: {} /{path}", request.method),
    ))
}

fn certificate(sim: &Sim, what: &str) -> Outcome {
    match what {
        "next" => {
            let names: Vec<String> = sim.lock().nodes.keys().cloned().collect();
            let next = sim.certificates.prepare(&names);
            let next = next.map_err(|error| (500, error.to_string()))?;
            Ok(json!({"ca_pem": next.ca_pem, "fingerprint": next.fingerprint}))
        }
        "present" if sim.certificates.present_next() => Ok(json!({})),
        "present" => Err((400, "no certificate was prepared".to_owned())),
        _ => Err((404, format!("a certificate has no {what}"))),
    }
}

fn faults(sim: &Sim, (method, kind): (&str, &[&str]), request: &Request) -> Outcome {
    match (method, kind) {
        ("GET", []) => to_value(&*sim.faults()),
        ("DELETE", []) => {
            *sim.faults() = Faults::default();
            sim.lock()
                .vms
                .values_mut()
                .for_each(|vm| vm.faults = VmFaults::default());
            Ok(json!({}))
        }
        ("POST", [kind]) => add_fault(sim, kind, request),
        _ => unknown(request),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HoldTasks {
    #[serde(default)]
    task: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseTasks {
    #[serde(default)]
    upid: Option<String>,
}

/// Workers step by step: all to come stand still before their work until each is released.
fn tasks(sim: &Sim, (method, what): (&str, &[&str]), request: &Request) -> Outcome {
    match (method, what) {
        ("GET", []) => {
            let held = sim.holds.subscribe().borrow().clone();
            let tasks = sim.tasks();
            let rows = tasks.list.iter().map(|task| {
                json!({"upid": task.upid, "exit": task.exit, "held": held.contains(&task.upid)})
            });
            Ok(rows.collect())
        }
        ("POST", ["hold"]) => {
            let wanted: HoldTasks = body(request)?;
            sim.faults().hold_tasks(wanted.task.as_deref());
            Ok(json!({}))
        }
        ("POST", ["release"]) => match body::<ReleaseTasks>(request)?.upid {
            Some(upid) if !sim.holds.release_one(&upid) => {
                Err((404, format!("{upid} is not held")))
            }
            Some(_) => Ok(json!({})),
            None => {
                sim.faults().let_tasks_go();
                sim.holds.release();
                Ok(json!({}))
            }
        },
        _ => unknown(request),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn mode(mode: ClockMode) -> Value {
    match mode {
        ClockMode::Real { speed } => json!({"real": {"speed": speed}}),
        ClockMode::Stepped => json!("stepped"),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    advance_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeHealth {
    health: Health,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quorum {
    /// `null`: as it follows.
    quorate: Option<bool>,
    #[serde(default)]
    node: Option<String>,
}

fn quorum(sim: &Sim, request: &Request) -> Outcome {
    let wanted: Quorum = body(request)?;
    let mut state = sim.lock();
    match wanted.node {
        None => state.quorate = wanted.quorate,
        Some(name) => known(&mut state, &name)?.quorate = wanted.quorate,
    }
    Ok(json!({}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Freeze {
    frozen: bool,
}

fn power(sim: &Sim, name: &str, what: &str) -> Outcome {
    known(&mut sim.lock(), name)?;
    match what {
        "power-off" => sim.power_off(name),
        "power-on" => sim.power_on(name),
        _ => return Err((404, format!("a node has no {what}"))),
    }
    Ok(json!({}))
}

fn known<'a>(state: &'a mut State, name: &str) -> Result<&'a mut Node, (u16, String)> {
    let node = state.nodes.get_mut(name);
    node.ok_or_else(|| (404, format!("no node {name}")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reachable {
    reachable: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hold {
    ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Busy {
    storage: String,
    times: u32,
}

fn add_fault(sim: &Sim, kind: &str, request: &Request) -> Outcome {
    match kind {
        "requests" => sim.faults().requests.push(body::<RequestFault>(request)?),
        "tasks" => sim.faults().tasks.push(body::<TaskFault>(request)?),
        "storage-busy" => {
            let busy: Busy = body(request)?;
            sim.faults().busy_storages.insert(busy.storage, busy.times);
        }
        _ => return Err((404, format!("no such kind of fault: {kind}"))),
    }
    Ok(json!({}))
}

fn vm(sim: &Arc<Sim>, (method, vmid, what): (&str, &str, &str), request: &Request) -> Outcome {
    let missing = || (404, format!("no vm {vmid}"));
    let vmid: VmNumber = vmid.parse().map_err(|_| missing())?;
    let node = sim
        .lock()
        .vms
        .get(&vmid)
        .map(|vm| vm.node.clone())
        .ok_or_else(missing)?;
    let power = |code: fn(&Sim, &str, VmNumber) -> Result<(), crate::fail::Fail>| {
        code(sim, &node, vmid)
            .map(|()| json!({}))
            .map_err(|fail| (409, fail.exit_text()))
    };
    let edit = |code: &mut dyn FnMut(&mut crate::state::Vm)| {
        sim.with_vm(&node, vmid, |vm| code(vm))
            .map(|()| json!({}))
            .map_err(|fail| (409, fail.exit_text()))
    };
    match (method, what) {
        ("POST", "start") => power(qemu::start),
        ("POST", "stop") => power(qemu::stop),
        ("POST", "pause") => power(qemu::pause),
        ("POST", "resume") => power(qemu::resume),
        ("PUT", "faults") => {
            let faults: VmFaults = body(request)?;
            edit(&mut |vm| vm.faults.clone_from(&faults))
        }
        ("PUT", "config") => {
            let options: std::collections::BTreeMap<String, Option<String>> = body(request)?;
            edit(&mut |vm| {
                for (key, value) in &options {
                    match value {
                        Some(text) => vm.config.insert(key.clone(), text.clone()),
                        None => vm.config.remove(key),
                    };
                }
            })
        }
        ("POST", "lock" | "backup" | "rescan") => long(sim, (&node, vmid, what), request),
        ("GET", "state") => to_value(sim.lock().vms.get(&vmid).ok_or_else(missing)?),
        _ => Err((
            404,
            format!("no such control endpoint: {method} vms/{vmid}/{what}"),
        )),
    }
}

/// What takes its time on the host.
fn long(sim: &Arc<Sim>, (node, vmid, what): (&str, VmNumber, &str), request: &Request) -> Outcome {
    match what {
        "lock" => {
            let time = Duration::from_millis(body::<Hold>(request)?.ms);
            let (inner, node) = (sim.clone(), node.to_owned());
            sim.tracker.spawn(async move {
                match inner.lock_vm(&node, vmid).await {
                    Ok(guard) => hold(&inner, guard, time),
                    Err(fail) => tracing::warn!(vmid, text = fail.exit_text(), "lock not taken"),
                }
            });
            Ok(json!({}))
        }
        "backup" => {
            let time = Duration::from_millis(body::<Hold>(request)?.ms);
            crate::backup::start(sim, vmid, time)
                .map(|upid| json!({"upid": upid}))
                .map_err(|fail| (409, fail.exit_text()))
        }
        _ => {
            let inner = sim.clone();
            sim.tracker.spawn(async move {
                if let Err(fail) = crate::destroy::rescan(&inner, vmid).await {
                    tracing::warn!(vmid, text = fail.exit_text(), "not scanned");
                }
            });
            Ok(json!({}))
        }
    }
}
