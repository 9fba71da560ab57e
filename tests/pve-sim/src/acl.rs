//! Who may do what where: roles, ACL inheritance, pool membership and privilege separation, as `RPCEnvironment.pm` and
//! `AccessControl.pm` evaluate them. Must not know requests.

use std::collections::{BTreeMap, BTreeSet};

use crate::fail::Fail;
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

pub(crate) const ALL_PRIVILEGES: &[&str] = &[
    "Datastore.Allocate",
    "Datastore.AllocateSpace",
    "Datastore.AllocateTemplate",
    "Datastore.Audit",
    "Group.Allocate",
    "Mapping.Audit",
    "Mapping.Modify",
    "Mapping.Use",
    "Permissions.Modify",
    "Pool.Allocate",
    "Pool.Audit",
    "Realm.Allocate",
    "Realm.AllocateUser",
    "SDN.Allocate",
    "SDN.Audit",
    "SDN.Use",
    "Sys.AccessNetwork",
    "Sys.Audit",
    "Sys.Console",
    "Sys.Incoming",
    "Sys.Modify",
    "Sys.PowerMgmt",
    "Sys.Syslog",
    "User.Modify",
    "VM.Allocate",
    "VM.Audit",
    "VM.Backup",
    "VM.Clone",
    "VM.Config.CDROM",
    "VM.Config.CPU",
    "VM.Config.Cloudinit",
    "VM.Config.Disk",
    "VM.Config.HWType",
    "VM.Config.Memory",
    "VM.Config.Network",
    "VM.Config.Options",
    "VM.Console",
    "VM.GuestAgent.Audit",
    "VM.GuestAgent.FileRead",
    "VM.GuestAgent.FileSystemMgmt",
    "VM.GuestAgent.FileWrite",
    "VM.GuestAgent.Unrestricted",
    "VM.Migrate",
    "VM.PowerMgmt",
    "VM.Replicate",
    "VM.Snapshot",
    "VM.Snapshot.Rollback",
];

/// Privileges of a role; `None` if there is no such role.
pub(crate) fn role(state: &State, name: &str) -> Option<BTreeSet<String>> {
    let pick = |test: &dyn Fn(&str) -> bool| {
        ALL_PRIVILEGES
            .iter()
            .filter(|p| test(p))
            .map(|p| (*p).to_owned())
            .collect()
    };
    let own = |list: &[&str]| list.iter().map(|p| (*p).to_owned()).collect();
    Some(match name {
        "Administrator" => pick(&|_| true),
        "NoAccess" => BTreeSet::new(),
        "PVEAdmin" => pick(&|p| {
            ![
                "Permissions.Modify",
                "Sys.PowerMgmt",
                "Sys.Modify",
                "Sys.Incoming",
                "Sys.AccessNetwork",
                "Realm.Allocate",
            ]
            .contains(&p)
        }),
        "PVEAuditor" => pick(&|p| p.ends_with(".Audit")),
        "PVEVMAdmin" => pick(&|p| p.starts_with("VM.")),
        "PVEDatastoreAdmin" => pick(&|p| p.starts_with("Datastore.")),
        "PVEDatastoreUser" => own(&["Datastore.AllocateSpace", "Datastore.Audit"]),
        "PVEPoolAdmin" => own(&["Pool.Allocate", "Pool.Audit"]),
        "PVEPoolUser" => own(&["Pool.Audit"]),
        "PVETemplateUser" => own(&["VM.Audit", "VM.Clone"]),
        "PVEVMUser" => own(&[
            "VM.Audit",
            "VM.Backup",
            "VM.Config.CDROM",
            "VM.Config.Cloudinit",
            "VM.Console",
            "VM.GuestAgent.Audit",
            "VM.PowerMgmt",
        ]),
        _ => state.roles.get(name)?.clone(),
    })
}

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

/// Roles with those of the pool that the path's VM or storage is in.
fn roles_with_pool(state: &State, subject: &str, path: &str) -> Roles {
    let mut roles = roles_on(state, subject, path);
    let pool = if let Some(vmid) = path.strip_prefix("/vms/") {
        vmid.parse().ok().and_then(|vmid| state.pool_of_vm(vmid))
    } else {
        path.strip_prefix("/storage/")
            .and_then(|storage| state.pool_of_storage(storage))
    };
    if let Some(pool) = pool
        && !roles.contains_key("NoAccess")
    {
        let of_pool = roles_on(state, subject, &format!("/pool/{pool}"));
        if of_pool.contains_key("NoAccess") {
            return Roles::from([("NoAccess".to_owned(), false)]);
        }
        for name in of_pool.into_keys() {
            roles.entry(name).or_insert(false);
        }
    }
    roles
}

fn privileges_of(state: &State, subject: &str, path: &str) -> Privileges {
    let mut found = Privileges::new();
    for (name, propagate) in roles_with_pool(state, subject, path) {
        for privilege in role(state, &name).unwrap_or_default() {
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
    let separated = state
        .users
        .get(&who.user)
        .and_then(|u| u.tokens.get(token))
        .is_none_or(|t| t.privsep);
    if !separated {
        return privileges_of(state, &who.user, path);
    }
    let mut own = privileges_of(state, &who.id(), path);
    if who.user != "root@pam" {
        let owner = privileges_of(state, &who.user, path);
        own.retain(|privilege, _| owner.contains_key(privilege));
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

/// Paths that may carry an ACL (`AC.pm:1281-1319`).
pub(crate) fn is_acl_path(path: &str) -> bool {
    let parts: Vec<&str> = path
        .split('/')
        .skip(1)
        .filter(|part| !part.is_empty())
        .collect();
    match parts.as_slice() {
        [] | ["nodes" | "storage" | "pool" | "vms"] | ["nodes" | "storage", _] => {
            path.starts_with('/')
        }
        ["vms", vmid] => {
            vmid.len() > 2 && !vmid.starts_with('0') && vmid.bytes().all(|b| b.is_ascii_digit())
        }
        ["pool", rest @ ..] => rest.len() <= 3,
        ["access" | "sdn" | "mapping", ..] => true,
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
