//! Privileges and the roles that every PVE has (`AccessControl.pm` `create_roles`).

use std::collections::BTreeSet;

use crate::older;
use crate::state::State;

/// Privileges of one kind by who shall have them: only the administrator, the admins, the users, the auditors of that kind.
struct Kind {
    name: &'static str,
    root: &'static [&'static str],
    admin: &'static [&'static str],
    user: &'static [&'static str],
    audit: &'static [&'static str],
}

const KINDS: &[Kind] = &[
    Kind {
        name: "VM",
        root: &[],
        admin: &[
            "VM.Config.Disk",
            "VM.Config.CPU",
            "VM.Config.Memory",
            "VM.Config.Network",
            "VM.Config.HWType",
            "VM.Config.Options",
            "VM.Allocate",
            "VM.Clone",
            "VM.GuestAgent.Unrestricted",
            "VM.Migrate",
            "VM.Replicate",
            "VM.Snapshot",
            "VM.Snapshot.Rollback",
        ],
        user: &[
            "VM.Config.CDROM",
            "VM.Config.Cloudinit",
            "VM.Console",
            "VM.Backup",
            "VM.GuestAgent.FileRead",
            "VM.GuestAgent.FileSystemMgmt",
            "VM.GuestAgent.FileWrite",
            "VM.PowerMgmt",
        ],
        audit: &["VM.Audit", "VM.GuestAgent.Audit"],
    },
    Kind {
        name: "Sys",
        root: &[
            "Sys.PowerMgmt",
            "Sys.Modify",
            "Sys.Incoming",
            "Sys.AccessNetwork",
        ],
        admin: &["Sys.Console", "Sys.Syslog"],
        user: &[],
        audit: &["Sys.Audit"],
    },
    Kind {
        name: "Datastore",
        root: &[],
        admin: &["Datastore.Allocate", "Datastore.AllocateTemplate"],
        user: &["Datastore.AllocateSpace"],
        audit: &["Datastore.Audit"],
    },
    Kind {
        name: "SDN",
        root: &[],
        admin: &["SDN.Allocate", "SDN.Audit"],
        user: &["SDN.Use"],
        audit: &["SDN.Audit"],
    },
    Kind {
        name: "User",
        root: &["Realm.Allocate"],
        admin: &["User.Modify", "Group.Allocate", "Realm.AllocateUser"],
        user: &[],
        audit: &[],
    },
    Kind {
        name: "Pool",
        root: &[],
        admin: &["Pool.Allocate"],
        user: &["Pool.Audit"],
        audit: &["Pool.Audit"],
    },
    Kind {
        name: "Mapping",
        root: &[],
        admin: &["Mapping.Modify"],
        user: &["Mapping.Use"],
        audit: &["Mapping.Audit"],
    },
];

/// In no group.
const MODIFY: &str = "Permissions.Modify";

type Set = BTreeSet<String>;

fn collect<'a>(lists: impl IntoIterator<Item = &'a [&'static str]>) -> Set {
    lists
        .into_iter()
        .flatten()
        .map(|name| (*name).to_owned())
        .collect()
}

/// Every privilege that there is.
pub(crate) fn all_privileges() -> Set {
    let mut all = collect(
        KINDS
            .iter()
            .flat_map(|kind| [kind.root, kind.admin, kind.user, kind.audit]),
    );
    all.insert(MODIFY.to_owned());
    all
}

pub(crate) fn is_privilege(name: &str) -> bool {
    name == MODIFY
        || KINDS.iter().any(|kind| {
            [kind.root, kind.admin, kind.user, kind.audit]
                .concat()
                .contains(&name)
        })
}

/// Privileges of a role that cannot be changed; `None` for all others.
pub(crate) fn built_in(name: &str) -> Option<Set> {
    let of = |name: &str| KINDS.iter().find(|kind| kind.name == name);
    let every = |pick: fn(&'static Kind) -> Vec<&'static [&'static str]>| {
        collect(KINDS.iter().flat_map(pick))
    };
    Some(match name {
        "Administrator" => all_privileges(),
        "NoAccess" => Set::new(),
        "PVEAdmin" => {
            let mut set = every(|kind| vec![kind.admin, kind.user, kind.audit]);
            set.remove("Mapping.Modify");
            set
        }
        "PVEAuditor" => every(|kind| vec![kind.audit]),
        "PVETemplateUser" => collect([["VM.Audit", "VM.Clone"].as_slice()]),
        _ => {
            let of_kind = name.strip_prefix("PVE")?;
            if let Some(kind) = of_kind.strip_suffix("Admin").and_then(of) {
                collect([kind.admin, kind.user, kind.audit])
            } else {
                let kind = of_kind
                    .strip_suffix("User")
                    .and_then(of)
                    .filter(|kind| !kind.user.is_empty())?;
                collect([kind.user, kind.audit])
            }
        }
    })
}

/// Names of the built-in roles.
pub(crate) fn built_in_names() -> Set {
    let fixed = [
        "Administrator",
        "NoAccess",
        "PVEAdmin",
        "PVEAuditor",
        "PVETemplateUser",
    ];
    let of_kinds = KINDS.iter().flat_map(|kind| {
        [
            format!("PVE{}Admin", kind.name),
            format!("PVE{}User", kind.name),
        ]
    });
    fixed
        .into_iter()
        .map(str::to_owned)
        .chain(of_kinds)
        .filter(|name| built_in(name).is_some())
        .collect()
}

/// Privileges of a role; `None` if there is no such role.
pub(crate) fn privileges(state: &State, name: &str) -> Option<Set> {
    let fixed = built_in(name).map(|held| older::privileges(&state.version, held));
    fixed.or_else(|| state.roles.get(name).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_roles_are_those_of_pve_9() {
        assert_eq!(all_privileges().len(), 47);
        assert_eq!(built_in_names().len(), 17);
        assert!(built_in("PVESysUser").is_none() && built_in("PVEUserUser").is_none());
        let auditor: Vec<String> = built_in("PVEAuditor").unwrap().into_iter().collect();
        assert_eq!(
            auditor.join(","),
            "Datastore.Audit,Mapping.Audit,Pool.Audit,SDN.Audit,Sys.Audit,VM.Audit,VM.GuestAgent.Audit"
        );
        let user = built_in("PVEVMUser").unwrap();
        assert!(user.contains("VM.PowerMgmt") && !user.contains("VM.Config.Disk"));
        assert!(!built_in("PVEAdmin").unwrap().contains("Sys.Modify"));
    }
}
