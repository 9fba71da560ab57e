//! Where volumes go, what policy keeps them from, and that no retry, crash or outage makes a second disk.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::collections::HashMap;
use std::time::Duration;

use csi_proto::csi::v1::{
    CreateVolumeRequest, GetCapacityRequest, ProbeRequest, TopologyRequirement, Volume,
};
use futures_util::future::join_all;
use harness::caller::{SIZE, until_ok};
use harness::csi::{create_request, topology};
use harness::process::built;
use harness::truth::Truth;
use harness::world::{FILES, REGION, SHARED, THIN, World, tenant};
use pve_sim::{ClockMode, Health, RequestEffect, RequestFault};
use serde_json::{Value, json};
use tonic::{Code, Status};

const PATIENCE: Duration = Duration::from_secs(15);
const CONTENT: &str = "/nodes/{node}/storage/{storage}/content";

async fn world() -> World {
    World::start(tenant(&[(101, "pve1")])).await.unwrap()
}

/// A world whose storage `thin` has these bounds.
async fn bounded(limits: Value) -> World {
    let mut world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let mut config = world.config();
    config["regions"][REGION]["storages"] = json!({ FILES: {}, THIN: limits, SHARED: {} });
    world.start_controller_with(&config).await.unwrap();
    world
}

fn on(name: &str, storage: &str, zones: &[&str]) -> CreateVolumeRequest {
    let terms: Vec<_> = zones
        .iter()
        .map(|zone| topology(REGION, Some(zone)))
        .collect();
    let mut request = create_request(name, SIZE, storage, (REGION, None));
    request.accessibility_requirements = Some(TopologyRequirement {
        requisite: terms.clone(),
        preferred: terms,
    });
    request
}

fn zone_of(volume: &Volume) -> Option<String> {
    let term = volume.accessible_topology.first()?;
    term.segments.get("topology.kubernetes.io/zone").cloned()
}

async fn capacity(
    world: &World,
    storage: &str,
    zone: Option<&str>,
) -> Result<(i64, Option<i64>), Status> {
    let request = GetCapacityRequest {
        parameters: HashMap::from([("storage".to_owned(), storage.to_owned())]),
        accessible_topology: Some(topology(REGION, zone)),
        ..Default::default()
    };
    let answer = world.csi().controller().get_capacity(request).await?;
    let answer = answer.into_inner();
    Ok((answer.available_capacity, answer.maximum_volume_size))
}

fn lost_replies(times: u32, effect: RequestEffect) -> RequestFault {
    RequestFault {
        method: "POST".to_owned(),
        path: CONTENT.to_owned(),
        nth: 1,
        times,
        effect,
    }
}

