//! `/nodes/{node}/qemu/{vmid}/agent`: what is asked of the guest agent (`API2/Qemu/Agent.pm`, `QemuServer/Agent.pm`). What the
//! agent itself refuses stands inside the result of a 200 answer, except where PVE looks at it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, later, now};
use crate::sim::no_config;
use crate::state::{Guest, Vm};
use crate::verify::ITEMS;
use crate::{qemu, router};

/// How long PVE waits for the answer to a ping.
const PING: Duration = Duration::from_secs(3);
/// The agent's pid of the first command that it executes.
const FIRST_PID: usize = 100;

/// Commands without parameters, with their method.
const COMMANDS: &[(&str, &str)] = &[
    ("POST", "fsfreeze-freeze"),
    ("POST", "fsfreeze-status"),
    ("POST", "fsfreeze-thaw"),
    ("POST", "fstrim"),
    ("GET", "get-fsinfo"),
    ("GET", "get-host-name"),
    ("GET", "get-memory-block-info"),
    ("GET", "get-memory-blocks"),
    ("GET", "get-osinfo"),
    ("GET", "get-time"),
    ("GET", "get-timezone"),
    ("GET", "get-users"),
    ("GET", "get-vcpus"),
    ("GET", "info"),
    ("GET", "network-get-interfaces"),
    ("POST", "ping"),
    ("POST", "shutdown"),
    ("POST", "suspend-disk"),
    ("POST", "suspend-hybrid"),
    ("POST", "suspend-ram"),
];
/// Those with parameters.
const MORE: &[&str] = &[
    "exec",
    "exec-status",
    "file-read",
    "file-write",
    "set-user-password",
];

pub(super) fn routes() -> Vec<Route> {
    let mut routes = vec![
        now("GET", "/nodes/{node}/qemu/{vmid}/agent", |_| {
            Ok(index().into())
        }),
        later(
            "POST",
            "/nodes/{node}/qemu/{vmid}/agent",
            |call| async move {
                let command = call.text("command").to_owned();
                simple(call, command).await
            },
        ),
        later("POST", "/nodes/{node}/qemu/{vmid}/agent/exec", exec),
        later(
            "GET",
            "/nodes/{node}/qemu/{vmid}/agent/exec-status",
            exec_status,
        ),
        later(
            "GET",
            "/nodes/{node}/qemu/{vmid}/agent/file-read",
            file_read,
        ),
        later(
            "POST",
            "/nodes/{node}/qemu/{vmid}/agent/file-write",
            file_write,
        ),
        later(
            "POST",
            "/nodes/{node}/qemu/{vmid}/agent/set-user-password",
            |call| async move {
                available(&call).await?;
                Ok(json!({"result": {}}).into())
            },
        ),
    ];
    routes.extend(COMMANDS.iter().map(|(method, command)| {
        later(method, template(command), move |call| {
            simple(call, (*command).to_owned())
        })
    }));
    routes
}

/// The path of a command; it lives as long as the table of routes, which is made once.
fn template(command: &str) -> &'static str {
    format!("/nodes/{{node}}/qemu/{{vmid}}/agent/{command}").leak()
}

fn index() -> Value {
    let mut names: Vec<&str> = COMMANDS
        .iter()
        .map(|(_, name)| *name)
        .chain(MORE.iter().copied())
        .collect();
    names.sort_unstable();
    names.iter().map(|name| json!({"name": name})).collect()
}

/// `assert_agent_available`.
async fn available(call: &Call) -> Result<(), Fail> {
    let vmid = call.vmid();
    let silent = call.sim.with_vm(&call.node(), vmid, |vm| {
        if !vm.config.contains_key("agent") {
            return Err(Fail::die("No QEMU guest agent configured"));
        }
        if !vm.running {
            return Err(Fail::die(format!("VM {vmid} is not running")));
        }
        Ok(vm.guest.silent || vm.paused)
    })??;
    if silent {
        call.sim.clock.sleep(PING).await;
        return Err(Fail::die("QEMU guest agent is not running"));
    }
    Ok(())
}

async fn simple(call: Call, command: String) -> ApiResult {
    available(&call).await?;
    let (node, vmid) = (call.node(), call.vmid());
    let result = call
        .sim
        .with_vm(&node, vmid, |vm| answer(vm, vmid, &command))?;
    if command == "shutdown" && result.get("error").is_none() {
        qemu::stop(&call.sim, &node, vmid)?;
    }
    Ok(json!({"result": result}).into())
}

