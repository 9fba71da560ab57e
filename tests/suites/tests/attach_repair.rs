//! Attach and detach against hotplugs that fail, lie, hang or stay half-done: whatever happens, config, pending changes
//! and QEMU agree in the end, and no answer claims more than they say.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]
use std::time::Duration;

use harness::caller::until_ok;
use harness::truth::{Truth, mutations, volid};
use harness::world::{FILES, SHARED, World, tenant};
use pve_sim::{RequestEffect, RequestFault, TaskEffect, TaskFault};
use tonic::Code;

const NONE: [String; 0] = [];
const CONFIG: &str = "/nodes/{node}/qemu/{vmid}/config";

async fn world() -> World {
    World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap()
}

fn fault(world: &World, method: &str, path: &str, times: u32, effect: RequestEffect) {
    world.sim.add_fault(RequestFault {
        method: method.to_owned(),
        path: path.to_owned(),
        nth: 1,
        times,
        effect,
    });
}

/// B01: an attach task that fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_plug_is_taken_back_and_another_slot_tried_in_the_same_call() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    world.sim.vm_faults(101, |faults| faults.hotplug_fail = 2);
    caller.publish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(
        truth.slots(101, &volume),
        ["scsi3"],
        "two slots are spoiled"
    );
    assert_eq!(truth.violations(), NONE);
}

/// B01, B05: no slot takes the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_plug_that_fails_everywhere_is_an_error_and_leaves_nothing_for_the_next_boot() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    world.sim.vm_faults(101, |faults| faults.hotplug_fail = 100);
    let status = caller.publish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    assert!(Truth::of(&world.sim).holders(&volume).is_empty());
    assert_eq!(Truth::of(&world.sim).violations(), NONE);

    caller.publish(&volume, 102).await.unwrap();
    world.sim.stop_vm(101).unwrap();
    world.sim.start_vm(101).unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(
        truth.holders(&volume).into_iter().collect::<Vec<_>>(),
        [102]
    );
    assert_eq!(truth.violations(), NONE);
}

/// B02: the plug fails without a word (HTTP 200, config changed, no disk).
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_qemu_does_not_have_is_never_reported_as_attached() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    world
        .sim
        .vm_faults(101, |faults| faults.hotplug_fail_silent = 1);
    caller.publish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.slots(101, &volume), ["scsi2"]);
    assert_eq!(truth.violations(), NONE);

    world.sim.with_vm(101, |vm| vm.devices.clear());
    caller.publish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(
        truth.slots(101, &volume),
        ["scsi3"],
        "the repeated call repairs it in a fresh slot"
    );
    assert_eq!(truth.violations(), NONE);
}

/// B02: shown in the merged config only.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_only_pending_is_not_attached_yet() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let line = format!("{},wwn=0x5056432d49443031", volid(&volume));
    world
        .sim
        .with_vm(101, |vm| vm.pending.insert("scsi1".to_owned(), line));
    caller.publish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.slots(101, &volume).len(), 1);
    assert_eq!(truth.violations(), NONE);
}

/// B03: `hotplug` without `disk`.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_does_not_hotplug_disks_is_refused_without_a_write() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let other = caller.create("pvc-2", SHARED, None).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    world.sim.with_vm(101, |vm| {
        vm.config
            .insert("hotplug".to_owned(), "network,usb".to_owned())
    });
    world.sim.clear_requests();
    let status = caller.publish(&other, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("hotplug"), "{status:?}");
    let status = caller.unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(
        status.code(),
        Code::FailedPrecondition,
        "the guest still has the disk: {status:?}"
    );
    assert_eq!(mutations(&world.sim.requests()), NONE);
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.slots(101, &volume).len(), 1);
    assert_eq!(truth.violations(), NONE);

    world.sim.stop_vm(101).unwrap();
    caller.publish(&other, 101).await.unwrap();
    caller.unpublish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert!(
        truth.holders(&volume).is_empty(),
        "a stopped VM needs no hotplug"
    );
    assert_eq!(truth.violations(), NONE);
}

