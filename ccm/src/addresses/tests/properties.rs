use super::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

/// Few enough that sources overlap.
const POOL: [&str; 14] = [
    "10.0.0.5",
    "10.0.0.6",
    "10.1.0.5",
    "203.0.113.5",
    "203.0.113.6",
    "fd00::5",
    "fd00::6",
    "2001:db8::5",
    "127.0.0.1",
    "::1",
    "169.254.1.1",
    "fe80::1",
    "::ffff:10.0.0.5",
    "::ffff:127.0.0.1",
];
const NETS: [&str; 6] = [
    "10.0.0.0/24",
    "10.0.0.0/8",
    "203.0.113.0/24",
    "fd00::/8",
    "203.0.113.5/32",
    "::/0",
];
const MACS: [&str; 4] = [MAC0, MAC1, "02:00:00:00:00:09", ""];

fn any_ips() -> impl Strategy<Value = Vec<IpAddr>> {
    vec(
        select(&POOL[..]).prop_map(|text| text.parse().unwrap()),
        0..4,
    )
}

fn any_nets() -> impl Strategy<Value = Vec<pve_model::Cidr>> {
    vec(
        select(&NETS[..]).prop_map(|text| text.parse().unwrap()),
        0..3,
    )
}

fn any_interfaces() -> impl Strategy<Value = Vec<Interface>> {
    let name = select(&["eth0", "eth1", "eth10", "eth0:1", "docker0", "bond0"][..]);
    let prefix = select(&[None, Some(24), Some(32), Some(64), Some(128)][..]);
    let address = (select(&POOL[..]), prefix).prop_map(|(text, prefix)| InterfaceAddress {
        address: text.parse().unwrap(),
        prefix,
    });
    // By name, for a guest has no two of one name.
    let one = btree_map(name, (select(&MACS[..]), vec(address, 0..4)), 0..5);
    one.prop_map(|all| {
        let named = all.into_iter().map(|(name, (mac, addresses))| Interface {
            addresses,
            ..interface(name, mac, &[])
        });
        named.collect()
    })
}

fn any_current() -> impl Strategy<Value = Vec<Address>> {
    let kind = select(&["InternalIP", "ExternalIP", "Hostname", "InternalDNS"][..]);
    vec((kind, select(&POOL[..])), 0..5).prop_map(|all| {
        let one = |(kind, address): &(&str, &str)| format!("{kind}={address} ");
        addresses(&all.iter().map(one).collect::<String>())
    })
}

prop_compose! {
    fn any_policy()(
        agent: bool, cloud_init: bool, ipv6: bool, external in any_nets(), include in any_nets(), exclude in any_nets(),
        order in any_nets(),
    ) -> AddressPolicy {
        AddressPolicy { agent, cloud_init, external, include, exclude, order, ipv6 }
    }
}

prop_compose! {
    fn any_world()(
        provided in any_ips(), agent in proptest::option::of(any_interfaces()), fixed in any_ips(),
        current in any_current(), policy in any_policy(),
    ) -> World {
        World { provided, fixed, current, policy, ..World::new(agent) }
    }
}

proptest! {
    #[test]
    fn what_is_wanted_stays_wanted(world in any_world()) {
        if let Some(first) = world.wanted() {
            let mut again = world;
            again.current.clone_from(&first);
            prop_assert_eq!(again.wanted().unwrap_or_else(|| first.clone()), first);
        }
    }

    #[test]
    fn no_provided_address_is_lost_and_none_is_useless(world in any_world()) {
        let usable: Vec<IpAddr> = world.provided.iter().map(IpAddr::to_canonical).filter(is_usable).collect();
        let Some(all) = world.wanted() else {
            prop_assert!(usable.is_empty());
            return Ok(());
        };
        for address in &usable {
            let there = Address { kind: AddressKind::InternalIp, address: address.to_string() };
            prop_assert!(all.contains(&there), "{} in {}", address, text(&all));
        }
        prop_assert_eq!(text(&all[..1]), "Hostname=worker-a");
        let found: Vec<IpAddr> = all.iter().filter_map(ip).collect();
        for address in &found {
            let local = address.to_string().starts_with("169.254.") || address.to_string().starts_with("fe80:");
            prop_assert!(!address.is_loopback() && !local, "{}", address);
        }
        let once: HashSet<&IpAddr> = found.iter().collect();
        prop_assert_eq!(once.len(), found.len(), "{}", text(&all));
    }

    #[test]
    fn the_order_in_which_interfaces_are_told_is_nothing(world in any_world(), seed: prop::sample::Index) {
        let mut other = world.clone();
        if let Some(told) = &mut other.agent && !told.is_empty() {
            let by = seed.index(told.len());
            told.rotate_left(by);
            told.reverse();
        }
        prop_assert_eq!(other.wanted(), world.wanted());
    }

    #[test]
    fn what_policy_leaves_out_comes_in_by_no_other_way(mut world in any_world()) {
        world.current.clear();
        let all = world.wanted().unwrap_or_default();
        let provided: Vec<IpAddr> = world.provided.iter().map(IpAddr::to_canonical).collect();
        let policy = &world.policy;
        for (known, address) in all.iter().filter_map(|known| Some((known, ip(known)?))) {
            let within = |nets: &[pve_model::Cidr]| nets.iter().any(|net| net.contains(address));
            if provided.contains(&address) {
                continue;
            }
            prop_assert!(policy.agent || policy.cloud_init);
            prop_assert!(!within(&policy.exclude) && (policy.include.is_empty() || within(&policy.include)));
            prop_assert!(policy.ipv6 || address.is_ipv4());
            prop_assert_eq!(known.kind == AddressKind::ExternalIp, within(&policy.external));
        }
    }
}
