//! `docs/reference/privileges.md` is written from the endpoints of the client: `UPDATE_REFERENCE=1 cargo test -p pve-client
//! --test privileges` writes it anew.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use pve_client::privileges::{Lack, Right, grants};
use pve_client::{Spec, endpoints};

const FILE: &str = "docs/reference/privileges.md";

const HEAD: &str = "\
# Privileges on Proxmox VE

Written from the endpoints of the client; don't edit. `UPDATE_REFERENCE=1 cargo test -p pve-client --test privileges` writes it anew.

Only `pve-csi-controller` has a token. `pve-csi-node` never talks to Proxmox VE. This is for ownership mode `reserved`, the only one so far, and PVE 9.

## What the token of pve-csi-controller needs

No privilege on hosts, on `/`, or on the owner's VMID. A privilege-separated token has what it and its user both have, so both get the same roles.
";

const POOL: &str = "\
A role on a pool holds for the VMs in it. `Datastore.Allocate` opens every disk of a storage, other tenants' too: give each tenant storages of its own.
";

const COMMANDS: &str = "\
## How to grant them

For the pool `tenant-a` with the VMs 101 and 102 and the storage `tenant-a-ssd`; the two lines with `/storage/` once for each storage:
";

const WITHOUT: &str = "\
## Which endpoint needs what

*refused*: PVE answers 403, or its task fails so, and names path and privilege. *left out*: PVE says nothing and shows less.

| endpoint | needs | without it |
|---|---|---|
";

fn all() -> Vec<&'static Spec> {
    let mut all: Vec<_> = endpoints().collect();
    all.sort_by_key(|spec| (spec.template(), spec.method()));
    all
}

/// The privileges by the path on which they are granted.
fn by_path() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut paths: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (path, privilege) in grants(endpoints()) {
        paths.entry(path).or_default().insert(privilege);
    }
    paths
}

fn purposes(path: &str, privilege: &str) -> String {
    let rights = all().into_iter().flat_map(|spec| spec.rights);
    let mut purposes: Vec<&str> = Vec::new();
    for right in rights {
        let fits = right.on.granted_on() == path && right.privilege == privilege;
        if fits && !purposes.contains(&right.purpose) {
            purposes.push(right.purpose);
        }
    }
    purposes.join("; ")
}

fn needs() -> String {
    let mut text = "\n| path | privilege | to |\n|---|---|---|\n".to_owned();
    for (path, privileges) in by_path() {
        for privilege in privileges {
            let to = purposes(path, privilege);
            writeln!(text, "| `{path}` | `{privilege}` | {to} |").unwrap();
        }
    }
    text
}

fn commands() -> String {
    let roles: Vec<(&str, String, &str)> = by_path()
        .into_iter()
        .map(|(path, privileges)| {
            let list: Vec<&str> = privileges.into_iter().collect();
            let (role, path) = match path {
                "/pool/{pool}" => ("CsiPool", "/pool/tenant-a"),
                "/storage/{storage}" => ("CsiStorage", "/storage/tenant-a-ssd"),
                other => panic!("no role for {other}"),
            };
            (role, list.join(","), path)
        })
        .collect();
    let mut lines = Vec::new();
    for (role, privileges, _) in &roles {
        lines.push(format!("pveum role add {role} --privs {privileges}"));
    }
    lines.push("pveum pool add tenant-a".to_owned());
    lines.push("pveum pool modify tenant-a --vms 101,102".to_owned());
    lines.push("pveum user add csi-tenant-a@pve".to_owned());
    for (role, _, path) in &roles {
        lines.push(format!(
            "pveum acl modify {path} --users csi-tenant-a@pve --roles {role}"
        ));
    }
    lines.push("pveum user token add csi-tenant-a@pve controller --privsep 1".to_owned());
    for (role, _, path) in &roles {
        lines.push(format!(
            "pveum acl modify {path} --tokens 'csi-tenant-a@pve!controller' --roles {role}"
        ));
    }
    format!("\n```sh\n{}\n```\n", lines.join("\n"))
}

fn without(right: &Right) -> &'static str {
    match right.lack {
        Lack::Refused => "refused",
        Lack::LeftOut => "left out",
    }
}

fn endpoint_rows() -> String {
    let mut text = String::new();
    for spec in all() {
        if spec.rights.is_empty() {
            writeln!(text, "| `{}` | – | |", spec.name).unwrap();
        }
        for right in spec.rights {
            let (path, privilege) = (right.on.path(), right.privilege);
            let lack = without(right);
            writeln!(
                text,
                "| `{}` | `{privilege}` on `{path}` | {lack} |",
                spec.name
            )
            .unwrap();
        }
    }
    text
}

fn reference() -> String {
    let parts = [
        HEAD.to_owned(),
        needs(),
        format!("\n{POOL}"),
        format!("\n{COMMANDS}"),
        commands(),
        format!("\n{WITHOUT}"),
        endpoint_rows(),
    ];
    parts.concat()
}

#[test]
fn the_reference_says_what_the_endpoints_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(FILE);
    let expected = reference();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == expected,
        "{FILE} is not what the endpoints say; write it anew with `UPDATE_REFERENCE=1 cargo test -p pve-client --test privileges`"
    );
}

#[test]
fn a_privilege_is_named_with_its_object_and_its_purpose() {
    let datastore = "Datastore.";
    for right in endpoints().flat_map(|spec| spec.rights) {
        let on_storage = right.on.path().starts_with("/storage/");
        assert_eq!(
            right.privilege.starts_with(datastore),
            on_storage,
            "{right}"
        );
        let plain = right
            .purpose
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b' ' | b'\''));
        assert!(plain && !right.purpose.is_empty(), "{right}");
    }
}
