//! What becomes of volumes when a VM is destroyed, scanned, backed up or set back (api.md 6, 10.5 to 10.8).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{World, cluster};
use crate::{ClockMode, Quirk};

const S: &str = "shared:9999/vm-9999-s.raw";
const OWN: &str = "local:100/vm-100-disk-0.raw";
const VM: &str = "/nodes/pve1/qemu/100";

async fn allocate(world: &World, storage: &str, vmid: u32, file: &str) {
    let path = format!("/nodes/pve1/storage/{storage}/content");
    let form = format!("vmid={vmid}&filename={file}&size=4M");
    world.ok("POST", &path, &form).await;
}

fn volumes(world: &World) -> BTreeSet<String> {
    let state = world.sim.state();
    let all = state.volumes.iter();
    all.map(|volume| format!("{}:{}", volume.storage, volume.name))
        .collect()
}

async fn task(world: &World, method: &str, path: &str, form: &str) -> String {
    let upid = world.ok(method, path, form).await;
    world.exit(&upid).await
}

#[tokio::test]
async fn a_vm_takes_what_it_owns_and_names_and_leaves_what_others_own() {
    let world = World::new(cluster()).await;
    allocate(&world, "thin", 100, "vm-100-a").await;
    allocate(&world, "thin", 100, "vm-100-loose").await;
    world
        .put(&format!("scsi1={OWN}&scsi2={S}&scsi3=thin:vm-100-a"))
        .await;
    world.put("delete=scsi3").await;
    world.sim.stop_vm(100).unwrap();
    assert_eq!(world.config("").await["unused0"], "thin:vm-100-a");
    let before = volumes(&world);
    assert_eq!(task(&world, "DELETE", VM, "").await, "OK");
    let gone: Vec<String> = before.difference(&volumes(&world)).cloned().collect();
    assert_eq!(gone, [OWN, "thin:vm-100-a"]);
    assert!(!world.sim.state().vms.contains_key(&100));
}

#[tokio::test]
async fn destroying_unreferenced_disks_takes_all_of_the_number_that_the_host_sees() {
    let world = World::new(cluster()).await;
    allocate(&world, "thin", 100, "vm-100-loose").await;
    allocate(&world, "shared", 100, "vm-100-b.raw").await;
    world.sim.edit(|state| {
        let there = crate::Volume {
            storage: "local".into(),
            node: Some("pve2".into()),
            name: "100/vm-100-there.raw".into(),
            size: 1,
            format: "raw".into(),
            ctime: 0,
        };
        state.volumes.push(there);
    });
    world.sim.stop_vm(100).unwrap();
    let before = volumes(&world);
    let path = format!("{VM}?destroy-unreferenced-disks=1&purge=1");
    assert_eq!(task(&world, "DELETE", &path, "").await, "OK");
    let gone: Vec<String> = before.difference(&volumes(&world)).cloned().collect();
    assert_eq!(gone, [OWN, "shared:100/vm-100-b.raw", "thin:vm-100-loose"]);
}

#[tokio::test]
async fn a_disk_that_cannot_be_freed_is_a_warning_and_the_vm_is_gone() {
    let world = World::new(cluster()).await;
    world.put(&format!("scsi1={OWN}")).await;
    world.sim.stop_vm(100).unwrap();
    world.sim.storage_busy("local", 1);
    assert_eq!(task(&world, "DELETE", VM, "").await, "WARNINGS: 1");
    assert!(volumes(&world).contains(OWN));
    assert!(!world.sim.state().vms.contains_key(&100));
}

/// running.md 7: a lock is found by the worker.
#[tokio::test]
async fn a_locked_vm_is_not_destroyed_and_the_task_says_so() {
    let world = World::new(cluster()).await;
    world.sim.stop_vm(100).unwrap();
    world
        .sim
        .with_vm(100, |vm| vm.config.insert("lock".into(), "backup".into()));
    assert_eq!(
        task(&world, "DELETE", VM, "").await,
        "VM is locked (backup)"
    );
    world.sim.with_vm(100, |vm| vm.config.remove("lock"));
    world.sim.edit(|state| {
        state
            .ha
            .resources
            .insert("vm:100".into(), std::collections::BTreeMap::new());
    });
    let (status, body) = world.call("DELETE", VM, "").await;
    let text = "unable to remove VM 100 - used in HA resources and purge parameter not set.\n";
    assert_eq!((status, &body["message"]), (500, &json!(text)));
}

