//! What the guest does, or does not.

use harness::truth::{Truth, mutations};
use harness::world::{FILES, SHARED, World, tenant};
use pve_sim::ClockMode;
use tonic::Code;

use crate::{NONE, world};

/// B40: Kubernetes gives up on the unmount after six minutes and has the disk detached all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_detach_fails_until_the_guest_lets_go_and_nobody_else_gets_the_disk() {
    let builder = tenant(&[(101, "pve1"), (102, "pve2")]).clock(ClockMode::Real { speed: 20 });
    let world = World::start(builder).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    world
        .sim
        .vm_faults(101, |faults| faults.unplug_stuck = 1000);
    for attempt in 0..3 {
        let status = caller.unpublish(&volume, 101).await.unwrap_err();
        let code = status.code();
        assert!(
            matches!(
                code,
                Code::Unavailable | Code::Aborted | Code::Internal | Code::DeadlineExceeded
            ),
            "attempt {attempt}: {status:?}"
        );
        let elsewhere = caller.publish(&volume, 102).await.unwrap_err();
        assert!(
            matches!(
                elsewhere.code(),
                Code::FailedPrecondition | Code::Unavailable | Code::Aborted
            ),
            "attempt {attempt}: {elsewhere:?}"
        );
        assert_eq!(Truth::of(&world.sim).holders(&volume), [101].into());
    }
    world.sim.vm_faults(101, |faults| faults.unplug_stuck = 0);
    let detach = async || caller.unpublish(&volume, 101).await;
    harness::caller::until_ok(std::time::Duration::from_mins(1), detach)
        .await
        .unwrap();
    assert!(Truth::of(&world.sim).holders(&volume).is_empty());
    caller.publish(&volume, 102).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.holders(&volume), [102].into());
    assert_eq!(truth.violations(), NONE);
}

/// B77: a worker that reboots faster than its Pods are evicted is never published to again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_keeps_every_volume_with_its_name_and_its_slot() {
    let world = world(&[(101, "pve1")]).await;
    let caller = world.caller();
    let mut volumes = Vec::new();
    for (name, storage, zone) in [
        ("pvc-a", FILES, Some("pve1")),
        ("pvc-b", SHARED, None),
        ("pvc-c", SHARED, None),
    ] {
        let volume = caller.create(name, storage, zone).await.unwrap();
        let context = caller.publish(&volume, 101).await.unwrap();
        volumes.push((volume, context));
    }
    // A gap, so that slots counted anew would differ.
    let (gone, _) = volumes.remove(0);
    caller.unpublish(&gone, 101).await.unwrap();
    let slots = |volume: &str| Truth::of(&world.sim).slots(101, volume);
    let before: Vec<_> = volumes.iter().map(|(volume, _)| slots(volume)).collect();
    world.sim.clear_requests();
    world.sim.stop_vm(101).unwrap();
    world.sim.start_vm(101).unwrap();
    assert_eq!(
        mutations(&world.sim.requests()),
        NONE,
        "nobody asked for anything"
    );
    let after: Vec<_> = volumes.iter().map(|(volume, _)| slots(volume)).collect();
    assert_eq!(before, after);
    for (volume, context) in &volumes {
        let truth = Truth::of(&world.sim);
        let slot = truth.slots(101, volume).pop().unwrap();
        let wwn = context["DevicePath"].rsplit('-').next().unwrap();
        assert!(
            truth.config(101, &slot).unwrap().contains(wwn),
            "{context:?}"
        );
        // A controller that is asked again, as after a lost answer, says the same and writes nothing.
        assert_eq!(&caller.publish(volume, 101).await.unwrap(), context);
    }
    assert_eq!(mutations(&world.sim.requests()), NONE);
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}
