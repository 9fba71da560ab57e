//! Guests that move to another host (running.md 13, 14).

use std::time::Duration;

use serde_json::{Value, json};

use super::hosts::{A, S, vm};
use super::{World, cluster};
use crate::ClockMode;

#[tokio::test]
async fn a_guest_that_migrates_is_locked_until_its_config_has_arrived_and_a_little_longer() {
    let timing = crate::Timing {
        migrate: Duration::from_secs(8),
        ..crate::Timing::ZERO
    };
    let builder = cluster().timing(timing).clock(ClockMode::Stepped);
    let world = World::new(builder).await;
    world.put(&format!("scsi1={S}")).await;
    world
        .sim
        .with_vm(100, |vm| vm.leaked.insert("scsi2".into()));
    let pid = world.sim.with_vm(100, |vm| vm.pid).unwrap();
    let form = "target=pve2&online=1";
    let upid = world.ok("POST", "/nodes/pve1/qemu/100/migrate", form).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (status, body) = world.put("delete=scsi1").await;
    assert_eq!(
        (status, &body["message"]),
        (500, &json!("VM is locked (migrate)\n"))
    );
    assert_eq!(vm(&world, 100).await["lock"], "migrate");
    world.sim.advance(Duration::from_secs(8));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (status, body) = world.put("delete=scsi1").await;
    let text = "Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist\n";
    assert_eq!((status, &body["message"]), (500, &json!(text)));
    let there = world
        .ok("GET", "/nodes/pve2/qemu/100/status/current", "")
        .await;
    assert_eq!(
        (&there["status"], &there["lock"]),
        (&json!("running"), &json!("migrate"))
    );
    world.sim.advance(Duration::from_secs(1));
    assert_eq!(world.exit(&upid).await, "OK");
    let now = world.sim.with_vm(100, |vm| vm.clone()).unwrap();
    assert!(now.pid != pid && now.leaked.is_empty() && !now.config.contains_key("lock"));
    assert_eq!(world.sim.disks(100), ["scsi1"]);
}

#[tokio::test]
async fn what_keeps_a_guest_from_migrating_is_in_the_log() {
    let world = World::new(cluster().node("pve3")).await;
    let migrate = "/nodes/pve1/qemu/100/migrate";
    let log = async |upid: &Value| {
        let path = format!("/nodes/pve1/tasks/{}/log", upid.as_str().unwrap());
        let rows = world.ok("GET", &path, "").await;
        let lines = rows.as_array().unwrap().iter();
        lines.map(|row| row["t"].to_string()).collect::<String>()
    };
    world.sim.stop_vm(100).unwrap();
    world.put(&format!("scsi1={A}")).await;
    let upid = world.ok("POST", migrate, "target=pve2").await;
    assert_eq!(world.exit(&upid).await, "migration aborted");
    let text = log(&upid).await;
    for part in [
        "starting migration of VM 100 to node 'pve2' (10.99.0.2)",
        &format!("found local disk '{A}' (attached)"),
        &format!("can't migrate local disk '{A}': owned by other VM (owner = VM 9999)"),
        "ERROR: Problem found while scanning volumes - can't migrate VM - check log",
        "aborting phase 1 - cleanup resources",
        "TASK ERROR: migration aborted",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    world.put("delete=scsi1").await;
    world.sim.power_off("pve3");
    let upid = world.ok("POST", migrate, "target=pve3").await;
    assert_eq!(world.exit(&upid).await, "migration aborted");
    world.put(&format!("scsi1={S}")).await;
    world.sim.edit(|state| {
        let shared = state.storages.get_mut("shared").unwrap();
        shared.nodes = ["pve1".to_owned()].into();
    });
    let told = world.ok("GET", migrate, "").await;
    assert_eq!(told["allowed_nodes"], json!([]));
    assert_eq!(
        told["not_allowed_nodes"]["pve2"],
        json!({"unavailable_storages": ["shared"]})
    );
    let (status, body) = world.call("POST", migrate, "target=pve2").await;
    let text = "storage 'shared' is not available on node 'pve2'\n";
    assert_eq!((status, &body["message"]), (500, &json!(text)));
}
