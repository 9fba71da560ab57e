use super::{World, cluster};

const A: &str = "local:9999/vm-9999-a.raw";

#[tokio::test]
async fn moving_a_foreign_disk_renames_it_and_leaves_the_source_unused_without_asking_whose_it_is()
{
    let world = World::new(cluster()).await;
    world.put(&format!("scsi1={A}")).await;
    let path = "/nodes/pve1/qemu/100/move_disk";
    let upid = world.ok("POST", path, "disk=scsi1&storage=thin").await;
    assert_eq!(world.exit(&upid).await, "OK");
    let config = world.config("?current=1").await;
    assert_eq!(config["scsi1"], "thin:vm-100-disk-0,size=1G");
    assert_eq!(config["unused0"], A);
    let (status, body) = world.call("POST", path, "disk=scsi9&storage=thin").await;
    assert_eq!(
        (status, &body["message"]),
        (500, &"disk 'scsi9' does not exist\n".into())
    );
}

#[tokio::test]
async fn a_disk_goes_to_another_vm_only_from_a_stopped_one_and_under_a_new_name() {
    let builder = cluster().vm_with(102, "pve1", &[("name", "other")], false);
    let world = World::new(builder).await;
    world.put("scsi1=local:100/vm-100-disk-0.raw").await;
    let path = "/nodes/pve1/qemu/100/move_disk";
    let (status, body) = world.call("POST", path, "disk=scsi1&target-vmid=102").await;
    let text = "Cannot move disk to another VM while the source VM is running - detach first\n";
    assert_eq!((status, &body["message"]), (500, &text.into()));
    world.sim.stop_vm(100).unwrap();
    let upid = world.ok("POST", path, "disk=scsi1&target-vmid=102").await;
    assert_eq!(world.exit(&upid).await, "OK");
    let other = world.ok("GET", "/nodes/pve1/qemu/102/config", "").await;
    assert_eq!(other["scsi1"], "local:102/vm-102-disk-0.raw,size=1G");
    assert!(world.config("").await.get("scsi1").is_none());
}

#[tokio::test]
async fn a_clone_copies_foreign_disks_and_a_migration_refuses_local_ones() {
    let world = World::new(cluster()).await;
    world.put(&format!("scsi1={A}")).await;
    let upid = world
        .ok("POST", "/nodes/pve1/qemu/100/clone", "newid=102&name=copy")
        .await;
    assert_eq!(world.exit(&upid).await, "OK");
    let clone = world.ok("GET", "/nodes/pve1/qemu/102/config", "").await;
    assert_eq!(clone["scsi1"], "local:102/vm-102-disk-0.raw,size=1G");
    assert_ne!(clone["smbios1"], world.config("").await["smbios1"]);
    let migrate = "/nodes/pve1/qemu/100/migrate";
    let (_, body) = world.call("POST", migrate, "target=pve2").await;
    assert_eq!(
        body["message"],
        "can't migrate running VM without --online\n"
    );
    let upid = world.ok("POST", migrate, "target=pve2&online=1").await;
    assert_eq!(world.exit(&upid).await, "migration aborted");
    world.put("delete=scsi1").await;
    world.put("scsi1=shared:9999/vm-9999-s.raw").await;
    let upid = world.ok("POST", migrate, "target=pve2&online=1").await;
    assert_eq!(world.exit(&upid).await, "OK");
    let moved = world.ok("GET", "/nodes/pve2/qemu/100/config", "").await;
    assert!(moved.get("lock").is_none());
    assert_eq!(world.sim.disks(100), ["scsi1"]);
}

#[tokio::test]
async fn a_snapshot_needs_storages_that_can_and_keeps_its_volumes_from_being_destroyed() {
    let world = World::new(cluster()).await;
    world.put(&format!("scsi1={A}")).await;
    let path = "/nodes/pve1/qemu/100/snapshot";
    let upid = world.ok("POST", path, "snapname=s1").await;
    assert_eq!(world.exit(&upid).await, "snapshot feature is not available");
    world.put("delete=scsi1").await;
    world.put("scsi1=thin:1").await;
    let upid = world.ok("POST", path, "snapname=s1").await;
    assert_eq!(world.exit(&upid).await, "OK");
    world.put("delete=scsi1").await;
    let (status, body) = world.put("delete=unused0").await;
    let text = "unable to delete 'thin:vm-100-disk-0' - volume is still in use (snapshot?)\n";
    assert_eq!((status, &body["message"]), (500, &text.into()));
    let upid = world.ok("DELETE", &format!("{path}/s1"), "").await;
    assert_eq!(world.exit(&upid).await, "OK");
    assert_eq!(world.put("delete=unused0").await.0, 200);
}
