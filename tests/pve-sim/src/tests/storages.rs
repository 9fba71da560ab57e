//! Storages of all kinds: names, rounding, room, what is refused in use (api.md 4.3 to 4.6 and the plugins of pve-storage 9.1.7).

use std::time::Duration;

use serde_json::{Value, json};

use super::{World, cluster};
use crate::{Builder, ClockMode, Quirk, Storage, StorageKind};

fn kinds() -> Builder {
    let base = |kind| Storage {
        kind,
        vgname: "vg1".into(),
        pool: "tank".into(),
        path: "/mnt/pve/nfs".into(),
        total: 1 << 30,
        used: 0,
        ..Storage::default()
    };
    cluster()
        .storage("thick", base(StorageKind::Lvm))
        .storage("zfs", base(StorageKind::ZfsPool))
        .storage(
            "ceph",
            Storage {
                shared: true,
                ..base(StorageKind::Rbd)
            },
        )
        .storage(
            "nfs",
            Storage {
                shared: true,
                ..base(StorageKind::Nfs)
            },
        )
        .storage(
            "linstor",
            Storage {
                overhead: 64 << 10,
                quirks: [Quirk::Renames].into(),
                ..base(StorageKind::Drbd)
            },
        )
}

async fn allocate(world: &World, storage: &str, file: &str, size: &str) -> (u16, Value) {
    let path = format!("/nodes/pve1/storage/{storage}/content");
    let form = format!("vmid=9999&filename={file}&size={size}");
    world.call("POST", &path, &form).await
}

async fn size(world: &World, volid: &str) -> Value {
    let storage = volid.split(':').next().unwrap();
    let path = format!("/nodes/pve1/storage/{storage}/content/{volid}");
    let (status, body) = world.call("GET", &path, "").await;
    if status == 200 {
        body["data"]["size"].clone()
    } else {
        body["message"].clone()
    }
}

async fn delete(world: &World, volid: &str) -> String {
    let storage = volid.split(':').next().unwrap();
    let path = format!("/nodes/pve1/storage/{storage}/content/{volid}");
    let upid = world.ok("DELETE", &path, "").await;
    world.exit(&upid).await
}

#[tokio::test]
async fn each_kind_rounds_names_and_misses_in_its_own_way() {
    let world = World::new(kinds()).await;
    for (storage, file, volid, bytes, absent) in [
        (
            "thick",
            "vm-9999-a",
            "thick:vm-9999-a",
            8 << 20,
            "can't get size of '/dev/vg1/vm-9999-x':   Failed to find logical volume \"vg1/vm-9999-x\"\n",
        ),
        (
            "zfs",
            "vm-9999-a",
            "zfs:vm-9999-a",
            5 << 20,
            "zfs error: cannot open 'tank/vm-9999-x': dataset does not exist\n",
        ),
        (
            "ceph",
            "vm-9999-a",
            "ceph:vm-9999-a",
            5 << 20,
            "rbd error: rbd: error opening image vm-9999-x: (2) No such file or directory\n",
        ),
        (
            "nfs",
            "vm-9999-a.raw",
            "nfs:9999/vm-9999-a.raw",
            5000 << 10,
            "volume_size_info on 'nfs:9999/vm-9999-x.raw' failed - no format\n",
        ),
    ] {
        let (status, body) = allocate(&world, storage, file, "5000").await;
        assert_eq!((status, &body["data"]), (200, &json!(volid)));
        assert_eq!(size(&world, volid).await, bytes, "{storage}");
        assert_eq!(allocate(&world, storage, file, "5000").await.0, 500);
        assert_eq!(size(&world, &volid.replace("-a", "-x")).await, absent);
    }
    // Thick LVM compares no number; the others that name volumes so do.
    assert_eq!(allocate(&world, "thick", "vm-1-b", "1M").await.0, 200);
    let (_, body) = allocate(&world, "zfs", "vm-1-b", "1M").await;
    assert_eq!(
        body["message"],
        "illegal name 'vm-1-b' - should be 'vm-9999-*'\n"
    );
    let types = world.ok("GET", "/cluster/resources?type=storage", "").await;
    let has = |kind: &str| {
        types
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["plugintype"] == kind)
    };
    assert!(
        ["lvm", "zfspool", "rbd", "nfs", "drbd"]
            .into_iter()
            .all(has)
    );
}

#[tokio::test]
async fn a_plugin_may_give_another_name_and_more_bytes_than_asked_for() {
    let world = World::new(kinds()).await;
    let (status, body) = allocate(&world, "linstor", "vm-9999-pvc-1", "8M").await;
    let volid = body["data"].as_str().unwrap().to_owned();
    assert_eq!(status, 200);
    assert!(
        volid.starts_with("linstor:pm-") && volid.ends_with("_9999"),
        "{volid}"
    );
    assert_eq!(size(&world, &volid).await, (8 << 20) + (64 << 10));
    let list = "/nodes/pve1/storage/linstor/content?vmid=9999";
    assert_eq!(world.ok("GET", list, "").await[0]["volid"], volid.as_str());
    assert_eq!(world.put(&format!("scsi1={volid}")).await.0, 200);
    assert_eq!(world.blockstat().await, ["scsi1"]);
}

