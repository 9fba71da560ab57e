//! Hosts that die and come back, and the guests on them (running.md 13b, 13f, 13h, 14; facts 17 and 29).

use std::time::Duration;

use serde_json::{Value, json};

use super::{ROOT, World, cluster};
use crate::{ClockMode, Health};

pub(super) const A: &str = "local:9999/vm-9999-a.raw";
pub(super) const S: &str = "shared:9999/vm-9999-s.raw";
const B_CONFIG: &str = "/nodes/pve2/qemu/101/config";

async fn three() -> World {
    let world = World::new(cluster().node("pve3").clock(ClockMode::Stepped)).await;
    let (status, _) = world.call("PUT", B_CONFIG, &format!("scsi1={S}")).await;
    assert_eq!(status, 200);
    world
}

/// A request that waits, while the clock runs by `seconds`.
async fn during(world: &World, path: &str, seconds: u64) -> (u16, String) {
    let step = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.sim.advance(Duration::from_secs(seconds));
    };
    let (reply, ()) = tokio::join!(world.send(ROOT, "GET", path, ""), step);
    let reply = reply.unwrap();
    (reply.status, reply.reason)
}

pub(super) async fn vm(world: &World, vmid: u32) -> Value {
    let rows = world.ok("GET", "/cluster/resources?type=vm", "").await;
    let mut rows = rows.as_array().unwrap().iter();
    rows.find(|row| row["vmid"] == vmid).unwrap().clone()
}

#[tokio::test]
async fn a_host_that_loses_power_is_noticed_bit_by_bit_and_keeps_its_last_status() {
    let world = three().await;
    world.sim.power_off("pve2");
    assert!(world.sim.disks(101).is_empty());
    let told = |status: u16, reason: &str| (status, reason.to_owned());
    let reset = during(&world, B_CONFIG, 0).await;
    assert_eq!(reset, told(596, "Connection reset by peer"));
    world.sim.advance(Duration::from_secs(2));
    let silent = during(&world, B_CONFIG, 30).await;
    assert_eq!(silent, told(595, "Connection timed out"));
    let dead = during(&world, B_CONFIG, 3).await;
    assert_eq!(dead, told(595, "No route to host"));
    let row = vm(&world, 101).await;
    assert_eq!(
        (&row["status"], &row["node"]),
        (&json!("running"), &json!("pve2"))
    );
    world.sim.advance(Duration::from_mins(5));
    let row = vm(&world, 101).await;
    assert_eq!((&row["status"], row.get("name")), (&json!("unknown"), None));
}

#[tokio::test]
async fn a_host_that_gets_power_back_refuses_first_and_its_vms_are_stopped_and_nameless_for_a_while()
 {
    let world = three().await;
    world
        .sim
        .with_vm(101, |vm| vm.config.insert("description".into(), "y".into()));
    world.sim.power_off("pve2");
    world.sim.advance(Duration::from_secs(40));
    world.sim.power_on("pve2");
    assert_eq!(during(&world, B_CONFIG, 3).await.0, 595);
    let refused = during(&world, B_CONFIG, 0).await;
    assert_eq!(refused, (595, "Connection refused".to_owned()));
    world.sim.advance(Duration::from_secs(7));
    let current = "/nodes/pve2/qemu/101/status/current";
    assert_eq!(world.ok("GET", current, "").await["status"], "stopped");
    let config = world.ok("GET", B_CONFIG, "").await;
    assert_eq!(config["scsi1"], format!("{S},size=1G"));
    let row = vm(&world, 101).await;
    assert_eq!((&row["status"], row.get("name")), (&json!("unknown"), None));
    world.sim.advance(Duration::from_secs(20));
    let row = vm(&world, 101).await;
    assert_eq!(
        (&row["status"], &row["name"]),
        (&json!("stopped"), &json!("worker-b"))
    );
}

#[tokio::test]
async fn vms_that_start_on_boot_come_up_with_their_host() {
    let world = three().await;
    world
        .sim
        .with_vm(101, |vm| vm.config.insert("onboot".into(), "1".into()));
    let before = world.sim.with_vm(101, |vm| vm.pid).unwrap();
    world.sim.power_off("pve2");
    world.sim.power_on("pve2");
    world.sim.advance(Duration::from_secs(10));
    assert_eq!(world.sim.disks(101), ["scsi1"]);
    assert_ne!(world.sim.with_vm(101, |vm| vm.pid).unwrap(), before);
}

#[tokio::test]
async fn the_endpoint_of_a_host_without_power_is_closed() {
    let world = World::new(cluster().endpoint("pve2").insecure_http()).await;
    let addresses: Vec<String> = world
        .sim
        .urls()
        .iter()
        .map(|url| url.trim_start_matches("http://").to_owned())
        .collect();
    let open = async |at: usize| tokio::net::TcpStream::connect(&addresses[at]).await.is_ok();
    world.sim.power_off("pve2");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(open(0).await && !open(1).await);
    world.sim.power_on("pve2");
    world.sim.advance(Duration::from_secs(11));
    world.sim.state();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(open(1).await);
    world.sim.node_health("pve2", Health::Isolated);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!open(1).await);
}

