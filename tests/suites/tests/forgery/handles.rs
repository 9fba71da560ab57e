//! Forged volume handles.

use harness::two_tenants::{BOTH, OWN, bravo};

use crate::Due::{NoVolume, Refused};
use crate::{Due, Forgery, Part};

/// Texts that mean something to a shell, a URL, a path, a drive string or a terminal, or look like what they are not.
pub(crate) const STRANGE: [&str; 38] = [
    "\0",
    "\n",
    "\r\n",
    "\t",
    " ",
    "\u{1b}[2J",
    "\u{7f}",
    "%2F",
    "%2f",
    "%00",
    "%0a",
    "%",
    ",",
    ",file=",
    "=",
    "\"",
    "'",
    "`",
    "\\",
    ";",
    "&",
    "#",
    "?",
    "$(id)",
    "{}",
    "<",
    "|",
    "*",
    "~",
    "@",
    "!",
    ":",
    "/",
    "//",
    "../",
    "\u{200b}",
    "\u{ff0f}",
    "\u{430}",
];

/// The text with something put in at its start, its end, and inside each of its parts.
pub(crate) fn mangled(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split('/').collect();
    let mut all = Vec::new();
    for strange in STRANGE {
        all.push(format!("{strange}{text}"));
        all.push(format!("{text}{strange}"));
        for (at, part) in parts.iter().enumerate().filter(|(_, part)| part.len() > 1) {
            let (left, right) = part.split_at(part.len() / 2);
            let mut parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            if let Some(part) = parts.get_mut(at) {
                *part = format!("{left}{strange}{right}");
            }
            all.push(parts.join("/"));
        }
    }
    all
}

/// What is the other tenant's, another VM's or nobody's, well written.
fn foreign() -> Vec<String> {
    let own = "vm-9999-x";
    let mut all = vec![
        format!("{}/pve1/{OWN}/{own}", bravo::REGION),
        format!("R1/pve1/{OWN}/{own}"),
        format!("r1/{}/{OWN}/{own}", bravo::PVE_NODE),
        format!("r1/PVE1/{OWN}/{own}"),
        format!("r1/pve1/{}/{own}", bravo::STORAGE),
        format!("r1//{}/{own}", bravo::STORAGE),
        format!("r1/pve1/{}/{own}", OWN.to_uppercase()),
        format!("r1//{}/9999/vm-9999-x.raw", BOTH.to_uppercase()),
        format!("r1/pve1/local/{own}"),
        format!("r1/pve1/{OWN}/vm-104-disk-0"),
        format!("r1//{OWN}/vm-104-disk-0"),
        format!("r1/pve1/{OWN}/vm-101-disk-0"),
        format!("r1/pve1/{}/vm-77201-disk-0", bravo::STORAGE),
        format!("r1//{BOTH}/77202/vm-77202-disk-0.raw"),
        format!("r1/pve1/{BOTH}/77202/vm-77202-disk-0.raw"),
        // Beside the adopted one.
        format!("r1/pve1/{BOTH}/100/vm-100-disk-1.raw"),
        format!("r1//{BOTH}/100/vm-100-disk-10.raw"),
        format!("r1//{BOTH}/100/vm-100-disk-0.raw"),
        format!("r1//{BOTH}/100/vm-100-disk-1.qcow2"),
        format!("r1//{BOTH}/vm-100-disk-1"),
        format!("r1/pve1/{OWN}/vm-100-disk-1"),
        format!("r1/pve1/{OWN}/100/vm-100-disk-1.raw"),
    ];
    // Owners that resemble ours: 9999 everywhere, 9998 on pve2.
    for owner in [
        "78888",
        "99990",
        "999",
        "99999",
        "100",
        "999999999",
        "10000",
        "9997",
    ] {
        all.push(format!("r1/pve1/{OWN}/vm-{owner}-kept"));
        all.push(format!("r1//{BOTH}/{owner}/vm-{owner}-kept.raw"));
    }
    for disk in bravo::DISKS {
        let (storage, name) = disk.split_once(':').unwrap_or_default();
        for host in ["", "pve1", "pve2", bravo::PVE_NODE] {
            all.push(format!("r1/{host}/{storage}/{name}"));
            all.push(format!("{}/{host}/{storage}/{name}", bravo::REGION));
        }
    }
    all
}

