//! Unpublish when the Node, the VM or the volume is no longer there: detached means seen to be detached, or the VM proved
//! gone; a VM that can't be seen is neither.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

use harness::truth::{Truth, mutations};
use harness::world::{FILES, POOL, SHARED, World, tenant, uuid};
use tonic::Code;

const NONE: [String; 0] = [];

async fn attached() -> (World, String) {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    (world, volume)
}

/// B21: the Node object is gone, the VM still runs with the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_detached_whether_or_not_its_node_object_exists() {
    let (world, volume) = attached().await;
    world.caller().unpublish(&volume, 101).await.unwrap();
    assert!(world.sim.disks(101).is_empty());
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// B22: the VM is gone.
#[tokio::test(flavor = "multi_thread")]
async fn detach_from_a_vm_that_is_proved_gone_succeeds() {
    let (world, volume) = attached().await;
    world.sim.edit(|state| state.vms.remove(&101));
    world.caller().unpublish(&volume, 101).await.unwrap();
    world.caller().unpublish(&volume, 101).await.unwrap();
    world.caller().publish(&volume, 102).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// B22: its VMID was given to another VM within minutes.
#[tokio::test(flavor = "multi_thread")]
async fn detach_from_a_vm_whose_number_was_reused_succeeds_and_leaves_the_new_vm_alone() {
    let (world, volume) = attached().await;
    world.sim.with_vm(101, |vm| {
        vm.config.insert(
            "smbios1".to_owned(),
            "uuid=12345678-0000-4000-a000-000000000101".to_owned(),
        );
        vm.config.insert("name".to_owned(), "worker-new".to_owned());
    });
    world.sim.clear_requests();
    // The new number's owner, or the old VM under another UUID: it has the disk.
    let status = world.caller().unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    world.sim.with_vm(101, |vm| {
        vm.config.remove("scsi1");
        vm.devices.remove("scsi1");
    });
    world.caller().unpublish(&volume, 101).await.unwrap();
    assert_eq!(mutations(&world.sim.requests()), NONE);
}

/// Restored under another number: the UUID is the identity.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_found_by_its_uuid_under_another_number() {
    let (world, volume) = attached().await;
    world.sim.edit(|state| {
        let vm = state.vms.remove(&101).unwrap();
        state.vms.insert(150, vm);
        let pool = state.pools.get_mut(POOL).unwrap();
        pool.vms.remove(&101);
        pool.vms.insert(150);
    });
    world.caller().unpublish(&volume, 101).await.unwrap();
    assert!(world.sim.disks(150).is_empty());
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// The right to see it is lost: no conclusion.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_can_not_be_seen_any_more_is_not_gone() {
    let (world, volume) = attached().await;
    world
        .sim
        .edit(|state| state.pools.get_mut(POOL).unwrap().vms.remove(&101));
    let caller = world.caller();
    let status = caller.unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(world.controller_log().contains("VM.Audit"));

    // Without any VM in sight, not even "free" proves anything.
    world.sim.edit(|state| {
        state.pools.get_mut(POOL).unwrap().vms.clear();
        state.vms.remove(&101);
    });
    let status = caller.unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    // And a UUID without a number can't be asked about.
    world
        .sim
        .edit(|state| state.pools.get_mut(POOL).unwrap().vms.insert(102));
    let status = caller.unpublish_as(&volume, &uuid(101)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    caller.unpublish(&volume, 101).await.unwrap();
}

/// B22: the volume is gone, the VM or both are; an empty node id means everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_nowhere_is_detached_and_an_empty_node_id_means_everywhere() {
    let (world, volume) = attached().await;
    let caller = world.caller();
    caller.unpublish_as(&volume, "").await.unwrap();
    assert!(Truth::of(&world.sim).holders(&volume).is_empty());
    caller.unpublish_as(&volume, "").await.unwrap();
    caller.delete(&volume).await.unwrap();
    caller.unpublish(&volume, 101).await.unwrap();
    caller.unpublish(&volume, 102).await.unwrap();
    world.sim.edit(|state| state.vms.remove(&101));
    caller.unpublish(&volume, 101).await.unwrap();
    let status = caller
        .unpublish_as("r1//shared/9999/vm-9999-pvc-1.raw", "not a node")
        .await;
    assert_eq!(status.unwrap_err().code(), Code::InvalidArgument);
}

/// A node id of the former driver: the volume is taken from the VM that it names, never from another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_node_id_is_a_hint_that_has_to_fit() {
    let (world, volume) = attached().await;
    let caller = world.caller();
    for other in ["worker-102", "worker-102/102"] {
        let status = caller.unpublish_as(&volume, other).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        assert_eq!(Truth::of(&world.sim).holders(&volume).len(), 1);
    }
    caller.unpublish_as(&volume, "worker-101").await.unwrap();
    assert!(Truth::of(&world.sim).holders(&volume).is_empty());
    caller.unpublish_as(&volume, "worker-102").await.unwrap();
    let local = caller.create("pvc-2", FILES, Some("pve1")).await.unwrap();
    caller.publish(&local, 101).await.unwrap();
    caller.unpublish_as(&local, "any-name/101").await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// B22: a volume that is proved not to exist is detached, whoever can't be asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_gone_is_detached_even_where_the_vm_can_not_be_asked() {
    let (world, volume) = attached().await;
    let caller = world.caller();
    world
        .sim
        .edit(|state| state.pools.get_mut(POOL).unwrap().vms.remove(&101));
    assert_eq!(
        caller.unpublish(&volume, 101).await.unwrap_err().code(),
        Code::Unavailable
    );
    let former = caller
        .unpublish_as(&volume, "worker-101/101")
        .await
        .unwrap_err();
    assert_eq!(former.code(), Code::Unavailable, "{former:?}");
    world.sim.edit(|state| state.volumes.clear());
    caller.unpublish(&volume, 101).await.unwrap();
}