/// B04: the guest holds the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_the_guest_holds_stays_attached_for_every_answer() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    world.sim.vm_faults(101, |faults| faults.unplug_stuck = 1);
    for _ in 0..3 {
        let status = caller.unpublish(&volume, 101).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    let status = caller.publish(&volume, 102).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!(
        Truth::of(&world.sim)
            .holders(&volume)
            .into_iter()
            .collect::<Vec<_>>(),
        [101]
    );

    world.sim.clear_requests();
    let detach = async || caller.unpublish(&volume, 101).await;
    until_ok(Duration::from_secs(15), detach).await.unwrap();
    assert_eq!(
        mutations(&world.sim.requests()).len(),
        1,
        "the VM was left in peace meanwhile"
    );
    let truth = Truth::of(&world.sim);
    assert!(truth.holders(&volume).is_empty());
    assert_eq!(truth.violations(), NONE);
    caller.publish(&volume, 102).await.unwrap();
}

/// B04: QEMU has let go of the disk, the guest not of its controller.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_only_the_controller_holds_up_is_completed() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    world.sim.vm_faults(101, |faults| faults.unplug_busy = 1);
    caller.unpublish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert!(truth.holders(&volume).is_empty());
    assert_eq!(truth.violations(), NONE);
    caller.publish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert_eq!(
        truth.slots(101, &volume),
        ["scsi2"],
        "the old slot is spoiled"
    );
    assert_eq!(truth.violations(), NONE);
}

/// B05: a pending attach of a former try.
#[tokio::test(flavor = "multi_thread")]
async fn unpublish_also_takes_back_an_attach_that_waits_for_the_next_boot() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let line = volid(&volume);
    world
        .sim
        .with_vm(101, |vm| vm.pending.insert("scsi4".to_owned(), line));
    caller.unpublish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert!(truth.holders(&volume).is_empty());
    assert_eq!(truth.violations(), NONE);
}

/// B08: names that are part of one another.
#[tokio::test(flavor = "multi_thread")]
async fn of_disks_with_similar_names_exactly_one_is_attached_and_detached() {
    let world = world().await;
    let caller = world.caller();
    let mut volumes = Vec::new();
    for (name, storage) in [("pvc-1", SHARED), ("pvc-10", SHARED), ("pvc-1a", SHARED)] {
        let volume = caller.create(name, storage, None).await.unwrap();
        caller.publish(&volume, 101).await.unwrap();
        volumes.push(volume);
    }
    let twin = volumes[0].replace("//shared/", "/pve1/files/");
    assert_ne!(twin, volumes[0]);
    caller.unpublish(&twin, 101).await.unwrap();
    caller.unpublish(&volumes[0], 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    let held: Vec<usize> = volumes
        .iter()
        .map(|volume| truth.holders(volume).len())
        .collect();
    assert_eq!(held, [0, 1, 1]);
    assert_eq!(truth.violations(), NONE);
}

/// B09: the name in the guest is the volume's, never the slot's.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_keeps_its_wwn_in_every_slot_and_what_the_config_carries_is_reported() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let first = caller.publish(&volume, 101).await.unwrap();
    caller.unpublish(&volume, 101).await.unwrap();
    let second = caller.publish(&volume, 101).await.unwrap();
    assert_eq!(first["DevicePath"], second["DevicePath"]);
    assert_ne!(first["lun"], second["lun"], "slots go round");
    assert_eq!(second["size"], (64 << 20).to_string());
    caller.unpublish(&volume, 101).await.unwrap();

    let former = format!("{},size=64M,wwn=0x5056432d49443037", volid(&volume));
    world.sim.stop_vm(101).unwrap();
    world
        .sim
        .with_vm(101, |vm| vm.config.insert("scsi7".to_owned(), former));
    world.sim.start_vm(101).unwrap();
    let context = caller.publish(&volume, 101).await.unwrap();
    assert_eq!(
        context["DevicePath"],
        "/dev/disk/by-id/wwn-0x5056432d49443037"
    );
    assert_eq!(context["lun"], "7");
}

