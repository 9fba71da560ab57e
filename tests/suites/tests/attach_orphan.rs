//! Disks that QEMU has and no config names: their slots are taken, and what is in them is nobody's proof.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

use harness::truth::{Truth, volid};
use harness::world::{SHARED, World, tenant};
use tonic::Code;

/// One VM whose QEMU has the first of two volumes in `scsi1`, and no config names it.
async fn orphaned() -> (World, String, String) {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let other = caller.create("pvc-2", SHARED, None).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    world.sim.with_vm(101, |vm| vm.config.remove("scsi1"));
    let status = caller.unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    (world, volume, other)
}

/// Deleted from the config, still in QEMU: it may be the disk that is to go.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_only_qemu_knows_keeps_unpublish_from_ending_and_its_slot_from_being_used() {
    for restarted in [false, true] {
        let (mut world, volume, other) = orphaned().await;
        if restarted {
            // The new process has neither slots in mind nor looked at QEMU.
            world.crash_controller().await.unwrap();
        }
        let caller = world.caller();
        let (context, requests) = world.counted(caller.publish(&other, 101)).await;
        context.unwrap();
        assert!(requests <= 5, "{:?}", world.sim.request_counts());
        assert_eq!(Truth::of(&world.sim).slots(101, &other), ["scsi2"]);
        caller.unpublish(&volume, 101).await.unwrap_err();
        caller.publish(&other, 101).await.unwrap();
        caller.unpublish(&other, 101).await.unwrap();

        world.sim.stop_vm(101).unwrap();
        world.sim.start_vm(101).unwrap();
        caller.unpublish(&volume, 101).await.unwrap();
        caller.publish(&other, 101).await.unwrap();
    }
}

/// Other hands write another disk into the slot: PVE finds a device there and says that it is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_only_qemu_knows_is_not_explained_by_one_that_was_put_in_its_slot_later() {
    let (world, volume, other) = orphaned().await;
    let caller = world.caller();
    let line = format!("{},size=64M,wwn=0x5056432d49443031", volid(&other));
    world
        .sim
        .with_vm(101, |vm| vm.config.insert("scsi1".to_owned(), line));
    for status in [
        caller.unpublish(&volume, 101).await.unwrap_err(),
        caller.publish(&other, 101).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
}

/// What QEMU lets go of late is no orphan any more, and a restart of the controller costs no request too many.
#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_qemu_lets_go_of_is_forgotten() {
    let (world, volume, other) = orphaned().await;
    let caller = world.caller();
    world.sim.with_vm(101, |vm| vm.devices.remove("scsi1"));
    caller.unpublish(&volume, 101).await.unwrap();
    let line = format!("{},size=64M,wwn=0x5056432d49443031", volid(&other));
    world.sim.stop_vm(101).unwrap();
    world
        .sim
        .with_vm(101, |vm| vm.config.insert("scsi1".to_owned(), line));
    world.sim.start_vm(101).unwrap();
    caller.publish(&other, 101).await.unwrap();
}
