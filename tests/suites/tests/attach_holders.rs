//! One holder per volume, the right VM and the right host: what is refused is refused before a write.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::collections::BTreeSet;

use futures_util::future::join_all;
use harness::truth::{Truth, mutations, volid};
use harness::world::{FILES, SHARED, World, tenant, uuid};
use pve_sim::Health;
use serde_json::json;
use tonic::Code;

const NONE: [String; 0] = [];

async fn refused(world: &World, volume: &str, node_id: &str, code: Code) -> String {
    world.sim.clear_requests();
    let caller = world.caller();
    let publish = caller.publish_as(volume, node_id, harness::csi::mount_capability());
    let status = publish.await.unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    assert_eq!(
        mutations(&world.sim.requests()),
        NONE,
        "a refusal touches nothing"
    );
    status.message().to_owned()
}

/// B27: PVE accepts a second holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_another_worker_holds_is_not_attached_again() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1"), (103, "pve2")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 103).await.unwrap();
    let message = refused(
        &world,
        &volume,
        &harness::world::node_id(101),
        Code::FailedPrecondition,
    )
    .await;
    assert!(message.contains("worker-103"), "{message}");
    caller.unpublish(&volume, 103).await.unwrap();

    for (key, half_done) in [("scsi9", true), ("virtio2", false)] {
        let line = volid(&volume);
        world.sim.with_vm(103, |vm| {
            let section = if half_done {
                &mut vm.pending
            } else {
                &mut vm.config
            };
            section.insert(key.to_owned(), line);
        });
        refused(
            &world,
            &volume,
            &harness::world::node_id(101),
            Code::FailedPrecondition,
        )
        .await;
        world
            .sim
            .with_vm(103, |vm| (vm.pending.remove(key), vm.config.remove(key)));
    }
    caller.publish(&volume, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// B27: two workers at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_workers_that_want_a_volume_at_once_one_gets_it() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let (first, second) = tokio::join!(caller.publish(&volume, 101), caller.publish(&volume, 102));
    assert_eq!(
        usize::from(first.is_ok()) + usize::from(second.is_ok()),
        1,
        "{first:?} {second:?}"
    );
    assert_eq!(Truth::of(&world.sim).holders(&volume).len(), 1);
}

/// B14: 595 from a host that is down.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_host_blocks_only_what_it_could_hold() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
        .await
        .unwrap();
    let caller = world.caller();
    let local = caller
        .create("pvc-local", FILES, Some("pve1"))
        .await
        .unwrap();
    let shared = caller.create("pvc-shared", SHARED, None).await.unwrap();
    let there = caller
        .create("pvc-there", FILES, Some("pve2"))
        .await
        .unwrap();
    caller.publish(&there, 102).await.unwrap();
    caller.publish(&shared, 102).await.unwrap();
    world.sim.node_health("pve2", Health::Offline);
    caller.publish(&local, 101).await.unwrap();
    refused(
        &world,
        &shared,
        &harness::world::node_id(101),
        Code::Unavailable,
    )
    .await;
    let status = caller.unpublish(&there, 102).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    world.sim.node_health("pve2", Health::Online);
    caller.unpublish(&shared, 102).await.unwrap();
    caller.publish(&shared, 101).await.unwrap();
    caller.unpublish(&there, 102).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_volume_is_never_written_into_a_vm_of_another_host() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
        .await
        .unwrap();
    let volume = world
        .caller()
        .create("pvc-1", FILES, Some("pve1"))
        .await
        .unwrap();
    refused(
        &world,
        &volume,
        &harness::world::node_id(102),
        Code::FailedPrecondition,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_is_not_proved_or_not_allowed_is_refused() {
    let builder = tenant(&[(101, "pve1"), (102, "pve1"), (103, "pve1"), (104, "pve1")]);
    let world = World::start(builder).await.unwrap();
    let volume = world.caller().create("pvc-1", SHARED, None).await.unwrap();
    world.sim.with_vm(102, |vm| {
        vm.config.insert("template".to_owned(), "1".to_owned())
    });
    world
        .sim
        .edit(|state| state.pools.get_mut("tenant-a").unwrap().vms.remove(&103));
    let twin = format!("uuid={}", uuid(101).to_uppercase());
    let id = harness::world::node_id;
    refused(&world, &volume, &id(102), Code::PermissionDenied).await;
    // Outside the pool the token does not even see it.
    refused(&world, &volume, &id(103), Code::NotFound).await;
    let unknown = "12345678-0000-4000-a000-000000000101";
    refused(&world, &volume, &format!("{unknown}/101"), Code::NotFound).await;
    refused(&world, &volume, unknown, Code::NotFound).await;
    // A VMID that is wrong is only a hint that leads nowhere.
    let astray = format!("{}/999", uuid(101));
    let context = world
        .caller()
        .publish_as(&volume, &astray, harness::csi::mount_capability())
        .await
        .unwrap();
    assert!(context.contains_key("DevicePath"));
    world
        .caller()
        .unpublish_as(&volume, &uuid(101))
        .await
        .unwrap();
    world
        .sim
        .with_vm(104, |vm| vm.config.insert("smbios1".to_owned(), twin));
    refused(&world, &volume, &id(101), Code::PermissionDenied).await;
    for former in ["worker-104", "worker-104/104"] {
        refused(&world, &volume, former, Code::NotFound).await;
    }
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// Seeing no pool is a refusal that says why, never a pass.
#[tokio::test(flavor = "multi_thread")]
async fn without_pool_audit_no_vm_is_touched() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let volume = world.caller().create("pvc-1", SHARED, None).await.unwrap();
    world.sim.edit(|state| {
        let role = state.roles.get_mut("TenantPool").unwrap();
        role.retain(|privilege| privilege != "Pool.Audit");
    });
    refused(
        &world,
        &volume,
        &harness::world::node_id(101),
        Code::PermissionDenied,
    )
    .await;
    assert!(world.controller_log().contains("Pool.Audit"));
}

/// B11: two publishes must not take the same slot. B30: the slots of a VM come to an end.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_volumes_at_once_get_thirty_slots_and_the_next_none() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let names: Vec<String> = (0..31).map(|number| format!("pvc-{number}")).collect();
    let made = join_all(
        names
            .iter()
            .map(|name| caller.create(name, FILES, Some("pve1"))),
    )
    .await;
    let volumes: Vec<String> = made.into_iter().map(Result::unwrap).collect();
    let attached = join_all(
        volumes
            .iter()
            .take(30)
            .map(|volume| caller.publish(volume, 101)),
    )
    .await;
    let luns: BTreeSet<String> = attached
        .into_iter()
        .map(|context| context.unwrap()["lun"].clone())
        .collect();
    assert_eq!(luns.len(), 30);
    assert!(!luns.contains("0"), "scsi0 is the boot disk's");
    let truth = Truth::of(&world.sim);
    assert!(
        volumes
            .iter()
            .take(30)
            .all(|volume| truth.slots(101, volume).len() == 1)
    );
    assert_eq!(truth.violations(), NONE);
    let status = caller.publish(&volumes[30], 101).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let detached = join_all(volumes.iter().map(|volume| caller.unpublish(volume, 101))).await;
    assert!(detached.iter().all(Result::is_ok), "{detached:?}");
    assert!(world.sim.disks(101).is_empty());
}

