//! Forged names, parameters, contexts, topologies and secrets.

use harness::two_tenants::{BOTH, OWN, bravo};
use harness::world::REGION;

use crate::Due::{Harmless, Refused};
use crate::handles::STRANGE;
use crate::{Due, Forgery, Part};

/// The name of the volume that is there already; [`names`] come close to it.
pub(crate) const KEPT: &str = "kept";

fn names() -> Vec<Forgery> {
    let near = [
        "KEPT",
        "Kept",
        "kept.",
        "kept/",
        "/kept",
        "./kept",
        "kept_",
        "ke-pt",
        "kept\u{301}",
        "\u{ff4b}ept",
        "kept,size=1G",
        "kept%00",
        "9999-kept",
        "vm-9999-kept",
        "9999/vm-9999-kept.raw",
        "kept.raw",
        "../9999/vm-9999-kept.raw",
        "alpha-thin:vm-9999-kept",
        "x-0123456789012345678901234567890123456789",
    ];
    let bravos = [
        "bravo-spare",
        "vm-78888-bravo-spare",
        "78888/vm-78888-bravo-spare.raw",
        "../78888/vm-78888-bravo-spare.raw",
        "../../bravo-thin/vm-78888-bravo-db",
        "both:78888/vm-78888-bravo-spare.raw",
        "x,import-from=both:78888/vm-78888-bravo-spare.raw",
        "..%2f78888%2fvm-78888-bravo-spare.raw",
        "78888",
        "..",
        ".",
        "-",
        "--force",
        "$(id)",
        "a;b",
        "a&vmid=78888",
        "a=b",
        "x\" -f",
        "\u{202e}tpek",
        "\u{1f600}",
    ];
    let long = ["n".repeat(128), "\u{e4}".repeat(64)];
    let texts = near.iter().chain(&bravos).map(|text| (*text).to_owned());
    let harmless = texts.chain(long).map(|name| (name, Harmless));
    let refused = [
        String::new(),
        "kept\0".to_owned(),
        "kept\n".to_owned(),
        "kept\u{1b}[2J".to_owned(),
        "\u{7f}".to_owned(),
        "n".repeat(129),
        "\u{e4}".repeat(65),
        "n".repeat(100_000),
    ];
    let all = harmless.chain(refused.map(|name| (name, Refused)));
    all.map(|(name, due)| Forgery::new(Part::Name(name), due))
        .collect()
}

fn entry(key: &str, value: &str, due: Due, in_context: Due) -> Forgery {
    Forgery {
        part: Part::Entry(key.to_owned(), value.to_owned()),
        due,
        due_in_context: in_context,
    }
}

/// Keys that the driver knows, with values outside of their grammar.
fn bad_values() -> Vec<Forgery> {
    let values = [
        ("cache", "none,file=both:78888/vm-78888-bravo-spare.raw"),
        ("cache", "none,media=cdrom"),
        ("cache", "NONE"),
        ("cache", ""),
        (
            "aio",
            "native,import-from=both:78888/vm-78888-bravo-spare.raw",
        ),
        ("aio", "io-uring"),
        ("diskIOPS", "1,iops_max=9"),
        ("diskIOPS", "-1"),
        ("diskIOPS", "0"),
        ("diskIOPS", "1e9"),
        ("diskIOPS", "99999999999"),
        ("diskMBps", "1,file=x"),
        ("diskMBps", "0x10"),
        ("ssd", "1"),
        ("ssd", "true,ro=1"),
        ("backup", "1,media=cdrom"),
        ("backup", "yes"),
        ("iothread", "on"),
        ("storageFormat", "raw,file=x"),
        ("storageFormat", "vmdk"),
        ("blockSize", "4096;id"),
        ("blockSize", "-O\u{20}x"),
        ("inodeSize", "255"),
        ("storage", ""),
        ("storage", ".."),
        ("storage", "both/../bravo-thin"),
        ("storage", "both:78888"),
        ("storage", "both,file=x"),
        ("storage", "\u{ff42}oth"),
    ];
    let known = values.map(|(key, value)| entry(key, value, Refused, Refused));
    let mangled = STRANGE.iter().flat_map(|strange| {
        [("cache", "none"), ("diskIOPS", "10"), ("storage", BOTH)]
            .map(|(k, v)| (k, format!("{v}{strange}")))
    });
    let mangled = mangled.map(|(key, value)| entry(key, &value, Refused, Refused));
    known.into_iter().chain(mangled).collect()
}

