//! `/nodes/{node}/qemu/{vmid}/status/*` and the list of VMs.

use serde_json::{Map, Value, json};

use crate::acl;
use crate::acl::Who;
use crate::crm;
use crate::fail::{Answer, ApiResult, Fail};
use crate::hotplug;
use crate::qemu;
use crate::router::{Call, Route, now};
use crate::sim::Sim;
use crate::state::{Vm, VmNumber};
use crate::stats::{cpus, memory_bytes, qmp_status};
use crate::tasks::{self, TaskKind};
use crate::update::{self, Change};

pub(super) fn routes() -> Vec<Route> {
    let mut routes = vec![
        now("GET", "/nodes/{node}/qemu", |call| Ok(list(call))),
        now("GET", "/nodes/{node}/qemu/{vmid}/status/current", current),
        now("GET", "/nodes/{node}/qemu/{vmid}/status", |_| {
            let names = [
                "current", "start", "stop", "reset", "shutdown", "suspend", "reboot",
            ];
            Ok(super::subdirs(&names).into())
        }),
    ];
    routes.extend(power_routes());
    routes
}

fn power_routes() -> Vec<Route> {
    let route = |template, code: fn(&Call) -> ApiResult| now("POST", template, code);
    vec![
        route("/nodes/{node}/qemu/{vmid}/status/start", |call| {
            power_task(call, Power::Start)
        }),
        route("/nodes/{node}/qemu/{vmid}/status/stop", |call| {
            power_task(call, Power::Stop)
        }),
        route("/nodes/{node}/qemu/{vmid}/status/shutdown", |call| {
            power_task(call, Power::Shutdown)
        }),
        route("/nodes/{node}/qemu/{vmid}/status/reboot", |call| {
            power_task(call, Power::Reboot)
        }),
        route("/nodes/{node}/qemu/{vmid}/status/suspend", |call| {
            power_task(call, Power::Pause)
        }),
        route("/nodes/{node}/qemu/{vmid}/status/resume", |call| {
            power_task(call, Power::Resume)
        }),
    ]
}

/// What both the list and `status/current` say about a VM.
fn summary(vmid: VmNumber, vm: &Vm, now: u64) -> Map<String, Value> {
    let mut map = super::content::object(&json!({
        "vmid": vmid, "name": vm.name(vmid), "status": if vm.running { "running" } else { "stopped" }, "cpus": cpus(vm),
        "maxmem": memory_bytes(vm), "mem": 0, "memhost": 0, "cpu": 0, "disk": 0, "maxdisk": 0, "netin": 0, "netout": 0,
        "uptime": if vm.running { now.saturating_sub(vm.started) } else { 0 },
    }));
    if vm.running {
        for kind in ["cpu", "io", "memory"] {
            for share in ["full", "some"] {
                map.insert(format!("pressure{kind}{share}"), json!(0));
            }
        }
        map.insert("pid".into(), json!(vm.pid));
    }
    if vm.config.get("template").is_some_and(|flag| flag == "1") {
        map.insert("template".into(), json!(1));
    }
    for key in ["lock", "tags"] {
        if let Some(text) = vm.config.get(key) {
            map.insert(key.into(), json!(text));
        }
    }
    map
}

/// Counters of each disk that QEMU has.
fn blockstat(vm: &Vm) -> Value {
    let one = || json!({"rd_bytes": 0, "wr_bytes": 0, "rd_operations": 0, "wr_operations": 0, "failed_rd_operations": 0, "failed_wr_operations": 0});
    vm.devices
        .keys()
        .map(|slot| (slot.clone(), one()))
        .collect::<Map<_, _>>()
        .into()
}

fn list(call: &Call) -> Answer {
    let (node, now) = (call.node(), call.sim.clock.epoch());
    let state = call.sim.lock();
    let mine = state.vms.iter().filter(|(vmid, vm)| {
        vm.node == node && acl::has(&state, &call.who, &format!("/vms/{vmid}"), "VM.Audit")
    });
    let rows = mine.map(|(vmid, vm)| {
        let mut map = summary(*vmid, vm, now);
        if call.flag("full") {
            map.insert("qmpstatus".into(), json!(qmp_status(vm)));
            if vm.running {
                map.insert("blockstat".into(), blockstat(vm));
            }
        }
        Value::Object(map)
    });
    rows.collect::<Value>().into()
}

