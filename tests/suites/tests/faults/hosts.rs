//! Where a VM and a storage are, and that it changes.

use std::time::Duration;

use harness::caller::until_ok;
use harness::truth::{Truth, mutations};
use harness::world::{FILES, SHARED, World, node_id, tenant, uuid};
use pve_sim::{Health, RequestEffect, RequestFault, TaskEffect, TaskFault};
use tonic::Code;

use crate::{CONFIG, NONE, world};

const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until the simulator holds something.
async fn held(world: &World) {
    let mut held = world.sim.held();
    let something = tokio::time::timeout(PATIENCE, held.wait_for(|list| !list.is_empty())).await;
    assert!(!something.unwrap().unwrap().is_empty());
}

fn on_update(effect: RequestEffect) -> RequestFault {
    RequestFault {
        method: "POST".to_owned(),
        path: CONFIG.to_owned(),
        nth: 1,
        times: 1,
        effect,
    }
}

/// B17: the migration ends between the look at the VM and the write.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_moves_while_the_write_is_on_its_way_is_followed() {
    let world = world(&[(101, "pve1")]).await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    for (attach, from, to) in [(true, "pve1", "pve2"), (false, "pve2", "pve1")] {
        world.sim.add_fault(on_update(RequestEffect::Hold));
        let call = tokio::spawn({
            let (caller, volume) = (caller.clone(), volume.clone());
            async move {
                if attach {
                    caller.publish(&volume, 101).await.map(drop)
                } else {
                    caller.unpublish(&volume, 101).await
                }
            }
        });
        held(&world).await;
        assert_eq!(
            world.sim.with_vm(101, |vm| vm.node.clone()).as_deref(),
            Some(from)
        );
        world.sim.with_vm(101, |vm| to.clone_into(&mut vm.node));
        world.sim.release();
        // Either it follows at once or the sidecar's next call does.
        if let Err(status) = call.await.unwrap() {
            // The old host has no such VM any more, so nothing was done there and the error may be final.
            let code = status.code();
            let expected = [Code::Unavailable, Code::Aborted];
            assert!(expected.contains(&code), "{status:?}");
            let again = async || {
                if attach {
                    caller.publish(&volume, 101).await.map(drop)
                } else {
                    caller.unpublish(&volume, 101).await
                }
            };
            until_ok(PATIENCE, again).await.unwrap();
        }
        let truth = Truth::of(&world.sim);
        assert_eq!(truth.slots(101, &volume).len(), usize::from(attach));
        assert_eq!(truth.holders(&volume).len(), usize::from(attach));
        assert_eq!(truth.violations(), NONE);
    }
}

/// B17: the task runs on a host that is lost meanwhile; nobody but that host knows how it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_on_a_host_that_is_lost_is_no_success_and_no_final_error() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]).endpoint("pve2"))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    world.sim.add_task_fault(TaskFault {
        task: "qmconfig".to_owned(),
        id: None,
        nth: 1,
        times: 1,
        effect: TaskEffect::Hold,
    });
    let call = tokio::spawn({
        let (caller, volume) = (caller.clone(), volume.clone());
        async move { caller.publish(&volume, 102).await }
    });
    held(&world).await;
    // Past the two seconds after which PVE names the task instead of its end.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    world.sim.node_health("pve2", Health::Offline);
    let status = call.await.unwrap().unwrap_err();
    assert!(
        matches!(
            status.code(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Aborted
        ),
        "{status:?}"
    );
    let elsewhere = caller.publish(&volume, 101).await.unwrap_err();
    assert!(
        matches!(
            elsewhere.code(),
            Code::Unavailable | Code::FailedPrecondition | Code::Aborted
        ),
        "that host may still do it: {elsewhere:?}"
    );
    world.sim.node_health("pve2", Health::Online);
    world.sim.release_tasks();
    until_ok(PATIENCE, async || caller.publish(&volume, 102).await)
        .await
        .unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.slots(102, &volume).len(), 1);
    assert_eq!(truth.violations(), NONE);
}