async fn managed(world: &World) {
    world.sim.edit(|state| state.ha.running = true);
    let form = "sid=vm:101&state=started";
    world.ok("POST", "/cluster/ha/resources", form).await;
}

#[tokio::test]
async fn the_ha_stack_fences_a_dead_host_after_a_minute_and_moves_its_guests_after_two() {
    let world = three().await;
    managed(&world).await;
    world.sim.power_off("pve2");
    world.sim.advance(Duration::from_secs(59));
    assert_eq!(vm(&world, 101).await["hastate"], "started");
    world.sim.advance(Duration::from_secs(2));
    let row = vm(&world, 101).await;
    assert_eq!(
        (&row["hastate"], &row["node"], &row["status"]),
        (&json!("fence"), &json!("pve2"), &json!("running"))
    );
    let absent = "/nodes/pve1/qemu/101/config";
    assert_eq!(world.call("GET", absent, "").await.0, 500);
    world.sim.advance(Duration::from_secs(70));
    let row = vm(&world, 101).await;
    assert_eq!(
        (&row["hastate"], &row["node"]),
        (&json!("started"), &json!("pve1"))
    );
    let config = world.ok("GET", absent, "").await;
    assert_eq!(config["scsi1"], format!("{S},size=1G"));
    assert_eq!(world.sim.disks(101), ["scsi1"]);
    // The host that comes back has nothing of it.
    world.sim.power_on("pve2");
    world.sim.advance(Duration::from_secs(20));
    assert_eq!(world.call("GET", B_CONFIG, "").await.0, 500);
}

#[tokio::test]
async fn a_guest_stays_where_its_rule_leaves_it_and_without_the_stack_nothing_moves() {
    let world = three().await;
    managed(&world).await;
    let form = "rule=r1&type=node-affinity&resources=vm:101&nodes=pve2,pve3&strict=1";
    world.ok("POST", "/cluster/ha/rules", form).await;
    world.sim.power_off("pve2");
    world.sim.advance(Duration::from_secs(131));
    assert_eq!(vm(&world, 101).await["node"], "pve3");
    let world = three().await;
    world.sim.power_off("pve2");
    world.sim.advance(Duration::from_mins(4));
    assert_eq!(vm(&world, 101).await["node"], "pve2");
}

#[tokio::test]
async fn a_guest_of_a_restricted_group_stays_in_it() {
    let world = three().await;
    let version = "8.4.1".parse().unwrap();
    world.sim.edit(|state| state.version = version);
    managed(&world).await;
    let form = "group=fast&nodes=pve2,pve3&restricted=1";
    world.ok("POST", "/cluster/ha/groups", form).await;
    world
        .ok("PUT", "/cluster/ha/resources/vm:101", "group=fast")
        .await;
    world.sim.power_off("pve2");
    world.sim.advance(Duration::from_secs(131));
    assert_eq!(vm(&world, 101).await["node"], "pve3");
}

#[tokio::test]
async fn a_host_that_is_back_in_time_keeps_its_guests() {
    let world = three().await;
    managed(&world).await;
    world.sim.power_off("pve2");
    world.sim.advance(Duration::from_secs(90));
    assert_eq!(vm(&world, 101).await["hastate"], "fence");
    world.sim.power_on("pve2");
    world.sim.advance(Duration::from_mins(1));
    let row = vm(&world, 101).await;
    assert_eq!(
        (&row["node"], &row["hastate"]),
        (&json!("pve2"), &json!("started"))
    );
}

#[tokio::test]
async fn a_host_that_is_cut_off_runs_on_until_its_watchdog_bites() {
    let world = three().await;
    world.sim.node_health("pve2", Health::Isolated);
    world.sim.advance(Duration::from_mins(3));
    assert_eq!(world.sim.disks(101), ["scsi1"]);
    let world = three().await;
    managed(&world).await;
    world.sim.node_health("pve2", Health::Isolated);
    world.sim.advance(Duration::from_secs(59));
    assert_eq!(world.sim.disks(101), ["scsi1"]);
    world.sim.advance(Duration::from_secs(2));
    assert!(world.sim.disks(101).is_empty());
    world.sim.advance(Duration::from_secs(70));
    assert_eq!(vm(&world, 101).await["node"], "pve1");
}

