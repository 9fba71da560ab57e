//! What went wrong for others when disks were made and deleted, and what is right.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use std::time::Duration;

use futures_util::future::join_all;
use harness::caller::{SIZE, until_ok};
use harness::csi::create_request;
use harness::truth::{Truth, volid};
use harness::world::{FILES, REGION, SHARED, THIN, World, tenant};
use pve_sim::{ClockMode, RequestEffect, RequestFault, TaskEffect, TaskFault};
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(15);
const CONTENT: &str = "/nodes/{node}/storage/{storage}/content";
const NONE: [String; 0] = [];
/// At these the provisioner keeps calling (external-provisioner `checkError`).
const NOT_FINAL: [Code; 4] = [
    Code::Aborted,
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::Cancelled,
];

fn once(method: &str, path: &str, effect: RequestEffect) -> RequestFault {
    RequestFault {
        method: method.to_owned(),
        path: path.to_owned(),
        nth: 1,
        times: 1,
        effect,
    }
}

fn imgdel(times: u32, effect: TaskEffect) -> TaskFault {
    TaskFault {
        task: "imgdel".to_owned(),
        id: None,
        nth: 1,
        times,
        effect,
    }
}

async fn one_worker() -> World {
    World::start(tenant(&[(101, "pve1")])).await.unwrap()
}

/// B32: the allocation outlasts the request; PVE finishes it later.
#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_that_ends_after_its_request_gives_one_disk_to_all_retries() {
    // 40 s of PVE are 0.4 s here; after 30 s its proxy answers 596.
    let builder = tenant(&[(101, "pve1")]).clock(ClockMode::Real { speed: 100 });
    let world = World::start(builder).await.unwrap();
    let slow = RequestEffect::Delay { ms: 40_000 };
    world.sim.add_fault(once("POST", CONTENT, slow));
    let caller = world.caller();
    let first = caller.create("pvc-slow", FILES, Some("pve1")).await;
    if let Err(status) = &first {
        assert!(NOT_FINAL.contains(&status.code()), "{status:?}");
    }
    let calls = (0..3).map(|_| {
        until_ok(PATIENCE, async || {
            caller.create("pvc-slow", FILES, Some("pve1")).await
        })
    });
    let handles: Vec<String> = join_all(calls)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert!(
        handles.iter().all(|handle| *handle == handles[0]),
        "{handles:?}"
    );
    assert_eq!(Truth::of(&world.sim).disks().len(), 1);
    caller.delete(&handles[0]).await.unwrap();
    assert!(Truth::of(&world.sim).disks().is_empty());
}

/// B32, B33: whatever happens to the allocation, an unknown outcome is never given as a final one.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_may_exist_is_never_answered_with_a_final_code() {
    let world = one_worker().await;
    let caller = world.caller();
    let lost = [
        RequestEffect::LostReply,
        RequestEffect::FailAfter {
            status: 596,
            message: "Connection timed out".to_owned(),
        },
        RequestEffect::FailAfter {
            status: 500,
            message: "got lock request timeout".to_owned(),
        },
        RequestEffect::FailAfter {
            status: 599,
            message: "Too many redirections".to_owned(),
        },
    ];
    for (number, effect) in lost.into_iter().enumerate() {
        let name = format!("pvc-{number}");
        world.sim.add_fault(once("POST", CONTENT, effect.clone()));
        // And the look afterwards fails too.
        let look = RequestEffect::FailBefore {
            status: 500,
            message: "timeout".to_owned(),
        };
        let path = "/nodes/{node}/storage/{storage}/content/{volume*}";
        world.sim.add_fault(RequestFault {
            times: 10,
            ..once("GET", path, look)
        });
        let outcome = caller.create(&name, FILES, Some("pve1")).await;
        if Truth::of(&world.sim).disks().is_empty() {
            continue;
        }
        let status = outcome.expect_err("the look failed");
        assert!(NOT_FINAL.contains(&status.code()), "{effect:?}: {status:?}");
        world.sim.clear_faults();
        let volume = until_ok(PATIENCE, async || {
            caller.create(&name, FILES, Some("pve1")).await
        });
        caller.delete(&volume.await.unwrap()).await.unwrap();
        assert!(Truth::of(&world.sim).disks().is_empty());
    }
}

