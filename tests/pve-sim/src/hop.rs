//! The way of a request from the PVE node that answers to the one that does the work, and there from pveproxy to pvedaemon
//! (facts 17, running.md 13c, 13f, 13j, 13k; `AnyEvent.pm` `proxy_request`).

use std::time::Duration;

use crate::fail::Fail;
use crate::router::Call;
use crate::sim::Sim;
use crate::state::Health;

/// `timeout` of a hop (`AnyEvent.pm:835`).
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// Until the kernel gives up to find a dead host's address.
const NO_ROUTE: Duration = Duration::from_secs(3);
/// How often stopped work looks whether it may go on, in the host's time.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Reading endpoints that pvedaemon answers (`protected => 1`); it answers all that change something.
const PROTECTED: &[&str] = &[
    "/access/users",
    "/cluster/status",
    "/nodes/{node}/qemu",
    "/nodes/{node}/qemu/{vmid}/feature",
    "/nodes/{node}/qemu/{vmid}/migrate",
    "/nodes/{node}/qemu/{vmid}/snapshot",
    "/nodes/{node}/qemu/{vmid}/status/current",
    "/nodes/{node}/storage",
    "/nodes/{node}/storage/{storage}/content",
    "/nodes/{node}/storage/{storage}/content/{volume*}",
    "/nodes/{node}/storage/{storage}/status",
    "/nodes/{node}/tasks/{upid}/log",
    "/nodes/{node}/tasks/{upid}/status",
];

fn is_protected(method: &str, template: &str) -> bool {
    method != "GET" || PROTECTED.contains(&template) || template.contains("/agent/")
}

fn refused(status: u16, reason: &str) -> Fail {
    Fail::Empty {
        status,
        reason: reason.to_owned(),
    }
}

/// The node that does the work: of the path, else the one that answers.
fn worker(call: &Call) -> String {
    if call.get("node").is_some() {
        call.node()
    } else {
        call.here.clone()
    }
}

/// Ends with what pveproxy says if the work cannot be reached.
pub(crate) async fn reach(call: &Call, (method, template): (&str, &str)) -> Result<(), Fail> {
    let node = worker(call);
    let health = call.sim.lock().nodes.get(&node).map(|node| node.health);
    let (Some(health), clock) = (health, &call.sim.clock) else {
        return Err(Fail::die(format!(
            "hostname lookup '{node}' failed - failed to get address info for: {node}: Name or service not known"
        )));
    };
    let elsewhere = template.contains("{node}");
    match health {
        Health::DaemonDown if is_protected(method, template) => {
            Err(refused(595, "Connection refused"))
        }
        Health::Online | Health::DaemonDown | Health::DaemonHung => Ok(()),
        _ if !elsewhere => Ok(()),
        Health::ProxyDown => Err(refused(595, "Connection refused")),
        Health::Reset => Err(refused(596, "Connection reset by peer")),
        Health::Offline | Health::Isolated => {
            clock.sleep(NO_ROUTE).await;
            Err(refused(595, "No route to host"))
        }
        Health::Silent => {
            clock.sleep(TIMEOUT).await;
            Err(refused(595, "Connection timed out"))
        }
        Health::Hung => {
            clock.sleep(TIMEOUT).await;
            Err(refused(596, "Connection timed out"))
        }
    }
}

/// Waits with the work while its pvedaemon hangs: the request is in its socket and will be done.
pub(crate) async fn daemon_goes_on(sim: &Sim, node: &str) {
    let hangs = || {
        let state = sim.lock();
        let health = state.nodes.get(node).map(|node| node.health);
        health == Some(Health::DaemonHung)
    };
    while hangs() {
        tokio::select! {
            () = sim.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// The node whose pvedaemon does this, if one does.
pub(crate) fn daemon_of(call: &Call, (method, template): (&str, &str)) -> Option<String> {
    is_protected(method, template).then(|| worker(call))
}
