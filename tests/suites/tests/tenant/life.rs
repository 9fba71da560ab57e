//! The controllers work with what was made, and with nothing more.

use std::collections::BTreeSet;

use harness::caller::{Caller, SIZE};
use harness::ccm::{CcmWorld, provider_id};
use harness::cluster::Programs;
use harness::csi::Csi;
use harness::extra_controller;
use harness::requirements::skipped;
use harness::truth::Truth;
use harness::world::uuid;

use super::*;

fn workers() -> Builder {
    empty()
        .vm(101, "pve1", "worker-101")
        .vm(102, "pve2", "worker-102")
}

#[tokio::test(flavor = "multi_thread")]
async fn from_an_empty_pve_cluster_to_a_volumes_whole_life() {
    let desk = Desk::new(workers()).await;
    desk.apply("").await.done();
    desk.add_workers();
    let config = desk.unpack(SECRETS[0]);
    let socket = desk.path("csi.sock");
    let mut controller =
        extra_controller::start(desk.folder.path(), "csi", (&socket, &config), &[]).unwrap();
    let csi = Csi::at(&socket);
    csi.served_by(&mut controller).await.unwrap();
    let caller = Caller::new(csi);
    desk.sim.clear_requests();
    for (storage, zone) in [(FILES, Some("pve1")), (THIN, Some("pve1")), (SHARED, None)] {
        let volume = caller.create("pvc-life", storage, zone).await.unwrap();
        caller.publish(&volume, 101).await.unwrap();
        assert_eq!(Truth::of(&desk.sim).slots(101, &volume).len(), 1);
        caller.expand(&volume, 2 * SIZE).await.unwrap();
        caller.unpublish(&volume, 101).await.unwrap();
        if zone.is_none() {
            caller.publish(&volume, 102).await.unwrap();
            caller.unpublish(&volume, 102).await.unwrap();
        }
        caller.delete(&volume).await.unwrap();
    }
    assert!(Truth::of(&desk.sim).disks().is_empty());
    let requests = desk.sim.requests();
    let refused = requests
        .iter()
        .filter(|request| [401, 403].contains(&request.status));
    assert_eq!(refused.count(), 0);
    let callers: BTreeSet<&str> = requests
        .iter()
        .map(|request| request.caller.as_str())
        .collect();
    assert_eq!(callers, [format!("{USER}!csi").as_str()].into());
    // What is deleted is gone: now the tenant may go, too.
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn from_an_empty_pve_cluster_to_a_node_with_its_identity() {
    let programs = match Programs::built() {
        Ok(programs) => programs,
        Err(why) => return skipped("tenant::life", &why),
    };
    let mut world = CcmWorld::start(&programs, workers()).await.unwrap();
    let sim = world.regions.remove(0).1;
    let desk = Desk::around(sim);
    desk.apply("--ha --guest-agent").await.done();
    desk.add_workers();
    let config = desk.unpack(SECRETS[1]);
    std::fs::copy(
        config.with_file_name("policy.yaml"),
        world.folder().join("policy.yaml"),
    )
    .unwrap();
    let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(config).unwrap()).unwrap();
    desk.sim.clear_requests();
    world.start_ccm(&config, &[]).await.unwrap();
    world.register("worker-101", 101).await.unwrap();
    let (node, _) = world.initialised("worker-101").await.unwrap();
    assert_eq!(
        provider_id(&node),
        Some(format!("proxmox://{}", uuid(101)).as_str())
    );
    let requests = desk.sim.requests();
    let refused = requests
        .iter()
        .filter(|request| [401, 403].contains(&request.status));
    assert_eq!(refused.count(), 0);
    assert!(
        requests
            .iter()
            .all(|request| request.caller == format!("{USER}!ccm"))
    );
    world.kill_ccms().await.unwrap();
}
