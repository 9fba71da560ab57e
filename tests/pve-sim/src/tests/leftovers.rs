//! What is left in a running QEMU and what PVE makes of it (facts 11 and 12, `QemuServer.pm` `vm_deviceplug` and
//! `vm_deviceunplug` of qemu-server 9.2.6).

use super::{World, cluster};
use crate::ClockMode;

const A: &str = "local:9999/vm-9999-a.raw";
const B: &str = "local:9999/vm-9999-b.raw";

fn volid(world: &World, slot: &str) -> String {
    world
        .sim
        .with_vm(100, |vm| vm.devices[slot].volid.clone())
        .unwrap()
}

/// `vm_devices_list` finds `scsi1`, and plugging ends there: QEMU keeps the old disk, the config names the new one.
#[tokio::test]
async fn a_disk_that_only_qemu_knows_makes_another_plug_into_its_slot_a_success_without_effect() {
    for (method, options) in [("PUT", ""), ("POST", "&background_delay=10")] {
        let world = World::new(cluster()).await;
        world.put(&format!("scsi1={A}")).await;
        world.sim.with_vm(100, |vm| vm.config.remove("scsi1"));
        let path = "/nodes/pve1/qemu/100/config";
        let (status, body) = world
            .call(method, path, &format!("scsi1={B}{options}"))
            .await;
        assert_eq!((status, &body["data"]), (200, &serde_json::Value::Null));
        assert_eq!(
            world.config("?current=1").await["scsi1"],
            format!("{B},size=1G")
        );
        assert!(world.pending("scsi1").await.get("pending").is_none());
        assert_eq!(volid(&world, "scsi1"), A);
        // Unplugging takes QEMU's disk, and the line of the other one.
        assert_eq!(world.put("delete=scsi1").await.0, 200);
        assert!(world.blockstat().await.is_empty());
        assert_eq!(world.put(&format!("scsi1={B}")).await.0, 200);
        assert_eq!(volid(&world, "scsi1"), B);
    }
}

/// `cannot delete 'scsi1' - not set in current configuration!` is only a warning (`Qemu.pm` `update_vm_api`).
#[tokio::test]
async fn detaching_what_only_qemu_knows_does_nothing_and_says_so_to_nobody() {
    let world = World::new(cluster()).await;
    world.put(&format!("scsi1={A}")).await;
    world.sim.with_vm(100, |vm| vm.config.remove("scsi1"));
    assert_eq!(world.put("delete=scsi1").await.0, 200);
    assert_eq!(world.blockstat().await, ["scsi1"]);
    world.sim.stop_vm(100).unwrap();
    world.sim.start_vm(100).unwrap();
    assert!(world.blockstat().await.is_empty());
}

/// The other kind of leftover, a block node without a disk, refuses (running.md 11b D).
#[tokio::test]
async fn a_block_node_without_a_disk_refuses_the_next_plug_and_leaves_it_pending() {
    let world = World::new(cluster()).await;
    world
        .sim
        .with_vm(100, |vm| vm.leaked.insert("scsi1".into()));
    let path = "/nodes/pve1/qemu/100/config";
    let upid = world.ok("POST", path, &format!("scsi1={B}")).await;
    assert_eq!(
        world.exit(&upid).await,
        "400 Parameter verification failed. scsi1: hotplug problem - VM 100 qmp command 'object-add' failed - \
         attempt to add duplicate property 'throttle-drive-scsi1' to object (type 'container') "
    );
    assert_eq!(
        world.pending("scsi1").await["pending"],
        format!("{B},size=1G")
    );
    assert!(world.blockstat().await.is_empty());
}

/// The bus of virtio-scsi-pci goes with the last disk that QEMU has; one that never got there does not count.
#[tokio::test]
async fn a_controller_leaves_with_the_last_disk_that_qemu_has_whatever_the_config_lists() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 200 })).await;
    world.sim.with_vm(100, |vm| {
        vm.config.insert("scsihw".into(), "virtio-scsi-pci".into())
    });
    world
        .sim
        .vm_faults(100, |faults| faults.hotplug_fail_silent = 1);
    world.put(&format!("scsi2={B}")).await;
    world.put(&format!("scsi1={A}")).await;
    world.sim.vm_faults(100, |faults| faults.unplug_busy = 1);
    let (status, body) = world.put("delete=scsi1").await;
    assert_eq!(
        (status, &body["errors"]["scsi1"]),
        (
            400,
            &"hotplug problem - error on hot-unplugging device 'scsihw0' - still busy in guest?\n"
                .into()
        )
    );
    assert!(world.blockstat().await.is_empty());
}

/// What is plugged into a controller that is on its way out goes with it (running.md 11d).
#[tokio::test]
async fn a_guest_that_lets_go_late_takes_the_disk_that_was_plugged_meanwhile() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 200 })).await;
    world.put(&format!("scsi1={A}")).await;
    world.sim.vm_faults(100, |faults| faults.unplug_busy = 1);
    assert_eq!(world.put("delete=scsi1").await.0, 400);
    assert_eq!(world.put("delete=scsi1").await.0, 200);
    assert_eq!(world.put(&format!("scsi1={B}")).await.0, 200);
    assert_eq!(world.blockstat().await, ["scsi1"]);
    world.sim.resume_vm(100).unwrap();
    assert!(world.blockstat().await.is_empty());
    world.put("delete=scsi1").await;
    assert_eq!(world.put(&format!("scsi1={A}")).await.0, 400);
}

/// `get_bootdisks` reads the config, not the pending boot order that the same request writes.
#[tokio::test]
async fn a_disk_that_the_vm_boots_from_is_not_unplugged() {
    let world = World::new(cluster()).await;
    world.put(&format!("scsi0={A}")).await;
    world.sim.with_vm(100, |vm| {
        vm.config.insert("boot".into(), "order=scsi0".into())
    });
    let (status, body) = world.put("delete=scsi0").await;
    assert_eq!(
        (status, &body["errors"]["scsi0"]),
        (
            400,
            &"hotplug problem - can't unplug bootdisk 'scsi0'\n".into()
        )
    );
    assert_eq!(world.blockstat().await, ["scsi0"]);
    assert_eq!(world.pending("scsi0").await["delete"], 1);
}
