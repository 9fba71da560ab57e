//! What a tenant has in a PVE cluster, worked out without asking anyone: names, the owner's number, roles and where they
//! are held. Which privileges those are comes from the client's endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pve_client::Program;
use pve_client::privileges::{Object, grants_on};
use pve_model::{PoolId, PveNode, Region, StorageId, VmId};
use pve_runtime::config::{EndpointConfig, Provider};
use sha2::{Digest, Sha256};

/// Numbers of owners that are derived: far above those that PVE gives to guests by itself (below 1 000 000), up to its
/// highest VMID.
const LOWEST_OWNER: u32 = 100_900_000;
const HIGHEST_OWNER: u32 = 999_999_999;
/// Begins what is said of whatever is made for a tenant.
const MARK: &str = "pve-cloud ";
/// Ends it of a token whose secret is in nobody's hands yet.
const NOT_HANDED_OVER: &str = " (secret not handed over)";
/// PVE's longest user id.
const USER_MAX: usize = 64;

/// A tenant: the namespace and release of its controllers in the management cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tenant {
    /// The namespace.
    pub(crate) namespace: String,
    /// The release.
    pub(crate) release: String,
}

/// What a token's comment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Whose it is.
    pub(crate) tenant: String,
    /// In whose name the tenant's disks are made.
    pub(crate) owner: VmId,
    /// Whether the secret was written to where the operator wanted it.
    pub(crate) handed_over: bool,
}

/// A role and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Role {
    /// Its name.
    pub(crate) name: String,
    /// For which program.
    pub(crate) program: Program,
    /// PVE's names of its privileges.
    pub(crate) privileges: BTreeSet<String>,
    /// Where it is held.
    pub(crate) paths: Vec<String>,
    /// Whether below that, too.
    pub(crate) propagate: bool,
}

/// All of it.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Whose.
    pub(crate) tenant: Tenant,
    /// What the PVE cluster is called in the tenant's topology.
    pub(crate) region: Region,
    /// How it is reached.
    pub(crate) endpoints: Vec<EndpointConfig>,
    /// The pool of the tenant's VMs.
    pub(crate) pool: PoolId,
    /// Storages of the tenant's own.
    pub(crate) storages: BTreeSet<StorageId>,
    /// Hosts that may be used.
    pub(crate) pve_nodes: BTreeSet<PveNode>,
    /// In whose name disks are made.
    pub(crate) owner: VmId,
    /// How the tenant's Nodes were made.
    pub(crate) provider: Provider,
    /// The user that the tokens belong to.
    pub(crate) user: String,
    /// The names of the tokens.
    pub(crate) tokens: Tokens,
    /// What names of roles begin with.
    pub(crate) role_prefix: String,
    /// Which optional rights the CCM gets.
    pub(crate) optional: Optional,
}

/// The names of the tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Of `pve-csi-controller`.
    pub(crate) csi: String,
    /// Of `pve-ccm`.
    pub(crate) ccm: String,
}

/// Which optional rights the CCM gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Optional {
    /// To label Nodes by HA rules and groups.
    pub(crate) ha: bool,
    /// To ask guest agents for addresses.
    pub(crate) agent: bool,
}

pub(crate) const PROGRAMS: [Program; 2] = [Program::Csi, Program::Ccm];

/// The word for a program in names and keys.
pub(crate) const fn word(program: Program) -> &'static str {
    match program {
        Program::Csi => "csi",
        Program::Ccm => "ccm",
    }
}

impl Tenant {
    /// The number that a tenant's disks are named after unless the operator says another: always the same one.
    pub(crate) fn derived_owner(&self) -> Result<VmId, String> {
        let text = format!("pve-cloud owner\0{}\0{}", self.namespace, self.release);
        let hash = Sha256::digest(text.as_bytes());
        let head = hash.iter().take(8);
        let number = head.fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
        let span = u64::from(HIGHEST_OWNER - LOWEST_OWNER) + 1;
        let offset = u32::try_from(number % span).map_err(|error| error.to_string())?;
        VmId::try_from(LOWEST_OWNER + offset).map_err(|error| error.to_string())
    }

