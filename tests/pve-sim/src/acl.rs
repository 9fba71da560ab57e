//! Who may do what where: roles, ACL inheritance, pool membership and privilege separation, as `RPCEnvironment.pm` and
//! `AccessControl.pm` evaluate them. Must not know requests.

use std::collections::{BTreeMap, BTreeSet};

use crate::fail::Fail;
use crate::roles;
use crate::state::State;

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Who {
    pub(crate) user: String,
    pub(crate) token: Option<String>,
}

impl Who {
    pub(crate) fn parse(id: &str) -> Self {
        match id.split_once('!') {
            Some((user, token)) => Self {
                user: user.to_owned(),
                token: Some(token.to_owned()),
            },
            None => Self {
                user: id.to_owned(),
                token: None,
            },
        }
    }

    /// The ticket of `root@pam`: PVE checks nothing. A token of it is somebody else.
    pub(crate) fn is_root(&self) -> bool {
        self.token.is_none() && self.user == "root@pam"
    }

    pub(crate) fn id(&self) -> String {
        self.token.as_ref().map_or_else(
            || self.user.clone(),
            |token| format!("{}!{token}", self.user),
        )
    }
}

/// Privileges with their propagate flag.
pub(crate) type Privileges = BTreeMap<String, bool>;
type Roles = BTreeMap<String, bool>;

/// The roles of one subject on a path. At every level the first of own ACL and union of the groups' ACLs that has a role
/// replaces what was inherited.
fn roles_on(state: &State, subject: &str, path: &str) -> Roles {
    if subject == "root@pam" {
        return Roles::from([("Administrator".to_owned(), true)]);
    }
    let mut roles = Roles::new();
    let levels = std::iter::once("/").chain(
        path.match_indices('/')
            .skip(1)
            .filter_map(|(at, _)| path.get(..at)),
    );
    let levels = levels.chain((path != "/").then_some(path));
    for level in levels {
        let entries = |member: &dyn Fn(&str) -> bool| -> Roles {
            let usable = |e: &&crate::state::AclEntry| {
                e.path == level && member(&e.subject) && (e.propagate || level == path)
            };
            state
                .acl
                .iter()
                .filter(usable)
                .map(|e| (e.role.clone(), e.propagate))
                .collect()
        };
        let own = entries(&|s| s == subject);
        let in_group = |s: &str| {
            s.strip_prefix('@')
                .and_then(|g| state.groups.get(g))
                .is_some_and(|members| members.contains(subject))
        };
        let found = if own.is_empty() {
            entries(&in_group)
        } else {
            own
        };
        if !found.is_empty() {
            roles = found;
        }
    }
    if let Some(flag) = roles.get("NoAccess") {
        return Roles::from([("NoAccess".to_owned(), *flag)]);
    }
    roles
}

/// Roles with those of the pools that the path's VM or storage is in: they add to its own, and never propagate.
fn roles_with_pools(state: &State, subject: &str, path: &str) -> Roles {
    let mut roles = roles_on(state, subject, path);
    if roles.contains_key("NoAccess") {
        return roles;
    }
    let vmid = path
        .strip_prefix("/vms/")
        .and_then(|vmid| vmid.parse().ok());
    let storage = path.strip_prefix("/storage/");
    let pools = state.pools.iter().filter(|(_, pool)| {
        vmid.is_some_and(|vmid| pool.vms.contains(&vmid))
            || storage.is_some_and(|storage| pool.storages.contains(storage))
    });
    let mut added = BTreeSet::new();
    for (name, _) in pools {
        added.extend(roles_on(state, subject, &format!("/pool/{name}")).into_keys());
    }
    if added.contains("NoAccess") {
        return Roles::from([("NoAccess".to_owned(), false)]);
    }
    for name in added {
        roles.entry(name).or_insert(false);
    }
    roles
}

fn privileges_of(state: &State, subject: &str, path: &str) -> Privileges {
    let mut found = Privileges::new();
    for (name, propagate) in roles_with_pools(state, subject, path) {
        for privilege in roles::privileges(state, &name).unwrap_or_default() {
            *found.entry(privilege).or_insert(false) |= propagate;
        }
    }
    found
}

/// What the caller may do on the path.
pub(crate) fn privileges(state: &State, who: &Who, path: &str) -> Privileges {
    let Some(token) = &who.token else {
        return privileges_of(state, &who.user, path);
    };
    let Some(found) = state
        .users
        .get(&who.user)
        .and_then(|user| user.tokens.get(token))
    else {
        return Privileges::new();
    };
    if !found.privsep {
        return privileges_of(state, &who.user, path);
    }
    let mut own = privileges_of(state, &who.id(), path);
    if who.user != "root@pam" {
        let owner = privileges_of(state, &who.user, path);
        own.retain(|privilege, _| owner.contains_key(privilege));
        for (privilege, propagate) in &mut own {
            *propagate &= owner.get(privilege).copied().unwrap_or_default();
        }
    }
    own
}

