//! What "nobody holds it" and "gone" rest on: guests outside the pool, guests out of sight, lists and reads that are old
//! by the time of the write.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::time::Duration;

use harness::truth::{Truth, mutations, volid};
use harness::world::{FILES, POOL, SHARED, TOKEN, World, tenant};
use pve_sim::{AclEntry, RequestEffect, RequestFault};
use tokio::time::{Instant, sleep};
use tonic::Code;

const NONE: [String; 0] = [];
const CONFIG: &str = "/nodes/{node}/qemu/{vmid}/config";
const PENDING: &str = "/nodes/{node}/qemu/{vmid}/pending";

fn fault(world: &World, (method, path): (&str, &str), nth: u32, times: u32, effect: RequestEffect) {
    world.sim.add_fault(RequestFault {
        method: method.to_owned(),
        path: path.to_owned(),
        nth,
        times,
        effect,
    });
}

/// What is tried, what happens to the world, and what Delete answers.
type Row = (&'static str, fn(&World), Code);

/// The token sees the VM whatever pool it is in.
fn show(world: &World, vmid: u32) {
    world.sim.edit(|state| {
        for subject in ["csi@pve", TOKEN.0] {
            state.acl.push(AclEntry {
                path: format!("/vms/{vmid}"),
                subject: subject.to_owned(),
                role: "TenantPool".to_owned(),
                propagate: true,
            });
        }
    });
}

fn move_out(world: &World, vmid: u32) {
    world
        .sim
        .edit(|state| state.pools.get_mut(POOL).unwrap().vms.remove(&vmid));
}

fn lose(world: &World, privilege: &str) {
    world.sim.edit(|state| {
        let role = state.roles.get_mut("TenantPool").unwrap();
        role.retain(|held| held != privilege);
    });
}

/// A list without workers is no proof that there are none.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_shows_no_pool_or_nothing_at_all_keeps_its_disk() {
    let rows: [Row; 4] = [
        (
            "without Pool.Audit",
            |world| lose(world, "Pool.Audit"),
            Code::FailedPrecondition,
        ),
        (
            "without VM.Audit",
            |world| lose(world, "VM.Audit"),
            Code::Unavailable,
        ),
        (
            "moved out of the pool",
            |world| {
                show(world, 101);
                move_out(world, 101);
            },
            Code::FailedPrecondition,
        ),
        (
            "made a template",
            |world| {
                world.sim.with_vm(101, |vm| {
                    vm.config.insert("template".to_owned(), "1".to_owned())
                });
            },
            Code::FailedPrecondition,
        ),
    ];
    for (sentence, happens, code) in rows {
        let mut world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
        let volume = world.caller().create("pvc-1", SHARED, None).await.unwrap();
        world.caller().publish(&volume, 101).await.unwrap();
        // What the process remembers must not be what decides.
        world.crash_controller().await.unwrap();
        happens(&world);
        let status = world.caller().delete(&volume).await.unwrap_err();
        assert_eq!(status.code(), code, "{sentence}: {status:?}");
        assert!(!status.message().contains("worker-101"), "{sentence}");
        world.caller().unpublish_as(&volume, "").await.unwrap_err();
        let truth = Truth::of(&world.sim);
        assert_eq!(truth.disks().len(), 1, "{sentence}");
        assert_eq!(truth.holders(&volume), [101].into(), "{sentence}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_left_the_pool_keeps_others_from_the_disk_and_is_not_named() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    show(&world, 101);
    move_out(&world, 101);
    sleep(Duration::from_millis(2100)).await;
    let status = caller.publish(&volume, 102).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(!status.message().contains("worker-101"), "{status:?}");
    assert_eq!(Truth::of(&world.sim).holders(&volume), [101].into());
}

/// An empty pool is seen to be empty by one who may see it.
#[tokio::test(flavor = "multi_thread")]
async fn with_no_worker_left_a_volume_can_be_deleted() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    world.sim.edit(|state| state.vms.remove(&101));
    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&world.sim).disks().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_seen_once_may_hold_disks_until_it_is_proved_gone_or_seen_again() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1"), (103, "pve2")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let there = caller.create("pvc-2", FILES, Some("pve2")).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    move_out(&world, 101);
    for status in [
        caller.delete(&volume).await.unwrap_err(),
        caller.publish(&volume, 102).await.unwrap_err(),
        caller.unpublish_as(&volume, "").await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    let log = world.controller_log();
    assert!(
        log.contains("VM 101") && log.contains("pvectl fence --gone 101:"),
        "the operator is told what to do"
    );
    assert_eq!(Truth::of(&world.sim).holders(&volume), [101].into());
    caller.publish(&there, 103).await.unwrap();

    world
        .sim
        .edit(|state| state.pools.get_mut(POOL).unwrap().vms.insert(101));
    caller.unpublish_as(&volume, "").await.unwrap();
    move_out(&world, 101);
    caller.publish(&volume, 102).await.unwrap_err();
    world.sim.edit(|state| state.vms.remove(&101));
    caller.publish(&volume, 102).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

/// Other hands, or the other controller, in the two seconds for which a list is shared.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_appears_between_two_polls_and_holds_the_volume_is_found() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let other = caller.create("pvc-2", SHARED, None).await.unwrap();
    for rpc in ["publish", "delete"] {
        caller.publish(&other, 101).await.unwrap();
        world.sim.edit(|state| {
            let mut vm = state.vms[&101].clone();
            let uuid = format!("uuid={}", harness::world::uuid(105));
            vm.config.insert("smbios1".to_owned(), uuid);
            vm.config.insert("scsi7".to_owned(), volid(&volume));
            vm.running = false;
            vm.devices.clear();
            state.vms.insert(105, vm);
            state.pools.get_mut(POOL).unwrap().vms.insert(105);
        });
        let status = match rpc {
            "publish" => caller.publish(&volume, 101).await.map(drop),
            _ => caller.delete(&volume).await,
        };
        let status = status.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{rpc}: {status:?}");
        assert_eq!(Truth::of(&world.sim).disks().len(), 2);
        world.sim.edit(|state| state.vms.remove(&105));
        sleep(Duration::from_millis(2100)).await;
    }
}

/// `qm set … wwn=` by other hands: the node plugin would refuse the device for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_other_hands_attached_under_a_name_of_their_own_is_refused() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    world.sim.stop_vm(101).unwrap();
    let line = format!("{},size=64M,wwn=0x5000c500a1b2c3d4", volid(&volume));
    world
        .sim
        .with_vm(101, |vm| vm.config.insert("scsi4".to_owned(), line));
    world.sim.start_vm(101).unwrap();
    world.sim.clear_requests();
    let status = caller.publish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("can't recognise"), "{status:?}");
    assert_eq!(mutations(&world.sim.requests()), NONE);
}