/// What the scenario says, or what a plain agent does.
fn answer(vm: &Vm, vmid: crate::state::VmNumber, command: &str) -> Value {
    if let Some(told) = vm.guest.answers.get(command) {
        return told.clone();
    }
    match command {
        "ping" | "shutdown" => json!({}),
        "get-fsinfo" | "get-users" => json!([]),
        "get-host-name" => json!({"host-name": vm.name(vmid)}),
        "fsfreeze-status" => json!("thawed"),
        "fstrim" => json!({"paths": []}),
        "network-get-interfaces" => json!([loopback()]),
        "info" => info(),
        _ => {
            let desc = format!("The command guest-{command} has not been found");
            json!({"error": {"class": "CommandNotFound", "desc": desc}})
        }
    }
}

fn loopback() -> Value {
    json!({
        "name": "lo", "hardware-address": "00:00:00:00:00:00",
        "ip-addresses": [
            {"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8},
            {"ip-address": "::1", "ip-address-type": "ipv6", "prefix": 128},
        ],
        "statistics": {
            "rx-bytes": 0, "rx-dropped": 0, "rx-errs": 0, "rx-packets": 0,
            "tx-bytes": 0, "tx-dropped": 0, "tx-errs": 0, "tx-packets": 0,
        },
    })
}

fn info() -> Value {
    let known = COMMANDS
        .iter()
        .map(|(_, name)| *name)
        .chain(MORE.iter().copied());
    let commands: Value = known
        .map(|name| json!({"name": format!("guest-{name}"), "enabled": true, "success-response": true}))
        .collect();
    json!({"version": "10.0.2", "supported_commands": commands})
}

/// `check_agent_error`.
fn agent_error(desc: &str) -> Fail {
    Fail::die(format!("Agent error: {desc}"))
}

async fn with_guest<T>(
    call: &Call,
    code: impl FnOnce(&mut Guest) -> Result<T, Fail>,
) -> Result<T, Fail> {
    available(call).await?;
    let (node, vmid) = (call.node(), call.vmid());
    let mut state = call.sim.lock();
    let vm = state.vms.get_mut(&vmid).filter(|vm| vm.node == node);
    code(&mut vm.ok_or_else(|| no_config(&node, vmid))?.guest)
}

async fn exec(call: Call) -> ApiResult {
    let words: Vec<&str> = call
        .text("command")
        .split(ITEMS)
        .filter(|word| !word.is_empty())
        .collect();
    let (line, program) = (
        words.join(" "),
        words.first().copied().unwrap_or_default().to_owned(),
    );
    let pid = with_guest(&call, |guest| {
        if !guest.programs.contains_key(&line) {
            return Err(agent_error(&format!(
                "Guest agent command failed, error was 'Failed to execute child process \u{201c}{program}\u{201d} (No such file or directory)'"
            )));
        }
        guest.executed.push(line.clone());
        Ok(FIRST_PID + guest.executed.len() - 1)
    })
    .await?;
    Ok(json!({"pid": pid}).into())
}

async fn exec_status(call: Call) -> ApiResult {
    let pid = call.number("pid").and_then(|pid| usize::try_from(pid).ok());
    let result = with_guest(&call, |guest| {
        // The agent forgets a command once its end was told; its text for an unknown pid lacks the number.
        let line = pid
            .and_then(|pid| guest.executed.get(pid.checked_sub(FIRST_PID)?))
            .ok_or_else(|| agent_error("PID ld does not exist"))?;
        Ok(guest.programs.get(line).cloned().unwrap_or_default())
    })
    .await?;
    Ok(result.into())
}

async fn file_read(call: Call) -> ApiResult {
    let file = call.text("file").to_owned();
    let content = with_guest(&call, |guest| {
        guest.files.get(&file).cloned().ok_or_else(|| {
            agent_error(&format!(
                "failed to open file '{file}' (mode: 'r'): No such file or directory"
            ))
        })
    })
    .await?;
    Ok(json!({"content": content, "bytes-read": content.len()}).into())
}

async fn file_write(call: Call) -> ApiResult {
    let (file, content) = (
        call.text("file").to_owned(),
        call.text("content").to_owned(),
    );
    with_guest(&call, |guest| {
        guest.files.insert(file, content);
        Ok(())
    })
    .await?;
    Ok(router::null())
}
