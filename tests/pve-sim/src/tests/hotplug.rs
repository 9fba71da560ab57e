use super::{World, cluster};
use crate::ClockMode;
use std::time::Duration;

const A: &str = "local:9999/vm-9999-a.raw";
const B: &str = "local:9999/vm-9999-b.raw";

#[tokio::test]
async fn an_attached_disk_is_in_config_pending_and_blockstat_and_detach_takes_it_out_of_all() {
    let world = World::new(cluster()).await;
    assert_eq!(world.put(&format!("scsi1={A},backup%3D0")).await.0, 200);
    assert_eq!(
        world.config("").await["scsi1"],
        format!("{A},backup=0,size=1G")
    );
    assert_eq!(world.blockstat().await, ["scsi1"]);
    assert_eq!(world.put("delete=scsi1").await.0, 200);
    assert!(world.config("?current=1").await.get("scsi1").is_none());
    assert!(world.blockstat().await.is_empty());
    // A foreign volume leaves no unusedN and is still there.
    assert!(world.config("").await.get("unused0").is_none());
    world
        .ok("GET", &format!("/nodes/pve1/storage/local/content/{A}"), "")
        .await;
}

#[tokio::test]
async fn detaching_an_own_volume_makes_it_unused_and_deleting_that_destroys_it() {
    let world = World::new(cluster()).await;
    let own = "local:100/vm-100-disk-0.raw";
    world.put(&format!("scsi1={own}")).await;
    world.put("delete=scsi1").await;
    assert_eq!(world.config("").await["unused0"], own);
    assert_eq!(world.put("delete=unused0").await.0, 200);
    assert_eq!(
        world
            .call(
                "GET",
                &format!("/nodes/pve1/storage/local/content/{own}"),
                ""
            )
            .await
            .0,
        500
    );
}

#[tokio::test]
async fn setting_an_occupied_slot_evicts_the_other_volume_without_a_word() {
    let world = World::new(cluster()).await;
    world.put(&format!("scsi1={A}")).await;
    assert_eq!(world.put(&format!("scsi1={B}")).await.0, 200);
    assert_eq!(
        world.config("?current=1").await["scsi1"],
        format!("{B},size=1G")
    );
    assert_eq!(
        world
            .sim
            .with_vm(100, |vm| vm.devices["scsi1"].volid.clone())
            .unwrap(),
        B
    );
}

#[tokio::test]
async fn an_evicted_own_volume_becomes_unused() {
    let world = World::new(cluster()).await;
    let own = "local:100/vm-100-disk-0.raw";
    world.put(&format!("scsi1={own}")).await;
    world.put(&format!("scsi1={A}")).await;
    assert_eq!(world.config("").await["unused0"], own);
}

#[tokio::test]
async fn deleting_what_is_only_pending_leaves_nothing() {
    let world = World::new(cluster()).await;
    world
        .sim
        .with_vm(100, |vm| vm.config.insert("hotplug".into(), "0".into()));
    world.put(&format!("scsi1={A}")).await;
    let pending = |vm: &mut crate::Vm| (vm.pending.len(), vm.pending_delete.len());
    assert_eq!(world.sim.with_vm(100, pending).unwrap(), (1, 0));
    assert_eq!(world.put("delete=scsi1").await.0, 200);
    assert_eq!(world.sim.with_vm(100, pending).unwrap(), (0, 0));
}

#[tokio::test]
async fn a_silent_hotplug_failure_shows_only_in_blockstat_and_poisons_the_slot() {
    let world = World::new(cluster()).await;
    world
        .sim
        .vm_faults(100, |faults| faults.hotplug_fail_silent = 1);
    assert_eq!(world.put(&format!("scsi1={A}")).await.0, 200);
    assert_eq!(
        world.config("?current=1").await["scsi1"],
        format!("{A},size=1G")
    );
    assert!(world.pending("scsi1").await.get("pending").is_none());
    assert!(world.blockstat().await.is_empty());
    assert_eq!(world.put("delete=scsi1").await.0, 200);
    let (status, body) = world.put(&format!("scsi1={B}")).await;
    assert_eq!(status, 400);
    let text = "hotplug problem - VM 100 qmp command 'object-add' failed - attempt to add duplicate property 'throttle-drive-scsi1' to object (type 'container')\n";
    assert_eq!(body["errors"]["scsi1"], text);
    assert_eq!(
        world.pending("scsi1").await["pending"],
        format!("{B},size=1G")
    );
    // Plain config shows the pending value as if it were real.
    assert_eq!(world.config("").await["scsi1"], format!("{B},size=1G"));
    assert!(world.config("?current=1").await.get("scsi1").is_none());
    // Another slot works; so does this one once QEMU has restarted.
    assert_eq!(world.put(&format!("scsi2={A}")).await.0, 200);
    world.sim.stop_vm(100).unwrap();
    world.sim.start_vm(100).unwrap();
    world.put("delete=scsi1").await;
    assert_eq!(world.put(&format!("scsi1={B}")).await.0, 200);
    assert_eq!(world.blockstat().await, ["scsi1", "scsi2"]);
}

