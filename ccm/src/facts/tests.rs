use super::*;
use proptest::prelude::*;
use pve_runtime::config::{Mode, Owners};
use serde_json::{Value, json};

fn policy() -> RegionPolicy {
    RegionPolicy {
        pool: "tenant-a".parse().unwrap(),
        storages: BTreeMap::new(),
        pve_nodes: [].into(),
        owners: Owners {
            default: Some("9999".parse().unwrap()),
            per_node: [("pve2".parse().unwrap(), "9998".parse().unwrap())].into(),
        },
        mode: Mode::Reserved,
        adopted: ["r1/pve1/thin/vm-100-disk-7".parse().unwrap()].into(),
    }
}

fn facts(options: Value) -> VmFacts {
    let mut config = options;
    config["digest"] = json!("82f5");
    VmFacts::of(&VmConfig::read(&config).unwrap(), &policy())
}

fn instance_type(options: Value) -> String {
    facts(options).instance_type
}

#[test]
fn a_worker_is_read_whole() {
    let read = facts(json!({
        "smbios1": "base64=1,sku=YzEubGFyZ2U=,uuid=EB9709D7-A119-4876-B4EA-8CDF4D3A4409",
        "cores": 4, "memory": "8192", "boot": "order=scsi0",
        "net0": "virtio=BC:24:11:7F:89:CA,bridge=vmbr0,firewall=1",
        "ipconfig0": "gw=10.0.0.1,ip=10.0.0.5/24,ip6=fd00::5/64",
        "scsi0": "thin:vm-100-disk-0,size=20G", "scsi1": "thin:vm-9999-pvc-1,size=1G",
        "ide2": "local:iso/debian.iso,media=cdrom",
    }));
    let expected = VmFacts {
        uuid: Some("eb9709d7-a119-4876-b4ea-8cdf4d3a4409".parse().unwrap()),
        instance_type: "c1.large".to_owned(),
        attach_limit: 30,
        macs: [(0, "bc:24:11:7f:89:ca".to_owned())].into(),
        fixed: vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
    };
    assert_eq!(read, expected);
}

#[test]
fn a_sku_is_decoded_with_padding_and_without() {
    for (smbios, sku) in [
        ("base64=1,sku=YzEubGFyZ2U=", "c1.large"),
        ("sku=YzEubGFyZ2U,base64=1", "c1.large"),
        ("base64=on,sku=YzEubWVkaXVt", "c1.medium"),
        ("base64=true,sku=YWJjZA==", "abcd"),
        ("sku=c1.small", "c1.small"),
        ("base64=0,sku=YWJj", "YWJj"),
    ] {
        assert_eq!(instance_type(json!({"smbios1": smbios})), sku, "{smbios}");
    }
}

#[test]
fn a_sku_that_can_not_be_a_label_gives_way_to_the_size() {
    let long = format!("sku={}", "a".repeat(64));
    for smbios in [
        "base64=1,sku=!!!",
        "base64=1,sku=/w==",
        "base64=1,sku=",
        "sku=",
        "sku=c1.large-",
        "sku=-c1",
        "sku=c1 large",
        "base64=1,sku=YzEvYQ==",
        "uuid=eb9709d7-a119-4876-b4ea-8cdf4d3a4409",
        &long,
    ] {
        let read = instance_type(json!({"smbios1": smbios, "memory": 2048}));
        assert_eq!(read, "1VCPU-2GB", "{smbios}");
    }
    let most = "a".repeat(63);
    assert_eq!(
        instance_type(json!({"smbios1": format!("sku={most}")})),
        most
    );
}

#[test]
fn a_size_counts_what_the_guest_starts_with() {
    for (options, expected) in [
        (json!({}), "1VCPU-512MB"),
        (json!({"memory": 1023}), "1VCPU-1023MB"),
        (json!({"memory": "1024"}), "1VCPU-1GB"),
        (json!({"memory": "2560", "cores": "4"}), "4VCPU-2GB"),
        (
            json!({"memory": "current=4096", "cores": 2, "sockets": 2}),
            "4VCPU-4GB",
        ),
        (
            json!({"memory": 4096, "cores": 8, "sockets": 2, "vcpus": 3}),
            "3VCPU-4GB",
        ),
        (
            json!({"memory": "odd", "cores": "", "vcpus": 0}),
            "1VCPU-512MB",
        ),
    ] {
        assert_eq!(instance_type(options.clone()), expected, "{options}");
    }
}