/// B07: a disk that is in the VM already, the boot disk included.
#[tokio::test(flavor = "multi_thread")]
async fn the_boot_disk_is_neither_attached_again_nor_detached() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let line = format!("{},size=64M", volid(&volume));
    world.sim.stop_vm(101).unwrap();
    world.sim.with_vm(101, |vm| {
        vm.config.insert("scsi0".to_owned(), line);
        vm.config
            .insert("boot".to_owned(), "order=scsi0;net0".to_owned());
    });
    world.sim.start_vm(101).unwrap();
    refused(
        &world,
        &volume,
        &harness::world::node_id(101),
        Code::FailedPrecondition,
    )
    .await;
    let status = caller.unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!(Truth::of(&world.sim).slots(101, &volume), ["scsi0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_not_virtio_scsi_is_refused() {
    let builder = tenant(&[(101, "pve1")]).vm_with(102, "pve1", &[("name", "worker-102")], true);
    let world = World::start(builder).await.unwrap();
    world
        .sim
        .edit(|state| state.pools.get_mut("tenant-a").unwrap().vms.insert(102));
    let volume = world.caller().create("pvc-1", SHARED, None).await.unwrap();
    let message = refused(
        &world,
        &volume,
        &harness::world::node_id(102),
        Code::FailedPrecondition,
    )
    .await;
    assert!(message.contains("scsihw"), "{message}");
}

/// The PV is the tenant's to write: what the operator allows is asked at each attach.
#[tokio::test(flavor = "multi_thread")]
async fn ceilings_bind_at_attach_whatever_the_volume_context_says() {
    let mut world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let mut config = world.config();
    config["regions"]["r1"]["storages"] = json!({ SHARED: {
        "limits": {"iops": 500, "mbps": 100},
        "allow": {"cache": ["none"], "backup": false},
    }});
    world.start_controller_with(&config).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let publish = async |pairs: &[(&str, &str)]| {
        let mut request = harness::csi::publish_request(
            &volume,
            &harness::world::node_id(101),
            harness::csi::mount_capability(),
        );
        request.volume_context = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        world
            .csi()
            .controller()
            .controller_publish_volume(request)
            .await
    };
    for forbidden in [("cache", "unsafe"), ("backup", "true")] {
        let status = publish(&[forbidden]).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    }
    publish(&[
        ("cache", "none"),
        ("diskIOPS", "100000"),
        ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
    ])
    .await
    .unwrap();
    let truth = Truth::of(&world.sim);
    let drive = truth.config(101, "scsi1").unwrap();
    for part in [
        "cache=none",
        "iops_rd=500",
        "iops_wr=500",
        "mbps_rd=100",
        "backup=0",
        "replicate=0",
        "iothread=1",
    ] {
        assert!(
            drive.split(',').any(|option| option == part),
            "{part} in {drive}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_does_not_exist_is_not_found_and_nothing_stays_pending() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let caller = world.caller();
    for volume in [
        "r1//shared/9999/vm-9999-pvc-none.raw",
        "r1/pve1/thin/vm-9999-pvc-none",
    ] {
        let status = caller.publish(volume, 101).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{volume}: {status:?}");
        caller.unpublish(volume, 101).await.unwrap();
    }
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}