/// Fails with the first missing privilege.
pub(crate) fn need_all(state: &State, who: &Who, path: &str, wanted: &[&str]) -> Result<(), Fail> {
    let held = privileges(state, who, path);
    match wanted.iter().find(|p| !held.contains_key(**p)) {
        Some(missing) => Err(Fail::denied(&format!("{path}, {missing}"))),
        None => Ok(()),
    }
}

pub(crate) fn need_any(state: &State, who: &Who, path: &str, wanted: &[&str]) -> Result<(), Fail> {
    let held = privileges(state, who, path);
    if wanted.iter().any(|p| held.contains_key(*p)) {
        Ok(())
    } else {
        Err(Fail::denied(&format!("{path}, {}", wanted.join("|"))))
    }
}

pub(crate) fn has(state: &State, who: &Who, path: &str, privilege: &str) -> bool {
    privileges(state, who, path).contains_key(privilege)
}

/// A path in normal form; `None` if it has other characters than PVE's paths (`normalize_path`).
pub(crate) fn normal_path(path: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if path.is_empty() || !path.chars().all(plain) {
        return None;
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    Some(format!("/{}", parts.join("/")))
}

/// The privilege that, beside `Permissions.Modify`, lets hand out rights on a path (`check_perm_modify`).
pub(crate) fn modify_too(path: &str) -> Option<&'static str> {
    [
        ("/storage/", "Datastore.Allocate"),
        ("/vms/", "VM.Allocate"),
        ("/pool/", "Pool.Allocate"),
    ]
    .into_iter()
    .find(|(prefix, _)| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty())
    })
    .map(|(_, privilege)| privilege)
}

/// Whether the caller may hand out rights on a path.
pub(crate) fn may_modify(state: &State, who: &Who, path: &str) -> bool {
    let held = privileges(state, who, path);
    std::iter::once("Permissions.Modify")
        .chain(modify_too(path))
        .any(|privilege| held.contains_key(privilege))
}

/// Paths that may carry an ACL (`AC.pm:1281-1319`); in normal form.
pub(crate) fn is_acl_path(path: &str) -> bool {
    let parts: Vec<&str> = path
        .split('/')
        .skip(1)
        .filter(|part| !part.is_empty())
        .collect();
    let word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
    match parts.as_slice() {
        []
        | ["nodes" | "storage" | "pool" | "vms" | "access" | "sdn" | "mapping"]
        | ["nodes" | "storage" | "mapping", _]
        | ["access", "groups" | "realm"]
        | ["access", "groups" | "realm", _]
        | ["mapping", _, _]
        | ["sdn", "zones"]
        | ["sdn", "zones", _]
        | ["sdn", "zones", _, _] => path.starts_with('/'),
        ["vms", vmid] => {
            vmid.len() > 2 && !vmid.starts_with('0') && vmid.bytes().all(|b| b.is_ascii_digit())
        }
        ["pool", rest @ ..] => rest.len() <= 3,
        [
            "sdn",
            "controllers" | "dns" | "fabrics" | "ipams" | "prefix-lists" | "route-maps",
            rest @ ..,
        ] => rest.len() < 2 && rest.iter().all(|name| word(name)),
        ["sdn", "zones", _, _, tag] => tag
            .parse::<u16>()
            .is_ok_and(|tag| (1..=9999).contains(&tag)),
        _ => false,
    }
}

/// All paths on which the caller holds something (`RPCEnv.pm` `get_effective_permissions`).
pub(crate) fn effective(state: &State, who: &Who) -> BTreeMap<String, Privileges> {
    let top = [
        "/",
        "/access",
        "/access/groups",
        "/nodes",
        "/pool",
        "/sdn",
        "/storage",
        "/vms",
    ];
    let mut paths: BTreeSet<String> = top.iter().map(|p| (*p).to_owned()).collect();
    paths.extend(state.acl.iter().map(|e| e.path.clone()));
    for pool in state.pools.values() {
        paths.extend(pool.vms.iter().map(|vmid| format!("/vms/{vmid}")));
        paths.extend(
            pool.storages
                .iter()
                .map(|storage| format!("/storage/{storage}")),
        );
    }
    paths
        .into_iter()
        .map(|path| (path.clone(), privileges(state, who, &path)))
        .filter(|(_, held)| !held.is_empty())
        .collect()
}
