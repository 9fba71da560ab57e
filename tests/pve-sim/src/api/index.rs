//! Directory listings of the API tree, and the few cluster options.

use serde_json::{Value, json};

use crate::acl;
use crate::fail::Answer;
use crate::router::{Call, Route, now};

const CLUSTER: &[&str] = &[
    "acme",
    "backup",
    "backup-info",
    "bulk-action",
    "ceph",
    "config",
    "firewall",
    "ha",
    "jobs",
    "log",
    "mapping",
    "metrics",
    "notifications",
    "nextid",
    "options",
    "qemu",
    "replication",
    "resources",
    "status",
    "tasks",
    "sdn",
];
const NODE: &[&str] = &[
    "aplinfo",
    "apt",
    "capabilities",
    "ceph",
    "certificates",
    "config",
    "disks",
    "dns",
    "firewall",
    "hardware",
    "hosts",
    "journal",
    "lxc",
    "migrateall",
    "netstat",
    "network",
    "qemu",
    "query-oci-repo-tags",
    "query-url-metadata",
    "replication",
    "report",
    "rrd",
    "rrddata",
    "scan",
    "sdn",
    "services",
    "spiceshell",
    "startall",
    "status",
    "stopall",
    "storage",
    "subscription",
    "suspendall",
    "syslog",
    "tasks",
    "termproxy",
    "time",
    "version",
    "vncshell",
    "vzdump",
    "wakeonlan",
];
const STORAGE: &[&str] = &[
    "content",
    "download-url",
    "file-restore",
    "import-metadata",
    "identity",
    "oci-registry-pull",
    "prunebackups",
    "rrd",
    "rrddata",
    "status",
    "upload",
];
const ACCESS: &[&str] = &[
    "users", "groups", "roles", "acl", "domains", "openid", "tfa", "ticket", "password",
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/", |_| {
            Ok(
                super::subdirs(&["version", "cluster", "nodes", "storage", "access", "pools"])
                    .into(),
            )
        }),
        now("GET", "/cluster", |_| Ok(named(CLUSTER).into())),
        now("GET", "/cluster/options", |call| Ok(options(call))),
        now("GET", "/cluster/config", |_| {
            Ok(named(&["nodes", "totem", "join", "qdevice", "apiversion"]).into())
        }),
        now("GET", "/cluster/config/nodes", |call| Ok(members(call))),
        now("GET", "/cluster/config/apiversion", |_| Ok(json!(1).into())),
        now("GET", "/cluster/config/qdevice", |_| Ok(json!({}).into())),
        now("GET", "/cluster/jobs", |_| {
            Ok(super::subdirs(&["schedule-analyze", "realm-sync"]).into())
        }),
        now("GET", "/cluster/ha/status", |_| {
            Ok(named(&["current", "manager_status", "disarm-ha", "arm-ha"]).into())
        }),
        now("GET", "/nodes/{node}", |_| Ok(named(NODE).into())),
        now("GET", "/nodes/{node}/storage/{storage}", |_| {
            Ok(super::subdirs(STORAGE).into())
        }),
        now("GET", "/access", |_| Ok(super::subdirs(ACCESS).into())),
    ]
}

fn named(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

/// Corosync's node list; empty where there is no cluster.
fn members(call: &Call) -> Answer {
    let state = call.sim.lock();
    if state.nodes.len() < 2 {
        return json!([]).into();
    }
    let rows = state.nodes.iter().enumerate().map(|(at, (name, node))| {
        let number = (at + 1).to_string();
        json!({"name": name, "node": name, "nodeid": number, "quorum_votes": "1", "ring0_addr": node.ip})
    });
    rows.collect::<Value>().into()
}

/// Only tags for those without Sys.Audit.
fn options(call: &Call) -> Answer {
    if acl::has(&call.sim.lock(), &call.who, "/", "Sys.Audit") {
        json!({"allowed-tags": [], "description": "", "keyboard": "en-us", "mac_prefix": "BC:24:11"}).into()
    } else {
        json!({"allowed-tags": []}).into()
    }
}
