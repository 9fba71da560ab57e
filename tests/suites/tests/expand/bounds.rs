//! Limits of the request, and the operator's bounds.

use csi_proto::csi::v1::{CapacityRange, ControllerExpandVolumeRequest};
use harness::caller::SIZE;
use harness::csi::create_request;
use harness::truth::mutations;
use harness::world::{FILES, REGION, SHARED, THIN, World, tenant};
use serde_json::json;
use tonic::Code;

use crate::world::{MIB, NONE, attached};

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_kept_and_nothing_is_written_where_it_can_not_be() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let volume = attached(&world, "pvc-1", (THIN, Some("pve1"))).await;
    let caller = world.caller();
    let ask = |required_bytes, limit_bytes| ControllerExpandVolumeRequest {
        volume_id: volume.clone(),
        capacity_range: Some(CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        ..Default::default()
    };
    world.sim.clear_requests();
    for (required, limit) in [
        (65 * MIB, 66 * MIB),
        (65 * MIB - 1, 65 * MIB),
        (0, 63 * MIB),
    ] {
        let status = caller.expand_as(ask(required, limit)).await.unwrap_err();
        assert_eq!(
            status.code(),
            Code::OutOfRange,
            "{required} {limit}: {status:?}"
        );
    }
    assert_eq!(mutations(&world.sim.requests()), NONE);
    let answer = caller.expand_as(ask(65 * MIB, 68 * MIB)).await.unwrap();
    assert_eq!(answer.capacity_bytes, 68 * MIB);
}

/// The operator's bounds are those of a new volume.
#[tokio::test(flavor = "multi_thread")]
async fn quotas_ceilings_and_free_space_bound_growth_as_they_bound_creation() {
    let builder = tenant(&[(101, "pve1")]);
    let mut world = World::without_controller(builder).await.unwrap();
    let mut config = world.config();
    config["regions"][REGION]["storages"] = json!({
        FILES: { "maxVolumeBytes": "1Gi" },
        THIN: { "maxBytes": "256Mi", "maxVolumes": 2 },
        SHARED: { "minFree": "242Gi" },
    });
    world.start_controller_with(&config).await.unwrap();
    let caller = world.caller();
    let local = Some("pve1");
    let capped = attached(&world, "pvc-1", (FILES, local)).await;
    let counted = attached(&world, "pvc-2", (THIN, local)).await;
    let request = create_request("pvc-3", SIZE, THIN, (REGION, local));
    caller.create_as(request).await.unwrap();
    let spare = attached(&world, "pvc-4", (SHARED, None)).await;
    world.sim.clear_requests();
    for (sentence, volume, size, code) in [
        ("a ceiling", &capped, 1025 * MIB, Code::OutOfRange),
        ("a quota", &counted, 193 * MIB, Code::ResourceExhausted),
        ("free space", &spare, 11 << 30, Code::ResourceExhausted),
    ] {
        let status = caller.expand(volume, size).await.unwrap_err();
        assert_eq!(status.code(), code, "{sentence}: {status:?}");
    }
    assert_eq!(mutations(&world.sim.requests()), NONE);
    caller.expand(&capped, 1024 * MIB).await.unwrap();
    caller.expand(&counted, 192 * MIB).await.unwrap();
    caller.expand(&spare, 9 << 30).await.unwrap();
}

/// Volumes that grow at once share what the quota leaves.
#[tokio::test(flavor = "multi_thread")]
async fn two_volumes_that_grow_at_once_do_not_exceed_their_quota() {
    let mut world = World::without_controller(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let mut config = world.config();
    config["regions"][REGION]["storages"] = json!({ SHARED: { "maxBytes": "256Mi" } });
    world.start_controller_with(&config).await.unwrap();
    let caller = world.caller();
    let first = attached(&world, "pvc-1", (SHARED, None)).await;
    // In another VM: one VM grows one volume at a time anyway.
    let second = caller.create("pvc-2", SHARED, None).await.unwrap();
    caller.publish(&second, 102).await.unwrap();
    let (one, other) = tokio::join!(
        caller.expand(&first, 192 * MIB),
        caller.expand(&second, 192 * MIB)
    );
    let refused = [one, other].into_iter().filter_map(Result::err);
    let codes: Vec<Code> = refused.map(|status| status.code()).collect();
    assert_eq!(codes, [Code::ResourceExhausted]);
    let total: u64 = world.sim.state().volumes.iter().map(|v| v.size).sum();
    assert_eq!(total, 256 << 20);
}