    /// The user of a tenant's tokens unless the operator names one. A namespace has no dot, so that no two tenants get
    /// the same.
    pub(crate) fn default_user(&self) -> String {
        let plain = format!("pve-cloud-{}.{}@pve", self.namespace, self.release);
        if plain.len() <= USER_MAX {
            return plain;
        }
        let hash = Sha256::digest(plain.as_bytes());
        let hex: Vec<String> = hash.iter().take(8).map(|b| format!("{b:02x}")).collect();
        format!("pve-cloud-{}@pve", hex.concat())
    }

    /// What is said of the user and the pool that are made for it.
    pub(crate) fn comment(&self) -> String {
        format!("{MARK}{self}")
    }
}

/// `<namespace>/<release>`.
impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.release)
    }
}

impl Mark {
    /// What a token's comment says; none if it is no mark.
    pub(crate) fn read(comment: &str) -> Option<Self> {
        let rest = comment.strip_prefix(MARK)?;
        let (rest, handed_over) = match rest.strip_suffix(NOT_HANDED_OVER) {
            Some(rest) => (rest, false),
            None => (rest, true),
        };
        let (tenant, owner) = rest.split_once(" owner=")?;
        Some(Self {
            tenant: tenant.to_owned(),
            owner: owner.parse().ok()?,
            handed_over,
        })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.handed_over {
            ""
        } else {
            NOT_HANDED_OVER
        };
        write!(f, "{MARK}{} owner={}{end}", self.tenant, self.owner)
    }
}

impl Plan {
    /// The tokens' comment.
    pub(crate) fn mark(&self, handed_over: bool) -> Mark {
        Mark {
            tenant: self.tenant.to_string(),
            owner: self.owner,
            handed_over,
        }
    }

    /// The name of a program's token, without its user.
    pub(crate) fn token(&self, program: Program) -> &str {
        match program {
            Program::Csi => &self.tokens.csi,
            Program::Ccm => &self.tokens.ccm,
        }
    }

    /// `user@realm!name`.
    pub(crate) fn token_id(&self, program: Program) -> String {
        format!("{}!{}", self.user, self.token(program))
    }

    /// The roles on that version of PVE.
    pub(crate) fn roles(&self, major: u32) -> Vec<Role> {
        let of = |program| self.roles_of(program, major);
        PROGRAMS.into_iter().flat_map(of).collect()
    }

    fn roles_of(&self, program: Program, major: u32) -> Vec<Role> {
        let mut kinds: BTreeMap<(bool, &str), BTreeSet<String>> = BTreeMap::new();
        for grant in grants_on(program, major) {
            let kind = (grant.optional, grant.on);
            kinds
                .entry(kind)
                .or_default()
                .insert(grant.privilege.to_owned());
        }
        let wanted = |(optional, on): (bool, &str)| {
            !optional
                || match on {
                    on if on == Object::Cluster.path() => self.optional.ha,
                    _ => self.optional.agent,
                }
        };
        kinds.retain(|kind, _| wanted(*kind));
        let role = |((optional, on), privileges): ((bool, &str), BTreeSet<String>)| Role {
            name: format!("{}{}", self.role_prefix, role_name(program, on, optional)),
            program,
            privileges,
            paths: self.paths(on),
            // Not on everything below `/`.
            propagate: on != Object::Cluster.path(),
        };
        kinds.into_iter().map(role).collect()
    }

    fn paths(&self, on: &str) -> Vec<String> {
        if on == Object::Storage.path() {
            let path = |storage: &StorageId| on.replace("{storage}", storage.as_str());
            return self.storages.iter().map(path).collect();
        }
        vec![on.replace("{pool}", self.pool.as_str())]
    }
}

/// The names of `docs/reference/privileges.md`.
fn role_name(program: Program, on: &str, optional: bool) -> String {
    let program = match program {
        Program::Csi => "Csi",
        Program::Ccm => "Ccm",
    };
    let what = match (on, optional) {
        ("/", _) => "Ha",
        (_, true) => "Agent",
        (on, false) if on == Object::Storage.path() => "Storage",
        (_, false) => "Pool",
    };
    format!("{program}{what}")
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(crate) mod tests;