#[tokio::test]
async fn no_room_is_told_by_each_tool_and_counted_where_volumes_are_thick() {
    let world = World::new(kinds()).await;
    assert_eq!(allocate(&world, "thick", "vm-9999-a", "800M").await.0, 200);
    let (status, body) = allocate(&world, "thick", "vm-9999-b", "400M").await;
    let text = "lvcreate 'vg1/vm-9999-b' error:   Volume group \"vg1\" has insufficient free space (56 extents): 100 required.\n";
    assert_eq!((status, &body["message"]), (500, &json!(text)));
    let (_, body) = allocate(&world, "zfs", "vm-9999-b", "2G").await;
    let text = "zfs error: cannot create 'tank/vm-9999-b': out of space\n";
    assert_eq!(body["message"], text);
    let status = world
        .ok("GET", "/nodes/pve1/storage/thick/status", "")
        .await;
    assert_eq!(status["used"], 800_u64 << 20);
    world.sim.edit(|state| {
        for id in ["thin", "local"] {
            state
                .storages
                .get_mut(id)
                .unwrap()
                .quirks
                .insert(Quirk::Full);
        }
    });
    let (_, body) = allocate(&world, "thin", "vm-9999-b", "1M").await;
    let text = "lvcreate 'thin/vm-9999-b' error:   Cannot create new thin volume, free space in thin pool thin/data reached threshold.\n";
    assert_eq!(body["message"], text);
    let (_, body) = allocate(&world, "local", "b.raw", "1M").await;
    let text = body["message"].as_str().unwrap();
    assert!(
        text.starts_with("unable to create image: qemu-img: ")
            && text.ends_with("No space left on device\n")
    );
    world.put("scsi1=thick:vm-9999-a").await;
    let form = "disk=scsi1&size=2G";
    let upid = world.ok("PUT", "/nodes/pve1/qemu/100/resize", form).await;
    let exit = world.exit(&upid).await;
    assert!(
        exit.starts_with("error resizing volume '/dev/vg1/vm-9999-a':   Insufficient free space"),
        "{exit}"
    );
    assert_eq!(size(&world, "thick:vm-9999-a").await, 800_u64 << 20);
}

#[tokio::test]
async fn a_volume_in_use_goes_where_files_are_and_stays_where_the_tool_sees_it() {
    let world = World::new(kinds().clock(ClockMode::Real { speed: 50 })).await;
    let volumes = [
        (
            "thick",
            "vm-9999-a",
            "lvremove 'vg1/vm-9999-a' error:   Logical volume vg1/vm-9999-a in use.",
        ),
        (
            "thin",
            "vm-9999-a",
            "lvremove 'thin/vm-9999-a' error:   Logical volume thin/vm-9999-a in use.",
        ),
        (
            "zfs",
            "vm-9999-a",
            "zfs error: cannot destroy 'tank/vm-9999-a': dataset is busy",
        ),
        (
            "ceph",
            "vm-9999-a",
            "rbd rm 'vm-9999-a' error: rbd: error: image still has watchers",
        ),
        ("nfs", "vm-9999-a.raw", "OK"),
    ];
    for (at, (storage, file, verdict)) in volumes.into_iter().enumerate() {
        let (_, body) = allocate(&world, storage, file, "4M").await;
        let volid = body["data"].as_str().unwrap().to_owned();
        assert_eq!(world.put(&format!("scsi{at}={volid}")).await.0, 200);
        assert_eq!(delete(&world, &volid).await, verdict);
        assert_eq!(world.put(&format!("delete=scsi{at}")).await.0, 200);
        let again = delete(&world, &volid).await;
        assert_eq!(again, "OK", "{storage}");
    }
    // Absent by now: an error for some, not for others.
    assert_eq!(delete(&world, "thin:vm-9999-a").await, "OK");
    assert_eq!(delete(&world, "zfs:vm-9999-a").await, "OK");
    let text = "lvremove 'vg1/vm-9999-a' error:   Failed to find logical volume \"vg1/vm-9999-a\"";
    assert_eq!(delete(&world, "thick:vm-9999-a").await, text);
    let text = "rbd error: rbd: error opening image vm-9999-a: (2) No such file or directory";
    assert_eq!(delete(&world, "ceph:vm-9999-a").await, text);
    let path = "/nodes/pve1/storage/local/content/local:9999/vm-9999-z.raw";
    let upid = world.ok("DELETE", path, "").await;
    world.exit(&upid).await;
    let log = format!("/nodes/pve1/tasks/{}/log", upid.as_str().unwrap());
    let first = world.ok("GET", &log, "").await[0]["t"].clone();
    assert_eq!(
        first,
        "disk image '/var/lib/local/images/9999/vm-9999-z.raw' does not exist"
    );
}

#[tokio::test]
async fn a_zvol_that_is_not_there_is_waited_for() {
    let world = World::new(kinds().clock(ClockMode::Real { speed: 50 })).await;
    let before = world.sim.now();
    let (status, body) = world.put("scsi1=zfs:vm-9999-none").await;
    let text = "timeout: no zvol device link for 'vm-9999-none' found after 10 sec.\n";
    assert_eq!((status, &body["message"]), (500, &json!(text)));
    assert!(world.sim.now().checked_sub(before).unwrap() >= Duration::from_secs(10));
}

#[tokio::test]
async fn a_storage_that_does_not_answer_is_listed_without_figures_and_refuses_work() {
    let world = World::new(kinds()).await;
    world.sim.edit(|state| {
        let nfs = state.storages.get_mut("nfs").unwrap();
        nfs.quirks.insert(Quirk::Unreachable);
    });
    let (status, body) = allocate(&world, "nfs", "a.raw", "1M").await;
    let text = "storage 'nfs' is not online\n";
    assert_eq!((status, &body["message"]), (500, &json!(text)));
    let told = world.ok("GET", "/nodes/pve1/storage/nfs/status", "").await;
    assert_eq!((&told["active"], &told["total"]), (&json!(0), &json!(0)));
    let rows = world.ok("GET", "/cluster/resources?type=storage", "").await;
    let mut rows = rows.as_array().unwrap().iter();
    let row = rows.find(|row| row["id"] == "storage/pve1/nfs").unwrap();
    assert_eq!(
        (&row["status"], row.get("maxdisk")),
        (&json!("unknown"), None)
    );
}
