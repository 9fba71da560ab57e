use super::{World, cluster};
use serde_json::Value;

async fn alloc(world: &World, storage: &str, body: &str) -> (u16, Value) {
    world
        .call(
            "POST",
            &format!("/nodes/pve1/storage/{storage}/content"),
            body,
        )
        .await
}

#[tokio::test]
async fn names_are_free_on_dir_and_bound_to_the_owner_on_lvmthin() {
    let world = World::new(cluster()).await;
    for (storage, file, expected) in [
        ("local", "vm-8888-x.raw", Ok("local:9999/vm-8888-x.raw")),
        (
            "local",
            "vm-9999-x",
            Err("unable to parse volume filename 'vm-9999-x'\n"),
        ),
        ("thin", "vm-9999-x", Ok("thin:vm-9999-x")),
        (
            "thin",
            "vm-8888-x",
            Err("illegal name 'vm-8888-x' - should be 'vm-9999-*'\n"),
        ),
    ] {
        let (status, body) = alloc(
            &world,
            storage,
            &format!("vmid=9999&size=1M&filename={file}"),
        )
        .await;
        match expected {
            Ok(volid) => assert_eq!((status, &body["data"]), (200, &volid.into())),
            Err(text) => assert_eq!((status, &body["message"]), (500, &text.into())),
        }
    }
}

#[tokio::test]
async fn sizes_are_kib_without_unit_and_lvm_rounds_to_extents() {
    let world = World::new(cluster()).await;
    for (storage, file, size, bytes) in [
        ("local", "x.raw", "1025", 1025_u64 << 10),
        ("thin", "vm-9999-x", "5000", 8 << 20),
    ] {
        let (_, body) = alloc(
            &world,
            storage,
            &format!("vmid=9999&size={size}&filename={file}"),
        )
        .await;
        let volid = body["data"].as_str().unwrap();
        let read = world
            .ok(
                "GET",
                &format!("/nodes/pve1/storage/{storage}/content/{volid}"),
                "",
            )
            .await;
        assert_eq!(read["size"], bytes);
    }
    // A file of no bytes is allocated and listed, but looking at it alone is an error.
    let (status, body) = alloc(&world, "local", "vmid=9999&size=0&filename=y.raw").await;
    assert_eq!(status, 200, "{body}");
    let path = "/nodes/pve1/storage/local/content/local:9999/y.raw";
    let (status, body) = world.call("GET", path, "").await;
    assert_eq!(
        (status, &body["message"]),
        (500, &"volume 'local:9999/y.raw' has size zero\n".into())
    );
}

#[tokio::test]
async fn an_existing_volume_is_named_as_each_storage_names_it() {
    let world = World::new(cluster()).await;
    let (status, body) = alloc(&world, "local", "vmid=9999&size=1M&filename=vm-9999-a.raw").await;
    assert_eq!(
        (status, &body["message"]),
        (
            500,
            &"disk image '/var/lib/local/images/9999/vm-9999-a.raw' already exists\n".into()
        )
    );
    alloc(&world, "thin", "vmid=9999&size=1M&filename=vm-9999-a").await;
    let (_, body) = alloc(&world, "thin", "vmid=9999&size=1M&filename=vm-9999-a").await;
    assert_eq!(
        body["message"],
        "lvcreate 'thin/vm-9999-a' error:   Logical Volume \"vm-9999-a\" already exists in volume group \"thin\"\n"
    );
}

#[tokio::test]
async fn absent_volumes_are_told_in_each_storages_words() {
    let world = World::new(cluster()).await;
    for (storage, volid, text) in [
        (
            "local",
            "local:9999/none.raw",
            "volume_size_info on 'local:9999/none.raw' failed - no format\n",
        ),
        (
            "thin",
            "thin:vm-9999-none",
            "can't get size of '/dev/thin/vm-9999-none':   Failed to find logical volume \"thin/vm-9999-none\"\n",
        ),
    ] {
        let (status, body) = world
            .call(
                "GET",
                &format!("/nodes/pve1/storage/{storage}/content/{volid}"),
                "",
            )
            .await;
        assert_eq!((status, &body["message"]), (500, &text.into()));
    }
}

#[tokio::test]
async fn deleting_a_missing_volume_succeeds_also_on_the_wrong_node_where_the_data_stays() {
    let world = World::new(cluster()).await;
    let volid = "local:9999/vm-9999-a.raw";
    let wrong = format!("/nodes/pve2/storage/local/content/{volid}");
    assert!(
        world
            .ok("DELETE", &format!("{wrong}?delay=5"), "")
            .await
            .is_null()
    );
    world
        .ok(
            "GET",
            &format!("/nodes/pve1/storage/local/content/{volid}"),
            "",
        )
        .await;
    let right = format!("/nodes/pve1/storage/local/content/{volid}");
    for _ in 0..2 {
        let upid = world.ok("DELETE", &right, "").await;
        assert_eq!(world.exit(&upid).await, "OK");
    }
    assert_eq!(world.call("GET", &right, "").await.0, 500);
}

#[tokio::test]
async fn a_volume_that_a_running_vm_uses_is_deleted_without_asking() {
    let world = World::new(cluster()).await;
    let volid = "local:9999/vm-9999-a.raw";
    world.put(&format!("scsi1={volid}")).await;
    let upid = world
        .ok(
            "DELETE",
            &format!("/nodes/pve1/storage/local/content/{volid}"),
            "",
        )
        .await;
    assert_eq!(world.exit(&upid).await, "OK");
    world.sim.stop_vm(100).unwrap();
    assert_eq!(
        world.sim.start_vm(100),
        Err(format!("volume '{volid}' does not exist"))
    );
}

#[tokio::test]
async fn a_busy_storage_fails_as_many_deletions_as_told() {
    let world = World::new(cluster()).await;
    alloc(&world, "thin", "vmid=9999&size=1M&filename=vm-9999-a").await;
    world.sim.storage_busy("thin", 1);
    let path = "/nodes/pve1/storage/thin/content/thin:vm-9999-a?delay=5";
    let (status, body) = world.call("DELETE", path, "").await;
    assert_eq!(
        (status, &body["message"]),
        (
            500,
            &"lvremove 'thin/vm-9999-a' error:   Logical volume thin/vm-9999-a in use.\n".into()
        )
    );
    assert!(world.ok("DELETE", path, "").await.is_null());
}

#[tokio::test]
async fn the_storage_lock_is_the_hosts_or_the_clusters() {
    let world = World::new(cluster().clock(crate::ClockMode::Real { speed: 200 })).await;
    let time = std::time::Duration::from_secs(15);
    for (storage, text) in [
        (
            "local",
            "can't lock file '/var/lock/pve-manager/pve-storage-local' - got timeout\n",
        ),
        (
            "shared",
            "cfs-lock 'storage-shared' error: got lock request timeout\n",
        ),
    ] {
        world
            .sim
            .hold_storage_lock("pve1", storage, time)
            .await
            .unwrap();
        let (status, body) = alloc(&world, storage, "vmid=9999&size=1M&filename=x.raw").await;
        assert_eq!((status, &body["message"]), (500, &text.into()));
    }
}