#[tokio::test]
async fn power_and_moves_of_a_managed_guest_are_asked_for_and_done_in_the_managers_next_round() {
    let world = three().await;
    managed(&world).await;
    let log = async |upid: &Value| {
        let path = format!("/nodes/pve2/tasks/{}/log", upid.as_str().unwrap());
        world.ok("GET", &path, "").await[0]["t"].clone()
    };
    let stop = "/nodes/pve2/qemu/101/status/stop";
    let upid = world.ok("POST", stop, "").await;
    assert!(upid.as_str().unwrap().contains(":hastop:101:"));
    assert_eq!(world.exit(&upid).await, "OK");
    assert_eq!(log(&upid).await, "Requesting HA stop for VM 101");
    let current = world
        .ok("GET", "/nodes/pve2/qemu/101/status/current", "")
        .await;
    assert_eq!(
        (&current["ha"], &current["status"]),
        (
            &json!({"managed": 1, "state": "request_stop"}),
            &json!("running")
        )
    );
    world.sim.advance(Duration::from_secs(10));
    let resource = world.ok("GET", "/cluster/ha/resources/vm:101", "").await;
    assert_eq!(resource["state"], "stopped");
    assert!(world.sim.disks(101).is_empty());
    let start = "/nodes/pve2/qemu/101/status/start";
    let upid = world.ok("POST", start, "").await;
    assert_eq!(world.exit(&upid).await, "OK");
    world.sim.advance(Duration::from_secs(10));
    assert_eq!(world.sim.disks(101), ["scsi1"]);
    let migrate = "/nodes/pve2/qemu/101/migrate";
    let upid = world.ok("POST", migrate, "target=pve3&online=1").await;
    assert!(upid.as_str().unwrap().contains(":hamigrate:101:"));
    assert_eq!(world.exit(&upid).await, "OK");
    assert_eq!(
        log(&upid).await,
        "Requesting HA migration for VM 101 to node pve3"
    );
    world.sim.advance(Duration::from_secs(10));
    world.sim.state();
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(vm(&world, 101).await["node"], "pve3");
}

#[tokio::test]
async fn the_status_of_the_ha_stack_lists_its_daemons_while_they_run() {
    let world = three().await;
    managed(&world).await;
    let status = world.ok("GET", "/cluster/ha/status/current", "").await;
    let ids: Vec<&str> = status
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        [
            "quorum",
            "master",
            "fencing",
            "lrm:pve1",
            "lrm:pve2",
            "lrm:pve3",
            "service:vm:101"
        ]
    );
}

#[tokio::test]
async fn frozen_resources_tell_what_was_and_the_node_as_it_is() {
    let world = World::new(cluster()).await;
    world.sim.freeze_resources(true);
    let path = "/nodes/pve1/storage/local/content";
    let disk = async || {
        let rows = world.ok("GET", "/cluster/resources?type=storage", "").await;
        let mut rows = rows.as_array().unwrap().iter();
        rows.find(|row| row["id"] == "storage/pve1/local").unwrap()["disk"].clone()
    };
    let before = disk().await;
    world
        .ok("POST", path, "vmid=9999&filename=vm-9999-n.raw&size=1M")
        .await;
    world.sim.stop_vm(100).unwrap();
    world
        .sim
        .with_vm(100, |vm| vm.config.insert("name".into(), "new".into()));
    world
        .sim
        .edit(|state| state.vms.get_mut(&100).unwrap().node = "pve2".into());
    world.sim.advance(Duration::from_mins(6));
    let row = vm(&world, 100).await;
    assert_eq!(
        (&row["status"], &row["name"], &row["node"]),
        (&json!("running"), &json!("worker-a"), &json!("pve2"))
    );
    assert_eq!(disk().await, before);
    world.sim.freeze_resources(false);
    assert_eq!(vm(&world, 100).await["status"], "stopped");
    assert_ne!(disk().await, before);
}

#[tokio::test]
async fn a_new_qemu_is_another_process() {
    let world = World::new(cluster()).await;
    let path = "/nodes/pve1/qemu/100/status/current";
    let first = world.ok("GET", path, "").await["pid"].clone();
    world.sim.stop_vm(100).unwrap();
    assert!(world.ok("GET", path, "").await.get("pid").is_none());
    world.sim.start_vm(100).unwrap();
    assert_ne!(world.ok("GET", path, "").await["pid"], first);
    let reboot = "/nodes/pve1/qemu/100/status/reboot";
    let second = world.ok("GET", path, "").await["pid"].clone();
    let upid = world.ok("POST", reboot, "").await;
    assert_eq!(world.exit(&upid).await, "OK");
    assert_ne!(world.ok("GET", path, "").await["pid"], second);
    // running.md 8: shutting down what does not run is a success, rebooting it is refused.
    world.sim.stop_vm(100).unwrap();
    let shutdown = "/nodes/pve1/qemu/100/status/shutdown";
    let upid = world.ok("POST", shutdown, "").await;
    assert_eq!(world.exit(&upid).await, "OK");
    assert_eq!(world.call("POST", reboot, "").await.0, 500);
}
