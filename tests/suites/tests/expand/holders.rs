//! The VM through which a volume grows: found wherever it is, one of the tenant's own, and the only one.

use std::time::Duration;

use harness::caller::SIZE;
use harness::refusals::Refusals;
use harness::truth::{Truth, mutations, volid};
use harness::world::{FILES, POOL, SHARED, TOKEN, World, tenant};
use pve_sim::{AclEntry, Health, RequestEffect, RequestFault};
use tokio::time::sleep;
use tonic::Code;

use crate::world::{MIB, NONE, all, attached, sizes};

/// B19: the VM is on another host than the first that has the storage.
#[tokio::test(flavor = "multi_thread")]
async fn the_holder_is_found_on_whatever_host_it_runs() {
    let workers = [(101, "pve2"), (102, "pve1"), (103, "pve1")];
    let mut world = World::start(tenant(&workers)).await.unwrap();
    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    world.crash_controller().await.unwrap();
    let caller = world.caller();
    caller.expand(&volume, 128 * MIB).await.unwrap();
    assert_eq!(sizes(&world, 101, &volume), all(128 * MIB));
    // It is known now, and moves.
    world.sim.with_vm(101, |vm| "pve1".clone_into(&mut vm.node));
    caller.expand(&volume, 256 * MIB).await.unwrap();
    assert_eq!(sizes(&world, 101, &volume), all(256 * MIB));
    // Another controller has moved the volume.
    let line = world
        .sim
        .with_vm(101, |vm| vm.config.remove("scsi1").unwrap());
    world.sim.with_vm(101, |vm| vm.devices.clear());
    world.sim.stop_vm(103).unwrap();
    world.sim.with_vm(103, |vm| {
        vm.config.insert("scsi7".to_owned(), line.unwrap())
    });
    world.sim.start_vm(103).unwrap();
    caller.expand(&volume, 300 * MIB).await.unwrap();
    assert_eq!(sizes(&world, 103, &volume), all(300 * MIB));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_vm_that_has_the_volume_grows_it_too() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    world.sim.stop_vm(101).unwrap();
    world.caller().expand(&volume, 128 * MIB).await.unwrap();
    assert_eq!(
        sizes(&world, 101, &volume),
        (128 * MIB, Some(128 * MIB), None)
    );
    world.sim.start_vm(101).unwrap();
    assert_eq!(sizes(&world, 101, &volume), all(128 * MIB));
}

/// B42: PVE can't grow what no VM has.
#[tokio::test(flavor = "multi_thread")]
async fn a_detached_volume_waits_for_its_pod_and_a_missing_one_is_missing_on_proof_only() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    world.sim.clear_requests();
    let status = caller.expand(&volume, 128 * MIB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("start a Pod"), "{status:?}");
    assert_eq!(
        caller.expand(&volume, SIZE).await.unwrap(),
        SIZE,
        "large enough"
    );
    assert_eq!(mutations(&world.sim.requests()), NONE);
    caller.publish(&volume, 101).await.unwrap();
    assert_eq!(caller.expand(&volume, 128 * MIB).await.unwrap(), 128 * MIB);
    caller.unpublish(&volume, 101).await.unwrap();
    assert_eq!(caller.expand(&volume, 128 * MIB).await.unwrap(), 128 * MIB);

    let missing = volume.replace("pvc-1", "pvc-2");
    let status = caller.expand(&missing, 128 * MIB).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    world.sim.edit(|state| {
        state.storages.get_mut(SHARED).unwrap().disable = true;
    });
    let status = caller.expand(&missing, 128 * MIB).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}

/// The disk is gone under a running VM (PVE removes what is in use).
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_only_a_config_names_does_not_exist() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    world.sim.edit(|state| state.volumes.clear());
    let status = world.caller().expand(&volume, 128 * MIB).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
}

type Happens = fn(&World, &str);

fn move_out(world: &World, _: &str) {
    world.sim.edit(|state| {
        for subject in ["csi@pve", TOKEN.0] {
            state.acl.push(AclEntry {
                path: "/vms/101".to_owned(),
                subject: subject.to_owned(),
                role: "TenantPool".to_owned(),
                propagate: true,
            });
        }
        state.pools.get_mut(POOL).unwrap().vms.remove(&101);
    });
}

fn make_template(world: &World, _: &str) {
    world.sim.with_vm(101, |vm| {
        vm.config.insert("template".to_owned(), "1".to_owned())
    });
}

fn put_into_another(world: &World, handle: &str) {
    let line = volid(handle);
    world
        .sim
        .with_vm(102, |vm| vm.config.insert("scsi9".to_owned(), line));
}