/// B34: the storage makes more than it was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_size_is_rounded_up_and_the_real_one_is_answered_for_ever() {
    let world = one_worker().await;
    let caller = world.caller();
    for storage in [FILES, THIN] {
        let asked = 1_500_000_001;
        let name = format!("pvc-odd-{storage}");
        let request = create_request(&name, asked, storage, (REGION, Some("pve1")));
        let made = caller.create_as(request.clone()).await.unwrap();
        let real = Truth::of(&world.sim).size(&made.volume_id).unwrap();
        assert_eq!(u64::try_from(made.capacity_bytes).unwrap(), real);
        assert!(made.capacity_bytes >= asked);
        // As if the backend had added 8 MiB of its own.
        let name = volid(&made.volume_id);
        let name = name.split_once(':').unwrap().1.to_owned();
        world.sim.edit(|state| {
            let volume = state.volumes.iter_mut().find(|volume| volume.name == name);
            volume.unwrap().size += 8 << 20;
        });
        let again = caller.create_as(request).await.unwrap();
        assert_eq!(again.volume_id, made.volume_id);
        assert_eq!(again.capacity_bytes, made.capacity_bytes + (8 << 20));
    }
}

/// B34: what is there is larger than the limit, or smaller than required.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_of_that_name_outside_the_wanted_range_is_refused_and_kept() {
    let world = one_worker().await;
    let caller = world.caller();
    let volume = caller
        .create("pvc-there", THIN, Some("pve1"))
        .await
        .unwrap();
    for (required, limit) in [(SIZE / 4, SIZE / 2), (2 * SIZE, 4 * SIZE)] {
        let mut request = create_request("pvc-there", required, THIN, (REGION, Some("pve1")));
        request.capacity_range.as_mut().unwrap().limit_bytes = limit;
        let status = caller.create_as(request).await.unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists, "{status:?}");
    }
    assert_eq!(Truth::of(&world.sim).size(&volume), Some(64 << 20));
}

/// B35: a bare number would be KiB to PVE.
#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_is_a_gibibyte_and_one_byte_more_is_one_unit_more() {
    let world = one_worker().await;
    let caller = world.caller();
    for (name, asked, right) in [
        ("pvc-exact", 1 << 30, 1 << 30),
        ("pvc-more", (1 << 30) + 1, (1 << 30) + (1 << 20)),
    ] {
        let request = create_request(name, asked, FILES, (REGION, Some("pve1")));
        let made = caller.create_as(request).await.unwrap();
        assert_eq!(Truth::of(&world.sim).size(&made.volume_id), Some(right));
        assert_eq!(u64::try_from(made.capacity_bytes).unwrap(), right);
    }
}

/// B36: the storage holds the disk for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_disk_is_deleted_only_when_it_is_gone() {
    for storage in [FILES, THIN] {
        let world = one_worker().await;
        let caller = world.caller();
        let volume = caller
            .create("pvc-busy", storage, Some("pve1"))
            .await
            .unwrap();
        world.sim.storage_busy(storage, 3);
        let mut refusals = 0;
        while let Err(status) = caller.delete(&volume).await {
            assert_eq!(
                Truth::of(&world.sim).disks().len(),
                1,
                "{status:?} and it is gone"
            );
            assert!(refusals < 10, "{status:?}");
            refusals += 1;
        }
        assert!(refusals >= 1, "the disk was busy and Delete said OK");
        assert!(Truth::of(&world.sim).disks().is_empty());
    }
}

