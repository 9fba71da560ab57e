use pve_model::Cidr;

use super::{FORMER, POLICY, REGION, example, load};
use crate::config::{AddressPolicy, NodePolicy, ZonePolicy};

fn cidrs(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn ours(nodes: &str) -> Result<NodePolicy, String> {
    let main = format!("{REGION}nodes: {nodes}\n");
    load(&[("config.yaml", &main)]).map(|config| config.nodes)
}

fn former(features: &str) -> Result<NodePolicy, String> {
    let main = format!("{FORMER}{features}\n");
    load(&[("config.yaml", &main), ("policy.yaml", POLICY)]).map(|config| config.nodes)
}

#[test]
fn the_documented_settings_of_nodes_arrive() {
    let documented = example("config.example.yaml");
    let (_, rest) = documented.split_once("\nnodes:\n").unwrap();
    let (nodes, _) = rest.split_once("\n# One entry").unwrap();
    let expected = NodePolicy {
        zone: ZonePolicy::Follow,
        ha: false,
        addresses: AddressPolicy {
            agent: true,
            cloud_init: true,
            external: cidrs(&["203.0.113.0/24"]),
            include: cidrs(&["10.0.0.0/8", "203.0.113.0/24", "fd00::/8"]),
            exclude: cidrs(&["10.96.0.0/12", "10.244.0.0/16"]),
            order: cidrs(&["10.0.0.0/8", "fd00::/8"]),
            ipv6: true,
        },
    };
    assert_eq!(ours(&format!("\n{nodes}")).unwrap(), expected);
}

#[test]
fn the_zone_follows_and_nothing_is_asked_for_when_nothing_is_said() {
    let silent = NodePolicy {
        zone: ZonePolicy::Follow,
        ha: false,
        addresses: AddressPolicy {
            agent: false,
            cloud_init: false,
            external: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            order: Vec::new(),
            ipv6: true,
        },
    };
    let none = load(&[("config.yaml", REGION)]).unwrap();
    assert_eq!(none.nodes, silent);
    for nodes in ["", "{}", "{addresses: {}}", "{addresses: {order: []}}"] {
        assert_eq!(ours(nodes).unwrap(), silent, "{nodes}");
    }
}

#[test]
fn each_setting_can_be_turned_over_alone() {
    let set = |change: fn(&mut NodePolicy)| {
        let mut nodes = NodePolicy::default();
        change(&mut nodes);
        nodes
    };
    for (nodes, expected) in [
        ("{zone: fixed}", set(|n| n.zone = ZonePolicy::Fixed)),
        ("{ha: true}", set(|n| n.ha = true)),
        (
            "{addresses: {agent: true}}",
            set(|n| n.addresses.agent = true),
        ),
        (
            "{addresses: {cloudInit: true}}",
            set(|n| n.addresses.cloud_init = true),
        ),
        (
            "{addresses: {ipv6: false}}",
            set(|n| n.addresses.ipv6 = false),
        ),
    ] {
        assert_eq!(ours(nodes).unwrap(), expected, "{nodes}");
    }
}

#[test]
fn a_setting_of_nodes_that_is_not_understood_is_refused_by_its_path() {
    let list = |count: usize| {
        format!(
            "{{addresses: {{order: [{}]}}}}",
            "10.0.0.0/8, ".repeat(count)
        )
    };
    assert_eq!(ours(&list(64)).unwrap().addresses.order.len(), 64);
    for (nodes, message) in [
        (
            "[pve-1]",
            "nodes: says what is written on Nodes: PVE nodes are listed at regions.<region>.nodes",
        ),
        ("follow", "nodes: must be a mapping"),
        ("{zone: moves}", "nodes.zone: must be follow or fixed"),
        (
            "{zone: true}",
            "nodes.zone: must be a string: put it between quotes",
        ),
        ("{ha: 'yes'}", "nodes.ha: must be true or false"),
        ("{HA: true}", "nodes.HA: unknown key, it is written ha"),
        (
            "{labels: {}}",
            "nodes.<key>: unknown key, known are zone, ha, addresses",
        ),
        (
            "{addresses: {cloud_init: true}}",
            "nodes.addresses.cloud_init: unknown key, it is written cloudInit",
        ),
        (
            "{addresses: {external: 10.0.0.0/8}}",
            "nodes.addresses.external: must be a list",
        ),
        (
            "{addresses: {include: [10.0.0.0/8, 10.0.0.0]}}",
            "nodes.addresses.include[1]: not a valid network (as 10.0.0.0/8 or fd00::/8)",
        ),
        (
            "{addresses: {exclude: ['!10.0.0.0/8']}}",
            "nodes.addresses.exclude[0]: not a valid network (as 10.0.0.0/8 or fd00::/8)",
        ),
        (&list(65), "nodes.addresses.order: holds more than 64"),
    ] {
        assert_eq!(ours(nodes).unwrap_err(), format!("config.yaml: {message}"));
    }
    let beside = former("nodes: {}").unwrap_err();
    assert_eq!(
        beside,
        "config.yaml: clusters: belongs to the former drivers' form and cannot stand beside ours"
    );
}

#[test]
fn the_features_of_the_former_ccm_keep_their_documented_meaning() {
    let silent = NodePolicy {
        zone: ZonePolicy::Fixed,
        ..NodePolicy::default()
    };
    for none in [
        "",
        "features: {}",
        "features: {provider: default, ha_group: false, force_update_labels: false, network: {}}",
        "features: {network: {mode: '', external_ip_cidrs: '', ip_sort_order: ' , '}}",
        "features: {network: {mode: default, ipv6_support_disabled: false}}",
    ] {
        assert_eq!(former(none).unwrap(), silent, "{none}");
    }
    for mode in ["qemu", "auto"] {
        let all = former(&format!(
            "features:
  provider: capmox
  ha_group: true
  force_update_labels: true
  network:
    mode: {mode}
    external_ip_cidrs: '192.168.0.0/16,2001:db8:85a3::8a2e:370:7334/112,!10.0.0.0/8'
    ip_sort_order: '172.16.0.0/12, !fd00::/8 192.168.0.0/16,,'
    ipv6_support_disabled: true"
        ));
        let expected = NodePolicy {
            zone: ZonePolicy::Follow,
            ha: true,
            addresses: AddressPolicy {
                agent: true,
                cloud_init: false,
                external: cidrs(&["192.168.0.0/16", "2001:db8:85a3::8a2e:370:0/112"]),
                include: Vec::new(),
                exclude: cidrs(&["10.0.0.0/8", "fd00::/8"]),
                order: cidrs(&["172.16.0.0/12", "192.168.0.0/16"]),
                ipv6: false,
            },
        };
        assert_eq!(all.unwrap(), expected);
    }
}

#[test]
fn what_the_former_ccm_took_for_nothing_is_refused_with_its_place() {
    let many = format!("{{network: {{ip_sort_order: '{}'}}}}", "!::/0,".repeat(65));
    let misplaced = "belongs to features.network, and has no effect here";
    for (features, message) in [
        (
            "{network: auto}",
            "network: must be a mapping: the mode belongs to features.network.mode",
        ),
        ("{mode: auto}", &*format!("mode: {misplaced}")),
        (
            "{external_ip_cidrs: ''}",
            &*format!("external_ip_cidrs: {misplaced}"),
        ),
        (
            "{network: {mode: qemu}, ip_sort_order: 10.0.0.0/8}",
            &*format!("ip_sort_order: {misplaced}"),
        ),
        (
            "{ipv6_support_disabled: }",
            &*format!("ipv6_support_disabled: {misplaced}"),
        ),
        (
            "{ha_groups: true}",
            "<key>: unknown key, known are provider, controllerVmID, ha_group, force_update_labels, network",
        ),
        ("{ha_group: 'true'}", "ha_group: must be true or false"),
        (
            "{force_update_labels: 1}",
            "force_update_labels: must be true or false",
        ),
        (
            "{network: {mode: agent}}",
            "network.mode: must be default, qemu or auto",
        ),
        (
            "{network: {ip_sort_order: [10.0.0.0/8]}}",
            "network.ip_sort_order: must be a string, its members divided by commas",
        ),
        (
            "{network: {external_ip_cidrs: '10.0.0.0/8, 192.0.2.1'}}",
            "network.external_ip_cidrs: its member 2: not a valid network (as 10.0.0.0/8 or fd00::/8)",
        ),
        (
            "{network: {ip_sort_order: '!'}}",
            "network.ip_sort_order: its member 1: not a valid network (as 10.0.0.0/8 or fd00::/8)",
        ),
        (&many, "network.ip_sort_order: holds more than 64"),
    ] {
        let refused = former(&format!("features: {features}")).unwrap_err();
        assert_eq!(refused, format!("config.yaml: features.{message}"));
    }
}