/// The first decisive answer ends a survey.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_can_not_be_read_ends_the_search_for_holders_at_once() {
    let workers: Vec<(u32, &str)> = (0..41).map(|n| (200 + n, "pve1")).collect();
    let world = World::start(tenant(&workers)).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    let broken = RequestEffect::FailBefore {
        status: 500,
        message: "cluster on fire".to_owned(),
    };
    fault(&world, ("GET", PENDING), 2, 1, broken);
    fault(
        &world,
        ("GET", PENDING),
        2,
        40,
        RequestEffect::Delay { ms: 2000 },
    );
    let begun = Instant::now();
    let status = caller.publish(&volume, 200).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

/// An operator takes a VM out of the pool while its lock is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_left_the_pool_while_others_were_at_work_on_it_gets_no_disk() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let caller = world.caller();
    let first = caller.create("pvc-1", SHARED, None).await.unwrap();
    let second = caller.create("pvc-2", SHARED, None).await.unwrap();
    show(&world, 101);
    fault(
        &world,
        ("POST", CONFIG),
        1,
        1,
        RequestEffect::Delay { ms: 4000 },
    );
    let leave = async {
        sleep(Duration::from_millis(1500)).await;
        move_out(&world, 101);
    };
    let late = async {
        sleep(Duration::from_millis(500)).await;
        caller.publish(&second, 101).await
    };
    let (_, late, ()) = tokio::join!(caller.publish(&first, 101), late, leave);
    let status = late.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(Truth::of(&world.sim).holders(&second).is_empty());
}

