//! Proxmox VE 8, and what a 9 shows of HA groups and rules.

use serde_json::{Value, json};

use super::{World, cluster, grant};
use crate::{Builder, ClockMode, Version};

const RULES: &str = "/cluster/ha/rules";
const GROUPS: &str = "/cluster/ha/groups";
const RESOURCES: &str = "/cluster/ha/resources";
const INTERFACES: &str = "/nodes/pve1/qemu/100/agent/network-get-interfaces";

async fn older(builder: Builder) -> World {
    let world = World::new(builder).await;
    let version: Version = "8.4.1".parse().unwrap();
    world.sim.edit(|state| state.version = version);
    world
}

/// What a list shows, without digests.
async fn shown(world: &World, path: &str) -> Value {
    let mut rows = world.ok("GET", path, "").await;
    for row in rows.as_array_mut().unwrap() {
        assert!(row["digest"].is_string(), "{row}");
        row.as_object_mut().unwrap().remove("digest");
    }
    rows
}

fn message(text: &str) -> Value {
    json!({"data": null, "message": text})
}

#[tokio::test]
async fn a_version_is_the_recorded_one_unless_the_scenario_names_another() {
    let world = World::new(cluster()).await;
    let said = world.ok("GET", "/version", "").await;
    assert_eq!(
        (&said["version"], &said["release"]),
        (&json!("9.2.11"), &json!("9.2"))
    );
    let world = older(cluster()).await;
    let said = world.ok("GET", "/version", "").await;
    assert_eq!(
        (&said["version"], &said["release"]),
        (&json!("8.4.1"), &json!("8.4"))
    );
    let status = world.ok("GET", "/nodes/pve1/status", "").await;
    assert!(
        status["pveversion"]
            .as_str()
            .unwrap()
            .starts_with("pve-manager/8.4.1/")
    );
    let scenario = |version: &str| {
        let text = json!({"version": version, "nodes": {"pve1": {}}}).to_string();
        crate::Sim::builder()
            .scenario(&text)
            .map(|builder| builder.state.version)
    };
    assert_eq!(scenario("8.4.1").unwrap(), "8.4.1".parse().unwrap());
    for wrong in ["", "9", "9.2", "7.4.1", "10.0.0", "9.2.x", "9.2.11.1"] {
        assert!(scenario(wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn pve_8_knows_no_rules() {
    let builder = cluster().clock(ClockMode::Real { speed: 20 }).token(grant(
        "ccm@pve!t",
        false,
        &[("/vms", "PVEAuditor")],
    ));
    let world = older(builder).await;
    for (method, path) in [
        ("GET", RULES),
        ("POST", RULES),
        ("GET", "/cluster/ha/rules/r1"),
        ("PUT", "/cluster/ha/rules/r1"),
        ("DELETE", "/cluster/ha/rules/r1"),
        ("POST", "/cluster/ha/status/arm-ha"),
    ] {
        let text = format!("Method '{method} {path}' not implemented");
        // Nobody is asked for rights where there is nothing.
        for who in [super::ROOT, "ccm@pve!t"] {
            let (status, body) = world.call_as(who, method, path, "").await;
            assert_eq!((status, body), (501, message(&text)), "{who}");
        }
    }
    let (status, _) = world.call_as("", "GET", RULES, "").await;
    assert_eq!(status, 401);
    let index = world.ok("GET", "/cluster/ha", "").await;
    assert_eq!(
        index,
        json!([{"id": "status"}, {"id": "resources"}, {"id": "groups"}])
    );
}

#[tokio::test]
async fn pve_8_keeps_groups_and_resources_name_theirs() {
    let world = older(cluster()).await;
    assert_eq!(world.ok("GET", GROUPS, "").await, json!([]));
    let body = "group=fast&nodes=pve1:2,pve2&restricted=1&comment=tenant";
    world.ok("POST", GROUPS, body).await;
    world.ok("POST", GROUPS, "group=slow&nodes=pve2").await;
    let (_, refused) = world.call("POST", GROUPS, "group=slow&nodes=pve2").await;
    let text = "create ha group failed: ha group ID 'slow' already defined\n";
    assert_eq!(refused["message"], text);
    let expected = json!([
        {"group": "fast", "type": "group", "nodes": "pve1:2,pve2", "restricted": 1, "comment": "tenant"},
        {"group": "slow", "type": "group", "nodes": "pve2"},
    ]);
    assert_eq!(shown(&world, GROUPS).await, expected);
    world
        .ok("POST", RESOURCES, "sid=vm:100&group=fast&state=started")
        .await;
    let row = json!({"sid": "vm:100", "type": "vm", "state": "started", "group": "fast"});
    assert_eq!(shown(&world, RESOURCES).await, json!([row]));
    let (_, refused) = world
        .call("PUT", "/cluster/ha/resources/vm:100", "group=none")
        .await;
    assert_eq!(refused["message"], "HA group 'none' does not exist\n");
    let (_, refused) = world.call("DELETE", "/cluster/ha/groups/fast", "").await;
    let text = "delete ha group failed: ha group is used by service 'vm:100'\n";
    assert_eq!(refused["message"], text);
    world
        .ok("PUT", "/cluster/ha/groups/slow", "nodes=pve1&restricted=1")
        .await;
    let one = world.ok("GET", "/cluster/ha/groups/slow", "").await;
    assert_eq!(
        (&one["nodes"], &one["restricted"]),
        (&json!("pve1"), &json!(1))
    );
    world.ok("DELETE", "/cluster/ha/groups/slow", "").await;
    let (_, gone) = world.call("GET", "/cluster/ha/groups/slow", "").await;
    assert_eq!(gone["message"], "no such ha group 'slow'\n");
}

#[tokio::test]
async fn pve_8_asks_for_another_right_to_the_agent() {
    let builder = cluster()
        .role("Monitor", &["VM.Monitor"])
        .role(
            "Agent",
            &["VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"],
        )
        .token(grant("monitor@pve!t", false, &[("/vms", "Monitor")]))
        .token(grant("agent@pve!t", false, &[("/vms", "Agent")]))
        .token(grant("admin@pve!t", false, &[("/vms", "PVEVMAdmin")]))
        .token(grant("auditor@pve!t", false, &[("/vms", "PVEAuditor")]));
    let world = older(builder).await;
    let ask = |who: &'static str, method: &'static str, path: &'static str| {
        world.call_as(who, method, path, "command=uname")
    };
    let denied = message("Permission check failed (/vms/100, VM.Monitor)\n");
    for (who, allowed) in [
        ("monitor@pve!t", true),
        ("admin@pve!t", true),
        ("agent@pve!t", false),
        ("auditor@pve!t", false),
    ] {
        let (status, body) = world.call_as(who, "GET", INTERFACES, "").await;
        assert_eq!(status, if allowed { 200 } else { 403 }, "{who}");
        assert!(allowed || body == denied, "{who}: {body}");
        let (status, _) = ask(who, "POST", "/nodes/pve1/qemu/100/agent/exec").await;
        assert_eq!(status == 403, !allowed, "{who}");
    }
    world.sim.edit(|state| state.version = Version::default());
    for (who, expected) in [
        ("monitor@pve!t", 403),
        ("agent@pve!t", 200),
        ("auditor@pve!t", 200),
    ] {
        let (status, _) = world.call_as(who, "GET", INTERFACES, "").await;
        assert_eq!(status, expected, "{who}");
    }
}

#[tokio::test]
async fn every_list_of_ha_needs_the_audit_of_the_cluster() {
    let builder = || {
        cluster()
            .role("Ha", &["Sys.Audit"])
            .token(grant("ccm@pve!t", true, &[("/", "Ha")]))
            .token(grant("pool@pve!t", true, &[("/vms", "PVEAdmin")]))
    };
    for world in [older(builder()).await, World::new(builder()).await] {
        let is_older = world.sim.state().version.major() < 9;
        for path in [RULES, GROUPS, RESOURCES] {
            let (status, body) = world.call_as("pool@pve!t", "GET", path, "").await;
            if is_older && path == RULES {
                continue;
            }
            let denied = message("Permission check failed (/, Sys.Audit)\n");
            assert_eq!((status, body), (403, denied), "{path}");
            let (status, _) = world.call_as("ccm@pve!t", "GET", path, "").await;
            let gone = !is_older && path == GROUPS;
            assert_eq!(status, if gone { 500 } else { 200 }, "{path}");
        }
    }
}

#[tokio::test]
async fn a_9_that_has_not_migrated_its_groups_shows_them_as_groups_and_as_rules() {
    let world = World::new(cluster()).await;
    world.ok("POST", RESOURCES, "sid=vm:100").await;
    let groups =
        json!({"fast": {"nodes": "pve1:2,pve2:0", "restricted": "1"}, "none": {"nodes": "pve1"}});
    let groups = serde_json::from_value(groups).unwrap();
    world.sim.edit(|state| {
        state.ha.groups = groups;
        let options = state.ha.resources.get_mut("vm:100").unwrap();
        options.insert("group".to_owned(), "fast".to_owned());
    });
    let names = shown(&world, GROUPS).await;
    assert_eq!(
        (&names[0]["group"], &names[1]["group"]),
        (&json!("fast"), &json!("none"))
    );
    assert_eq!(shown(&world, RESOURCES).await[0]["group"], "fast");
    let rule = json!({"rule": "ha-group-fast", "type": "node-affinity", "resources": "vm:100", "nodes": "pve1:2,pve2",
        "strict": 1, "comment": "Generated from HA group 'fast'.", "order": 1});
    assert_eq!(shown(&world, RULES).await, json!([rule]));
    // Migrated: no group is left, and no resource shows one.
    world.sim.edit(|state| state.ha.groups.clear());
    let (status, body) = world.call("GET", GROUPS, "").await;
    let text = "cannot index groups: ha groups have been migrated to rules\n";
    assert_eq!((status, body), (500, message(text)));
    assert_eq!(shown(&world, RESOURCES).await[0].get("group"), None);
    let (_, refused) = world
        .call("PUT", "/cluster/ha/resources/vm:100", "group=fast")
        .await;
    let text = "invalid parameter 'group': ha groups have been migrated to rules\n";
    assert_eq!(refused["message"], text);
}

#[tokio::test]
async fn rules_are_shown_with_what_was_given_and_with_what_is_wrong_with_them() {
    let world = World::new(cluster()).await;
    world.ok("POST", RESOURCES, "sid=vm:100").await;
    world.ok("POST", RESOURCES, "sid=vm:101").await;
    for body in [
        "rule=r1&type=node-affinity&resources=vm:101,vm:100&nodes=pve2:0,pve1:3",
        "rule=apart&type=resource-affinity&affinity=negative&resources=vm:100,vm:101",
        "rule=off&type=node-affinity&resources=vm:100&nodes=pve1&disable=1",
    ] {
        world.ok("POST", RULES, body).await;
    }
    let whole = json!({"rule": "r1", "type": "node-affinity", "resources": "vm:100,vm:101", "nodes": "pve1:3,pve2", "order": 1});
    let apart = json!({"rule": "apart", "type": "resource-affinity", "affinity": "negative", "resources": "vm:100,vm:101", "order": 2});
    let off = json!({"rule": "off", "type": "node-affinity", "resources": "vm:100", "nodes": "pve1", "disable": 1, "order": 3});
    assert_eq!(shown(&world, RULES).await, json!([whole, apart, off]));
    let (_, refused) = world
        .call(
            "PUT",
            "/cluster/ha/rules/off",
            "type=node-affinity&delete=disable",
        )
        .await;
    let text = refused["message"].as_str().unwrap();
    assert!(
        text.contains("resource 'vm:100' is already used in another node affinity rule"),
        "{text}"
    );
    world.sim.edit(|state| {
        for rule in &mut state.ha.rules {
            rule.options.remove("disable");
        }
        let mut apart = state
            .ha
            .rules
            .iter_mut()
            .filter(|rule| rule.rule == "apart");
        let errors = &mut apart.next().unwrap().errors;
        errors.insert(
            "affinity".to_owned(),
            vec!["told by the scenario".to_owned()],
        );
    });
    let rows = shown(&world, RULES).await;
    let used =
        json!({"resources": ["resource 'vm:100' is already used in another node affinity rule"]});
    assert_eq!((&rows[0]["errors"], &rows[2]["errors"]), (&used, &used));
    assert_eq!(
        rows[1]["errors"],
        json!({"affinity": ["told by the scenario"]})
    );
    let one = world.ok("GET", "/cluster/ha/rules/r1", "").await;
    assert_eq!(one["errors"], used);
}

#[tokio::test]
async fn a_role_takes_the_privileges_of_its_version() {
    for (version, taken, refused) in [
        ("9.2.11", "VM.GuestAgent.Audit", "VM.Monitor"),
        ("8.4.1", "VM.Monitor", "VM.GuestAgent.Audit"),
        ("8.4.1", "VM.Audit", "VM.Replicate"),
    ] {
        let world = World::new(cluster()).await;
        let parsed: Version = version.parse().unwrap();
        world.sim.edit(|state| state.version = parsed);
        let role = |privilege: &str| format!("roleid=R&privs=VM.Audit,{privilege}");
        for (method, path) in [("POST", "/access/roles"), ("PUT", "/access/roles/R")] {
            let (status, body) = world.call(method, path, &role(refused)).await;
            let text = format!("invalid format - invalid privilege '{refused}'\n");
            assert_eq!(
                (status, &body["errors"]["privs"]),
                (400, &json!(text)),
                "{version}"
            );
            world.ok(method, path, &role(taken)).await;
        }
    }
}