#[tokio::test]
async fn a_scan_finds_loose_disks_sets_sizes_right_and_drops_what_is_used() {
    let world = World::new(cluster()).await;
    allocate(&world, "thin", 100, "vm-100-loose").await;
    world.put(&format!("scsi1={OWN}")).await;
    world.sim.with_vm(100, |vm| {
        vm.config.insert("scsi1".into(), format!("{OWN},size=3G"));
        vm.config.insert("unused5".into(), OWN.into());
    });
    let told = world.sim.rescan(100).await.unwrap();
    assert_eq!(
        told,
        [
            "rescan volumes...",
            &format!("VM 100 (scsi1): size of disk '{OWN}' updated from 3G to 1G"),
            &format!("VM 100 remove entry 'unused5', its volume '{OWN}' is in use"),
            "VM 100 add unreferenced volume 'thin:vm-100-loose' as 'unused0' to config",
        ]
    );
    let config = world.config("?current=1").await;
    assert_eq!(
        (&config["scsi1"], &config["unused0"], config.get("unused5")),
        (
            &json!(format!("{OWN},size=1G")),
            &json!("thin:vm-100-loose"),
            None
        )
    );
    // What an owner VM would do with it: destroy it.
    assert_eq!(world.put("delete=unused0").await.0, 200);
    assert!(!volumes(&world).contains("thin:vm-100-loose"));
}

#[tokio::test]
async fn a_backup_locks_the_vm_for_its_time() {
    let world = World::new(cluster().clock(ClockMode::Stepped)).await;
    let upid = world.sim.backup(100, Duration::from_mins(10)).unwrap();
    let (status, body) = world.put(&format!("scsi1={S}")).await;
    assert_eq!(
        (status, &body["message"]),
        (500, &json!("VM is locked (backup)\n"))
    );
    let form = "disk=scsi1&size=%2B1G";
    let exit = task(&world, "PUT", &format!("{VM}/resize"), form).await;
    assert_eq!(exit, "VM is locked (backup)");
    let again = world.sim.backup(100, Duration::from_mins(1));
    assert_eq!(again.unwrap_err(), "VM is locked (backup)");
    tokio::time::sleep(Duration::from_millis(20)).await;
    world.sim.advance(Duration::from_mins(10));
    assert_eq!(world.exit(&upid.into()).await, "OK");
    assert_eq!(world.put(&format!("scsi1={S}")).await.0, 200);
}

async fn thin_disk(world: &World) {
    allocate(world, "thin", 9999, "vm-9999-t").await;
    assert_eq!(world.put("scsi1=thin:vm-9999-t").await.0, 200);
}

async fn pending(world: &World) -> Value {
    let rows = world.ok("GET", &format!("{VM}/pending"), "").await;
    rows.as_array()
        .unwrap()
        .iter()
        .filter(|row| row.get("pending").is_some())
        .cloned()
        .collect()
}

#[tokio::test]
async fn a_rollback_sets_config_and_disks_back_and_stops_the_vm() {
    let world = World::new(cluster()).await;
    thin_disk(&world).await;
    let path = format!("{VM}/snapshot");
    assert_eq!(task(&world, "POST", &path, "snapname=s1").await, "OK");
    let form = "disk=scsi1&size=1G";
    task(&world, "PUT", &format!("{VM}/resize"), form).await;
    allocate(&world, "thin", 9999, "vm-9999-later").await;
    world.put("scsi2=thin:vm-9999-later&name=changed").await;
    world
        .sim
        .with_vm(100, |vm| vm.config.insert("hotplug".into(), "0".into()));
    world.put(&format!("scsi3={S}")).await;
    assert_eq!(pending(&world).await.as_array().unwrap().len(), 1);
    let back = format!("{path}/s1/rollback");
    assert_eq!(task(&world, "POST", &back, "").await, "OK");
    let config = world.config("?current=1").await;
    assert_eq!(
        (
            &config["scsi1"],
            config.get("scsi2"),
            &config["unused0"],
            &config["name"],
            &config["parent"]
        ),
        (
            &json!("thin:vm-9999-t,size=4M"),
            None,
            &json!("thin:vm-9999-later"),
            &json!("worker-a"),
            &json!("s1")
        )
    );
    assert!(config.get("lock").is_none() && config.get("hotplug").is_none());
    assert!(pending(&world).await.as_array().unwrap().is_empty());
    let at = "/nodes/pve1/storage/thin/content/thin:vm-9999-t";
    assert_eq!(world.ok("GET", at, "").await["size"], 4 << 20);
    let current = world.ok("GET", &format!("{VM}/status/current"), "").await;
    assert_eq!(current["status"], "stopped");
    assert_eq!(task(&world, "POST", &back, "start=1").await, "OK");
    assert_eq!(world.blockstat().await, ["scsi1"]);
    assert_eq!(
        task(&world, "POST", &format!("{path}/nope/rollback"), "").await,
        "snapshot 'nope' does not exist"
    );
}