fn current(call: &Call) -> ApiResult {
    let (vmid, now) = (call.vmid(), call.sim.clock.epoch());
    let ha = match super::ha::managed(&call.sim.lock(), vmid) {
        Some(asked) => json!({"managed": 1, "state": asked}),
        None => json!({"managed": 0}),
    };
    let map = call.sim.with_vm(&call.node(), vmid, |vm| {
        let mut map = summary(vmid, vm, now);
        map.insert("qmpstatus".into(), json!(qmp_status(vm)));
        map.insert("ha".into(), ha);
        if vm
            .config
            .get("agent")
            .is_some_and(|text| text.starts_with('1') || text.contains("enabled=1"))
        {
            map.insert("agent".into(), json!(1));
        }
        let answers = vm.faults.qmp_busy == 0;
        vm.faults.qmp_busy = vm.faults.qmp_busy.saturating_sub(1);
        if vm.running && answers {
            map.insert("blockstat".into(), blockstat(vm));
            map.insert("running-machine".into(), json!("pc-i440fx-10.0+pve0"));
            map.insert("running-qemu".into(), json!("10.0.2"));
        }
        map
    })?;
    Ok(Value::Object(map).into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Start,
    Stop,
    Shutdown,
    Reboot,
    Pause,
    Resume,
}

impl Power {
    fn task(self) -> &'static str {
        match self {
            Self::Start => "qmstart",
            Self::Stop => "qmstop",
            Self::Shutdown => "qmshutdown",
            Self::Reboot => "qmreboot",
            Self::Pause => "qmpause",
            Self::Resume => "qmresume",
        }
    }
}

fn power_task(call: &Call, power: Power) -> ApiResult {
    let (node, vmid, who) = (call.node(), call.vmid(), call.who.clone());
    super::only_root(call, "skiplock")?;
    if matches!(power, Power::Pause | Power::Resume | Power::Reboot)
        && !call.sim.with_vm(&node, vmid, |vm| vm.running)?
    {
        return Err(Fail::die(format!("VM {vmid} not running")));
    }
    let asks = matches!(power, Power::Start | Power::Stop | Power::Shutdown);
    if asks && call.sim.lock().ha.manages(vmid) {
        return Ok(json!(ask_manager(call, power == Power::Start)).into());
    }
    let what = TaskKind {
        node: node.clone(),
        kind: power.task(),
        id: vmid.to_string(),
    };
    let sim = call.sim.clone();
    let upid = tasks::fork(&call.sim, &call.who, &what, move |_| async move {
        let _guard = sim.lock_vm(&node, vmid).await?;
        perform(&sim, power, (&node, vmid), &who).await
    });
    Ok(json!(upid).into())
}

/// The HA manager does it in its own time; the task only asks (running.md 14).
fn ask_manager(call: &Call, on: bool) -> String {
    let (sim, vmid) = (call.sim.clone(), call.vmid());
    let what = TaskKind {
        node: call.node(),
        kind: if on { "hastart" } else { "hastop" },
        id: vmid.to_string(),
    };
    tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        let verb = if on { "start" } else { "stop" };
        log.line(format!("Requesting HA {verb} for VM {vmid}"));
        crm::ask_power(&sim, vmid, on);
        Ok(())
    })
}

async fn perform(
    sim: &std::sync::Arc<Sim>,
    power: Power,
    (node, vmid): (&str, VmNumber),
    who: &Who,
) -> Result<(), Fail> {
    let (running, template, backup) = sim.with_vm(node, vmid, |vm| {
        let is = |key: &str, value: &str| vm.config.get(key).is_some_and(|text| text == value);
        (vm.running, is("template", "1"), is("lock", "backup"))
    })?;
    let unlocked = || sim.with_vm(node, vmid, |vm| update::check_state(vm, None))?;
    match power {
        Power::Pause | Power::Resume if !backup => unlocked()?,
        Power::Pause | Power::Resume => {}
        Power::Stop | Power::Shutdown if !running => return Ok(()),
        Power::Start if template => {
            return Err(Fail::die("you can't start a vm if it's a template"));
        }
        // A backup is going on: the guest goes on in the QEMU that there is.
        Power::Start if backup && running => return qemu::resume(sim, node, vmid),
        Power::Start | Power::Stop | Power::Shutdown | Power::Reboot => unlocked()?,
    }
    match power {
        Power::Pause => return qemu::pause(sim, node, vmid),
        Power::Resume => return qemu::resume(sim, node, vmid),
        Power::Stop | Power::Shutdown | Power::Reboot => {
            qemu::stop(sim, node, vmid)?;
            // What cannot be applied is only warned of.
            if let Err(fail) = settle(sim, node, vmid, who).await {
                crate::carried::log_line(&fail.exit_text());
            }
        }
        Power::Start if running => return Err(Fail::die(format!("VM {vmid} already running"))),
        Power::Start => {}
    }
    if matches!(power, Power::Start | Power::Reboot) {
        settle(sim, node, vmid, who).await?;
        sim.clock.sleep(sim.timing.start).await;
        qemu::start(sim, node, vmid)?;
    }
    Ok(())
}

/// Start and stop apply what is pending (`vmconfig_apply_pending`).
async fn settle(
    sim: &std::sync::Arc<Sim>,
    node: &str,
    vmid: VmNumber,
    who: &Who,
) -> Result<(), Fail> {
    let change = Change {
        who: who.clone(),
        node: node.to_owned(),
        vmid,
        digest: None,
        delete: Vec::new(),
        force: false,
        revert: Vec::new(),
        set: std::collections::BTreeMap::new(),
    };
    hotplug::apply_pending(sim, &change, &std::collections::BTreeSet::new()).await
}