/// B17: the VM moves, or is being moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_moved_is_followed_and_one_that_is_locked_is_tried_again_later() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let other = caller.create("pvc-2", SHARED, None).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    world.sim.with_vm(101, |vm| "pve2".clone_into(&mut vm.node));
    caller.publish(&other, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).slots(101, &other).len(), 1);

    world.sim.with_vm(101, |vm| {
        vm.config.insert("lock".to_owned(), "migrate".to_owned())
    });
    world.sim.clear_requests();
    let status = caller.unpublish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(mutations(&world.sim.requests()), NONE);
    world.sim.with_vm(101, |vm| vm.config.remove("lock"));
    caller.unpublish(&volume, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_that_someone_else_changed_is_read_and_judged_again() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    let stale = || RequestEffect::FailBefore {
        status: 500,
        message: "checksum mismatch (file change by other user?)".to_owned(),
    };
    fault(&world, "POST", CONFIG, 3, stale());
    caller.publish(&volume, 101).await.unwrap();
    fault(&world, "POST", CONFIG, 3, stale());
    caller.unpublish(&volume, 101).await.unwrap();
    fault(&world, "POST", CONFIG, 100, stale());
    let status = caller.publish(&volume, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_is_found_out_by_the_next_call() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    for (tag, effect) in [
        ("a", RequestEffect::LostReply),
        ("b", RequestEffect::LostRequest),
    ] {
        fault(&world, "POST", CONFIG, 1, effect.clone());
        let attach = async || caller.publish(&volume, 101).await;
        until_ok(Duration::from_secs(10), attach).await.unwrap();
        assert_eq!(Truth::of(&world.sim).slots(101, &volume).len(), 1);
        fault(&world, "POST", CONFIG, 1, effect);
        // What never arrived may yet come, unless the config is another one by then.
        world.sim.with_vm(101, |vm| {
            vm.config.insert("tags".to_owned(), tag.to_owned())
        });
        let detach = async || caller.unpublish(&volume, 101).await;
        until_ok(Duration::from_secs(10), detach).await.unwrap();
        assert!(Truth::of(&world.sim).holders(&volume).is_empty());
        assert_eq!(Truth::of(&world.sim).violations(), NONE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_task_is_waited_for_and_a_failed_one_is_not_success() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    let task = |effect| TaskFault {
        task: "qmconfig".to_owned(),
        id: None,
        nth: 1,
        times: 1,
        effect,
    };
    world
        .sim
        .add_task_fault(task(TaskEffect::Slow { ms: 3500 }));
    caller.publish(&volume, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).slots(101, &volume).len(), 1);
    world.sim.add_task_fault(task(TaskEffect::Fail {
        text: "cluster on fire".to_owned(),
    }));
    let status = caller.unpublish(&volume, 101).await.unwrap_err();
    assert!(
        !status.message().contains("fire"),
        "PVE's words are the operator's: {status:?}"
    );
    assert_eq!(Truth::of(&world.sim).slots(101, &volume).len(), 1);
    caller.unpublish(&volume, 101).await.unwrap();
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_qemu_is_asked_again_and_never_taken_for_an_answer() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", SHARED, None).await.unwrap();
    world.sim.vm_faults(101, |faults| faults.qmp_busy = 2);
    caller.publish(&volume, 101).await.unwrap();
    world.sim.vm_faults(101, |faults| faults.qmp_busy = 1000);
    for status in [
        caller.publish(&volume, 101).await.unwrap_err(),
        caller.unpublish(&volume, 101).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    world.sim.vm_faults(101, |faults| faults.qmp_busy = 0);
    caller.unpublish(&volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert!(truth.holders(&volume).is_empty());
    assert_eq!(truth.violations(), NONE);
}
