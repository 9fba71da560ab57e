//! Sizes that are right everywhere, and what they cost in requests.

use std::time::Duration;

use csi_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest,
    GetPluginCapabilitiesRequest,
};
use harness::caller::SIZE;
use harness::csi::block_capability;
use harness::truth::{Truth, mutations};
use harness::world::{FILES, SHARED, THIN, World, tenant};
use tokio::time::sleep;

use crate::world::{MIB, NONE, all, attached, sizes};

/// Longer than the inventory is shared, so that each RPC pays for its own.
const FORGOTTEN: Duration = Duration::from_millis(2100);

/// B35, B34: bytes, MiB and extents.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_has_at_least_the_size_that_was_asked_for_everywhere() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    for (storage, zone, asked, made) in [
        (FILES, Some("pve1"), 128 * MIB, 128 * MIB),
        (FILES, Some("pve1"), 64 * MIB + 1, 65 * MIB),
        (SHARED, None, (1 << 30) + 1, 1025 * MIB),
        (THIN, Some("pve1"), 128 * MIB, 128 * MIB),
        (THIN, Some("pve1"), 65 * MIB, 68 * MIB),
        (THIN, Some("pve1"), 1_500_000_001, 1432 * MIB),
    ] {
        let sentence = format!("{asked} on {storage}");
        let volume = attached(&world, &format!("pvc-{storage}-{asked}"), (storage, zone)).await;
        assert_eq!(
            caller.expand(&volume, asked).await.unwrap(),
            made,
            "{sentence}"
        );
        assert_eq!(sizes(&world, 101, &volume), all(made), "{sentence}");
        world.sim.clear_requests();
        assert_eq!(
            caller.expand(&volume, asked).await.unwrap(),
            made,
            "{sentence}, again"
        );
        assert_eq!(
            caller.expand(&volume, SIZE).await.unwrap(),
            made,
            "{sentence}, less"
        );
        assert_eq!(mutations(&world.sim.requests()), NONE, "{sentence}");
        caller.unpublish(&volume, 101).await.unwrap();
    }
    assert_eq!(Truth::of(&world.sim).violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn growth_is_offered_online_and_the_node_is_asked_to_look_at_blocks_too() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let mut controller = world.csi().controller();
    let request = ControllerGetCapabilitiesRequest {};
    let offered = controller
        .controller_get_capabilities(request)
        .await
        .unwrap();
    assert!(
        format!("{offered:?}").contains("ExpandVolume"),
        "{offered:?}"
    );
    let request = GetPluginCapabilitiesRequest {};
    let mut identity = world.csi().identity();
    let offered = identity.get_plugin_capabilities(request).await.unwrap();
    let offered = format!("{offered:?}");
    assert!(
        offered.contains("VolumeExpansion") && offered.contains("Online"),
        "{offered}"
    );

    let volume = attached(&world, "pvc-1", (SHARED, None)).await;
    for volume_capability in [Some(block_capability()), None] {
        let request = ControllerExpandVolumeRequest {
            volume_id: volume.clone(),
            capacity_range: Some(CapacityRange {
                required_bytes: 128 * MIB,
                limit_bytes: 0,
            }),
            volume_capability,
            ..Default::default()
        };
        let answer = world.caller().expand_as(request).await.unwrap();
        assert!(answer.node_expansion_required, "{answer:?}");
        assert_eq!(answer.capacity_bytes, 128 * MIB);
    }
}

/// The budget of the design: 4, and one for each other worker where the holder is not known.
async fn costs(others: u32, (storage, zone): (&str, Option<&str>)) {
    let workers: Vec<(u32, &str)> = (0..=others).map(|n| (101 + n, "pve1")).collect();
    let mut world = World::start(tenant(&workers)).await.unwrap();
    let volume = attached(&world, "pvc-1", (storage, zone)).await;
    sleep(FORGOTTEN).await;
    let caller = world.caller();
    let (answer, requests) = world.counted(caller.expand(&volume, 128 * MIB)).await;
    assert_eq!(answer.unwrap(), 128 * MIB);
    assert!(requests <= 4, "known: {:?}", world.sim.request_counts());
    sleep(FORGOTTEN).await;
    let (answer, requests) = world.counted(caller.expand(&volume, 128 * MIB)).await;
    assert_eq!(answer.unwrap(), 128 * MIB);
    assert!(
        requests <= 3,
        "large enough: {:?}",
        world.sim.request_counts()
    );

    world.crash_controller().await.unwrap();
    let caller = world.caller();
    let most = 4 + usize::try_from(others).unwrap();
    let (answer, requests) = world.counted(caller.expand(&volume, 256 * MIB)).await;
    assert_eq!(answer.unwrap(), 256 * MIB);
    assert!(
        requests <= most,
        "not known: {:?}",
        world.sim.request_counts()
    );
    assert_eq!(sizes(&world, 101, &volume), all(256 * MIB));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_other_worker_growth_keeps_to_its_requests() {
    costs(1, (FILES, Some("pve1"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_twenty_other_workers_growth_keeps_to_its_requests() {
    costs(20, (THIN, Some("pve1"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_hundred_other_workers_growth_keeps_to_its_requests() {
    costs(100, (SHARED, None)).await;
}