#[tokio::test]
async fn without_disk_in_hotplug_changes_stay_pending_and_a_restart_applies_them() {
    let world = World::new(cluster()).await;
    world.sim.with_vm(100, |vm| {
        vm.config.insert("hotplug".into(), "network,usb".into())
    });
    assert_eq!(world.put(&format!("scsi1={A}")).await.0, 200);
    assert_eq!(
        world.pending("scsi1").await["pending"],
        format!("{A},size=1G")
    );
    assert!(world.blockstat().await.is_empty());
    for power in ["stop", "start"] {
        let upid = world
            .ok("POST", &format!("/nodes/pve1/qemu/100/status/{power}"), "")
            .await;
        assert_eq!(world.exit(&upid).await, "OK");
    }
    assert_eq!(world.blockstat().await, ["scsi1"]);
    assert_eq!(
        world.pending("scsi1").await["value"],
        format!("{A},size=1G")
    );
}

#[tokio::test]
async fn a_paused_guest_keeps_the_controller_but_loses_the_disk() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 200 })).await;
    world.put(&format!("scsi1={A}")).await;
    world.sim.pause_vm(100).unwrap();
    let before = world.sim.now();
    let (status, body) = world.put("delete=scsi1").await;
    assert_eq!(status, 400);
    assert_eq!(
        body["errors"]["scsi1"],
        "hotplug problem - error on hot-unplugging device 'virtioscsi1' - still busy in guest?\n"
    );
    assert!(world.sim.now().checked_sub(before).unwrap() >= Duration::from_secs(16));
    assert_eq!(world.pending("scsi1").await["delete"], 1);
    assert!(world.config("").await.get("scsi1").is_none());
    assert_eq!(
        world.config("?current=1").await["scsi1"],
        format!("{A},size=1G")
    );
    assert!(world.blockstat().await.is_empty());
    assert_eq!(world.put("delete=scsi1").await.0, 200);
    assert!(world.pending("scsi1").await.is_null());
    // What is attached to the leaving controller is accepted, and gone at resume.
    assert_eq!(world.put(&format!("scsi1={A}")).await.0, 200);
    assert_eq!(world.blockstat().await, ["scsi1"]);
    world.sim.resume_vm(100).unwrap();
    assert!(world.blockstat().await.is_empty());
}

#[tokio::test]
async fn an_unplug_that_qemu_refuses_leaves_the_disk_and_a_pending_delete() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 200 })).await;
    world.put(&format!("scsi1={A}")).await;
    world.sim.vm_faults(100, |faults| faults.unplug_stuck = 1);
    let (status, body) = world.put("delete=scsi1").await;
    assert_eq!(
        (status, &body["errors"]["scsi1"]),
        (
            400,
            &"hotplug problem - error on hot-unplugging device 'scsi1' - still busy in guest?\n"
                .into()
        )
    );
    assert_eq!(world.blockstat().await, ["scsi1"]);
    assert_eq!(world.put("revert=scsi1").await.0, 200);
    assert!(world.pending("scsi1").await.get("delete").is_none());
}

#[tokio::test]
async fn cold_options_of_a_plugged_disk_stay_pending_others_are_written_at_once() {
    let world = World::new(cluster()).await;
    world.put(&format!("scsi1={A}")).await;
    world.put(&format!("scsi1={A},ssd%3D1")).await;
    assert_eq!(
        world.pending("scsi1").await["pending"],
        format!("{A},size=1G,ssd=1")
    );
    world.put("revert=scsi1").await;
    assert!(world.pending("scsi1").await.get("pending").is_none());
    world.put(&format!("scsi1={A},serial%3Dx")).await;
    assert_eq!(
        world.config("?current=1").await["scsi1"],
        format!("{A},serial=x,size=1G")
    );
    assert_eq!(
        world
            .sim
            .with_vm(100, |vm| vm.devices["scsi1"].serial.clone())
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn two_vms_may_hold_one_volume_and_nothing_says_no() {
    let world = World::new(cluster()).await;
    let shared = "shared:9999/vm-9999-s.raw";
    assert_eq!(world.put(&format!("scsi1={shared}")).await.0, 200);
    let (status, _) = world
        .call(
            "PUT",
            "/nodes/pve2/qemu/101/config",
            &format!("scsi1={shared}"),
        )
        .await;
    assert_eq!(status, 200);
    assert_eq!(world.sim.disks(101), ["scsi1"]);
}

#[tokio::test]
async fn blockstat_is_missing_while_qmp_is_busy_and_on_a_stopped_vm() {
    let world = World::new(cluster()).await;
    world.sim.vm_faults(100, |faults| faults.qmp_busy = 1);
    let path = "/nodes/pve1/qemu/100/status/current";
    assert!(world.ok("GET", path, "").await.get("blockstat").is_none());
    assert!(world.ok("GET", path, "").await.get("blockstat").is_some());
    world.sim.stop_vm(100).unwrap();
    let stopped = world.ok("GET", path, "").await;
    assert!(stopped.get("blockstat").is_none());
    assert_eq!(stopped["qmpstatus"], "stopped");
}
