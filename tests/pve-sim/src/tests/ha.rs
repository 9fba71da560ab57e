use super::{World, cluster};

const RULES: &str = "/cluster/ha/rules";

#[tokio::test]
async fn ha_manages_vms_that_exist_and_a_managed_one_is_destroyed_with_purge_only() {
    let world = World::new(cluster().vm_with(102, "pve1", &[], false)).await;
    let resources = "/cluster/ha/resources";
    let (_, body) = world.call("POST", resources, "sid=vm:777").await;
    assert_eq!(
        body["message"],
        "resource 'vm:777' does not exist in cluster\n"
    );
    world.ok("POST", resources, "sid=102&state=started").await;
    let current = world
        .ok("GET", "/nodes/pve1/qemu/102/status/current", "")
        .await;
    assert_eq!(
        current["ha"],
        serde_json::json!({"managed": 1, "state": "started"})
    );
    let vms = world.ok("GET", "/cluster/resources?type=vm", "").await;
    assert_eq!(
        (&vms[2]["vmid"], &vms[2]["hastate"]),
        (&102.into(), &"started".into())
    );
    let (status, body) = world.call("DELETE", "/nodes/pve1/qemu/102", "").await;
    let text = "unable to remove VM 102 - used in HA resources and purge parameter not set.\n";
    assert_eq!((status, &body["message"]), (500, &text.into()));
    let upid = world.ok("DELETE", "/nodes/pve1/qemu/102?purge=1", "").await;
    assert_eq!(world.exit(&upid).await, "OK");
    assert_eq!(world.ok("GET", resources, "").await, serde_json::json!([]));
}

#[tokio::test]
async fn a_rules_options_depend_on_its_type_and_its_resources_must_be_managed() {
    let world = World::new(cluster()).await;
    world
        .ok("POST", "/cluster/ha/resources", "sid=vm:100")
        .await;
    let unknown =
        "property is not defined in schema and the schema does not allow additional properties";
    let (_, body) = world
        .call(
            "POST",
            RULES,
            "rule=r1&type=node-affinity&resources=vm:100&affinity=positive",
        )
        .await;
    assert_eq!(body["errors"]["affinity"], unknown);
    let (_, body) = world
        .call(
            "POST",
            RULES,
            "rule=r1&type=node-affinity&resources=vm:101&nodes=pve1",
        )
        .await;
    assert_eq!(
        body["message"],
        "create ha rule failed: cannot use unmanaged resource(s) vm:101.\n"
    );
    world
        .ok(
            "POST",
            RULES,
            "rule=r1&type=node-affinity&resources=vm:100&nodes=pve1,pve2:2&strict=1",
        )
        .await;
    let rule = world.ok("GET", "/cluster/ha/rules/r1", "").await;
    assert_eq!(
        (&rule["nodes"], &rule["strict"], &rule["order"]),
        (&"pve1,pve2:2".into(), &1.into(), &1.into())
    );
    world.ok("DELETE", "/cluster/ha/resources/vm:100", "").await;
    assert_eq!(world.ok("GET", RULES, "").await, serde_json::json!([]));
}

#[tokio::test]
async fn groups_are_gone() {
    let world = World::new(cluster()).await;
    let (status, body) = world.call("GET", "/cluster/ha/groups", "").await;
    let text = "cannot index groups: ha groups have been migrated to rules\n";
    assert_eq!((status, &body["message"]), (500, &text.into()));
}
