use super::*;

mod agent;
mod properties;

const NODE: &str = "worker-a";
const MAC0: &str = "bc:24:11:00:00:00";
const MAC1: &str = "bc:24:11:00:00:01";

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn interface(name: &str, mac: &str, addresses: &[&str]) -> Interface {
    let written = |text: &&str| {
        let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
        InterfaceAddress {
            address: address.parse().unwrap(),
            prefix: prefix.parse().ok(),
        }
    };
    Interface {
        name: name.to_owned(),
        mac: (!mac.is_empty()).then(|| mac.to_owned()),
        addresses: addresses.iter().map(written).collect(),
    }
}

/// What `list` (`InternalIP=10.0.0.1 Hostname=a`) means.
fn addresses(list: &str) -> Vec<Address> {
    let one = |text: &str| {
        let (kind, address) = text.split_once('=').unwrap();
        Address {
            kind: kind.into(),
            address: address.to_owned(),
        }
    };
    list.split_whitespace().map(one).collect()
}

fn text(list: &[Address]) -> String {
    let one = |known: &Address| format!("{}={}", known.kind.as_str(), known.address);
    list.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[derive(Debug, Clone)]
struct World {
    provided: Vec<IpAddr>,
    agent: Option<Vec<Interface>>,
    macs: BTreeMap<u8, String>,
    fixed: Vec<IpAddr>,
    current: Vec<Address>,
    policy: AddressPolicy,
}

impl World {
    /// A VM with two interfaces, whose agent is asked.
    fn new(agent: Option<Vec<Interface>>) -> Self {
        Self {
            provided: Vec::new(),
            agent,
            macs: [(0, MAC0.to_owned()), (1, MAC1.to_owned())].into(),
            fixed: Vec::new(),
            current: Vec::new(),
            policy: AddressPolicy {
                agent: true,
                ..AddressPolicy::default()
            },
        }
    }

    fn provided(mut self, text: &str) -> Self {
        self.provided = provided(text);
        self
    }

    fn current(mut self, list: &str) -> Self {
        self.current = addresses(list);
        self
    }

    fn fixed(mut self, texts: &[&str]) -> Self {
        self.fixed = ips(texts);
        self.policy.cloud_init = true;
        self
    }

    fn policy(mut self, change: fn(&mut AddressPolicy)) -> Self {
        change(&mut self.policy);
        self
    }

    fn wanted(&self) -> Option<Vec<Address>> {
        let sources = Sources {
            name: NODE,
            provided: self.provided.clone(),
            agent: self.agent.as_deref(),
            macs: &self.macs,
            fixed: &self.fixed,
            current: &self.current,
        };
        wanted(&sources, &self.policy)
    }

    /// The addresses behind the Node's name.
    fn text(&self) -> Option<String> {
        let all = text(&self.wanted()?);
        let rest = all.strip_prefix("Hostname=worker-a").unwrap();
        Some(rest.trim().to_owned())
    }
}

#[track_caller]
fn check(world: &World, expected: &str) {
    assert_eq!(world.text().as_deref(), Some(expected));
}

fn nets(list: &[&str]) -> Vec<pve_model::Cidr> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

fn lo() -> Interface {
    interface("lo", "00:00:00:00:00:00", &["127.0.0.1/8", "::1/128"])
}

fn eth0(addresses: &[&str]) -> Interface {
    interface("eth0", MAC0, addresses)
}

#[test]
fn nothing_known_changes_nothing_and_gives_a_node_without_addresses_its_name() {
    let had = "Hostname=worker-a InternalIP=10.0.0.9 ExternalIP=203.0.113.9";
    for world in [
        World::new(None),
        World::new(Some(vec![])),
        World::new(None).policy(|policy| policy.agent = false),
        World::new(None).fixed(&[]),
        World::new(None).fixed(&["127.0.0.1", "fe80::1"]),
        World::new(None).provided("127.0.0.1,nonsense"),
    ] {
        assert_eq!(world.clone().current(had).wanted(), None, "{world:?}");
        let all = world.wanted();
        assert_eq!(text(&all.unwrap()), "Hostname=worker-a", "{world:?}");
    }
}

#[test]
fn provided_addresses_are_parsed_one_by_one() {
    assert_eq!(provided("10.0.0.5"), ips(&["10.0.0.5"]));
    assert_eq!(
        provided(" 10.0.0.5 , fd00::5 "),
        ips(&["10.0.0.5", "fd00::5"])
    );
    assert_eq!(provided("::ffff:10.0.0.5"), ips(&["10.0.0.5"]));
    let nothing = [
        "",
        ",",
        "x",
        "10.0.0",
        "0.0.0.0",
        "::",
        "127.0.0.1",
        "fe80::1",
        "224.0.0.1",
        "255.255.255.255",
    ];
    for text in nothing {
        assert!(provided(text).is_empty(), "{text}");
    }
}

#[test]
fn provided_addresses_are_internal_whatever_policy_says() {
    let strict = |policy: &mut AddressPolicy| {
        policy.include = nets(&["192.168.0.0/16"]);
        policy.exclude = nets(&["10.0.0.0/8", "fd00::/8"]);
        policy.external = nets(&["10.0.0.0/8"]);
        policy.order = nets(&["fd00::/8"]);
        policy.ipv6 = false;
    };
    let world = World::new(None).provided("10.0.0.5,fd00::5").policy(strict);
    check(&world, "InternalIP=10.0.0.5 InternalIP=fd00::5");
    let told = World {
        agent: Some(vec![eth0(&["10.0.0.5/24", "192.168.0.5/24"])]),
        ..world
    };
    check(&told, "InternalIP=10.0.0.5 InternalIP=fd00::5");
}

#[test]
fn beside_a_provided_address_its_family_has_no_other_internal_one() {
    let told = vec![eth0(&[
        "10.0.0.6/24",
        "10.0.0.5/24",
        "203.0.113.5/24",
        "fd00::6/64",
    ])];
    let world = World::new(Some(told))
        .provided("10.0.0.5")
        .policy(|policy| policy.external = nets(&["203.0.113.0/24"]));
    check(
        &world,
        "InternalIP=10.0.0.5 ExternalIP=203.0.113.5 InternalIP=fd00::6",
    );
    let moved = World::new(None)
        .provided("10.0.0.5")
        .current("InternalIP=10.0.0.9 InternalIP=fd00::9 ExternalIP=203.0.113.9");
    check(
        &moved,
        "InternalIP=10.0.0.5 InternalIP=fd00::9 ExternalIP=203.0.113.9",
    );
}

#[test]
fn an_agent_without_an_answer_leaves_all_addresses_of_the_node() {
    let had = "InternalIP=10.0.0.5 ExternalIP=203.0.113.5 InternalIP=fd00::5";
    let silent = [
        None,
        Some(vec![]),
        Some(vec![lo()]),
        Some(vec![eth0(&[]), lo()]),
        Some(vec![eth0(&["fe80::1/64", "169.254.3.4/16"])]),
        // Not yet an address by DHCP, while container networks are up from before.
        Some(vec![
            eth0(&["fe80::1/64"]),
            interface("docker0", "02:42:00:00:00:01", &["172.17.0.1/16"]),
        ]),
        Some(vec![
            eth0(&[]),
            interface("ens99", "02:42:00:00:00:01", &["172.30.0.1/16"]),
        ]),
    ];
    for agent in silent {
        let world = World::new(agent).current(&format!("Hostname=worker-a {had}"));
        assert_eq!(world.wanted(), None, "{world:?}");
        check(&world.clone().provided("10.0.0.5"), had);
        check(
            &world.clone().fixed(&["10.0.0.7"]),
            &format!("{had} InternalIP=10.0.0.7"),
        );
        check(
            &World::new(world.agent).fixed(&["10.0.0.7"]),
            "InternalIP=10.0.0.7",
        );
    }
}

#[test]
fn what_the_node_has_stays_even_where_policy_would_not_take_it() {
    let world = World::new(None)
        .provided("fd00::5")
        .current("InternalIP=10.0.0.5 ExternalIP=203.0.113.5")
        .policy(|policy| policy.exclude = nets(&["0.0.0.0/0"]));
    check(
        &world,
        "InternalIP=fd00::5 InternalIP=10.0.0.5 ExternalIP=203.0.113.5",
    );
}

#[test]
fn without_the_agent_only_the_config_and_the_kubelet_speak() {
    let told = vec![eth0(&["10.0.0.5/24"])];
    let world = World::new(Some(told))
        .policy(|policy| policy.agent = false)
        .current("InternalIP=10.0.0.9 ExternalIP=203.0.113.9");
    assert_eq!(world.wanted(), None);
    check(&world.clone().provided("10.0.0.7"), "InternalIP=10.0.0.7");
    check(&world.clone().fixed(&["10.0.0.8"]), "InternalIP=10.0.0.8");
    let unasked = World {
        fixed: ips(&["10.0.0.8"]),
        ..world
    };
    assert_eq!(unasked.wanted(), None);
}

#[test]
fn include_exclude_and_external_decide_what_is_taken_as_what() {
    let told = vec![eth0(&[
        "10.0.0.5/24",
        "10.1.0.5/24",
        "203.0.113.5/24",
        "198.51.100.5/24",
        "fd00::5/64",
    ])];
    let world = World::new(Some(told)).policy(|policy| {
        policy.include = nets(&["10.0.0.0/8", "203.0.113.0/24"]);
        policy.exclude = nets(&["10.1.0.0/16"]);
        policy.external = nets(&["203.0.113.0/24", "198.51.100.0/24"]);
    });
    check(&world, "InternalIP=10.0.0.5 ExternalIP=203.0.113.5");
    let fixed = World {
        agent: None,
        ..world
    }
    .fixed(&["10.1.0.5", "203.0.113.6", "10.0.0.6"]);
    check(&fixed, "ExternalIP=203.0.113.6 InternalIP=10.0.0.6");
}

#[test]
fn ipv6_can_be_switched_off() {
    let told = vec![eth0(&["fd00::5/64", "10.0.0.5/24"])];
    let world = World::new(Some(told)).fixed(&["fd00::6"]);
    check(
        &world,
        "InternalIP=fd00::5 InternalIP=10.0.0.5 InternalIP=fd00::6",
    );
    check(
        &world.policy(|policy| policy.ipv6 = false),
        "InternalIP=10.0.0.5",
    );
}

#[test]
fn listed_nets_come_first_in_their_order_and_none_is_lost() {
    let told = vec![eth0(&[
        "10.96.0.1/24",
        "172.17.0.1/16",
        "10.0.0.5/24",
        "10.0.0.6/24",
        "192.168.0.5/24",
    ])];
    let world = World::new(Some(told))
        .policy(|policy| policy.order = nets(&["192.168.0.0/16", "10.0.0.0/24"]));
    check(
        &world,
        "InternalIP=192.168.0.5 InternalIP=10.0.0.5 InternalIP=10.0.0.6 InternalIP=10.96.0.1 InternalIP=172.17.0.1",
    );
}

#[test]
fn an_address_that_comes_later_never_takes_the_first_place() {
    let told = |list: &[&str]| Some(vec![eth0(list)]);
    let mut world = World::new(told(&["10.0.0.5/24"]));
    for list in [
        ["10.0.0.5/24", "10.0.0.100/24"],
        ["10.0.0.100/24", "10.0.0.5/24"],
        ["10.0.0.5/24", "10.0.0.100/24"],
    ] {
        world.current = world.wanted().unwrap();
        world.agent = told(&list);
        check(&world, "InternalIP=10.0.0.5 InternalIP=10.0.0.100");
    }
    world.agent = told(&["10.0.0.100/24"]);
    check(&world, "InternalIP=10.0.0.100");
}

#[test]
fn the_nodes_other_names_stay_and_its_own_comes_first() {
    let world = World::new(Some(vec![eth0(&["10.0.0.5/24"])]))
        .current("InternalDNS=a.example Hostname=old InternalIP=10.0.0.9 ExternalDNS=b.example InternalDNS=a.example");
    let expected =
        "Hostname=worker-a InternalIP=10.0.0.5 InternalDNS=a.example ExternalDNS=b.example";
    assert_eq!(text(&world.wanted().unwrap()), expected);
}

#[test]
fn a_guest_with_a_thousand_addresses_fills_no_node() {
    let many: Vec<String> = (0..1024)
        .map(|n| format!("10.0.{}.{}/16", n / 256, n % 256))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut world = World::new(Some(vec![eth0(&many)])).provided("fd00::5");
    let first = world.wanted().unwrap();
    assert_eq!(first.len(), 1 + MOST);
    assert_eq!(
        text(&first[..3]),
        "Hostname=worker-a InternalIP=fd00::5 InternalIP=10.0.0.0"
    );
    world.current = first.clone();
    assert_eq!(world.wanted(), Some(first));
}
