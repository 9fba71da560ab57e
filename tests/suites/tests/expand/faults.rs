//! Faults between PVE's three steps: the storage grows, QEMU is told, the config is written.

use std::time::Duration;

use harness::truth::{Truth, mutations};
use harness::world::{FILES, SHARED, THIN, World};
use pve_sim::TaskEffect;
use tokio::time::Instant;
use tonic::Code;

use crate::world::{
    MIB, NONE, NOT_FINAL, all, attached, converges, settled, sizes, task_fault, world,
};

/// The storage has grown, and neither QEMU nor the config knows: a worker that was killed in between.
fn only_the_storage_grew(world: &World, size: u64) {
    world.sim.edit(|state| {
        let ours = |name: &str| name.contains("vm-9999-");
        let volumes = state.volumes.iter_mut();
        for volume in volumes.filter(|volume| ours(&volume.name)) {
            volume.size = size;
        }
    });
}

/// The storage has grown and QEMU was told, and the config could not be written: the cluster has lost its quorum.
fn only_the_config_is_old(world: &World, size: u64) {
    only_the_storage_grew(world, size);
    world.sim.with_vm(101, |vm| {
        for device in vm.devices.values_mut() {
            device.size = size;
        }
    });
}

fn task_effects() -> Vec<(&'static str, TaskEffect)> {
    let text = |text: &str| text.to_owned();
    vec![
        (
            "fails",
            TaskEffect::Fail {
                text: text("cluster on fire"),
            },
        ),
        (
            "fails afterwards",
            TaskEffect::FailAfter {
                text: text("cluster on fire"),
            },
        ),
        ("warns", TaskEffect::Warn { count: 2 }),
        ("vanishes", TaskEffect::Vanish),
        ("is killed", TaskEffect::Kill),
        ("is slow", TaskEffect::Slow { ms: 1500 }),
        (
            "finds the VM locked",
            TaskEffect::Fail {
                text: text("VM is locked (backup)"),
            },
        ),
        (
            "gets no lock",
            TaskEffect::Fail {
                text: text("can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout"),
            },
        ),
        (
            "finds the config changed",
            TaskEffect::Fail {
                text: text("checksum mismatch (file change by other user?)"),
            },
        ),
        (
            "finds the VM moved",
            TaskEffect::Fail {
                text: text("Configuration file 'nodes/pve1/qemu-server/101.conf' does not exist"),
            },
        ),
    ]
}

/// B42: the verdict is in the task alone.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_becomes_of_the_task_the_sizes_are_right_in_the_end() {
    for (storage, zone) in [(SHARED, None), (THIN, Some("pve1"))] {
        let world = world().await;
        let volume = attached(&world, "pvc-1", (storage, zone)).await;
        let mut size = 64 * MIB;
        for (what, effect) in task_effects() {
            let sentence = format!("{storage}: the task {what}");
            size += 32 * MIB;
            task_fault(&world, effect);
            let answer = converges(&world, &volume, size, &sentence).await;
            settled(&world, &volume, size, answer, &sentence);
            world.sim.clear_faults();
        }
    }
}