/// B36: a task that failed, died or lost its log.
#[tokio::test(flavor = "multi_thread")]
async fn deletion_is_believed_only_when_the_disk_is_not_there_any_more() {
    let world = one_worker().await;
    let caller = world.caller();
    let busy = "cannot destroy 'rpool/vm-9999-pvc': dataset is busy".to_owned();
    let effects = [
        TaskEffect::Fail { text: busy.clone() },
        TaskEffect::Kill,
        TaskEffect::FailAfter { text: busy },
        TaskEffect::Vanish,
        TaskEffect::Warn { count: 1 },
    ];
    for (number, effect) in effects.into_iter().enumerate() {
        let name = format!("pvc-{number}");
        let volume = caller.create(&name, FILES, Some("pve1")).await.unwrap();
        world.sim.add_task_fault(imgdel(1, effect.clone()));
        let outcome = caller.delete(&volume).await;
        let gone = Truth::of(&world.sim).disks().is_empty();
        assert!(
            outcome.is_err() || gone,
            "{effect:?}: {outcome:?}, and the disk is there"
        );
        let deleted = until_ok(PATIENCE, async || caller.delete(&volume).await);
        deleted
            .await
            .unwrap_or_else(|status| panic!("{effect:?}: {status:?}"));
        assert!(Truth::of(&world.sim).disks().is_empty(), "{effect:?}");
    }
}

/// B37: PVE deletes what a VM uses without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_a_vm_has_in_any_way_is_not_deleted() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-used", SHARED, None).await.unwrap();
    let drive = format!("{},size=64M", volid(&volume));
    let refused = async |how: &str| {
        let status = caller.delete(&volume).await.expect_err(how);
        assert_eq!(status.code(), Code::FailedPrecondition, "{how}: {status:?}");
        assert_eq!(Truth::of(&world.sim).disks().len(), 1, "{how}");
    };

    caller.publish(&volume, 102).await.unwrap();
    refused("attached").await;
    caller.unpublish(&volume, 102).await.unwrap();

    world.sim.with_vm(101, |vm| {
        vm.pending.insert("scsi4".to_owned(), drive.clone())
    });
    refused("waiting to be attached at the next boot").await;
    world.sim.with_vm(101, |vm| vm.pending.clear());

    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&world.sim).disks().is_empty());
}

/// B37: a VM's snapshot needs the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_a_snapshot_of_a_vm_is_not_deleted() {
    let world = one_worker().await;
    let caller = world.caller();
    let volume = caller
        .create("pvc-snapped", THIN, Some("pve1"))
        .await
        .unwrap();
    caller.publish(&volume, 101).await.unwrap();
    world.sim.with_vm(101, |vm| {
        vm.snapshots
            .insert("before-upgrade".to_owned(), vm.config.clone());
        vm.config
            .insert("parent".to_owned(), "before-upgrade".to_owned());
    });
    caller.unpublish(&volume, 101).await.unwrap();
    let status = caller.delete(&volume).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!(Truth::of(&world.sim).disks().len(), 1);
    world.sim.with_vm(101, |vm| {
        vm.snapshots.clear();
        vm.config.remove("parent");
    });
    caller.delete(&volume).await.unwrap();
}

/// B38: disks that are files, with a folder in their name.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_a_file_is_deleted_and_stays_deleted() {
    for (storage, zone) in [(FILES, Some("pve1")), (SHARED, None)] {
        let world = one_worker().await;
        let caller = world.caller();
        let volume = caller.create("pvc-file", storage, zone).await.unwrap();
        let other = caller.create("pvc-file-2", storage, zone).await.unwrap();
        assert!(volume.contains("/9999/vm-9999-pvc-file.raw"), "{volume}");
        for _ in 0..2 {
            caller.delete(&volume).await.unwrap();
        }
        let truth = Truth::of(&world.sim);
        assert_eq!(truth.disks(), [volid(&other)].into());
        assert_eq!(truth.violations(), NONE);
    }
}

/// B38: somebody else was faster.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_vanished_by_other_hands_is_deleted_already() {
    let world = one_worker().await;
    let caller = world.caller();
    for storage in [FILES, THIN] {
        let volume = caller
            .create("pvc-gone", storage, Some("pve1"))
            .await
            .unwrap();
        world.sim.edit(|state| state.volumes.clear());
        caller.delete(&volume).await.unwrap();
    }
}
