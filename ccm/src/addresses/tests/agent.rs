//! What of a guest agent's answer is taken.

use super::*;

#[test]
fn the_vms_own_interfaces_are_known_by_hardware_address() {
    let veths = (0..20).map(|n| {
        interface(
            &format!("veth{n}"),
            "ee:ee:ee:ee:ee:ee",
            &["10.244.0.1/32", "fe80::1/64"],
        )
    });
    let mut told: Vec<Interface> = veths.collect();
    told.extend([
        lo(),
        interface(
            "kube-ipvs0",
            "a2:00:00:00:00:01",
            &["10.96.0.1/32", "10.96.0.10/32"],
        ),
        interface("docker0", "02:42:00:00:00:01", &["172.17.0.1/16"]),
        interface("ens19", MAC1, &["10.1.0.5/24"]),
        interface("ens18", &MAC0.to_uppercase(), &["10.0.0.5/24"]),
        interface("odd", "", &["192.168.9.9/24"]),
    ]);
    let mut world = World::new(Some(told));
    check(&world, "InternalIP=10.0.0.5 InternalIP=10.1.0.5");
    world.macs = [(0, MAC1.to_owned()), (10, MAC0.to_owned())].into();
    check(&world, "InternalIP=10.1.0.5 InternalIP=10.0.0.5");
}

#[test]
fn if_no_hardware_address_is_known_all_but_virtual_interfaces_count() {
    let names = "lo docker0 cni0 flannel.1 cilium_host lxc1234 veth12 cali12 kube-ipvs0 nodelocaldns dummy0 br-12ab virbr0 \
                 tunl0 vxlan.calico weave tailscale0 wg0 tap0 lo:0 docker0:1";
    let mut told: Vec<Interface> = names
        .split_whitespace()
        .map(|name| interface(name, "02:00:00:00:00:01", &["172.30.0.1/16"]))
        .collect();
    let world = World::new(Some(told.clone())).current("InternalIP=10.0.0.5");
    assert_eq!(world.wanted(), None);
    told.extend([
        interface("eth10", "02:00:00:00:00:02", &["10.0.10.5/24"]),
        interface("eth2", "", &["10.0.2.5/24"]),
        interface("bond0", "02:00:00:00:00:03", &["10.0.0.5/24"]),
        interface("lowpan", "02:00:00:00:00:04", &["10.0.99.5/24"]),
    ]);
    let world = World::new(Some(told));
    check(
        &world,
        "InternalIP=10.0.0.5 InternalIP=10.0.2.5 InternalIP=10.0.10.5 InternalIP=10.0.99.5",
    );
}

#[test]
fn a_virtual_address_with_all_bits_as_prefix_is_left_out_beside_a_real_one() {
    for (told, expected) in [
        (
            vec![eth0(&["10.0.0.100/32", "10.0.0.5/24"])],
            "InternalIP=10.0.0.5",
        ),
        (
            vec![eth0(&["fd00::100/128", "fd00::5/64"])],
            "InternalIP=fd00::5",
        ),
        // Alone, they are the machine's own: point to point, or from DHCPv6 beside a link-local one.
        (vec![eth0(&["10.0.0.5/32"])], "InternalIP=10.0.0.5"),
        (
            vec![eth0(&["fd00::5/128", "fe80::1/64"])],
            "InternalIP=fd00::5",
        ),
        (
            vec![eth0(&["10.0.0.5/24", "fd00::5/128"])],
            "InternalIP=10.0.0.5 InternalIP=fd00::5",
        ),
        // An agent that says no prefix.
        (
            vec![eth0(&["10.0.0.100/32", "10.0.0.5"])],
            "InternalIP=10.0.0.100 InternalIP=10.0.0.5",
        ),
        // An alias is told as an interface.
        (
            vec![
                interface("eth0:vip", MAC0, &["10.0.0.100/32"]),
                eth0(&["10.0.0.5/24"]),
            ],
            "InternalIP=10.0.0.5",
        ),
        // Another interface is none of its business.
        (
            vec![
                interface("eth1", MAC1, &["10.0.1.5/32"]),
                eth0(&["10.0.0.5/24"]),
            ],
            "InternalIP=10.0.0.5 InternalIP=10.0.1.5",
        ),
    ] {
        check(&World::new(Some(told)), expected);
    }
}

#[test]
fn only_addresses_that_others_can_send_to_are_taken() {
    let told = eth0(&[
        "127.0.0.53/8",
        "::1/128",
        "0.0.0.0/0",
        "::/0",
        "224.0.0.1/4",
        "ff02::1/8",
        "169.254.1.1/16",
        "fe80::1/64",
        "255.255.255.255/32",
        "::ffff:169.254.1.2/120",
        "fd00::5/64",
        "10.0.0.5/24",
        "::ffff:10.0.0.5/120",
    ]);
    check(
        &World::new(Some(vec![told])),
        "InternalIP=fd00::5 InternalIP=10.0.0.5",
    );
    let had = "InternalIP=169.254.1.1 InternalIP=::1 ExternalIP=203.0.113.5 InternalIP=fe80::1 InternalIP=nonsense";
    let kept = World::new(None).provided("10.0.0.5").current(had);
    check(&kept, "InternalIP=10.0.0.5 ExternalIP=203.0.113.5");
}

#[test]
fn a_cluster_of_unique_local_addresses_alone_has_addresses() {
    let told = vec![lo(), eth0(&["fd00::5/64", "fe80::5/64"])];
    check(&World::new(Some(told)), "InternalIP=fd00::5");
}
