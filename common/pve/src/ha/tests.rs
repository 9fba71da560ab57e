use super::*;
use crate::ErrorKind;
use crate::testing::{client, reply};
use serde_json::{Value, json};

/// A client whose only endpoint answers this to `path`.
fn answering(path: &'static str, status: u16, body: Value) -> Client {
    client(move |request| {
        assert_eq!(request.method(), "GET");
        assert_eq!(request.uri().path(), format!("/api2/json{path}"));
        assert_eq!(request.uri().query(), None);
        Ok(reply(status, "", &body.to_string()))
    })
}

fn ids(vms: &[u32]) -> BTreeSet<VmId> {
    vms.iter().map(|vm| (*vm).try_into().unwrap()).collect()
}

#[tokio::test]
async fn rules_are_read_as_pve_shows_them() {
    let body = json!({"data": [
        {"order": 1, "nodes": "pve2,pve3", "digest": "4ad1", "rule": "r1", "strict": 1, "type": "node-affinity", "resources": "vm:100"},
        {"order": 2, "nodes": "pve1:2", "digest": "4ad1", "rule": "ha-group-a", "type": "node-affinity", "resources": "ct:101,vm:102,vm:103", "disable": 1},
        {"order": 3, "digest": "4ad1", "rule": "apart", "type": "resource-affinity", "affinity": "negative", "resources": "vm:100,vm:102",
         "errors": {"resources": ["rule is infeasible"]}},
        {"order": 4, "digest": "4ad1", "rule": "together", "type": "resource-affinity", "affinity": "positive", "resources": "vm:100,vm:102", "disable": "0"},
        {"order": 5, "rule": "away", "type": "node-affinity", "affinity": "negative", "nodes": "pve1", "strict": "0", "resources": "vm:104"},
        {"order": 6, "rule": "new", "type": "storage-affinity", "resources": "vm:100"},
        {"order": 7, "rule": "newer", "type": "time-affinity"},
        {"order": 8, "rule": "odd", "type": "resource-affinity", "affinity": "mild", "resources": "vm:100"},
    ]});
    let rules = answering("/cluster/ha/rules", 200, body).ha_rules().await;
    let rules = rules.unwrap();
    assert_eq!(rules.undecodable, 0);
    let seen = rules.entries.iter().map(|rule| {
        let name = rule.rule.as_str();
        (
            name,
            rule.kind,
            rule.vms.clone(),
            rule.enabled,
            rule.feasible,
        )
    });
    let nodes = |negative, strict| HaRuleKind::NodeAffinity { negative, strict };
    let together = |positive| HaRuleKind::ResourceAffinity { positive };
    let other = HaRuleKind::Other;
    let expected = [
        ("r1", nodes(false, true), ids(&[100]), true, true),
        (
            "ha-group-a",
            nodes(false, false),
            ids(&[102, 103]),
            false,
            true,
        ),
        ("apart", together(false), ids(&[100, 102]), true, false),
        ("together", together(true), ids(&[100, 102]), true, true),
        ("away", nodes(true, false), ids(&[104]), true, true),
        ("new", other, ids(&[100]), true, true),
        ("newer", other, ids(&[]), true, true),
        ("odd", other, ids(&[100]), true, true),
    ];
    assert!(seen.clone().eq(expected), "{:#?}", rules.entries);
}

#[test]
fn a_rule_that_cannot_be_read_is_counted() {
    let whole = json!({"rule": "r1", "type": "node-affinity", "resources": "vm:100"});
    assert_eq!(wire::listing(&json!([whole]), rule).unwrap().undecodable, 0);
    for (key, value) in [
        ("rule", Value::Null),
        ("type", Value::Null),
        ("resources", Value::Null),
        ("resources", json!("vm:9")),
        ("resources", json!(["vm:100"])),
        ("strict", json!("perhaps")),
        ("disable", json!({})),
    ] {
        let mut broken = whole.clone();
        broken[key] = value;
        let list = wire::listing(&json!([broken]), rule).unwrap();
        assert_eq!((list.entries.len(), list.undecodable), (0, 1), "{broken}");
    }
}

#[tokio::test]
async fn groups_and_the_guests_in_them_are_read() {
    let body = json!({"data": [
        {"group": "a", "type": "group", "nodes": "pve1:2,pve2", "restricted": 1, "nofailback": 0, "digest": "1"},
        {"group": "b", "type": "group", "nodes": "pve1"},
        {"type": "group", "nodes": "pve1"},
        {"group": "c", "restricted": "perhaps"},
    ]});
    let groups = answering("/cluster/ha/groups", 200, body).ha_groups().await;
    let groups = groups.unwrap();
    let seen = groups
        .entries
        .iter()
        .map(|group| (group.group.as_str(), group.restricted));
    assert!(seen.eq([("a", true), ("b", false)]), "{groups:?}");
    assert_eq!(groups.undecodable, 2);
    let body = json!({"data": [
        {"sid": "vm:100", "type": "vm", "state": "started", "group": "a", "digest": "1"},
        {"sid": "vm:101", "type": "vm", "state": "started", "failback": 1},
        {"sid": "ct:102", "type": "ct", "group": "a"},
        {"sid": "vm:x", "type": "vm"},
        {"type": "vm", "group": "a"},
    ]});
    let resources = answering("/cluster/ha/resources", 200, body);
    let resources = resources.ha_resources().await.unwrap();
    let managed = |vm: Option<u32>, group: Option<&str>| HaResource {
        vm: vm.map(|vm| vm.try_into().unwrap()),
        group: group.map(str::to_owned),
    };
    let expected = [
        managed(Some(100), Some("a")),
        managed(Some(101), None),
        managed(None, Some("a")),
    ];
    assert_eq!(resources.entries, expected);
    assert_eq!(resources.undecodable, 2);
}

#[tokio::test]
async fn a_pve_without_rules_and_one_without_groups_say_so() {
    let words = |text: &str| json!({"data": null, "message": text});
    let path = "/cluster/ha/rules";
    let rules = |status, body| async move {
        answering(path, status, body)
            .ha_rules()
            .await
            .unwrap_err()
            .kind
    };
    let old = words("Method 'GET /cluster/ha/rules' not implemented");
    assert_eq!(rules(501, old.clone()).await, ErrorKind::NotImplemented);
    assert_eq!(rules(500, old).await, ErrorKind::Other { status: 500 });
    // A proxy in between.
    assert_eq!(
        rules(501, json!("Not Implemented")).await,
        ErrorKind::Other { status: 501 }
    );
    let migrated = words("cannot index groups: ha groups have been migrated to rules\n");
    let groups = answering("/cluster/ha/groups", 500, migrated.clone());
    assert_eq!(
        groups.ha_groups().await.unwrap_err().kind,
        ErrorKind::MigratedToRules
    );
    assert_eq!(rules(500, migrated).await, ErrorKind::Other { status: 500 });
    let denied = answering(
        "/cluster/ha/resources",
        403,
        words("Permission check failed (/, Sys.Audit)\n"),
    );
    let denied = denied.ha_resources().await.unwrap_err();
    let kind = ErrorKind::PermissionDenied {
        path: "/".to_owned(),
        privilege: "Sys.Audit".to_owned(),
    };
    assert_eq!(denied.kind, kind);
    assert!(
        denied.detail.ends_with("; this needs Sys.Audit on /"),
        "{}",
        denied.detail
    );
}
