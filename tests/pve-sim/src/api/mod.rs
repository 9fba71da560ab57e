//! The endpoints, grouped as PVE's API tree.

mod access;
mod cluster;
mod config;
mod content;
mod nodes;
mod pools;
mod qemu;
mod status;
mod storage;
mod tasks;

use serde_json::{Value, json};

use crate::router::{Perm, Route, now};

pub(crate) use content::volume_access;

/// The whole table.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = vec![
        now("GET", "/", Perm::User, &[], |_| {
            Ok(subdirs(&["version", "cluster", "nodes", "storage", "access", "pools"]).into())
        }),
        now("GET", "/version", Perm::User, &[], |_| Ok(version().into())),
    ];
    routes.extend(access::routes());
    routes.extend(cluster::routes());
    routes.extend(config::routes());
    routes.extend(content::routes());
    routes.extend(nodes::routes());
    routes.extend(pools::routes());
    routes.extend(qemu::routes());
    routes.extend(status::routes());
    routes.extend(storage::routes());
    routes.extend(tasks::routes());
    routes
}

/// Whether an endpoint answers callers without credentials.
pub(crate) fn is_world(method: &str, template: &str) -> bool {
    template == "/access/ticket"
        || (method == "GET" && ["/access", "/access/domains"].contains(&template))
}

fn version() -> Value {
    json!({"version": "9.2.11", "release": "9.2", "repoid": "14a22df35955d97d"})
}

fn subdirs(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"subdir": name})).collect()
}