fn put_in_twice(world: &World, handle: &str) {
    let line = volid(handle);
    world
        .sim
        .with_vm(101, |vm| vm.config.insert("scsi9".to_owned(), line));
}

fn hide(world: &World, _: &str) {
    world.sim.edit(|state| {
        let role = state.roles.get_mut("TenantPool").unwrap();
        role.retain(|held| held != "VM.Audit");
    });
}

/// Whatever VM holds the volume, only one of the tenant's own is touched, and only one.
#[tokio::test(flavor = "multi_thread")]
async fn holders_that_are_not_the_tenants_or_not_the_only_one_are_refused() {
    let rows: [(&str, Happens, &[Code]); 5] = [
        ("moved out of the pool", move_out, &[Code::PermissionDenied]),
        ("made a template", make_template, &[Code::PermissionDenied]),
        ("in two VMs", put_into_another, &[Code::FailedPrecondition]),
        ("twice in one VM", put_in_twice, &[Code::FailedPrecondition]),
        ("out of sight", hide, &[Code::Unavailable]),
    ];
    for (sentence, happens, codes) in rows {
        let workers = [(101, "pve1"), (102, "pve1")];
        let mut world = World::start(tenant(&workers)).await.unwrap();
        let volume = attached(&world, "pvc-1", (SHARED, None)).await;
        world.crash_controller().await.unwrap();
        happens(&world, &volume);
        let mut table = Refusals::new(&world);
        let answer = world.caller().expand(&volume, 128 * MIB).await;
        table.row(sentence, answer, codes);
        let failures = table.failures();
        let mine = failures.iter().find(|line| !line.starts_with("state"));
        assert_eq!(mine, None, "{sentence}");
        assert_eq!(
            Truth::of(&world.sim).size(&volume),
            Some(64 << 20),
            "{sentence}"
        );
    }
}

/// A VM on a host that is down may be the one: nobody else can tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_can_not_be_asked_is_waited_for_and_others_that_can_not_are_not() {
    let workers = [(101, "pve2"), (102, "pve1"), (103, "pve2")];
    let mut world = World::start(tenant(&workers)).await.unwrap();
    let away = attached(&world, "pvc-1", (SHARED, None)).await;
    let caller = world.caller();
    let here = caller.create("pvc-2", SHARED, None).await.unwrap();
    caller.publish(&here, 102).await.unwrap();
    world.sim.node_health("pve2", Health::Offline);
    for known in [true, false] {
        if !known {
            world.crash_controller().await.unwrap();
        }
        let caller = world.caller();
        let status = caller.expand(&away, 128 * MIB).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{known}: {status:?}");
        let size = if known { 128 } else { 256 } * MIB;
        caller.expand(&here, size).await.unwrap();
        assert_eq!(sizes(&world, 102, &here), all(size));
    }
    world.sim.node_health("pve2", Health::Online);
    world.caller().expand(&away, 128 * MIB).await.unwrap();
}

/// B20: the host in the handle has left the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_a_host_that_left_is_not_called_missing() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve2")).await.unwrap();
    world.sim.edit(|state| state.nodes.remove("pve2"));
    let status = caller.expand(&volume, 128 * MIB).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}

/// `VM is locked`: a backup runs for hours.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_vm_is_tried_again_later_without_a_write() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    let lock = |on: bool| {
        world.sim.with_vm(101, |vm| {
            if on {
                vm.config.insert("lock".to_owned(), "backup".to_owned())
            } else {
                vm.config.remove("lock")
            }
        });
    };
    lock(true);
    world.sim.clear_requests();
    let status = world.caller().expand(&volume, 128 * MIB).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(mutations(&world.sim.requests()), NONE);
    lock(false);
    // The lock comes between the look and the task.
    world.sim.add_fault(RequestFault {
        method: "PUT".to_owned(),
        path: "/nodes/{node}/qemu/{vmid}/resize".to_owned(),
        nth: 1,
        times: 1,
        effect: RequestEffect::Delay { ms: 600 },
    });
    let caller = world.caller();
    let backup = async {
        sleep(Duration::from_millis(300)).await;
        lock(true);
    };
    let (answer, ()) = tokio::join!(caller.expand(&volume, 128 * MIB), backup);
    let status = answer.unwrap_err();
    assert!(
        [Code::Unavailable, Code::Aborted].contains(&status.code()),
        "{status:?}"
    );
    assert_eq!(sizes(&world, 101, &volume), all(64 * MIB));
    lock(false);
    caller.expand(&volume, 128 * MIB).await.unwrap();
    assert_eq!(sizes(&world, 101, &volume), all(128 * MIB));
}