/// B18: PVE answers 501 to a path with an empty segment, and a handle of shared storage names no host.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_volume_lives_its_whole_life_while_the_first_host_is_down() {
    let world = World::start(tenant(&[(102, "pve2"), (103, "pve2")]).endpoint("pve2"))
        .await
        .unwrap();
    world.sim.node_health("pve1", Health::Offline);
    let caller = world.caller();
    world.sim.clear_requests();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    assert!(volume.starts_with("r1//shared/"), "{volume}");
    caller.publish(&volume, 102).await.unwrap();
    assert_eq!(caller.expand(&volume, 128 << 20).await.unwrap(), 128 << 20);
    caller.unpublish(&volume, 102).await.unwrap();
    caller.publish(&volume, 103).await.unwrap();
    caller.unpublish(&volume, 103).await.unwrap();
    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&world.sim).disks().is_empty());
    let requests = world.sim.requests();
    assert!(requests.len() > 10);
    for request in requests {
        assert!(
            !request.path.contains("//") && !request.path.ends_with('/'),
            "{request:?}"
        );
        assert_ne!(request.status, 501, "{request:?}");
    }
}

/// B20: a host that left the PVE cluster took its VMs along; one that is down did not.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_a_host_that_is_down_is_not_called_detached() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]).endpoint("pve2"))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve2")).await.unwrap();
    caller.publish(&volume, 102).await.unwrap();
    world.sim.node_health("pve2", Health::Offline);
    for node in [node_id(102), uuid(102), String::new()] {
        let status = caller.unpublish_as(&volume, &node).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{node:?}: {status:?}");
    }
    world.sim.node_health("pve2", Health::Online);
    until_ok(PATIENCE, async || caller.unpublish(&volume, 102).await)
        .await
        .unwrap();
    assert!(Truth::of(&world.sim).holders(&volume).is_empty());
}

/// B25: names of VMs and Nodes are chosen by people, and repeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_found_by_its_uuid_whatever_it_is_called() {
    let world = world(&[(101, "pve1"), (102, "pve1"), (103, "pve2")]).await;
    for (vmid, name) in [
        (101, "worker-102"),
        (102, "worker-101.example.test"),
        (103, "worker-102"),
    ] {
        world.sim.with_vm(vmid, |vm| {
            vm.config.insert("name".to_owned(), name.to_owned())
        });
    }
    let caller = world.caller();
    for vmid in [101, 102, 103] {
        let volume = caller
            .create(&format!("pvc-{vmid}"), SHARED, None)
            .await
            .unwrap();
        caller.publish(&volume, vmid).await.unwrap();
        assert_eq!(Truth::of(&world.sim).holders(&volume), [vmid].into());
        for former in ["worker-101", "worker-102/103", "worker-101.example.test"] {
            world.sim.clear_requests();
            let other = caller
                .publish_as(&volume, former, harness::csi::mount_capability())
                .await;
            assert!(
                other.is_err(),
                "{former} is the name of a Node that nobody knows"
            );
            assert_eq!(mutations(&world.sim.requests()), NONE, "{former}");
        }
    }
}

/// B68: PVE keeps the UUID as it was typed, among other fields.
#[tokio::test(flavor = "multi_thread")]
async fn a_uuid_is_the_same_in_any_spelling_and_at_any_place() {
    let world = world(&[(101, "pve1")]).await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    let (plain, upper) = (uuid(101), uuid(101).to_uppercase());
    let written = [
        format!("uuid={plain}"),
        format!("uuid={upper}"),
        format!("base64=1,manufacturer=UVE=,uuid={upper},serial=dXVpZD0x"),
        format!("manufacturer=x,uuid={plain}"),
    ];
    for smbios in written {
        world.sim.with_vm(101, |vm| {
            vm.config.insert("smbios1".to_owned(), smbios.clone())
        });
        for node in [plain.clone(), upper.clone(), format!("{upper}/101")] {
            let published = caller
                .publish_as(&volume, &node, harness::csi::mount_capability())
                .await;
            published.unwrap_or_else(|status| panic!("{smbios}, {node}: {status:?}"));
            caller.unpublish_as(&volume, &node).await.unwrap();
        }
    }
    world.sim.with_vm(101, |vm| vm.config.remove("smbios1"));
    let status = caller.publish(&volume, 101).await.unwrap_err();
    assert!(
        matches!(
            status.code(),
            Code::NotFound | Code::PermissionDenied | Code::FailedPrecondition
        ),
        "{status:?}"
    );
    assert!(Truth::of(&world.sim).holders(&volume).is_empty());
}
