//! What a PVE node without quorum still does and what it refuses (facts 16, running.md 13g and 13i). The cluster file system is
//! read-only there: reads, tokens and what stays on the node work, locks of the cluster and writes to configs do not.

use std::sync::Arc;

use crate::carried;
use crate::fail::Fail;
use crate::router::Call;
use crate::sim::Sim;
use crate::state::{State, VmNumber};

impl State {
    /// Whether this PVE node has quorum: as told, else by the votes of those that it sees. Two nodes count as having a third vote
    /// from outside (`qdevice`), else the one would be lost with the other.
    pub(crate) fn quorate(&self, node: &str) -> bool {
        let told = self.nodes.get(node).and_then(|node| node.quorate);
        told.or(self.quorate)
            .unwrap_or_else(|| self.nodes.len() < 3 || self.seen_from(node) * 2 > self.nodes.len())
    }

    fn seen_from(&self, node: &str) -> usize {
        let own = self.nodes.get(node);
        if own.is_some_and(|node| !node.health.in_cluster()) {
            return 1;
        }
        let seen = self.nodes.values().filter(|node| node.health.in_cluster());
        seen.count()
    }
}

impl Sim {
    /// To be asked before a VM's config is written: `write_config` makes a temporary file beside it.
    pub(crate) fn may_write(&self, node: &str, vmid: VmNumber) -> Result<(), Fail> {
        if self.lock().quorate(node) {
            return Ok(());
        }
        let pid = carried::pid();
        Err(Fail::die(format!(
            "unable to open file '/etc/pve/nodes/{node}/qemu-server/{vmid}.conf.tmp.{pid}' - Permission denied"
        )))
    }

    /// `check_cfs_quorum`.
    pub(crate) fn need_quorum(&self, node: &str) -> Result<(), Fail> {
        if self.lock().quorate(node) {
            Ok(())
        } else {
            Err(Fail::die("cluster not ready - no quorum?"))
        }
    }
}

/// Endpoints whose code begins with `check_cfs_quorum`.
const READY: &[(&str, &str)] = &[
    ("POST", "/nodes/{node}/qemu"),
    ("POST", "/nodes/{node}/qemu/{vmid}/status/start"),
    ("POST", "/nodes/{node}/qemu/{vmid}/clone"),
    ("GET", "/nodes/{node}/qemu/{vmid}/migrate"),
    ("POST", "/cluster/ha/resources"),
    ("POST", "/cluster/ha/rules"),
];

/// Endpoints that work under a lock of the cluster, with what stands before its text.
const LOCKED: &[(&str, &str, &str, &str)] = &[
    ("POST", "/pools", "file-user_cfg", "create pool failed: "),
    ("PUT", "/pools", "file-user_cfg", "update pools failed: "),
    (
        "PUT",
        "/pools/{poolid}",
        "file-user_cfg",
        "update pools failed: ",
    ),
    ("DELETE", "/pools", "file-user_cfg", "delete pool failed: "),
    (
        "DELETE",
        "/pools/{poolid}",
        "file-user_cfg",
        "delete pool failed: ",
    ),
    ("PUT", "/access/acl", "file-user_cfg", "ACL update failed: "),
    (
        "POST",
        "/access/users",
        "file-user_cfg",
        "create user failed: ",
    ),
    (
        "PUT",
        "/access/users/{userid}",
        "file-user_cfg",
        "update user failed: ",
    ),
    (
        "DELETE",
        "/access/users/{userid}",
        "file-user_cfg",
        "delete user failed: ",
    ),
    (
        "PUT",
        "/cluster/ha/resources/{sid}",
        "domain-ha",
        "update resource failed: ",
    ),
    (
        "DELETE",
        "/cluster/ha/resources/{sid}",
        "domain-ha",
        "delete resource failed: ",
    ),
    (
        "PUT",
        "/cluster/ha/rules/{rule}",
        "domain-ha",
        "update HA rules failed: ",
    ),
    (
        "DELETE",
        "/cluster/ha/rules/{rule}",
        "domain-ha",
        "delete ha rule failed: ",
    ),
];

/// Refuses what the endpoint's code would refuse at its beginning for want of quorum.
pub(crate) async fn gate(
    sim: &Arc<Sim>,
    (method, template): (&str, &str),
    call: &Call,
) -> Result<(), Fail> {
    let node = if call.get("node").is_some() {
        call.node()
    } else {
        call.here.clone()
    };
    if READY.contains(&(method, template)) {
        return sim.need_quorum(&node);
    }
    let found = LOCKED
        .iter()
        .find(|row| (row.0, row.1) == (method, template));
    let Some((_, _, lock, before)) = found else {
        return Ok(());
    };
    let guard = sim.lock_cluster(&node, lock).await;
    guard
        .map(drop)
        .map_err(|fail| Fail::die(format!("{before}{}", fail.exit_text())))
}
