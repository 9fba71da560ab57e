//! The operator's word about hosts and VMs that can't be asked: for a time, and only where nobody else can tell.

use harness::world::{POOL, SHARED, uuid};
use pve_sim::Health;
use tokio::time::Instant;

use super::*;

/// What is stated for so long holds until then.
const TERM: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_releases_the_volumes_of_a_dead_host_until_it_ends() {
    for restarted in [false, true] {
        let mut world = one_each().await;
        let volume = world.caller().create("pvc-1", SHARED, None).await.unwrap();
        let other = world.caller().create("pvc-2", SHARED, None).await.unwrap();
        for volume in [&volume, &other] {
            world.caller().publish(volume, 103).await.unwrap();
        }
        world.sim.node_health("pve3", Health::Offline);
        if restarted {
            restart(&mut world).await;
        }
        let caller = world.caller();
        refused(&world, &volume, 101, Code::Unavailable).await;
        let status = caller.unpublish(&volume, 103).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");

        let begun = Instant::now();
        let line = format!(
            "pve3 --region r1 --for {}s --reason unplugged",
            TERM.as_secs()
        );
        let said = pvectl(&world, &line).await;
        assert!(
            said.contains("pve3 in region r1 counts as off until"),
            "{said}"
        );
        caller.unpublish(&volume, 103).await.unwrap();
        caller.publish(&volume, 101).await.unwrap();
        assert!(begun.elapsed() < TERM, "too slow to say anything");
        let log = world.controller_log();
        let used = log
            .lines()
            .find(|line| line.contains("the operator's fence decides"));
        let used = used.unwrap();
        for word in ["operator-1", "unplugged", "pve3"] {
            assert!(used.contains(word), "{used}");
        }

        tokio::time::sleep_until(begun + TERM + Duration::from_secs(1)).await;
        refused(&world, &other, 101, Code::Unavailable).await;
        let status = caller.unpublish(&other, 103).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        // What was attached meanwhile stays what it is.
        caller.unpublish(&volume, 101).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_on_a_host_that_answers_changes_nothing() {
    let world = one_each().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 103).await.unwrap();
    pvectl(&world, "pve3 --region r1").await;
    let story = async {
        refused(&world, &volume, 101, Code::FailedPrecondition).await;
        // Neither does one on a host that was dead and is back.
        world.sim.node_health("pve3", Health::Offline);
        pvectl(&world, "--lift pve3").await;
        refused(&world, &volume, 101, Code::Unavailable).await;
        world.sim.node_health("pve3", Health::Online);
        pvectl(&world, "pve3 --region r1").await;
        refused(&world, &volume, 101, Code::FailedPrecondition).await;
        caller.unpublish(&volume, 103).await.unwrap();
        caller.publish(&volume, 101).await.unwrap();
    };
    never_in_two(&world, &volume, story).await;
    assert!(
        !world
            .controller_log()
            .contains("the operator's fence decides")
    );
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_of_another_host_or_region_and_a_broken_file_state_nothing() {
    let world = one_each().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 103).await.unwrap();
    world.sim.node_health("pve3", Health::Offline);
    pvectl(&world, "pve2 --region r1").await;
    pvectl(&world, "pve3 --region r2").await;
    refused(&world, &volume, 101, Code::Unavailable).await;
    pvectl(&world, "pve3 --region r1").await;
    let file = world.folder().join("fences.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("until:", "untill:")).unwrap();
    refused(&world, &volume, 101, Code::Unavailable).await;
    assert!(
        world
            .controller_log()
            .contains("the fence file can't be used")
    );
    std::fs::write(&file, text).unwrap();
    caller.publish(&volume, 101).await.unwrap();
}

/// A VM that was moved out of the pool is out of sight, and may have any of the tenant's volumes.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_out_of_sight_counts_as_gone_once_the_operator_says_so() {
    let world = one_each().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let free = caller.create("pvc-2", SHARED, None).await.unwrap();
    caller.publish(&volume, 103).await.unwrap();
    refused(&world, &volume, 101, Code::FailedPrecondition).await;
    // Destroyed without purge; its VMID was given to another tenant at once.
    world.sim.with_vm(103, |vm| {
        let other = "uuid=12345678-0000-4000-a000-000000000103".to_owned();
        vm.config.insert("smbios1".to_owned(), other);
        vm.config.remove("scsi1");
        vm.devices.clear();
    });
    let hide = |state: &mut pve_sim::State| state.pools.get_mut(POOL).unwrap().vms.remove(&103);
    world.sim.edit(hide);
    let status = caller.unpublish(&volume, 103).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    refused(&world, &free, 101, Code::Unavailable).await;
    let line = format!("pvectl fence --gone 103:{} --region r1", uuid(103));
    assert!(world.controller_log().contains(&line));
    pvectl(&world, &format!("--gone 103:{} --region r1", uuid(104))).await;
    refused(&world, &free, 101, Code::Unavailable).await;

    pvectl(&world, &format!("--gone 103:{} --region r1", uuid(103))).await;
    caller.unpublish(&volume, 103).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    caller.delete(&free).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}
