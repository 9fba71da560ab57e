//! The controller as a process: outages, the end of a Pod, a wrong config, and its secrets.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    reason = "tests fail by panics, and a table is as long as it is"
)]

use std::time::Duration;

use csi_proto::csi::v1::ProbeRequest;
use harness::caller::until_ok;
use harness::truth::{Truth, mutations};
use harness::world::{FILES, TOKEN, World, tenant};
use pve_sim::{RequestEffect, RequestFault, Timing};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(20);
/// The secret part of the token in the config of every world.
const SECRET: &str = TOKEN.1;
const NONE: [String; 0] = [];

async fn ready(world: &World) -> bool {
    let answer = world.csi().identity().probe(ProbeRequest {}).await.unwrap();
    answer.into_inner().ready.unwrap_or(true)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_pve_restarts_nothing_and_calls_recover_by_themselves() {
    let mut world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let kept = caller
        .create("pvc-kept", FILES, Some("pve1"))
        .await
        .unwrap();
    assert!(ready(&world).await);
    let pid = world.controller.as_ref().unwrap().pid();
    world.sim.set_reachable(false);
    let until = Instant::now() + Duration::from_secs(6);
    let mut refusals = 0;
    while Instant::now() < until {
        let status = caller
            .create("pvc-new", FILES, Some("pve1"))
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        for outcome in [
            caller.publish(&kept, 101).await.map(drop),
            caller.unpublish(&kept, 101).await,
            caller.delete(&kept).await,
        ] {
            let status = outcome.expect_err("PVE is away");
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        }
        assert!(
            ready(&world).await,
            "an outage of PVE must not restart the Pod"
        );
        refusals += 1;
        sleep(Duration::from_millis(300)).await;
    }
    assert!(refusals >= 1, "{refusals}");
    world.sim.set_reachable(true);
    let back = Instant::now();
    let volume = until_ok(PATIENCE, async || {
        caller.create("pvc-new", FILES, Some("pve1")).await
    });
    let volume = volume.await.unwrap();
    assert!(
        back.elapsed() < Duration::from_secs(5),
        "{:?}",
        back.elapsed()
    );
    until_ok(PATIENCE, async || caller.publish(&volume, 101).await)
        .await
        .unwrap();
    let process = world.controller.as_mut().unwrap();
    assert_eq!(process.pid(), pid);
    assert!(process.ended().unwrap().is_none());
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.disks().len(), 2);
    assert_eq!(truth.violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_starts_while_pve_is_away_waits_for_it() {
    let mut world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    world.sim.set_reachable(false);
    world.start_controller().await.unwrap();
    let caller = world.caller();
    let status = caller
        .create("pvc-1", FILES, Some("pve1"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    world.sim.set_reachable(true);
    let created = until_ok(PATIENCE, async || {
        caller.create("pvc-1", FILES, Some("pve1")).await
    });
    created.await.unwrap();
    assert!(ready(&world).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_a_detach_end_and_then_the_process() {
    let timing = Timing {
        detach: Duration::from_millis(1500),
        ..Timing::ZERO
    };
    let mut world = World::start(tenant(&[(101, "pve1")]).timing(timing))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller
        .create("pvc-drain", FILES, Some("pve1"))
        .await
        .unwrap();
    caller.publish(&volume, 101).await.unwrap();
    let detach = tokio::spawn({
        let (caller, volume) = (caller.clone(), volume.clone());
        async move { caller.unpublish(&volume, 101).await }
    });
    sleep(Duration::from_millis(500)).await;
    let controller = world.controller.take().unwrap();
    let status = controller.stop().await.unwrap();
    detach.await.unwrap().unwrap();
    assert!(status.success(), "{status}\n{}", world.logs().unwrap());
    let truth = Truth::of(&world.sim);
    assert!(truth.holders(&volume).is_empty());
    assert_eq!(truth.violations(), NONE);
    assert!(!world.controller_socket().exists(), "the socket is left");
}

/// The config of the world with one thing changed.
fn changed(world: &World, change: impl FnOnce(&mut Value)) -> String {
    let mut config = world.config();
    change(&mut config);
    config.to_string()
}

fn wrong_configs(world: &World) -> Vec<(&'static str, String)> {
    let region =
        |change: fn(&mut Value)| changed(world, |config| change(&mut config["regions"]["r1"]));
    vec![
        ("nothing", String::new()),
        ("no YAML", format!("regions: [r1: {{secret: {SECRET}")),
        ("a list", format!("[\"{SECRET}\"]")),
        (
            "no region",
            changed(world, |config| {
                config["regions"] = json!({});
            }),
        ),
        (
            "an unknown key",
            changed(world, |config| {
                config["regoins"] = json!({ "secret": SECRET });
            }),
        ),
        (
            "an unknown key of a region",
            region(|r| r["tokn"] = json!({ "secret": SECRET })),
        ),
        (
            "an unknown provider",
            changed(world, |config| config["provider"] = json!("aws")),
        ),
        ("no endpoint", region(|r| r["endpoints"] = json!([]))),
        (
            "plain HTTP",
            region(|r| r["endpoints"] = json!([{ "url": "http://pve.example.test:8006" }])),
        ),
        (
            "a secret in the URL",
            region(|r| {
                r["endpoints"] = json!([{ "url": format!("https://root:{SECRET}@pve1:8006") }]);
            }),
        ),
        (
            "no token",
            region(|r| drop(r.as_object_mut().unwrap().remove("token"))),
        ),
        (
            "a secret without an id",
            region(|r| r["token"] = json!({ "secret": SECRET })),
        ),
        (
            "a secret in the id",
            region(|r| {
                r["token"] = json!({ "id": format!("csi@pve!x={SECRET}"), "secret": SECRET });
            }),
        ),
        (
            "a secret that is a list",
            region(|r| r["token"] = json!({ "id": "csi@pve!x", "secret": [SECRET] })),
        ),
        (
            "no pool",
            region(|r| drop(r.as_object_mut().unwrap().remove("pool"))),
        ),
        ("an empty pool", region(|r| r["pool"] = json!(""))),
        (
            "no storages",
            region(|r| drop(r.as_object_mut().unwrap().remove("storages"))),
        ),
        (
            "a storage with a slash",
            region(|r| r["storages"] = json!(["../files"])),
        ),
        (
            "no nodes",
            region(|r| drop(r.as_object_mut().unwrap().remove("nodes"))),
        ),
        (
            "no owner",
            region(|r| drop(r.as_object_mut().unwrap().remove("owners"))),
        ),
        (
            "an owner that is no VMID",
            region(|r| r["owners"] = json!({ "default": 7 })),
        ),
        ("an unknown mode", region(|r| r["mode"] = json!("shared"))),
        (
            "a broken CA",
            region(|r| r["endpoints"][0]["ca"] = json!("-----BEGIN CERTIFICATE-----\nxx")),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_config_ends_with_64_before_the_socket_and_shows_no_secret() {
    let world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let mut failures = Vec::new();
    for (number, (what, config)) in wrong_configs(&world).into_iter().enumerate() {
        let name = format!("wrong-{number}");
        let (status, log, bound) = match world.refused_controller(&name, &config).await {
            Ok(outcome) => outcome,
            Err(error) => {
                failures.push(format!("{what}: {error}"));
                continue;
            }
        };
        if status.code() != Some(64) {
            failures.push(format!("{what}: {status}\n{log}"));
        }
        if bound {
            failures.push(format!("{what}: the socket was there"));
        }
        if log.contains(SECRET) || log.trim().is_empty() || log.contains("panicked") {
            failures.push(format!("{what}: {log}"));
        }
    }
    assert_eq!(failures, NONE);
    assert!(world.sim.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_never_reaches_a_log_or_an_answer() {
    let mut world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let mut answers = Vec::new();
    let faults = [
        RequestEffect::FailBefore {
            status: 401,
            message: format!("invalid token {SECRET}"),
        },
        RequestEffect::FailBefore {
            status: 500,
            message: "got timeout".to_owned(),
        },
        RequestEffect::LostReply,
        RequestEffect::LostRequest,
    ];
    for (number, effect) in faults.into_iter().enumerate().rev() {
        world.sim.add_fault(RequestFault {
            method: "*".to_owned(),
            path: "*".to_owned(),
            nth: 2,
            times: 2,
            effect,
        });
        let name = format!("pvc-{number}");
        let volume = caller.create(&name, FILES, Some("pve1")).await;
        answers.push(format!("{volume:?}"));
        world.sim.clear_faults();
        if let Ok(volume) = volume {
            answers.push(format!("{:?}", caller.publish(&volume, 101).await));
            answers.push(format!("{:?}", caller.unpublish(&volume, 101).await));
        }
    }
    world.controller.take().unwrap().stop().await.unwrap();
    let log = world.logs().unwrap();
    assert!(log.lines().count() > 20, "nothing was logged: {log}");
    for text in answers.iter().chain([&log]) {
        for part in [SECRET, "PVEAPIToken=csi@pve!tenant-a="] {
            assert!(!text.contains(part), "{part} in {text}");
        }
    }
}

/// B29: the sidecar's time is over while PVE is still at work.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_gives_up_neither_stops_the_work_nor_starts_it_twice() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let caller = world.caller();
    let volume = caller
        .create("pvc-late", FILES, Some("pve1"))
        .await
        .unwrap();
    world.sim.add_fault(RequestFault {
        method: "POST".to_owned(),
        path: "/nodes/{node}/qemu/{vmid}/config".to_owned(),
        nth: 1,
        times: 1,
        effect: RequestEffect::Delay { ms: 1500 },
    });
    world.sim.clear_requests();
    let first = timeout(Duration::from_millis(400), caller.publish(&volume, 101)).await;
    assert!(first.is_err(), "{first:?}");
    for _ in 0..3 {
        let status = caller.publish(&volume, 101).await.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{status:?}");
        let status = caller.unpublish(&volume, 101).await.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{status:?}");
    }
    until_ok(PATIENCE, async || caller.publish(&volume, 101).await)
        .await
        .unwrap();
    let posts = mutations(&world.sim.requests());
    assert_eq!(posts.len(), 1, "{posts:?}");
    let truth = Truth::of(&world.sim);
    assert_eq!(truth.slots(101, &volume).len(), 1);
    assert_eq!(truth.violations(), NONE);
}
