//! The privileges that the reference names: enough for a volume's whole life, and none of them for nothing.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod life;
mod minus_one;
mod table;

use std::collections::BTreeSet;

use harness::probes::{DISKS, SNAPSHOT, grants};
use harness::world::{FILES, OWNER, POOL, SHARED, THIN, World, tenant};
use pve_sim::{SimHandle, State};
use serde_json::json;

/// The storages, each with a role of its own.
const STORAGES: [&str; 3] = [FILES, THIN, SHARED];

/// The ACL paths on which the tenant has roles.
fn paths() -> Vec<String> {
    let storages = STORAGES.map(|storage| format!("/storage/{storage}"));
    [format!("/pool/{POOL}")]
        .into_iter()
        .chain(storages)
        .collect()
}

/// The privileges that the reference names for a path.
fn documented(path: &str) -> BTreeSet<String> {
    let (kind, _) = path.rsplit_once('/').unwrap();
    let held = grants().filter(|(granted_on, _)| granted_on.starts_with(&format!("{kind}/")));
    held.map(|(_, privilege)| privilege.to_owned()).collect()
}

fn role(path: &str) -> String {
    format!("Role{}", path.replace('/', "-"))
}

/// Gives the token exactly what the reference says, less one privilege on one path.
fn grant(sim: &SimHandle, less: Option<(&str, &str)>) {
    sim.edit(|state| set(state, less));
}

fn set(state: &mut State, less: Option<(&str, &str)>) {
    for path in paths() {
        let mut held = documented(&path);
        if let Some((_, privilege)) = less.filter(|(at, _)| *at == path) {
            assert!(held.remove(privilege), "{privilege} on {path}");
        }
        state.roles.insert(role(&path), held);
    }
    for entry in &mut state.acl {
        if paths().contains(&entry.path) {
            entry.role = role(&entry.path);
        }
    }
}

/// Workers 101 to 103, the last with a snapshot; disks that probes ask about. The owner is in no pool and no VM.
async fn world() -> World {
    let held = format!("{FILES}:{},size=1M", DISKS[0]);
    let worker = [
        ("name", "worker-104"),
        ("scsihw", "virtio-scsi-single"),
        ("scsi1", held.as_str()),
    ];
    let builder = tenant(&[(101, "pve1"), (102, "pve1"), (103, "pve1")])
        .vm_with(104, "pve1", &worker, true)
        .volume(FILES, Some("pve1"), DISKS[0], 1 << 20)
        .volume(FILES, Some("pve1"), DISKS[1], 1 << 20);
    let mut world = World::without_controller(builder).await.unwrap();
    world.sim.edit(|state| {
        let pool = state.pools.get_mut(POOL).unwrap();
        pool.vms.insert(104);
        assert!(pool.vms.remove(&OWNER));
    });
    for vmid in [103, 104] {
        world.sim.with_vm(vmid, |vm| {
            let section = vm.config.clone();
            vm.snapshots.insert(SNAPSHOT.to_owned(), section);
            vm.config.insert("parent".to_owned(), SNAPSHOT.to_owned());
        });
    }
    grant(&world.sim, None);
    let mut config = world.config();
    let quota = json!({ "maxVolumes": 50 });
    let storages = config.pointer_mut("/regions/r1/storages").unwrap();
    *storages = json!({ FILES: quota, THIN: quota, SHARED: quota });
    world.start_controller_with(&config).await.unwrap();
    world
}
