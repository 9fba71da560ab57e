//! The endpoints, grouped as PVE's API tree.

mod access;
mod agent;
mod clone;
mod cluster;
mod config;
mod content;
mod ha;
mod ha_groups;
mod ha_rules;
mod index;
mod login;
mod migrate;
mod move_disk;
mod nodes;
mod option_rights;
mod pools;
mod qemu;
mod roles;
mod snapshot;
mod status;
mod storage;
mod storage_config;
mod tasks;
mod users;
mod vm_more;

use serde_json::{Value, json};

use crate::fail::Fail;
use crate::router::{Call, Route, now};

pub(crate) use content::volume_access;
pub(crate) use migrate::migrate_now;
pub(crate) use storage::used;

/// The whole table.
pub(crate) fn routes() -> Vec<Route> {
    let mut routes = vec![now("GET", "/version", |call| Ok(version(call).into()))];
    routes.extend(access::routes());
    routes.extend(agent::routes());
    routes.extend(clone::routes());
    routes.extend(cluster::routes());
    routes.extend(config::routes());
    routes.extend(content::routes());
    routes.extend(ha::routes());
    routes.extend(index::routes());
    routes.extend(login::routes());
    routes.extend(migrate::routes());
    routes.extend(move_disk::routes());
    routes.extend(nodes::routes());
    routes.extend(pools::routes());
    routes.extend(qemu::routes());
    routes.extend(roles::routes());
    routes.extend(snapshot::routes());
    routes.extend(status::routes());
    routes.extend(storage::routes());
    routes.extend(storage_config::routes());
    routes.extend(tasks::routes());
    routes.extend(users::routes());
    routes.extend(vm_more::routes());
    routes
}

fn version(call: &Call) -> Value {
    let version = &call.sim.lock().version;
    json!({"version": version.as_str(), "release": version.release(), "repoid": "14a22df35955d97d"})
}

fn subdirs(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"subdir": name})).collect()
}

/// Options that PVE takes from the ticket of root@pam only; a token of it is refused, too.
fn only_root(call: &Call, name: &str) -> Result<(), Fail> {
    if call.flag(name) && !call.who.is_root() {
        return Err(Fail::param(name, "Only root may use this option."));
    }
    Ok(())
}
