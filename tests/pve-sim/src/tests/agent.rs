//! The guest agent, and what else is asked of a VM.

use std::time::Duration;

use serde_json::json;

use super::{World, cluster, grant};
use crate::ClockMode;

const AGENT: &str = "/nodes/pve1/qemu/100/agent";

#[tokio::test]
async fn the_agent_is_asked_only_if_it_is_configured_and_the_vm_runs_and_it_answers() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 20 })).await;
    let ping = || world.call("POST", "/nodes/pve1/qemu/100/agent/ping", "");
    assert_eq!(ping().await, (200, json!({"data": {"result": {}}})));
    world.sim.with_vm(100, |vm| vm.guest.silent = true);
    let before = world.sim.now();
    let (status, body) = ping().await;
    assert_eq!(
        (status, &body["message"]),
        (500, &json!("QEMU guest agent is not running\n"))
    );
    assert!(world.sim.now() >= before + Duration::from_secs(3));
    world.sim.stop_vm(100).unwrap();
    assert_eq!(ping().await.1["message"], "VM 100 is not running\n");
    world.sim.with_vm(100, |vm| vm.config.remove("agent"));
    assert_eq!(
        ping().await.1["message"],
        "No QEMU guest agent configured\n"
    );
    let (_, body) = world
        .call("POST", "/nodes/pve1/qemu/777/agent/ping", "")
        .await;
    assert_eq!(
        body["message"],
        "Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist\n"
    );
}

#[tokio::test]
async fn what_the_agent_says_comes_from_the_scenario_and_its_own_errors_stand_in_the_result() {
    let world =
        World::new(cluster().token(grant("ccm@pve!t", false, &[("/vms", "PVEAuditor")]))).await;
    let addresses = json!([{"name": "eth0", "ip-addresses": [{"ip-address": "10.0.0.7", "ip-address-type": "ipv4", "prefix": 24}]}]);
    world.sim.with_vm(100, |vm| {
        vm.guest
            .answers
            .insert("network-get-interfaces".into(), addresses.clone());
        vm.guest.programs.insert(
            "uname -r".into(),
            json!({"exited": 1, "exitcode": 0, "out-data": "6.1\n"}),
        );
    });
    let at = |what: &str| format!("{AGENT}/{what}");
    let (status, body) = world
        .call_as("ccm@pve!t", "GET", &at("network-get-interfaces"), "")
        .await;
    assert_eq!((status, &body["data"]["result"]), (200, &addresses));
    let result = world.ok("GET", &at("get-timezone"), "").await["result"].clone();
    assert_eq!(result["error"]["class"], "CommandNotFound");
    let (status, body) = world
        .call_as("ccm@pve!t", "POST", &at("exec"), "command=uname")
        .await;
    assert_eq!(
        (status, &body["message"]),
        (
            403,
            &json!("Permission check failed (/vms/100, VM.GuestAgent.Unrestricted)\n")
        )
    );
    let pid = world
        .ok("POST", &at("exec"), "command=uname&command=-r")
        .await["pid"]
        .clone();
    let done = world
        .ok("GET", &format!("{AGENT}/exec-status?pid={pid}"), "")
        .await;
    assert_eq!(done["out-data"], "6.1\n");
    let (_, body) = world
        .call("GET", &format!("{AGENT}/exec-status?pid=99999"), "")
        .await;
    assert_eq!(body["message"], "Agent error: PID ld does not exist\n");
}

#[tokio::test]
async fn a_template_has_base_volumes_and_clones_from_them_are_linked_ones() {
    let world = World::new(cluster()).await;
    world
        .ok(
            "PUT",
            "/nodes/pve1/qemu/100/config",
            "scsi0=local:100/vm-100-disk-0.raw",
        )
        .await;
    let feature = |name: &'static str| world.call("GET", name, "");
    let clone = "/nodes/pve1/qemu/100/feature?feature=clone";
    assert_eq!(
        feature(clone).await.1["data"],
        json!({"hasFeature": 0, "nodes": ["pve1"]})
    );
    let (status, body) = world
        .call("POST", "/nodes/pve1/qemu/100/template", "")
        .await;
    assert_eq!(
        (status, &body["message"]),
        (
            500,
            &json!("you can't convert a VM to template if VM is running\n")
        )
    );
    world.sim.stop_vm(100).unwrap();
    let upid = world.ok("POST", "/nodes/pve1/qemu/100/template", "").await;
    assert_eq!(world.exit(&upid).await, "OK");
    assert_eq!(
        world.config("").await["scsi0"],
        "local:100/base-100-disk-0.raw,size=1G"
    );
    assert_eq!(feature(clone).await.1["data"]["hasFeature"], 1);
}

#[tokio::test]
async fn a_clone_of_a_template_is_none_and_has_its_own_uuid_and_the_other_texts_of_smbios() {
    let world = World::new(cluster()).await;
    world.sim.stop_vm(100).unwrap();
    let smbios = "uuid=00000000-0000-4000-a000-000000000100,sku=bTEubGFyZ2U=,base64=1";
    world.sim.with_vm(100, |vm| {
        vm.config.insert("template".into(), "1".into());
        vm.config.insert("smbios1".into(), smbios.into());
    });
    let path = "/nodes/pve1/qemu/100/clone";
    let upid = world.ok("POST", path, "newid=555&name=copy&full=1").await;
    assert_eq!(world.exit(&upid).await, "OK");
    let config = world.sim.with_vm(555, |vm| vm.config.clone()).unwrap();
    assert_eq!(config.get("template"), None);
    let (others, own) = config["smbios1"].split_once(",uuid=").unwrap();
    assert_eq!(others, "sku=bTEubGFyZ2U=,base64=1");
    assert_ne!(own, "00000000-0000-4000-a000-000000000100");
}

#[tokio::test]
async fn destroying_a_locked_vm_fails_in_the_task_and_a_protected_one_at_once() {
    let world = World::new(cluster()).await;
    world.sim.stop_vm(100).unwrap();
    world
        .sim
        .with_vm(100, |vm| vm.config.insert("lock".into(), "migrate".into()));
    let upid = world.ok("DELETE", "/nodes/pve1/qemu/100", "").await;
    assert_eq!(world.exit(&upid).await, "VM is locked (migrate)");
    world
        .sim
        .with_vm(100, |vm| vm.config.insert("protection".into(), "1".into()));
    let (status, body) = world.call("DELETE", "/nodes/pve1/qemu/100", "").await;
    assert_eq!(
        (status, &body["message"]),
        (
            500,
            &json!("can't remove VM 100 - protection mode enabled\n")
        )
    );
}
