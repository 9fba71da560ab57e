use super::*;
use crate::testing::{client, reply};
use serde_json::json;

fn at() -> VmRef {
    VmRef {
        pve_node: "pve1".parse().unwrap(),
        vmid: "100".parse().unwrap(),
    }
}

async fn asked(status: u16, body: Value) -> Result<Vec<Interface>, ApiError> {
    let client = client(move |request| {
        let path = "/api2/json/nodes/pve1/qemu/100/agent/network-get-interfaces";
        assert_eq!(
            (request.method().as_str(), request.uri().path()),
            ("GET", path)
        );
        Ok(reply(status, "", &body.to_string()))
    });
    client.agent_interfaces(&at()).await
}

async fn kind(status: u16, body: Value) -> ErrorKind {
    asked(status, body).await.unwrap_err().kind
}

fn of(result: &Value) -> Vec<Interface> {
    match read(&json!({ "result": result })) {
        Ok(Said::Interfaces(interfaces)) => interfaces,
        other => panic!("{other:?}"),
    }
}

/// `10.0.0.7/24`, or without a prefix.
fn written(text: &str) -> InterfaceAddress {
    let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
    InterfaceAddress {
        address: address.parse().unwrap(),
        prefix: prefix.parse().ok(),
    }
}

#[test]
fn of_a_long_name_of_an_interface_the_first_part_is_kept() {
    let long = "é".repeat(100_000);
    let all = of(&json!([{ "name": long }, { "name": "eth0" }]));
    assert_eq!(all[0].name, "é".repeat(MOST_NAME));
    assert_eq!(all[1].name, "eth0");
}

#[tokio::test]
async fn addresses_are_read_by_interface() {
    let body = json!({"data": {"result": [
        {"name": "lo", "hardware-address": "00:00:00:00:00:00", "statistics": {"rx-bytes": 0}, "ip-addresses": [
            {"ip-address": "127.0.0.1", "prefix": 8, "ip-address-type": "ipv4"},
            {"ip-address": "::1", "prefix": 128, "ip-address-type": "ipv6"}]},
        {"name": "eth0", "hardware-address": "BC:24:11:00:00:64", "ip-addresses": [
            {"ip-address": "10.0.0.7", "prefix": "24", "ip-address-type": "ipv4"},
            {"ip-address": "10.0.0.8", "prefix": 33}, {"ip-address": "fd00::8", "prefix": 129},
            {"ip-address": "10.0.0.9"}]},
        {"name": "eth1", "hardware-address": "bc:24:11:00:00:65"},
    ]}});
    let read = asked(200, body).await.unwrap();
    let named = |name: &str, mac: &str, addresses: &[&str]| Interface {
        name: name.to_owned(),
        mac: Some(mac.to_owned()),
        addresses: addresses.iter().map(|text| written(text)).collect(),
    };
    let expected = [
        named("lo", "00:00:00:00:00:00", &["127.0.0.1/8", "::1/128"]),
        named(
            "eth0",
            "bc:24:11:00:00:64",
            &["10.0.0.7/24", "10.0.0.8", "fd00::8", "10.0.0.9"],
        ),
        named("eth1", "bc:24:11:00:00:65", &[]),
    ];
    assert_eq!(read, expected);
}

#[test]
fn one_odd_entry_costs_only_itself() {
    let read = of(&json!([
        7,
        {"hardware-address": "bc:24:11:00:00:01"},
        {"name": "odd", "hardware-address": "not a mac", "ip-addresses": {"ip-address": "10.0.0.1"}},
        {"name": "Ethernet 2", "hardware-address": "bc-24-11-00-00-02", "ip-addresses": [
            "10.0.0.2", {"ip-address": "10.0.0.300"}, {"ip-address": null}, {"prefix": 8},
            {"ip-address": "fe80::1%7"}, {"ip-address": "10.0.0.3"}]},
    ]));
    let [odd, ethernet] = read.as_slice() else {
        panic!("{read:?}")
    };
    assert_eq!((odd.mac.as_ref(), odd.addresses.len()), (None, 0));
    assert_eq!(ethernet.mac.as_deref(), Some("bc:24:11:00:00:02"));
    let expected = ["fe80::1", "10.0.0.3"].map(written);
    assert_eq!(ethernet.addresses, expected);
}

#[test]
fn a_guest_that_names_too_much_is_cut_short() {
    let address = |n: usize| json!({"ip-address": format!("10.0.{}.{}", n / 256, n % 256)});
    let many = |count: usize| (0..count).map(address).collect::<Value>();
    let list: Value = (0..=MOST_INTERFACES)
        .map(|n| json!({"name": format!("eth{n}"), "ip-addresses": many(5)}))
        .collect();
    let read = of(&list);
    assert_eq!(read.len(), MOST_INTERFACES);
    let all: usize = read.iter().map(|interface| interface.addresses.len()).sum();
    assert_eq!(all, MOST_ADDRESSES);
    assert_eq!(
        of(&json!([{"name": "eth0", "ip-addresses": many(2000)}]))[0]
            .addresses
            .len(),
        MOST_ADDRESSES
    );
}

#[tokio::test]
async fn no_agent_a_refusal_and_a_broken_answer_are_three_things() {
    let words = |text: &str| json!({"data": null, "message": format!("{text}\n")});
    for text in [
        "No QEMU guest agent configured",
        "VM 100 is not running",
        "QEMU guest agent is not running",
        "VM 100 qga command 'guest-network-get-interfaces' failed - got timeout",
    ] {
        assert_eq!(kind(500, words(text)).await, ErrorKind::NoAgent, "{text}");
    }
    let error = json!({"class": "CommandNotFound", "desc": "The command guest-network-get-interfaces has\nbeen disabled"});
    let refused = asked(200, json!({"data": {"result": {"error": error}}})).await;
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.kind, refused.effect),
        (ErrorKind::NoAgent, Effect::None)
    );
    let expected = "the agent refused: CommandNotFound The command guest-network-get-interfaces has been disabled";
    assert_eq!(refused.detail, expected);
    for broken in [
        json!({"data": {"result": {}}}),
        json!({"data": {"result": null}}),
        json!({"data": {}}),
        json!({"data": []}),
    ] {
        assert_eq!(
            kind(200, broken.clone()).await,
            ErrorKind::Decode,
            "{broken}"
        );
    }
    let other = kind(500, words("VM 100 qmp command 'x' failed")).await;
    assert_eq!(other, ErrorKind::Other { status: 500 });
    let denied =
        words("Permission check failed (/vms/100, VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted)");
    let denied = asked(403, denied).await.unwrap_err();
    assert!(matches!(denied.kind, ErrorKind::PermissionDenied { .. }));
    assert!(
        denied
            .detail
            .ends_with("this needs VM.GuestAgent.Audit on /vms/100"),
        "{}",
        denied.detail
    );
}

#[tokio::test]
async fn a_long_refusal_of_the_guest_is_cut() {
    let error = json!({"class": "GenericError", "desc": "x".repeat(10_000)});
    let refused = asked(200, json!({"data": {"result": {"error": error}}})).await;
    assert_eq!(refused.unwrap_err().detail.chars().count(), MOST_WORDS);
}