/// The task fails in the middle, with the words of each step.
#[tokio::test(flavor = "multi_thread")]
async fn a_growth_that_stopped_between_two_steps_is_completed_by_the_next_call() {
    type Stops = fn(&World, u64);
    let quorum = "unable to open file '/etc/pve/nodes/pve1/qemu-server/101.conf.tmp.814' - Permission denied";
    let rows: [(&str, &str, Stops); 3] = [
        (
            "after the storage",
            "unexpected status",
            only_the_storage_grew,
        ),
        (
            "before the config, killed",
            "unexpected status",
            only_the_config_is_old,
        ),
        (
            "before the config, no quorum",
            quorum,
            only_the_config_is_old,
        ),
    ];
    for (storage, zone) in [(SHARED, None), (FILES, Some("pve1")), (THIN, Some("pve1"))] {
        for (what, exit, stops) in rows {
            for restarted in [false, true] {
                let sentence = format!("{storage}, {what}, restarted: {restarted}");
                let mut world = world().await;
                let volume = attached(&world, "pvc-1", (storage, zone)).await;
                task_fault(
                    &world,
                    TaskEffect::Fail {
                        text: exit.to_owned(),
                    },
                );
                let status = world.caller().expand(&volume, 128 * MIB).await.unwrap_err();
                assert!(NOT_FINAL.contains(&status.code()), "{sentence}: {status:?}");
                stops(&world, 128 << 20);
                if restarted {
                    world.crash_controller().await.unwrap();
                    // Otherwise the search for the holder is counted too.
                    world.caller().publish(&volume, 101).await.unwrap();
                }
                let answer = converges(&world, &volume, 128 * MIB, &sentence).await;
                settled(&world, &volume, 128 * MIB, answer, &sentence);
            }
        }
    }
}

/// A storage that is larger than what is asked for now: PVE says "shrinking".
#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_size_than_the_one_that_stopped_half_way_is_completed_too() {
    for (storage, zone) in [(SHARED, None), (THIN, Some("pve1"))] {
        let world = world().await;
        let volume = attached(&world, "pvc-1", (storage, zone)).await;
        only_the_storage_grew(&world, 256 << 20);
        let answer = world.caller().expand(&volume, 128 * MIB).await.unwrap();
        assert!(
            answer > 256 * MIB && answer <= 260 * MIB,
            "{storage}: {answer}"
        );
        assert_eq!(sizes(&world, 101, &volume), all(answer), "{storage}");
    }
}

/// `size=` that other hands wrote is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_config_that_says_more_than_the_storage_has_is_put_right() {
    for size in ["128M", "1G", ""] {
        let world = world().await;
        let volume = attached(&world, "pvc-1", (SHARED, None)).await;
        world.sim.with_vm(101, |vm| {
            let line = vm.config.get_mut("scsi1").unwrap();
            let other = if size.is_empty() {
                String::new()
            } else {
                format!(",size={size}")
            };
            *line = line.replace(",size=64M", &other);
        });
        let answer = world.caller().expand(&volume, 128 * MIB).await.unwrap();
        settled(&world, &volume, 128 * MIB, answer, size);
    }
}

/// The config names a disk that QEMU does not have: PVE grows the storage each time before it finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_qemu_lacks_does_not_grow_again_and_again() {
    for (storage, zone) in [(SHARED, None), (THIN, Some("pve1"))] {
        let world = world().await;
        let caller = world.caller();
        let volume = attached(&world, "pvc-1", (storage, zone)).await;
        let devices = world.sim.with_vm(101, |vm| std::mem::take(&mut vm.devices));
        for _ in 0..4 {
            let status = caller.expand(&volume, 128 * MIB).await.unwrap_err();
            assert!(NOT_FINAL.contains(&status.code()), "{storage}: {status:?}");
        }
        let size = Truth::of(&world.sim).size(&volume).unwrap();
        assert_eq!(size, 128 << 20, "{storage}");
        world.sim.with_vm(101, |vm| vm.devices = devices.unwrap());
        let answer = caller.expand(&volume, 128 * MIB).await.unwrap();
        settled(&world, &volume, 128 * MIB, answer, storage);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waits_for_the_drive_is_waited_for() {
    let world = world().await;
    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    world.sim.with_vm(101, |vm| {
        vm.pending_delete.insert("scsi1".to_owned(), false)
    });
    world.sim.clear_requests();
    let status = world.caller().expand(&volume, 128 * MIB).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(mutations(&world.sim.requests()), NONE);
}

/// A task that runs longer than a call may wait goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_lags_is_waited_for() {
    let world = world().await;
    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    task_fault(&world, TaskEffect::Slow { ms: 10_000 });
    let begun = Instant::now();
    let answer = world.caller().expand(&volume, 128 * MIB).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(10));
    settled(&world, &volume, 128 * MIB, answer, "10 s");
}
