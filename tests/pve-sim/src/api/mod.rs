//! The endpoints, grouped as PVE's API tree.

mod access;
mod clone;
mod cluster;
mod config;
mod content;
mod ha;
mod ha_rules;
mod index;
mod migrate;
mod move_disk;
mod nodes;
mod pools;
mod qemu;
mod snapshot;
mod status;
mod storage;
mod tasks;
mod users;

use serde_json::{Value, json};

use crate::router::{Perm, Route, now};

pub(crate) use content::volume_access;
pub(crate) use migrate::migrate_now;
pub(crate) use storage::used;

/// The whole table.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = vec![now("GET", "/version", Perm::User, &[], |_| {
        Ok(version().into())
    })];
    routes.extend(access::routes());
    routes.extend(clone::routes());
    routes.extend(cluster::routes());
    routes.extend(config::routes());
    routes.extend(content::routes());
    routes.extend(ha::routes());
    routes.extend(index::routes());
    routes.extend(migrate::routes());
    routes.extend(move_disk::routes());
    routes.extend(nodes::routes());
    routes.extend(pools::routes());
    routes.extend(qemu::routes());
    routes.extend(snapshot::routes());
    routes.extend(status::routes());
    routes.extend(storage::routes());
    routes.extend(tasks::routes());
    routes.extend(users::routes());
    routes
}

fn version() -> Value {
    json!({"version": "9.2.11", "release": "9.2", "repoid": "14a22df35955d97d"})
}

fn subdirs(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"subdir": name})).collect()
}
