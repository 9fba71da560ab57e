//! The way of a request from the PVE node that answers to the one that does the work, and there from pveproxy to pvedaemon
//! (facts 17, running.md 13c, 13f, 13j, 13k; `AnyEvent.pm` `proxy_request`).

use std::time::Duration;

use crate::endpoints::Endpoint;
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

fn refused(status: u16, reason: &str) -> Fail {
    Fail::Empty {
        status,
        reason: reason.to_owned(),
    }
}

/// The node that does the work: of the path, else the one that answers.
fn worker(call: &Call, endpoint: &Endpoint) -> String {
    if endpoint.path.contains("{node}") {
        call.node()
    } else {
        call.here.clone()
    }
}

/// Ends with what pveproxy says if the work cannot be reached.
pub(crate) async fn reach(call: &Call, endpoint: &Endpoint) -> Result<(), Fail> {
    let node = worker(call, endpoint);
    let health = call.sim.lock().nodes.get(&node).map(|node| node.health);
    let (Some(health), clock) = (health, &call.sim.clock) else {
        return Err(Fail::die(format!(
            "hostname lookup '{node}' failed - failed to get address info for: {node}: Name or service not known"
        )));
    };
    let elsewhere = endpoint.path.contains("{node}");
    match health {
        Health::DaemonDown if endpoint.worker => Err(refused(595, "Connection refused")),
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
pub(crate) fn daemon_of(call: &Call, endpoint: &Endpoint) -> Option<String> {
    endpoint.worker.then(|| worker(call, endpoint))
}
