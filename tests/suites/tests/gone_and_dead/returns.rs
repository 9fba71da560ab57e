//! A host that comes back brings back what its VMs had.

use harness::caller::until_ok;
use harness::world::SHARED;
use pve_sim::Health;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn from_the_death_of_a_host_to_its_return_no_volume_is_in_two_vms() {
    for (health, restarted) in [
        (Health::Offline, false),
        (Health::Offline, true),
        (Health::Isolated, false),
        (Health::Isolated, true),
    ] {
        let mut world = one_each().await;
        let held = world
            .caller()
            .create("pvc-held", SHARED, None)
            .await
            .unwrap();
        let free = world
            .caller()
            .create("pvc-free", SHARED, None)
            .await
            .unwrap();
        world.caller().publish(&held, 103).await.unwrap();
        world.sim.node_health("pve3", health);
        if restarted {
            restart(&mut world).await;
        }
        let caller = world.caller();
        let story = async {
            refused(&world, &held, 101, Code::Unavailable).await;
            let early = caller.publish(&free, 101).await;
            assert_eq!(early.is_ok(), !restarted, "{health:?} {early:?}");
            world.sim.node_health("pve3", Health::Online);
            refused(&world, &held, 101, Code::FailedPrecondition).await;
            assert!(world.controller_log().contains("the host answers again"));
            caller.publish(&free, 101).await.unwrap();
            caller.unpublish(&held, 103).await.unwrap();
            caller.publish(&held, 102).await.unwrap();
        };
        never_in_two(&world, &held, never_in_two(&world, &free, story)).await;
        assert_eq!(
            Truth::of(&world.sim).violations(),
            NONE,
            "{health:?} {restarted}"
        );
    }
}

/// The operator's word was true, and the host was started again without a look at its VMs.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_a_returning_vm_brings_back_is_reported_and_nothing_is_done_blindly() {
    let world = one_each().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 103).await.unwrap();
    world.sim.node_health("pve3", Health::Offline);
    pvectl(&world, "pve3 --region r1").await;
    caller.publish(&volume, 101).await.unwrap();
    world.sim.node_health("pve3", Health::Online);
    assert_eq!(holders(&world, &volume), [101, 103].into());

    // A final error would say that this Node does not have it.
    let status = refused(&world, &volume, 101, Code::Unavailable).await;
    assert!(status.message().contains("another Node"), "{status:?}");
    let status = refused(&world, &volume, 102, Code::FailedPrecondition).await;
    assert!(status.message().contains("worker-10"), "{status:?}");
    let log = world.controller_log();
    assert!(log.contains("the disk is in more than one VM"), "{log}");
    let status = caller.delete(&volume).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!(holders(&world, &volume), [101, 103].into(), "both keep it");
    // The tenant's own detach from the returned VM is what resolves it.
    caller.unpublish(&volume, 103).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// What a host, its cluster and the HA stack need until they have come to rest, ten times as fast.
const REST: Duration = Duration::from_secs(40);

/// A power cut as PVE lives through it: answers that break off, questions that take 30 s, and a list that goes stale.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_moves_no_volume_before_the_host_or_ha_can_be_asked() {
    for ha in [false, true] {
        let world = one_each().await;
        let caller = world.caller();
        let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
        let free = caller.create("pvc-2", SHARED, None).await.unwrap();
        caller.publish(&volume, 103).await.unwrap();
        world.sim.edit(|state| {
            state.ha.running = ha;
            if ha {
                let resource = json!({"state": "started"});
                let resource = serde_json::from_value(resource).unwrap();
                state.ha.resources.insert("vm:103".to_owned(), resource);
            }
        });
        world.sim.power_off("pve3");
        let story = async {
            until_ok(REST, async || caller.publish(&free, 101).await)
                .await
                .unwrap();
            refused(&world, &volume, 101, Code::Unavailable).await;
            if !ha {
                world.sim.power_on("pve3");
            }
            until_ok(REST, async || caller.unpublish(&volume, 103).await)
                .await
                .unwrap();
            until_ok(REST, async || caller.publish(&volume, 101).await)
                .await
                .unwrap();
        };
        never_in_two(&world, &volume, story).await;
        assert_eq!(holders(&world, &volume), [101].into(), "{ha}");
    }
}