/// A queue for the host makes the proof old.
#[tokio::test(flavor = "multi_thread")]
async fn holders_are_looked_for_again_when_the_host_was_waited_for() {
    let workers = [(101, "pve1"), (102, "pve1"), (103, "pve2")];
    let world = World::start(tenant(&workers)).await.unwrap();
    let caller = world.caller();
    let first = caller.create("pvc-1", SHARED, None).await.unwrap();
    let second = caller.create("pvc-2", SHARED, None).await.unwrap();
    fault(
        &world,
        ("POST", CONFIG),
        1,
        1,
        RequestEffect::Delay { ms: 7000 },
    );
    let other_hands = async {
        sleep(Duration::from_millis(2500)).await;
        let line = volid(&second);
        world
            .sim
            .with_vm(103, |vm| vm.pending.insert("scsi5".to_owned(), line));
    };
    let late = async {
        sleep(Duration::from_millis(500)).await;
        caller.publish(&second, 102).await
    };
    let (early, late, ()) = tokio::join!(caller.publish(&first, 101), late, other_hands);
    early.unwrap();
    let status = late.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!(Truth::of(&world.sim).holders(&second), [103].into());
}

/// The answer is lost and the plug has failed: the next start of the VM would attach the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waits_behind_a_lost_answer_is_taken_back_or_told_of() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let lost = || RequestEffect::FailAfter {
        status: 596,
        message: "Connection timed out".to_owned(),
    };
    world.sim.vm_faults(101, |faults| faults.hotplug_fail = 1);
    fault(&world, ("POST", CONFIG), 1, 1, lost());
    caller.publish(&volume, 101).await.unwrap_err();
    assert_eq!(
        Truth::of(&world.sim).violations(),
        NONE,
        "nothing waits for the next start"
    );

    world.sim.vm_faults(101, |faults| faults.hotplug_fail = 1);
    fault(&world, ("POST", CONFIG), 1, 1, lost());
    fault(
        &world,
        ("GET", PENDING),
        2,
        1,
        RequestEffect::Delay { ms: 1000 },
    );
    let backup = async {
        sleep(Duration::from_millis(500)).await;
        world.sim.with_vm(101, |vm| {
            vm.config.insert("lock".to_owned(), "backup".to_owned())
        });
    };
    let (status, ()) = tokio::join!(caller.publish(&volume, 101), backup);
    status.unwrap_err();
    let log = world.controller_log();
    let told = log.lines().any(|line| {
        line.contains("may still be pending") && line.contains("101") && line.contains("scsi")
    });
    assert!(told, "{log}");
}

/// PVE's proxy gives up after 30 s while the work goes on: what was asked for may come when nobody expects it.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_not_detached_while_an_attach_without_answer_may_still_come() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    fault(&world, ("POST", CONFIG), 1, 1, RequestEffect::LostRequest);
    let attach = caller.publish(&volume, 101).await.unwrap_err();
    assert_ne!(attach.code(), Code::Internal, "{attach:?}");
    let early = caller.unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(early.code(), Code::Aborted, "{early:?}");
    // A second attach and its undoing bring the config back to the digest that the first was meant for.
    caller.publish(&volume, 101).await.unwrap();
    let undone = caller.unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(undone.code(), Code::Aborted, "{undone:?}");
    let truth = Truth::of(&world.sim);
    assert!(truth.holders(&volume).is_empty());
    assert_eq!(truth.violations(), NONE);
    // With another config it is refused by its digest.
    world.sim.with_vm(101, |vm| {
        vm.config.insert("tags".to_owned(), "other".to_owned())
    });
    caller.unpublish(&volume, 101).await.unwrap();
    caller.publish(&volume, 102).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}
