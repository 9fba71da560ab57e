//! `docs/reference/privileges.md` is written from the endpoints of the client: `UPDATE_REFERENCE=1 cargo test -p pve-client
//! --test privileges` writes it anew.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use pve_client::privileges::{Grant, Lack, Right, grants};
use pve_client::{Program, Spec, endpoints, endpoints_of};

const FILE: &str = "docs/reference/privileges.md";

const HEAD: &str = "\
# Privileges on Proxmox VE

Written from the endpoints of the client; don't edit. `UPDATE_REFERENCE=1 cargo test -p pve-client --test privileges` writes it anew.

`pve-csi-controller` and `pve-ccm` have a token each; give them one each, so that neither holds what only the other needs. `pve-csi-node` never talks to Proxmox VE. This is for PVE 9; of the CSI controller, for ownership mode `reserved`, the only one so far.

## What the token of pve-csi-controller needs

No privilege on hosts, on `/`, or on the owner's VMID. A privilege-separated token has what it and its user both have, so both get the same roles.
";

const POOL: &str = "\
A role on a pool holds for the VMs in it. `Datastore.Allocate` opens every disk of a storage, other tenants' too: give each tenant storages of its own.
";

const COMMANDS: &str = "\
### How to grant them

For the pool `tenant-a` with the VMs 101 and 102 and the storage `tenant-a-ssd`; the two lines with `/storage/` once for each storage:
";

const WITHOUT: &str = "\
### Which endpoint needs what

*refused*: PVE answers 403, or its task fails so, and names path and privilege. *left out*: PVE says nothing and shows less.
";

const CCM: &str = "\
## What the token of pve-ccm needs

It only reads. No privilege on hosts or storages.
";

const OPTIONAL: &str = "\
These are optional: without one, all but that goes on.
";

/// What another version asks for.
fn older(program: Program) -> String {
    let mut text = "\n".to_owned();
    for right in all(program)
        .into_iter()
        .flat_map(|spec| spec.rights_of(program))
    {
        if let Some(before) = right.before_9 {
            let (privilege, to) = (right.privilege, right.purpose);
            writeln!(
                text,
                "On PVE 8, `{before}` is what lets it {to}, in place of `{privilege}`; the rest is the same."
            )
            .unwrap();
        }
    }
    text
}

const CCM_COMMANDS: &str = "\
### How to grant them

For the same pool `tenant-a`. `--propagate 0` keeps `Sys.Audit` off everything below `/`:
";

fn all(program: Program) -> Vec<&'static Spec> {
    let mut all: Vec<_> = endpoints_of(program).collect();
    all.sort_by_key(|spec| (spec.template(), spec.method()));
    all
}

fn purposes(program: Program, grant: &Grant) -> String {
    let specs = all(program).into_iter();
    let rights = specs.flat_map(|spec| spec.rights_of(program));
    let mut purposes: Vec<&str> = Vec::new();
    for right in rights {
        let fits = right.on.granted_on() == grant.on && right.privilege == grant.privilege;
        if fits && !purposes.contains(&right.purpose) {
            purposes.push(right.purpose);
        }
    }
    purposes.join("; ")
}

fn needs(program: Program, optional: bool) -> String {
    let mut text = "\n| path | privilege | to |\n|---|---|---|\n".to_owned();
    for grant in grants(program) {
        if grant.optional == optional {
            let (path, privilege) = (grant.on, grant.privilege);
            let to = purposes(program, &grant);
            writeln!(text, "| `{path}` | `{privilege}` | {to} |").unwrap();
        }
    }
    text
}

/// A role of the example, and where it is given.
struct Role {
    name: &'static str,
    privileges: String,
    path: &'static str,
    /// Words for the shell, if nobody has to give it.
    optional: Option<&'static str>,
}

