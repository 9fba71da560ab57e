//! Lost quorum (facts 16, running.md 13g and 13i).

use std::time::Duration;

use serde_json::{Value, json};

use super::{ROOT, World, cluster};
use crate::{ClockMode, Health};

const A: &str = "local:9999/vm-9999-a.raw";
const S: &str = "shared:9999/vm-9999-s.raw";
const CONFIG: &str = "/nodes/pve1/qemu/100/config";

/// `pve1` of three, of which two are dead.
async fn alone() -> World {
    let world = World::new(cluster().node("pve3").clock(ClockMode::Real { speed: 200 })).await;
    world.sim.node_health("pve2", Health::Offline);
    world.sim.node_health("pve3", Health::Offline);
    world
}

fn message(body: &Value) -> &str {
    body["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn quorum_follows_from_the_nodes_and_can_be_told() {
    let world = World::new(cluster().node("pve3")).await;
    let quorate = async || {
        let rows = world.ok("GET", "/cluster/status", "").await;
        rows[0]["quorate"].as_u64().unwrap()
    };
    assert_eq!(quorate().await, 1);
    world.sim.node_health("pve3", Health::Offline);
    assert_eq!(quorate().await, 1);
    world.sim.node_health("pve2", Health::Hung);
    assert_eq!(quorate().await, 1);
    world.sim.node_health("pve2", Health::Offline);
    assert_eq!(quorate().await, 0);
    world.sim.node_quorum("pve1", Some(true));
    assert_eq!(quorate().await, 1);
    world.sim.node_quorum("pve1", None);
    world.sim.node_health("pve2", Health::Online);
    world.sim.node_health("pve3", Health::Online);
    world.sim.node_health("pve1", Health::Isolated);
    assert_eq!(quorate().await, 0);
    world.sim.node_health("pve1", Health::Online);
    world.sim.quorum(Some(false));
    assert_eq!(quorate().await, 0);
}

#[tokio::test]
async fn without_quorum_reads_tokens_and_local_volumes_still_work() {
    let world = alone().await;
    for path in [
        "/version",
        "/cluster/resources",
        "/cluster/nextid",
        CONFIG,
        "/nodes/pve1/storage/shared/content",
        "/access/permissions",
    ] {
        world.ok("GET", path, "").await;
    }
    let form = "vmid=9999&filename=vm-9999-nq.raw&size=1M";
    let path = "/nodes/pve1/storage/local/content";
    world.ok("POST", path, form).await;
    let path = format!("{path}/local:9999/vm-9999-nq.raw");
    let upid = world.ok("DELETE", &path, "").await;
    assert_eq!(world.exit(&upid).await, "OK");
}

#[tokio::test]
async fn without_quorum_shared_storage_waits_ten_seconds_for_its_lock_in_vain() {
    let world = alone().await;
    let before = world.sim.now();
    let path = "/nodes/pve1/storage/shared/content";
    let form = "vmid=9999&filename=vm-9999-nq.raw&size=1M";
    let (status, body) = world.call("POST", path, form).await;
    let text = "cfs-lock 'storage-shared' error: no quorum!";
    assert_eq!(
        (status, message(&body)),
        (500, format!("{text}\n").as_str())
    );
    assert!(world.sim.now().checked_sub(before).unwrap() >= Duration::from_secs(10));
    let upid = world.ok("DELETE", &format!("{path}/{S}"), "").await;
    assert_eq!(world.exit(&upid).await, text);
    let log = format!("/nodes/pve1/tasks/{}/log", upid.as_str().unwrap());
    let lines = world.ok("GET", &log, "").await;
    assert_eq!(lines.as_array().unwrap().len(), 10);
    assert_eq!(
        lines[0]["t"],
        "trying to acquire cfs lock 'storage-shared' ..."
    );
    // Quorum that comes back while it is tried is enough.
    let post = world.call("POST", path, form);
    let back = async {
        tokio::time::sleep(Duration::from_millis(15)).await;
        world.sim.node_health("pve2", Health::Online);
    };
    let ((status, _), ()) = tokio::join!(post, back);
    assert_eq!(status, 200);
}

#[tokio::test]
async fn without_quorum_no_config_is_written_and_nothing_is_left_of_the_attempt() {
    let world = World::new(cluster().node("pve3")).await;
    world.put(&format!("scsi1={S}")).await;
    world.sim.quorum(Some(false));
    let before = world.sim.with_vm(100, |vm| vm.clone()).unwrap();
    let text = "unable to open file '/etc/pve/nodes/pve1/qemu-server/100.conf.tmp.100' - Permission denied\n";
    for form in [
        "delete=scsi1".to_owned(),
        format!("scsi2={A}"),
        "description=x".to_owned(),
    ] {
        let (status, body) = world.put(&form).await;
        assert_eq!((status, message(&body)), (500, text), "{form}");
    }
    let upid = world.ok("POST", CONFIG, &format!("scsi2={A}")).await;
    let pid = u32::from_str_radix(&upid.as_str().unwrap()[10..18], 16).unwrap();
    assert_eq!(
        world.exit(&upid).await,
        text.trim_end().replace("tmp.100", &format!("tmp.{pid}"))
    );
    assert_eq!(world.sim.with_vm(100, |vm| vm.clone()).unwrap(), before);
}

#[tokio::test]
async fn without_quorum_a_resize_grows_the_volume_and_the_guests_disk_and_then_fails() {
    let world = World::new(cluster().node("pve3")).await;
    world.put(&format!("scsi1={S}")).await;
    world.sim.quorum(Some(false));
    let form = "disk=scsi1&size=%2B1G";
    let upid = world.ok("PUT", "/nodes/pve1/qemu/100/resize", form).await;
    let exit = world.exit(&upid).await;
    assert!(exit.ends_with("' - Permission denied"), "{exit}");
    assert_eq!(world.config("").await["scsi1"], format!("{S},size=1G"));
    let path = format!("/nodes/pve1/storage/shared/content/{S}");
    assert_eq!(world.ok("GET", &path, "").await["size"], 2_u64 << 30);
    let seen = world.sim.with_vm(100, |vm| vm.devices["scsi1"].size);
    assert_eq!(seen, Some(2 << 30));
    // Once it is back, the same request is a success without effect: the volume is that big (facts 13).
    world.sim.quorum(None);
    let form = "disk=scsi1&size=2G";
    let upid = world.ok("PUT", "/nodes/pve1/qemu/100/resize", form).await;
    assert_eq!(world.exit(&upid).await, "OK");
    assert_eq!(world.config("").await["scsi1"], format!("{S},size=1G"));
}

#[tokio::test]
async fn without_quorum_start_create_clone_and_what_is_the_clusters_are_refused() {
    let world = alone().await;
    world.sim.edit(|state| {
        state.pools.insert("p".into(), crate::Pool::default());
    });
    for (path, form) in [
        ("/nodes/pve1/qemu/100/status/start", ""),
        ("/nodes/pve1/qemu", "vmid=110&memory=64"),
        ("/nodes/pve1/qemu/100/clone", "newid=111"),
        ("/cluster/ha/resources", "sid=vm:100"),
    ] {
        let (status, body) = world.call("POST", path, form).await;
        let text = "cluster not ready - no quorum?\n";
        assert_eq!((status, message(&body)), (500, text), "{path}");
    }
    let (status, body) = world.call("PUT", "/pools", "poolid=p&vms=9999").await;
    let text = "update pools failed: cfs-lock 'file-user_cfg' error: no quorum!\n";
    assert_eq!((status, message(&body)), (500, text));
    // What stops needs no file.
    let upid = world
        .ok("POST", "/nodes/pve1/qemu/100/status/stop", "")
        .await;
    assert_eq!(world.exit(&upid).await, "OK");
}

#[tokio::test]
async fn a_host_fails_in_its_own_ways_for_those_who_forward_to_it() {
    let world = World::new(cluster().node("pve3").clock(ClockMode::Real { speed: 500 })).await;
    let path = "/nodes/pve2/qemu/101/config";
    for (health, status, reason, seconds) in [
        (Health::ProxyDown, 595, "Connection refused", 0),
        (Health::Reset, 596, "Connection reset by peer", 0),
        (Health::Offline, 595, "No route to host", 3),
        (Health::Isolated, 595, "No route to host", 3),
        (Health::Silent, 595, "Connection timed out", 30),
        (Health::Hung, 596, "Connection timed out", 30),
    ] {
        world.sim.node_health("pve2", health);
        let before = world.sim.now();
        let reply = world
            .send(ROOT, "PUT", path, "description=x")
            .await
            .unwrap();
        let told = (reply.status, reply.reason.as_str(), reply.body.is_none());
        assert_eq!(told, (status, reason, true), "{health:?}");
        let took = world.sim.now().checked_sub(before).unwrap();
        assert!(took >= Duration::from_secs(seconds), "{health:?} {took:?}");
        let nodes = world.ok("GET", "/nodes", "").await;
        let seen = if health.in_cluster() {
            "online"
        } else {
            "offline"
        };
        assert_eq!(nodes[1]["status"], seen, "{health:?}");
    }
    world.sim.node_health("pve2", Health::Online);
    let config = world.ok("GET", path, "").await;
    assert!(config.get("description").is_none());
}

/// running.md 13k: which calls need pvedaemon.
#[tokio::test]
async fn without_pvedaemon_only_what_pveproxy_does_itself_is_answered() {
    let world = World::new(cluster()).await;
    world.sim.node_health("pve1", Health::DaemonDown);
    for (method, path, status) in [
        ("GET", "/version", 200),
        ("GET", "/cluster/resources", 200),
        ("GET", "/cluster/status", 595),
        ("GET", "/cluster/nextid", 200),
        ("GET", "/nodes", 200),
        ("GET", "/nodes/pve1/qemu", 595),
        ("GET", CONFIG, 200),
        ("GET", "/nodes/pve1/qemu/100/pending", 200),
        ("GET", "/nodes/pve1/qemu/100/status/current", 595),
        ("PUT", CONFIG, 595),
        ("GET", "/nodes/pve1/storage", 595),
        ("GET", "/nodes/pve1/storage/local/status", 595),
        ("GET", "/nodes/pve1/storage/local/content", 595),
        ("POST", "/nodes/pve1/storage/local/content", 595),
        ("GET", "/nodes/pve1/tasks", 200),
        ("GET", "/access/permissions", 200),
        ("GET", "/pools", 200),
        ("GET", "/nodes/pve2/qemu/101/config", 200),
        ("PUT", "/nodes/pve2/qemu/101/config", 200),
        ("GET", "/cluster/ha/resources", 200),
    ] {
        let form = if method == "PUT" { "description=y" } else { "" };
        let reply = world.send(ROOT, method, path, form).await.unwrap();
        assert_eq!(reply.status, status, "{method} {path}");
        if status == 595 {
            assert_eq!(reply.reason, "Connection refused");
        }
    }
}

#[tokio::test]
async fn what_a_hanging_pvedaemon_was_given_is_done_when_it_goes_on() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 500 })).await;
    world.sim.node_health("pve2", Health::DaemonHung);
    let path = "/nodes/pve2/qemu/101/config";
    let reply = world
        .send(ROOT, "PUT", path, "description=x")
        .await
        .unwrap();
    let told = (reply.status, reply.reason.as_str());
    assert_eq!(told, (596, "Connection timed out"));
    assert!(world.ok("GET", path, "").await.get("description").is_none());
    world.sim.node_health("pve2", Health::Online);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.ok("GET", path, "").await["description"], json!("x"));
}