#[test]
fn only_slots_that_can_hold_a_volume_are_counted() {
    let limit = |options: Value| facts(options).attach_limit;
    for (ours, options) in [
        ("empty", json!({})),
        ("scsi0", json!({"scsi0": "thin:vm-100-disk-0,size=2G"})),
        (
            "other buses",
            json!({"virtio1": "thin:vm-100-disk-0", "sata0": "none,media=cdrom"}),
        ),
        ("a volume", json!({"scsi1": "thin:vm-9999-pvc-1,size=1G"})),
        ("a file", json!({"scsi30": "nfs:9999/vm-9999-pvc-1.raw"})),
        (
            "of the owner on another host",
            json!({"scsi2": "thin:vm-9998-pvc-1"}),
        ),
        ("adopted", json!({"scsi3": "thin:vm-100-disk-7,size=1G"})),
        (
            "an adopted one that it boots from",
            json!({"scsi3": "thin:vm-100-disk-7", "boot": "order=scsi3"}),
        ),
    ] {
        assert_eq!(limit(options), 30, "{ours}");
    }
    for (foreign, options) in [
        (
            "its own disk",
            json!({"scsi1": "thin:vm-100-disk-1,size=2G"}),
        ),
        (
            "almost the adopted one",
            json!({"scsi1": "fast:vm-100-disk-7,size=2G"}),
        ),
        (
            "a template's",
            json!({"scsi1": "thin:base-9999-disk-1/vm-100-disk-1"}),
        ),
        ("an empty drive", json!({"scsi4": "none,media=cdrom"})),
        (
            "cloud-init of an owner VM",
            json!({"scsi4": "thin:vm-9999-cloudinit,media=cdrom"}),
        ),
        ("a path", json!({"scsi30": "/dev/sdb"})),
        (
            "kept for booting",
            json!({"boot": "order=scsi0;scsi1;net0"}),
        ),
        ("kept for booting long ago", json!({"bootdisk": "scsi1"})),
    ] {
        assert_eq!(limit(options), 29, "{foreign}");
    }
}

#[test]
fn a_full_vm_has_room_for_one_for_zero_means_not_said() {
    let drive = |n: usize| (format!("scsi{n}"), json!(format!("fast:vm-100-disk-{n}")));
    let full: serde_json::Map<_, _> = (0..31).map(drive).collect();
    assert_eq!(facts(full.into()).attach_limit, 1);
}

#[test]
fn hardware_addresses_are_found_in_both_spellings() {
    let read = facts(json!({
        "net10": "e1000=BC:24:11:00:00:0A", "net2": "model=virtio,macaddr=bc:24:11:00:00:02,queues=4",
        "net31": "bridge=vmbr0,virtio=BC:24:11:00:00:1F", "net3": "virtio,bridge=vmbr0", "net32": "virtio=BC:24:11:00:00:20",
    }));
    let expected = [(2, "02"), (10, "0a"), (31, "1f")];
    let expected = expected.map(|(net, end)| (net, format!("bc:24:11:00:00:{end}")));
    assert_eq!(read.macs, expected.into());
}

#[test]
fn only_static_addresses_of_interfaces_that_are_there_are_taken() {
    let net = "virtio=BC:24:11:00:00:01";
    let read = facts(json!({
        "net0": net, "net1": net, "net2": net, "net10": net,
        "ipconfig10": "ip=10.0.10.5/24", "ipconfig2": "ip6=fd00:2::5/64,gw6=fd00:2::1,ip=10.0.2.5/24,gw=10.0.2.1",
        "ipconfig1": "ip=dhcp,ip6=auto", "ipconfig0": "ip=manual,ip6=fd00::5/64", "ipconfig3": "ip=10.0.3.5/24",
    }));
    let text: Vec<String> = read.fixed.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["fd00::5", "10.0.2.5", "fd00:2::5", "10.0.10.5"]);
}

proptest! {
    #[test]
    fn whatever_the_config_says_the_node_can_be_labelled(
        smbios in "(base64=1,)?sku=[ -~]{0,80}", memory in "(current=)?[0-9]{0,22}", cores in "[0-9]{0,22}",
        net in "[ -~]{0,60}", ipconfig in "(ip=)?[ -~]{0,40}",
    ) {
        let read = facts(json!({
            "smbios1": smbios, "memory": memory, "cores": cores, "sockets": cores, "net0": net, "ipconfig0": ipconfig,
        }));
        prop_assert!(fits_label(&read.instance_type), "{}", read.instance_type);
        prop_assert!((1..=30).contains(&read.attach_limit));
    }
}
