//! A volume in a VM, and what its size is in truth.

use std::time::Duration;

use harness::caller::until_ok;
use harness::truth::{Truth, volid};
use harness::world::{World, tenant};
use pve_sim::{TaskEffect, TaskFault};
use tonic::Code;

pub(crate) const NONE: [String; 0] = [];
pub(crate) const MIB: i64 = 1 << 20;
const TASK: &str = "GET /nodes/{node}/tasks/{upid}/status";
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// What external-resizer takes as "may be in progress", so that it keeps to the size.
pub(crate) const NOT_FINAL: [Code; 4] = [
    Code::Aborted,
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::ResourceExhausted,
];

/// What storage, config and QEMU say about the size of a volume, in bytes.
pub(crate) fn sizes(world: &World, vmid: u32, handle: &str) -> (i64, Option<i64>, Option<i64>) {
    let storage = Truth::of(&world.sim).size(handle).unwrap();
    let state = world.sim.state();
    let vm = &state.vms[&vmid];
    let volid = volid(handle);
    let device = vm.devices.values().find(|device| device.volid == volid);
    let lines = vm.config.values();
    let line = lines.into_iter().find(|line| line.starts_with(&volid));
    let noted = line.and_then(|line| {
        let size = line
            .split(',')
            .find_map(|part| part.strip_prefix("size="))?;
        let unit = match size.chars().last()? {
            'M' => 1 << 20,
            'G' => 1 << 30,
            _ => return size.parse().ok(),
        };
        size[..size.len() - 1].parse::<i64>().ok().map(|n| n * unit)
    });
    let device = device.map(|device| i64::try_from(device.size).unwrap());
    (i64::try_from(storage).unwrap(), noted, device)
}

pub(crate) fn all(size: i64) -> (i64, Option<i64>, Option<i64>) {
    (size, Some(size), Some(size))
}

pub(crate) async fn attached(
    world: &World,
    name: &str,
    (storage, zone): (&str, Option<&str>),
) -> String {
    let caller = world.caller();
    let volume = caller.create(name, storage, zone).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    volume
}

pub(crate) async fn world() -> World {
    World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap()
}

pub(crate) fn task_fault(world: &World, effect: TaskEffect) {
    world.sim.add_task_fault(TaskFault {
        task: "resize".to_owned(),
        id: None,
        nth: 1,
        times: 1,
        effect,
    });
}

/// Calls until success. No call takes more than twice the requests that it takes without a fault, and none claims that nothing
/// is in progress. Time that PVE takes itself is no fault: of the questions for the task one is counted.
pub(crate) async fn converges(world: &World, volume: &str, size: i64, sentence: &str) -> i64 {
    let most = if volume.contains("/thin/") { 10 } else { 8 };
    let caller = world.caller();
    let made = until_ok(PATIENCE, async || {
        let (answer, requests) = world.counted(caller.expand(volume, size)).await;
        let counts = world.sim.request_counts();
        let polls = counts.get(TASK).copied().unwrap_or_default();
        let waiting = usize::try_from(polls.saturating_sub(1)).unwrap();
        assert!(requests - waiting <= most, "{sentence}: {counts:?}");
        if let Err(status) = &answer {
            assert!(NOT_FINAL.contains(&status.code()), "{sentence}: {status:?}");
        }
        answer
    });
    made.await
        .unwrap_or_else(|status| panic!("{sentence}: {status:?}"))
}

pub(crate) fn settled(world: &World, volume: &str, least: i64, answer: i64, sentence: &str) {
    assert!(answer >= least, "{sentence}: {answer}");
    assert!(answer <= least + 8 * MIB, "{sentence}: {answer}");
    assert_eq!(sizes(world, 101, volume), all(answer), "{sentence}");
    assert_eq!(Truth::of(&world.sim).violations(), NONE, "{sentence}");
}