/// What no handle looks like.
const MALFORMED: [&str; 71] = [
    "",
    "/",
    "//",
    "///",
    "////",
    "..",
    ".",
    "../..",
    "r1/",
    "r1//",
    "r1/pve1/alpha-thin",
    "r1/pve1/alpha-thin/",
    "r1//both/",
    "r1///vm-9999-x",
    "//both/9999/vm-9999-x.raw",
    "r1//both//9999/vm-9999-x.raw",
    "r1//both/9999//vm-9999-x.raw",
    "r1//both/9999/vm-9999-x.raw/",
    "r1//both/./9999/vm-9999-x.raw",
    "r1//both/9999/../78888/vm-78888-bravo-spare.raw",
    "r1//both/9999/vm-78888-bravo-spare.raw",
    "r1//both/78888/vm-9999-x.raw",
    "r1//both/../both/78888/vm-78888-bravo-spare.raw",
    "r1//../both/78888/vm-9999-x.raw",
    "r1/../pve1/alpha-thin/vm-9999-x",
    "r1/pve1/../bravo-thin/vm-9999-x",
    "r1/pve1/alpha-thin/..",
    "r1/pve1/alpha-thin/../bravo-thin/vm-78888-bravo-db",
    "r1/pve1/alpha-thin/vm-9999-",
    "r1/pve1/alpha-thin/vm-9999",
    "r1/pve1/alpha-thin/vm--x",
    "r1/pve1/alpha-thin/vm-09999-x",
    "r1/pve1/alpha-thin/vm-0x270f-x",
    "r1/pve1/alpha-thin/vm-+9999-x",
    "r1/pve1/alpha-thin/vm-9999.0-x",
    "r1/pve1/alpha-thin/vm-9e3-x",
    "r1/pve1/alpha-thin/vm-99-x",
    "r1/pve1/alpha-thin/vm-4294977295-x",
    "r1/pve1/alpha-thin/vm-18446744073709561615-x",
    "r1/pve1/alpha-thin/vm-\u{ff19}\u{ff19}\u{ff19}\u{ff19}-x",
    "r1/pve1/alpha-thin/VM-9999-X",
    "r1/pve1/alpha-thin/base-9999-x",
    "r1/pve1/alpha-thin/base-9999-x/vm-9999-x",
    "r1/pve1/alpha-thin/subvol-9999-x",
    "r1/pve1/alpha-thin/snap_vm-9999-x_s",
    "r1/pve1/alpha-thin/vm-9999-a_b",
    "r1/pve1/alpha-thin/vm-9999-.x",
    "r1//both/9999/vm-9999-x.vmdk",
    "r1//both/9999/vm-9999-x.raw.raw",
    "r1//both/9999/vm-9999-x.iso",
    "r1//both/9999/vm-9999-x.RAW",
    "r1//both/vm-9999-x.raw",
    "r1/pve1/alpha-thin/9999/vm-9999-x",
    "r1\\pve1\\alpha-thin\\vm-9999-x",
    "vm-104-disk-0",
    "vm-78888-bravo-spare",
    "base-78888-x",
    "vm-",
    "base-",
    "both:78888/vm-78888-bravo-spare.raw",
    "alpha-thin:vm-104-disk-0",
    "/dev/bravo-thin/vm-78888-bravo-db",
    "/var/lib/both/images/78888/vm-78888-bravo-spare.raw",
    "file:///etc/passwd",
    "none,media=cdrom",
    "a.b",
    "a_b",
    "a:b",
    "csi.proxmox.sinextra.dev",
    "r1/pve1/alpha-thin/vm-9999-x@snap",
    "r1/pve1/alpha-thin/vm-9999-x:1",
];

/// The same, and what is too long for one.
fn malformed() -> Vec<String> {
    let mut all = MALFORMED.map(str::to_owned).to_vec();
    for length in [127, 200, 4096, 70_000] {
        all.push(format!("r1/pve1/{OWN}/vm-9999-{}", "a".repeat(length)));
        all.push(format!("r1/{}/{OWN}/vm-9999-x", "a".repeat(length)));
    }
    all
}

/// One word, which no handle ever was.
const WORDS: [&str; 6] = ["r1", "pvc", "78888", "bravo-spare", "disk-0", "a-b-c"];

/// Handles that are well written and not ours, malformed ones, and words.
pub(crate) fn plain() -> Vec<Forgery> {
    let refused = foreign().into_iter().chain(malformed());
    let words = WORDS.map(|word| forge(word.to_owned(), NoVolume));
    refused
        .map(|text| forge(text, Refused))
        .chain(words)
        .collect()
}

/// The same, and handles with something put into them; `own` are those of volumes that the tenant has.
pub(crate) fn forgeries(own: &[&str]) -> Vec<Forgery> {
    let [_, shared, _] = bravo::DISKS;
    let bravos = format!("r1//{}", shared.replace(':', "/"));
    let bases = own.iter().copied().chain([bravos.as_str()]);
    let mangled = bases.flat_map(mangled).map(|text| forge(text, Refused));
    plain().into_iter().chain(mangled).collect()
}

fn forge(text: String, due: Due) -> Forgery {
    Forgery::new(Part::Volume(text), due)
}
