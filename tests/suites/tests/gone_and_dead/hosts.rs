//! Hosts that do not answer: what is known excludes their VMs as holders, or nothing does.

use harness::world::{FILES, SHARED};
use pve_sim::Health;

use super::*;

/// B14: three hosts, one is off, no HA.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_nobody_on_a_dead_host_can_have_is_attached_on_the_others() {
    let vms = [
        (101, "pve1"),
        (102, "pve2"),
        (103, "pve3"),
        (104, "pve3"),
        (105, "pve3"),
    ];
    let world = world(&vms).await;
    let caller = world.caller();
    let unused = caller.create("pvc-unused", SHARED, None).await.unwrap();
    let moved = caller.create("pvc-moved", SHARED, None).await.unwrap();
    caller.publish(&moved, 103).await.unwrap();
    caller.unpublish(&moved, 103).await.unwrap();
    world.sim.node_health("pve3", Health::Offline);

    world.sim.clear_requests();
    caller.publish(&unused, 101).await.unwrap();
    let asked = questions(&world.sim, "pve3");
    // A read that is refused quickly is asked thrice by the client.
    assert!(
        asked.len() <= 3,
        "one VM of a dead host is asked, not each: {asked:?}"
    );
    world.sim.clear_requests();
    caller.publish(&moved, 102).await.unwrap();
    let new = caller.create("pvc-new", SHARED, None).await.unwrap();
    caller.publish(&new, 102).await.unwrap();
    caller.unpublish(&new, 102).await.unwrap();
    caller.delete(&new).await.unwrap();
    // A host that was dead a moment ago is left alone.
    assert_eq!(questions(&world.sim, "pve3"), NONE);
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_a_vm_on_a_dead_host_is_refused_and_the_operator_is_told_what_to_do() {
    for health in [Health::Offline, Health::Isolated, Health::ProxyDown] {
        let world = one_each().await;
        let caller = world.caller();
        let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
        caller.publish(&volume, 103).await.unwrap();
        world.sim.node_health("pve3", health);
        never_in_two(&world, &volume, async {
            refused(&world, &volume, 101, Code::Unavailable).await;
            let log = world.controller_log();
            assert!(
                log.contains("pvectl fence pve3 --region r1 --for 1h"),
                "{health:?}"
            );
            assert!(log.contains("VM 103: this controller attached the volume to it"));
            for status in [
                caller.unpublish(&volume, 103).await.unwrap_err(),
                caller.delete(&volume).await.unwrap_err(),
            ] {
                assert_eq!(status.code(), Code::Unavailable, "{health:?} {status:?}");
            }
        })
        .await;
        assert_eq!(holders(&world, &volume), [103].into(), "{health:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_hangs_is_as_good_as_dead_and_an_answer_that_is_lost_is_not() {
    let world = one_each().await;
    let caller = world.caller();
    let held = caller.create("pvc-held", SHARED, None).await.unwrap();
    let free = caller.create("pvc-free", SHARED, None).await.unwrap();
    caller.publish(&held, 103).await.unwrap();
    world.sim.node_health("pve3", Health::Reset);
    refused(&world, &free, 101, Code::Unavailable).await;
    world.sim.node_health("pve3", Health::Hung);
    refused(&world, &held, 101, Code::Unavailable).await;
    caller.publish(&free, 101).await.unwrap();
    world.sim.node_health("pve3", Health::Online);
    refused(&world, &held, 101, Code::FailedPrecondition).await;
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_only_new_volumes_are_attached_while_a_host_is_dead() {
    let mut world = one_each().await;
    let free = world
        .caller()
        .create("pvc-free", SHARED, None)
        .await
        .unwrap();
    let local = world
        .caller()
        .create("pvc-local", FILES, Some("pve1"))
        .await
        .unwrap();
    world.sim.node_health("pve3", Health::Offline);
    restart(&mut world).await;
    let caller = world.caller();
    refused(&world, &free, 101, Code::Unavailable).await;
    let log = world.controller_log();
    assert!(log.contains("VM 103: this controller has not seen what it has"));
    caller.publish(&local, 101).await.unwrap();
    let new = caller.create("pvc-new", SHARED, None).await.unwrap();
    caller.publish(&new, 101).await.unwrap();
    // Asked for again, the disk is not a new one.
    let again = caller.create("pvc-free", SHARED, None).await.unwrap();
    assert_eq!(again, free);
    refused(&world, &free, 101, Code::Unavailable).await;
    world.sim.node_health("pve3", Health::Online);
    caller.publish(&free, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// HA moves the config within 130 s of a host's death (running.md 14).
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_ha_has_moved_is_asked_where_it_is() {
    for restarted in [false, true] {
        let mut world = one_each().await;
        let volume = world.caller().create("pvc-1", SHARED, None).await.unwrap();
        world.caller().publish(&volume, 103).await.unwrap();
        world.sim.node_health("pve3", Health::Offline);
        if restarted {
            restart(&mut world).await;
        }
        let caller = world.caller();
        never_in_two(&world, &volume, async {
            refused(&world, &volume, 101, Code::Unavailable).await;
            world.sim.with_vm(103, |vm| "pve2".clone_into(&mut vm.node));
            refused(&world, &volume, 101, Code::FailedPrecondition).await;
            caller.unpublish(&volume, 103).await.unwrap();
            caller.publish(&volume, 101).await.unwrap();
        })
        .await;
        assert_eq!(holders(&world, &volume), [101].into());
    }
}

/// B20: PVE lists the VMs of a host that left the cluster as long as their configs are there.
#[tokio::test(flavor = "multi_thread")]
async fn the_vms_of_a_host_that_left_the_cluster_count_until_they_are_gone() {
    let world = one_each().await;
    let caller = world.caller();
    let held = caller.create("pvc-held", SHARED, None).await.unwrap();
    let free = caller.create("pvc-free", SHARED, None).await.unwrap();
    caller.publish(&held, 103).await.unwrap();
    world.sim.edit(|state| state.nodes.remove("pve3"));
    refused(&world, &held, 101, Code::Unavailable).await;
    let status = caller.unpublish(&held, 103).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    caller.publish(&free, 101).await.unwrap();
    // The operator removes what is left of it below /etc/pve/nodes.
    world.sim.edit(|state| state.vms.remove(&103));
    caller.unpublish(&held, 103).await.unwrap();
    caller.publish(&held, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}
