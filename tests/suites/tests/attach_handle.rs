//! A handle's form is the tenant's word: whether other hosts reach the disk is read from PVE.

use harness::truth::{Truth, mutations, volid};
use harness::world::{FILES, SHARED, World, tenant};
use tonic::Code;

const NONE: [String; 0] = [];

/// B27: the PV names a host, but all hosts share the storage, and a VM of another host has the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_handle_with_a_host_hides_no_holder_on_a_shared_storage() {
    let world = World::start(tenant(&[(101, "pve1"), (201, "pve2")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 201).await.unwrap();
    let forged = volume.replacen("r1//", "r1/pve1/", 1);
    assert_eq!(volid(&forged), volid(&volume));
    world.sim.clear_requests();
    let published = caller.publish(&forged, 101).await.unwrap_err();
    assert_eq!(published.code(), Code::FailedPrecondition);
    let deleted = caller.delete(&forged).await.unwrap_err();
    assert_eq!(deleted.code(), Code::FailedPrecondition);
    assert_eq!(mutations(&world.sim.requests()), NONE);
    let truth = Truth::of(&world.sim);
    assert_eq!(
        truth.holders(&volume).into_iter().collect::<Vec<_>>(),
        [201]
    );
    assert_eq!(truth.disks().len(), 1);
}

/// Without a host the handle could mean the disk of any of them, and PVE deletes on the wrong one without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_handle_without_a_host_is_refused_on_a_storage_that_is_not_shared() {
    let world = World::start(tenant(&[(101, "pve1"), (201, "pve2")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve2")).await.unwrap();
    let forged = volume.replacen("r1/pve2/", "r1//", 1);
    world.sim.clear_requests();
    for status in [
        caller.publish(&forged, 201).await.unwrap_err(),
        caller.delete(&forged).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    }
    assert_eq!(mutations(&world.sim.requests()), NONE);
    assert_eq!(Truth::of(&world.sim).disks().len(), 1);
}
