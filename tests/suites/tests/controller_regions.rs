//! One controller for two PVE clusters: a volume is in one of them, whatever went wrong.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

use std::time::Duration;

use csi_proto::csi::v1::CreateVolumeRequest;
use harness::caller::{SIZE, until_ok};
use harness::csi::{create_request, topology};
use harness::truth::Truth;
use harness::world::{REGION, THIN, World, tenant};
use pve_sim::{RequestEffect, RequestFault, SimHandle};
use serde_json::json;
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(15);
const OTHER: &str = "r2";

/// A controller of both, and the second PVE cluster.
async fn two_regions() -> (World, SimHandle) {
    let mut world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let other = tenant(&[(201, "pve1")]).start().await.unwrap();
    let mut config = world.config();
    let mut second = config["regions"][REGION].clone();
    second["endpoints"] = json!([{ "url": other.url(), "ca": other.ca_pem() }]);
    config["regions"][OTHER] = second;
    world.start_controller_with(&config).await.unwrap();
    (world, other)
}

fn fill(sim: &SimHandle, full: &str) {
    sim.edit(|state| {
        let thin = state.storages.get_mut(THIN).unwrap();
        thin.used = match full {
            "full" => thin.total,
            _ => 0,
        };
    });
}

fn anywhere(name: &str) -> CreateVolumeRequest {
    let mut request = create_request(name, SIZE, THIN, (REGION, None));
    request.accessibility_requirements = None;
    request
}

fn lost_reply() -> RequestFault {
    RequestFault {
        method: "POST".to_owned(),
        path: "/nodes/{node}/storage/{storage}/content".to_owned(),
        nth: 1,
        times: 1,
        effect: RequestEffect::LostReply,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_may_be_in_one_region_is_not_made_in_another() {
    let (world, other) = two_regions().await;
    let caller = world.caller();
    fill(&world.sim, "full");
    other.add_fault(lost_reply());
    assert!(caller.create_as(anywhere("pvc-a")).await.is_err());
    fill(&world.sim, "empty");
    let volume = until_ok(PATIENCE, async || caller.create_as(anywhere("pvc-a")).await);
    let volume = volume.await.unwrap();
    assert!(
        volume.volume_id.starts_with("r2/"),
        "made in r1 too: {}",
        volume.volume_id
    );
    assert!(Truth::of(&world.sim).disks().is_empty());
    assert_eq!(Truth::of(&other).disks().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_in_a_region_that_is_not_asked_for_any_more_is_not_made_again() {
    let (world, other) = two_regions().await;
    let caller = world.caller();
    let within = |region: &str| {
        let mut request = anywhere("pvc-a");
        let terms = vec![topology(region, None)];
        request.accessibility_requirements = Some(csi_proto::csi::v1::TopologyRequirement {
            requisite: terms.clone(),
            preferred: terms,
        });
        request
    };
    other.add_fault(lost_reply());
    assert!(caller.create_as(within(OTHER)).await.is_err());
    let refused = caller.create_as(within(REGION)).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused:?}");
    assert!(Truth::of(&world.sim).disks().is_empty());
}
