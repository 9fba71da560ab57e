use super::*;
use crate::addresses::AddressKind;
use crate::testing::{entry, facts, node, uuid, view};

fn capmox() -> Rules {
    Rules {
        provider: Provider::Capmox,
        nodes: NodePolicy::default(),
    }
}

fn at(host: &str) -> Vec<RegionView> {
    vec![view("r1", &[(entry(101, host), Some(facts(101)))])]
}

fn planned(node: &NodeView, regions: &[RegionView], rules: &Rules) -> Changes {
    let uuid = identity(node).unwrap();
    let vm = vm_of(regions, &uuid).unwrap();
    changes(node, &wanted(node, &uuid, &vm, None, rules), rules)
}

/// The Node after the API server took the writes.
fn after(node: &NodeView, changes: &Changes) -> NodeView {
    let mut node = node.clone();
    let object = changes.object.clone().unwrap_or_default();
    let pairs = |kind: &str| object["metadata"][kind].as_object().cloned();
    for (key, value) in pairs("labels").unwrap_or_default() {
        match value.as_str() {
            Some(text) => drop(node.labels.insert(key, text.to_owned())),
            None => drop(node.labels.remove(&key)),
        }
    }
    for (key, value) in pairs("annotations").unwrap_or_default() {
        node.annotations
            .insert(key, value.as_str().unwrap().to_owned());
    }
    if let Some(id) = object["spec"]["providerID"].as_str() {
        node.provider_id = Some(id.to_owned());
    }
    if let Some(taints) = object["spec"].get("taints") {
        node.taints = serde_json::from_value(taints.clone()).unwrap();
    }
    if let Some(status) = &changes.status {
        let list = status["status"]["addresses"].as_array().unwrap();
        let one = |value: &Value| Address {
            kind: AddressKind::from(value["type"].as_str().unwrap()),
            address: value["address"].as_str().unwrap().to_owned(),
        };
        node.addresses = list.iter().map(one).collect();
    }
    node
}

#[test]
fn a_new_node_gets_everything_in_one_write_and_one_of_its_addresses() {
    let mut new = node(101);
    let ip = "10.0.0.5".to_owned();
    new.annotations.insert(PROVIDED_NODE_IP.to_owned(), ip);
    let changes = planned(&new, &at("pve1"), &capmox());
    let written = json!([changes.object, changes.status]);
    insta::assert_snapshot!(serde_json::to_string_pretty(&written).unwrap());
    let initialised = after(&new, &changes);
    assert!(!initialised.is_uninitialised());
    let again = planned(&initialised, &at("pve1"), &capmox());
    assert_eq!(again, Changes::default(), "nothing is written twice");
}

#[test]
fn a_provider_id_is_written_in_the_form_of_its_provider_and_never_again() {
    let id = |node: &NodeView, rules: &Rules| {
        let object = planned(node, &at("pve1"), rules).object.unwrap();
        object["spec"]
            .get("providerID")
            .map(|id| id.as_str().unwrap().to_owned())
    };
    let uuid = uuid(101);
    assert_eq!(id(&node(101), &capmox()), Some(format!("proxmox://{uuid}")));
    assert_eq!(
        id(&node(101), &Rules::default()),
        Some("proxmox://r1/101".to_owned())
    );
    for there in [
        "proxmox://r1/101",
        "proxmox://pve1/101",
        "proxmox:///101",
        "proxmox://whatever/it/is",
        &format!("proxmox://{uuid}"),
    ] {
        let mut with = node(101);
        with.provider_id = Some(there.to_owned());
        assert_eq!(id(&with, &capmox()), None, "{there} stays");
        assert_eq!(id(&with, &Rules::default()), None, "{there} stays");
    }
}

#[test]
fn the_uuid_comes_from_the_firmware_and_a_provider_id_may_not_contradict_it() {
    let mut other = node(101);
    other.provider_id = Some(format!("proxmox://{}", uuid(102)));
    assert_eq!(identity(&other), Err(Refusal::Contradiction));
    other.system_uuid = None;
    assert_eq!(identity(&other), Ok(uuid(102)));
    other.provider_id = Some("proxmox://r1/102".to_owned());
    assert_eq!(identity(&other), Err(Refusal::NoUuid));
}

#[test]
fn only_the_taint_of_initialisation_goes() {
    let mut new = node(101);
    let capi = Taint {
        key: "node.cluster.x-k8s.io/uninitialized".to_owned(),
        ..new.taints[0].clone()
    };
    new.taints.push(capi.clone());
    let left = after(&new, &planned(&new, &at("pve1"), &capmox())).taints;
    assert_eq!(left, [capi]);
}

#[test]
fn labels_follow_a_vm_that_moved_unless_the_zone_is_fixed() {
    let new = node(101);
    let before = after(&new, &planned(&new, &at("pve1"), &capmox()));
    let moved = planned(&before, &at("pve2"), &capmox()).object.unwrap();
    let labels = moved["metadata"]["labels"].as_object().unwrap();
    let keys: Vec<&str> = labels.keys().map(String::as_str).collect();
    assert_eq!(keys, [BETA_ZONE, ZONE, HOST_LABEL, FORMER_ZONE]);
    assert!(labels.values().all(|value| value == "pve2"));
    let mut fixed = capmox();
    fixed.nodes.zone = ZonePolicy::Fixed;
    let moved = planned(&before, &at("pve2"), &fixed).object.unwrap();
    let labels = moved["metadata"]["labels"].as_object().unwrap();
    let keys: Vec<&str> = labels.keys().map(String::as_str).collect();
    assert_eq!(keys, [HOST_LABEL, FORMER_ZONE]);
    let mut unlabelled = before.clone();
    unlabelled.labels.remove(ZONE);
    let back = planned(&unlabelled, &at("pve2"), &fixed).object.unwrap();
    assert_eq!(
        back["metadata"]["labels"][ZONE], "pve2",
        "one that is missing is written"
    );
}

#[test]
fn labels_of_ha_go_with_their_rule_and_stay_while_nothing_is_known() {
    let mut old = after(&node(101), &planned(&node(101), &at("pve1"), &capmox()));
    let key = "group.topology.proxmox.sinextra.dev/fast";
    old.labels.insert(key.to_owned(), String::new());
    let off = planned(&old, &at("pve1"), &capmox()).object.unwrap();
    assert_eq!(off["metadata"]["labels"], json!({ key: null }), "off");
    let mut rules = capmox();
    rules.nodes.ha = true;
    let unknown = planned(&old, &at("pve1"), &rules);
    assert_eq!(unknown, Changes::default(), "not seen");
}

#[test]
fn a_vm_that_was_restored_under_another_number_keeps_its_id_and_gets_its_annotation() {
    let mut old = after(
        &node(101),
        &planned(&node(101), &at("pve1"), &Rules::default()),
    );
    let restored = vec![view("r1", &[(entry(205, "pve1"), Some(facts(101)))])];
    let object = planned(&old, &restored, &Rules::default()).object.unwrap();
    assert_eq!(object["spec"], Value::Null);
    assert_eq!(
        object["metadata"]["annotations"],
        json!({ VMID_ANNOTATION: "205" })
    );
    old.system_uuid = None;
    assert_eq!(
        identity(&old),
        Err(Refusal::NoUuid),
        "a number alone is no identity"
    );
}