#[tokio::test]
async fn a_snapshot_holds_the_vms_lock_while_it_is_made_and_keeps_it_if_its_worker_dies() {
    let timing = crate::Timing {
        allocate: Duration::from_secs(5),
        ..crate::Timing::ZERO
    };
    let world = World::new(cluster()).await;
    thin_disk(&world).await;
    let state = world.sim.state();
    let builder = cluster()
        .state(state)
        .timing(timing)
        .clock(ClockMode::Stepped);
    let world = World::new(builder).await;
    let path = format!("{VM}/snapshot");
    let upid = world.ok("POST", &path, "snapname=s1").await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (status, body) = world.put("description=x").await;
    assert_eq!(
        (status, &body["message"]),
        (500, &json!("VM is locked (snapshot)\n"))
    );
    let stop = format!("/nodes/pve1/tasks/{}", upid.as_str().unwrap());
    world.ok("DELETE", &stop, "").await;
    assert_eq!(world.exit(&upid).await, "received interrupt");
    assert_eq!(world.config("").await["lock"], "snapshot");
    world.sim.with_vm(100, |vm| vm.config.remove("lock"));
    assert_eq!(
        task(&world, "POST", &format!("{path}/s1/rollback"), "").await,
        "unable to rollback to incomplete snapshot (snapstate = prepare)"
    );
}

#[tokio::test]
async fn a_destroyed_vm_without_quorum_has_lost_its_disks_already() {
    let world = World::new(cluster().node("pve3")).await;
    world.put(&format!("scsi1={OWN}")).await;
    world.sim.stop_vm(100).unwrap();
    world.sim.quorum(Some(false));
    let exit = task(&world, "DELETE", VM, "").await;
    assert!(exit.ends_with("' - Permission denied"), "{exit}");
    assert!(!volumes(&world).contains(OWN));
    assert!(world.sim.state().vms.contains_key(&100));
}

#[tokio::test]
async fn a_base_of_linked_clones_is_not_deleted() {
    let world = World::new(cluster()).await;
    allocate(&world, "shared", 9999, "base-9999-disk-0.qcow2").await;
    world.sim.edit(|state| {
        let at = state
            .volumes
            .iter()
            .position(|v| v.name.contains("base-"))
            .unwrap();
        let mut clone = state.volumes[at].clone();
        clone.name = format!("{}/101/vm-101-disk-0.qcow2", clone.name);
        state.volumes.push(clone);
    });
    let base = "shared:9999/base-9999-disk-0.qcow2";
    let path = format!("/nodes/pve1/storage/shared/content/{base}");
    assert_eq!(
        task(&world, "DELETE", &path, "").await,
        "base volume '9999/base-9999-disk-0.qcow2' is still in use by linked clones"
    );
    let list = "/nodes/pve1/storage/shared/content?vmid=101";
    let clone = world.ok("GET", list, "").await[0]["volid"].clone();
    let path = format!(
        "/nodes/pve1/storage/shared/content/{}",
        clone.as_str().unwrap()
    );
    assert_eq!(task(&world, "DELETE", &path, "").await, "OK");
    let path = format!("/nodes/pve1/storage/shared/content/{base}");
    assert_eq!(task(&world, "DELETE", &path, "").await, "OK");
}

#[tokio::test]
async fn a_full_storage_keeps_a_disk_from_being_made_with_its_vm() {
    let world = World::new(cluster()).await;
    world.sim.edit(|state| {
        let thin = state.storages.get_mut("thin").unwrap();
        thin.quirks.insert(Quirk::Full);
    });
    let (status, body) = world.put("scsi1=thin:1").await;
    assert_eq!(status, 500);
    assert!(
        body["message"]
            .as_str()
            .unwrap()
            .contains("reached threshold")
    );
    assert!(world.config("").await.get("scsi1").is_none());
}
