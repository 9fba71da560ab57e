//! "Not there" is PVE's word for many things. What is concluded from it, and what is not.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use harness::truth::Truth;
use harness::world::{FILES, World, tenant};
use pve_sim::{RequestEffect, RequestFault};
use tonic::Code;

const DISK: &str = "/nodes/{node}/storage/{storage}/content/{volume*}";

async fn world() -> World {
    World::start(tenant(&[(101, "pve1")])).await.unwrap()
}

fn fault(method: &str, effect: RequestEffect) -> RequestFault {
    RequestFault {
        method: method.to_owned(),
        path: DISK.to_owned(),
        nth: 1,
        times: 1,
        effect,
    }
}

fn says(text: &str) -> RequestEffect {
    RequestEffect::FailBefore {
        status: 500,
        message: text.to_owned(),
    }
}

fn usable(world: &World, usable: &str) {
    world.sim.edit(|state| {
        let files = state.storages.get_mut(FILES).unwrap();
        files.disable = usable != "usable";
    });
}

/// A `stat` that fails looks like a missing file (PVE's `Plugin.pm`, `file_size_info`).
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_removal_from_a_directory_that_can_not_be_read_is_no_success() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-a", FILES, Some("pve1")).await.unwrap();
    usable(&world, "not usable");
    let busy = "cannot remove '/mnt/files/images/9999/vm-9999-pvc-a.raw': dataset is busy";
    world.sim.add_fault(fault("DELETE", says(busy)));
    let no_format = "volume_size_info on 'files:9999/vm-9999-pvc-a.raw' failed - no format";
    world.sim.add_fault(fault("GET", says(no_format)));
    let refused = caller.delete(&volume).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(Truth::of(&world.sim).disks().len(), 1);
    usable(&world, "usable");
    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&world.sim).disks().is_empty());
}

/// `qemu-img info` that says nothing in time looks like a missing file too.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_answer_that_shows_no_disk_is_no_reason_to_send_a_pod_elsewhere() {
    let world = world().await;
    let caller = world.caller();
    world.sim.edit(|state| {
        let files = state.storages.get_mut(FILES).unwrap();
        files.used = files.total;
    });
    world
        .sim
        .add_fault(fault("GET", RequestEffect::Delay { ms: 2200 }));
    let unknown = caller.create("pvc-a", FILES, Some("pve1")).await;
    let unknown = unknown.unwrap_err();
    assert_eq!(unknown.code(), Code::Unavailable, "{unknown:?}");
    let full = caller.create("pvc-a", FILES, Some("pve1")).await;
    assert_eq!(full.unwrap_err().code(), Code::ResourceExhausted);
}