fn roles(program: Program) -> Vec<Role> {
    let mut lists: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for grant in grants(program) {
        let key = (grant.optional, grant.on);
        lists.entry(key).or_default().push(grant.privilege);
    }
    let role = |((optional, on), list): ((bool, &str), Vec<&str>)| {
        let (name, path, optional) = match (program, on, optional) {
            (Program::Csi, "/pool/{pool}", false) => ("CsiPool", "/pool/tenant-a", None),
            (Program::Csi, "/storage/{storage}", false) => {
                ("CsiStorage", "/storage/tenant-a-ssd", None)
            }
            (Program::Ccm, "/pool/{pool}", false) => ("CcmPool", "/pool/tenant-a", None),
            (Program::Ccm, "/pool/{pool}", true) => {
                let what = "addresses from the guest agent";
                ("CcmAgent", "/pool/tenant-a", Some(what))
            }
            (Program::Ccm, "/", true) => ("CcmHa", "/ --propagate 0", Some("labels of HA")),
            other => panic!("no role for {other:?}"),
        };
        Role {
            name,
            privileges: list.join(","),
            path,
            optional,
        }
    };
    lists.into_iter().map(role).collect()
}

fn role_line(role: &Role) -> String {
    format!("pveum role add {} --privs {}", role.name, role.privileges)
}

fn acl_line(role: &Role, whose: &str) -> String {
    format!(
        "pveum acl modify {} {whose} --roles {}",
        role.path, role.name
    )
}

fn commands(program: Program) -> String {
    let (user, token) = match program {
        Program::Csi => ("csi-tenant-a@pve", "controller"),
        Program::Ccm => ("ccm-tenant-a@pve", "ccm"),
    };
    let of_user = format!("--users {user}");
    let of_token = format!("--tokens '{user}!{token}'");
    let all = roles(program);
    let needed: Vec<&Role> = all.iter().filter(|role| role.optional.is_none()).collect();
    let mut lines: Vec<String> = needed.iter().map(|role| role_line(role)).collect();
    if program == Program::Csi {
        lines.push("pveum pool add tenant-a".to_owned());
        lines.push("pveum pool modify tenant-a --vms 101,102".to_owned());
    }
    lines.push(format!("pveum user add {user}"));
    lines.extend(needed.iter().map(|role| acl_line(role, &of_user)));
    lines.push(format!("pveum user token add {user} {token} --privsep 1"));
    lines.extend(needed.iter().map(|role| acl_line(role, &of_token)));
    for role in &all {
        if let Some(what) = role.optional {
            lines.push(format!("# optional: {what}"));
            lines.push(role_line(role));
            lines.push(acl_line(role, &of_user));
            lines.push(acl_line(role, &of_token));
        }
    }
    format!("\n```sh\n{}\n```\n", lines.join("\n"))
}

fn without(right: &Right) -> &'static str {
    match right.lack {
        Lack::Refused => "refused",
        Lack::LeftOut => "left out",
    }
}

fn endpoint_rows(program: Program) -> String {
    let mut text = "\n| endpoint | needs | without it |\n|---|---|---|\n".to_owned();
    for spec in all(program) {
        let name = spec.name;
        let mut rights = spec.rights_of(program).peekable();
        if rights.peek().is_none() {
            writeln!(text, "| `{name}` | – | |").unwrap();
        }
        for right in rights {
            let (path, privilege) = (right.on.path(), right.privilege);
            let lack = without(right);
            writeln!(text, "| `{name}` | `{privilege}` on `{path}` | {lack} |").unwrap();
        }
    }
    text
}

fn reference() -> String {
    let part = |text: &str| format!("\n{text}");
    let parts = [
        HEAD.to_owned(),
        needs(Program::Csi, false),
        part(POOL),
        part(COMMANDS),
        commands(Program::Csi),
        part(WITHOUT),
        endpoint_rows(Program::Csi),
        part(CCM),
        needs(Program::Ccm, false),
        part(OPTIONAL),
        needs(Program::Ccm, true),
        older(Program::Ccm),
        part(CCM_COMMANDS),
        commands(Program::Ccm),
        part("### Which endpoint needs what\n"),
        endpoint_rows(Program::Ccm),
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
        assert_eq!(
            right.privilege.starts_with("Sys."),
            right.on.path() == "/",
            "{right}"
        );
    }
}

#[test]
fn what_is_optional_is_never_in_a_role_that_has_to_be_given() {
    for program in [Program::Csi, Program::Ccm] {
        for role in roles(program) {
            let mut held = role.privileges.split(',');
            let optional = |privilege: &str| {
                let mut all = grants(program).into_iter();
                let found = all.find(|grant| grant.privilege == privilege).unwrap();
                found.optional
            };
            assert!(held.all(|privilege| optional(privilege) == role.optional.is_some()));
        }
    }
}