/// B48: the scheduler tries elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_storage_that_is_not_on_the_host_is_no_room_and_no_error() {
    let world = world().await;
    world.sim.edit(|state| {
        let thin = state.storages.get_mut(THIN).unwrap();
        thin.nodes = ["pve1".to_owned()].into();
    });
    let caller = world.caller();
    let refused = caller.create_as(on("pvc-a", THIN, &["pve2"])).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    let volume = caller.create_as(on("pvc-a", THIN, &["pve2", "pve1"])).await;
    assert_eq!(zone_of(&volume.unwrap()).as_deref(), Some("pve1"));
    assert_eq!(capacity(&world, THIN, Some("pve2")).await.unwrap().0, 0);
    assert!(capacity(&world, THIN, Some("pve1")).await.unwrap().0 > 0);
    let unknown = capacity(&world, THIN, Some("worker-101"))
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument);
    assert!(unknown.message().contains("topology.kubernetes.io/zone"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_on_shared_storage_names_the_hosts_that_have_it_if_not_all_do() {
    let world = world().await;
    let caller = world.caller();
    let everywhere = caller
        .create_as(on("pvc-a", SHARED, &["pve1"]))
        .await
        .unwrap();
    assert!(everywhere.volume_id.starts_with("r1//shared/"));
    assert_eq!(zone_of(&everywhere), None);
    world.sim.edit(|state| {
        let shared = state.storages.get_mut(SHARED).unwrap();
        shared.nodes = ["pve1".to_owned()].into();
    });
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let partly = caller
        .create_as(on("pvc-b", SHARED, &["pve1"]))
        .await
        .unwrap();
    assert_eq!(zone_of(&partly).as_deref(), Some("pve1"));
    assert!(partly.volume_id.starts_with("r1//shared/"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_down_is_passed_over() {
    let mut world = world().await;
    world.sim.node_health("pve1", Health::Offline);
    let caller = world.caller();
    let refused = caller.create_as(on("pvc-a", THIN, &["pve1"])).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    let volume = caller.create_as(on("pvc-a", THIN, &["pve1", "pve2"])).await;
    assert_eq!(zone_of(&volume.unwrap()).as_deref(), Some("pve2"));
    let shared = caller
        .create_as(on("pvc-s", SHARED, &["pve1", "pve2"]))
        .await;
    let shared = shared.unwrap().volume_id;
    // The worker on that host could hold it, for all that a controller knows which did not make it.
    world.crash_controller().await.unwrap();
    let refused = caller.delete(&shared).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    world.sim.node_health("pve1", Health::Online);
    caller.delete(&shared).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_however_many_ask_at_once_and_a_volume_that_is_there_stays_ours() {
    let world = bounded(json!({ "maxVolumes": 2 })).await;
    let caller = world.caller();
    let names: Vec<String> = (0..5).map(|n| format!("pvc-{n}")).collect();
    let calls = names
        .iter()
        .map(|name| caller.create(name, THIN, Some("pve1")));
    let answers = join_all(calls).await;
    let made: Vec<usize> = (0..5).filter(|n| answers[*n].is_ok()).collect();
    assert_eq!(made.len(), 2, "{answers:?}");
    for refused in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
    assert_eq!(Truth::of(&world.sim).disks().len(), 2);
    assert_eq!(capacity(&world, THIN, Some("pve1")).await.unwrap().0, 0);
    let again = caller.create(&names[made[0]], THIN, Some("pve1")).await;
    assert_eq!(&again.unwrap(), answers[made[0]].as_ref().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_operator_allows_bounds_size_and_capacity() {
    let mib = 1 << 20;
    let world = bounded(json!({ "maxBytes": 160 * mib, "maxVolumeBytes": 100 * mib })).await;
    let caller = world.caller();
    let left = capacity(&world, THIN, Some("pve1")).await.unwrap();
    assert_eq!(left, (160 * mib, Some(100 * mib)));
    let large = create_request("pvc-large", 101 * mib, THIN, (REGION, Some("pve1")));
    let refused = caller.create_as(large).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    caller.create("pvc-a", THIN, Some("pve1")).await.unwrap();
    caller.create("pvc-b", THIN, Some("pve1")).await.unwrap();
    let left = capacity(&world, THIN, Some("pve1")).await.unwrap();
    assert_eq!(left, (32 * mib, Some(32 * mib)));
    let refused = caller
        .create("pvc-c", THIN, Some("pve1"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(Truth::of(&world.sim).disks().len(), 2);
}

/// B32, B33: an allocation whose answer was lost pins its place, whatever the retry prefers.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_prefers_another_host_makes_no_second_disk() {
    let builder = tenant(&[(101, "pve1")]).clock(ClockMode::Real { speed: 100 });
    let world = World::start(builder).await.unwrap();
    let caller = world.caller();
    for effect in [
        RequestEffect::LostReply,
        RequestEffect::Delay { ms: 40_000 },
    ] {
        world.sim.add_fault(lost_replies(1, effect));
        let first = caller.create_as(on("pvc-a", THIN, &["pve1", "pve2"])).await;
        assert!(first.is_err(), "{first:?}");
        let volume = until_ok(PATIENCE, async || {
            caller.create_as(on("pvc-a", THIN, &["pve2", "pve1"])).await
        });
        let volume = volume.await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Truth::of(&world.sim).disks().len(), 1, "{volume:?}");
        caller.delete(&volume.volume_id).await.unwrap();
        assert!(Truth::of(&world.sim).disks().is_empty());
    }
}

/// B32: the crash came between the allocation and its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_middle_of_create_leaves_the_disk_to_the_retry() {
    let mut world = world().await;
    for storage in [THIN, FILES, SHARED] {
        world
            .sim
            .add_fault(lost_replies(1, RequestEffect::LostReply));
        let before = world.caller();
        let first = before.create_as(on("pvc-a", storage, &["pve1", "pve2"]));
        assert!(first.await.is_err());
        world.crash_controller().await.unwrap();
        let caller = world.caller();
        // The first place is full by now: the disk is looked for before the next one is tried.
        world.sim.edit(|state| {
            let total = state.storages[storage].total;
            state.storages.get_mut(storage).unwrap().used = total;
        });
        let volume = caller
            .create_as(on("pvc-a", storage, &["pve1", "pve2"]))
            .await;
        let volume = volume.unwrap();
        assert_eq!(Truth::of(&world.sim).disks().len(), 1, "{volume:?}");
        caller.delete(&volume.volume_id).await.unwrap();
    }
}

/// B20: a host that is down keeps its disks; one that left the PVE cluster took them along.
#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_a_host_that_is_gone_is_deleted_and_that_of_one_that_is_down_is_not() {
    let world = World::start(tenant(&[(101, "pve1")]).node("pve3"))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-a", THIN, Some("pve2")).await.unwrap();
    world.sim.node_health("pve2", Health::Offline);
    let down = caller.delete(&volume).await.unwrap_err();
    assert_eq!(down.code(), Code::Unavailable, "{down:?}");
    let third = world.sim.edit(|state| {
        state.nodes.remove("pve2");
        state.nodes.remove("pve3").unwrap()
    });
    // So does an endpoint answer that has not joined its cluster yet.
    let alone = caller.delete(&volume).await.unwrap_err();
    assert_eq!(alone.code(), Code::Unavailable, "{alone:?}");
    world.sim.edit(|state| {
        state.nodes.insert("pve3".to_owned(), third);
    });
    caller.delete(&volume).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_starts_without_pve_is_ready_and_works_as_soon_as_it_is_there() {
    let mut world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    world.sim.set_reachable(false);
    world.start_controller().await.unwrap();
    let probe = world.csi().identity().probe(ProbeRequest {}).await;
    assert_eq!(probe.unwrap().into_inner().ready, Some(true));
    let caller = world.caller();
    let waiting = caller.create("pvc-a", THIN, Some("pve1"));
    let early = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    let early = early.unwrap().unwrap_err();
    assert_eq!(
        early.code(),
        Code::Unavailable,
        "the provisioner keeps calling: {early:?}"
    );
    world.sim.set_reachable(true);
    until_ok(PATIENCE, async || {
        caller.create("pvc-a", THIN, Some("pve1")).await
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_policy_takes_effect_without_a_restart() {
    let world = world().await;
    let caller = world.caller();
    let mut config = world.config();
    config["regions"][REGION]["storages"] = json!([FILES]);
    let path = world.folder().join("config.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = caller.create("pvc-a", THIN, Some("pve1")).await;
        match answer {
            Err(status) => {
                assert_eq!(status.code(), Code::InvalidArgument);
                break;
            }
            Ok(_) => assert!(tokio::time::Instant::now() < deadline, "still allowed"),
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    caller.create("pvc-b", FILES, Some("pve1")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_is_checked_without_a_start_and_refused_with_64() {
    let world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let check = |config: &Value| {
        let path = world.folder().join("checked.yaml");
        std::fs::write(&path, config.to_string()).unwrap();
        let program = built("pve-csi-controller").unwrap();
        let arguments = ["--check-config".into(), "--cloud-config".into(), path];
        tokio::process::Command::new(program)
            .args(arguments)
            .output()
    };
    let good = check(&world.config()).await.unwrap();
    assert_eq!(good.status.code(), Some(0));
    let mut config = world.config();
    config["regions"][REGION]["pol"] = json!("x");
    let bad = check(&config).await.unwrap();
    assert_eq!(bad.status.code(), Some(64));
    let said = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(
        said.contains("pol") && said.contains("regions.r1"),
        "{said}"
    );
}