/// Storages that are not the tenant's, and keys that would mean something to PVE.
fn strangers() -> Vec<Forgery> {
    let storages = [
        bravo::STORAGE,
        "BOTH",
        "Alpha-thin",
        "local",
        "alpha",
        "alpha-thin2",
    ];
    let storages = storages.map(|storage| entry("storage", storage, Refused, Harmless));
    let spare = "both:78888/vm-78888-bravo-spare.raw";
    let keys = [
        ("file", spare),
        ("import-from", spare),
        ("media", "cdrom"),
        ("serial", "bravo"),
        ("wwn", "0x5000000000000b01"),
        ("iops", "1"),
        ("scsi1", spare),
        ("scsi1", "none"),
        ("digest", "0"),
        ("vmid", "77201"),
        ("node", "bravo-host"),
        ("pool", "bravo"),
        ("owner", "78888"),
        ("skiplock", "1"),
        ("force", "1"),
        ("delete", "scsi0"),
        ("revert", "scsi0"),
        ("background_delay", "30"),
        ("cache,file", spare),
        ("Cache", "none"),
        ("cache ", "none"),
        ("cache\0", "none"),
        ("", "x"),
        ("replicate", "true"),
        ("region", "bravo-region"),
        ("topology.kubernetes.io/zone", "bravo-host"),
        ("a\nb", "c\nd"),
        ("secretRef", "bravo"),
        ("csi.proxmox.sinextra.dev/owner", "78888"),
    ];
    let keys = keys.map(|(key, value)| entry(key, value, Refused, Harmless));
    let sidecars = [
        ("csi.storage.k8s.io/pv/name", "bravo-spare"),
        ("csi.storage.k8s.io/pvc/namespace", "../bravo"),
        ("csi.storage.k8s.io/fstype", "ext4,dev"),
        ("csi.storage.k8s.io/storage", bravo::STORAGE),
    ];
    let sidecars = sidecars.map(|(key, value)| entry(key, value, Harmless, Harmless));
    storages.into_iter().chain(keys).chain(sidecars).collect()
}

fn places() -> Vec<Forgery> {
    let one = |region: &str, zone: Option<&str>| vec![(region.to_owned(), zone.map(str::to_owned))];
    let mut refused = vec![
        one(bravo::REGION, None),
        one(bravo::REGION, Some("pve1")),
        one(REGION, Some(bravo::PVE_NODE)),
        one(bravo::REGION, Some(bravo::PVE_NODE)),
        one(REGION, Some("PVE1")),
        one("R1", Some("pve1")),
        one("", Some("pve1")),
        one(REGION, Some("")),
        one("r1/pve1", None),
        one("r1/../bravo-region", None),
        one(REGION, Some("pve1,bravo-host")),
        one(REGION, Some("pve1/../bravo-host")),
        [one(bravo::REGION, None), one(REGION, Some(bravo::PVE_NODE))].concat(),
        [one(REGION, Some("pve1")), one(REGION, Some("pve1%2f.."))].concat(),
    ];
    for strange in STRANGE {
        refused.push(one(&format!("r1{strange}"), None));
        refused.push(one(REGION, Some(&format!("pve1{strange}"))));
    }
    let mixed = [
        [one(bravo::REGION, None), one(REGION, Some("pve1"))].concat(),
        [
            one(REGION, Some("pve2")),
            one(bravo::REGION, Some(bravo::PVE_NODE)),
        ]
        .concat(),
    ];
    let forge = |due| move |places| Forgery::new(Part::Places(places), due);
    let mixed = mixed.map(forge(Harmless));
    refused
        .into_iter()
        .map(forge(Refused))
        .chain(mixed)
        .collect()
}

fn others() -> Vec<Forgery> {
    let key = || "token".to_owned();
    let parts = [
        Part::Secret(key(), bravo::TOKEN.1.to_owned()),
        Part::Secret(String::new(), String::new()),
        Part::Secret(
            "csi.storage.k8s.io/provisioner-secret".to_owned(),
            "x".to_owned(),
        ),
        Part::Mutable("storage".to_owned(), bravo::STORAGE.to_owned()),
        Part::Mutable("diskIOPS".to_owned(), "1,file=x".to_owned()),
        Part::Source("r1//both/78888/vm-78888-bravo-spare.raw".to_owned()),
        Part::Source(format!("r1/pve1/{OWN}/vm-9999-{KEPT}")),
        Part::Source("../78888".to_owned()),
    ];
    parts.map(|part| Forgery::new(part, Refused)).to_vec()
}

/// Every forgery that is neither of a handle nor of a node id.
pub(crate) fn forgeries() -> Vec<Forgery> {
    [names(), bad_values(), strangers(), places(), others()].concat()
}
