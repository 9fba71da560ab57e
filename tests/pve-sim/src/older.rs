//! What Proxmox VE 8 has otherwise than the 9 that everything else here is, as far as it is simulated: no HA rules but groups
//! (`state/ha.rs`), and `VM.Monitor` for the guest agent.

use std::collections::BTreeSet;

use crate::endpoints::{Check, Endpoint};
use crate::roles;
use crate::state::Version;

/// Endpoints that came with 9, and all below them.
const NEW: &[&str] = &[
    "/cluster/ha/rules",
    "/cluster/ha/status/arm-ha",
    "/cluster/ha/status/disarm-ha",
];
/// Privileges that came with 9 in the place of `VM.Monitor`.
const AGENT: &str = "VM.GuestAgent.";
const MONITOR: &str = "VM.Monitor";
/// Another one that came with 9.
const REPLICATE: &str = "VM.Replicate";

const fn is_older(version: &Version) -> bool {
    version.major() < 9
}

/// Whether this version has the endpoint.
pub(crate) fn has(version: &Version, endpoint: &Endpoint) -> bool {
    let below = |new: &&str| {
        let rest = endpoint.path.strip_prefix(*new);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    !is_older(version) || !NEW.iter().any(below)
}

/// The permission check of this version: everything about the guest agent was one privilege (`API2/Qemu/Agent.pm`).
pub(crate) fn check(version: &Version, check: &Check) -> Check {
    match check {
        Check::Perm {
            path,
            privileges,
            needs,
            ..
        } if is_older(version) && privileges.iter().any(|name| name.starts_with(AGENT)) => {
            Check::Perm {
                path: path.clone(),
                privileges: vec![MONITOR.to_owned()],
                any: false,
                needs: needs.clone(),
            }
        }
        other => other.clone(),
    }
}

/// Whether this version or another one has the privilege.
pub(crate) fn in_some_version(privilege: &str) -> bool {
    privilege == MONITOR || roles::is_privilege(privilege)
}

/// Whether this version has the privilege.
pub(crate) fn has_privilege(version: &Version, privilege: &str) -> bool {
    let new = privilege.starts_with(AGENT) || privilege == REPLICATE;
    if is_older(version) {
        in_some_version(privilege) && !new
    } else {
        privilege != MONITOR
    }
}

/// The privileges of a built-in role in this version. Those for admins had what `VM.GuestAgent.Unrestricted` is now.
pub(crate) fn privileges(version: &Version, mut held: BTreeSet<String>) -> BTreeSet<String> {
    if is_older(version) {
        if held.contains("VM.GuestAgent.Unrestricted") {
            held.insert(MONITOR.to_owned());
        }
        held.retain(|name| !name.starts_with(AGENT) && name != REPLICATE);
    }
    held
}
