//! VMs that are gone, or that we have lost the right to see.

use harness::world::{POOL, SHARED, uuid};

use super::*;

async fn two_attached() -> (World, [String; 2]) {
    let world = one_each().await;
    let caller = world.caller();
    let first = caller.create("pvc-1", SHARED, None).await.unwrap();
    let second = caller.create("pvc-2", SHARED, None).await.unwrap();
    for volume in [&first, &second] {
        caller.publish(volume, 103).await.unwrap();
    }
    (world, [first, second])
}

/// Its disks have the owner's name, so that PVE leaves them (facts 21).
fn destroy(world: &World) {
    world.sim.edit(|state| state.vms.remove(&103));
}

/// A VM of another UUID gets the number.
fn reuse(world: &World) {
    let mut vm = world.sim.state().vms[&102].clone();
    "pve3".clone_into(&mut vm.node);
    vm.devices.clear();
    vm.config
        .retain(|key, _| !key.starts_with("scsi") || key == "scsihw");
    let other = "uuid=12345678-0000-4000-a000-000000000103".to_owned();
    vm.config.insert("smbios1".to_owned(), other);
    vm.config.insert("name".to_owned(), "new-worker".to_owned());
    world.sim.edit(|state| state.vms.insert(103, vm));
}

/// B22: the VM is destroyed with two attachments; then its number is free, or a new worker's.
#[tokio::test(flavor = "multi_thread")]
async fn the_volumes_of_a_destroyed_vm_survive_and_are_attached_elsewhere() {
    for reused in [false, true] {
        let (world, volumes) = two_attached().await;
        let caller = world.caller();
        destroy(&world);
        if reused {
            reuse(&world);
        }
        for volume in &volumes {
            let status = caller.publish(volume, 103).await.unwrap_err();
            assert_eq!(status.code(), Code::NotFound, "the old VM: {status:?}");
            caller.unpublish(volume, 103).await.unwrap();
            caller.unpublish(volume, 103).await.unwrap();
            assert!(Truth::of(&world.sim).size(volume).is_some());
            caller.publish(volume, 101).await.unwrap();
        }
        if reused {
            assert!(world.sim.disks(103).is_empty(), "the new VM is left alone");
        }
        assert_eq!(Truth::of(&world.sim).violations(), NONE, "{reused}");
    }
}

/// Its number was given to another tenant: PVE says only that some VM has it, as it would of the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_destroyed_vm_whose_number_another_tenant_has_is_not_proved_gone() {
    let (world, [volume, _]) = two_attached().await;
    let caller = world.caller();
    destroy(&world);
    reuse(&world);
    world
        .sim
        .edit(|state| state.pools.get_mut(POOL).unwrap().vms.remove(&103));
    world.sim.clear_requests();
    let status = caller.unpublish(&volume, 103).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(!status.message().contains("103"), "{status:?}");
    assert_eq!(mutations(&world.sim.requests()), NONE);
    pvectl(&world, &format!("--gone 103:{} --region r1", uuid(103))).await;
    caller.unpublish(&volume, 103).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// What is lost is the right to see the VM, by its pool or by the token's role.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_out_of_sight_is_an_error_until_it_is_seen_again() {
    type Change = fn(&mut pve_sim::State);
    let pool: (Change, Change) = (
        |state| assert!(state.pools.get_mut(POOL).unwrap().vms.remove(&103)),
        |state| assert!(state.pools.get_mut(POOL).unwrap().vms.insert(103)),
    );
    let role: (Change, Change) = (
        |state| {
            let role = state.roles.get_mut("TenantPool").unwrap();
            assert!(role.remove("VM.Audit"));
        },
        |state| {
            let role = state.roles.get_mut("TenantPool").unwrap();
            role.insert("VM.Audit".to_owned());
        },
    );
    for (what, (hide, restore)) in [("pool", pool), ("role", role)] {
        let (world, [volume, other]) = two_attached().await;
        let caller = world.caller();
        let free = caller.create("pvc-3", SHARED, None).await.unwrap();
        refused(&world, &volume, 101, Code::FailedPrecondition).await;
        world.sim.edit(hide);
        let story = async {
            for status in [
                caller.unpublish(&volume, 103).await.unwrap_err(),
                caller.unpublish_as(&volume, "").await.unwrap_err(),
                caller.delete(&free).await.unwrap_err(),
            ] {
                assert_eq!(status.code(), Code::Unavailable, "{what}: {status:?}");
            }
            let publish = caller.publish(&other, 101).await.unwrap_err();
            let unseen = [Code::Unavailable, Code::NotFound];
            assert!(unseen.contains(&publish.code()), "{what}: {publish:?}");
            assert_eq!(holders(&world, &volume), [103].into(), "{what}");
            world.sim.edit(restore);
            caller.unpublish(&volume, 103).await.unwrap();
            caller.publish(&volume, 101).await.unwrap();
            caller.delete(&free).await.unwrap();
        };
        never_in_two(&world, &volume, story).await;
        assert_eq!(Truth::of(&world.sim).violations(), NONE, "{what}");
    }
}
