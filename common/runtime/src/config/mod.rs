//! The operator's config file: which PVE clusters there are, how to reach them, and what of them is
//! the tenant's. Policy comes from here alone.
//!
//! Errors carry the path of the key (`regions.r1.endpoints[1].url`) and never a value.

mod beside;
mod fences;
mod former;
mod nodes;
#[cfg(any(test, fuzzing))]
pub mod oracles;
mod policy;
mod regions;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use pve_model::params::{AioMode, CacheMode};
use pve_model::{Bytes, DiskFormat, PoolId, PveNode, Region, StorageId, VmId, VolumeId};

pub use self::fences::{DEFAULT_TERM, FENCES_FILE, Fence, FenceFile, Fenced, MOST_FENCES};
pub use self::nodes::{AddressPolicy, NodePolicy, ZonePolicy};

use self::beside::Beside;
use self::tree::Node;
use crate::credentials::TokenConfig;
use crate::{bounded, swap};

/// The usual name of the config.
pub const CONFIG_FILE: &str = "config.yaml";
/// Read beside the config when no other policy file is named.
pub const POLICY_FILE: &str = "policy.yaml";

/// Largest file that is read. A Secret holds 1 MiB.
const FILE_MAX: u64 = 1 << 20;

/// Everything that the operator decides about the PVE side.
#[derive(Debug, Clone)]
pub struct Config {
    /// How Nodes are named by what runs the tenant's cluster.
    pub provider: Provider,
    /// One entry per PVE cluster.
    pub regions: BTreeMap<Region, RegionConfig>,
    /// What the CCM writes on the tenant's Nodes; the CSI controller has no use for it.
    pub nodes: NodePolicy,
}

/// Who made the tenant's Nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Provider {
    /// Anyone: `proxmox://<region>/<vmid>`.
    #[default]
    Default,
    /// Cluster API: `proxmox://<uuid>`.
    Capmox,
}

/// One PVE cluster.
#[derive(Debug, Clone)]
pub struct RegionConfig {
    /// At least one; any member of the cluster serves all of it.
    pub endpoints: Vec<EndpointConfig>,
    /// The API token, read again on demand.
    pub token: TokenConfig,
    /// What of the cluster is the tenant's.
    pub policy: RegionPolicy,
}

/// One API endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointConfig {
    /// `https://host:port`, without a path or a slash at its end.
    pub url: String,
    /// How its certificate is judged.
    pub trust: Trust,
}

/// How an endpoint's certificate is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The authorities of the system.
    SystemRoots,
    /// These authorities alone, as PEM.
    Ca(String),
    /// The SHA-256 of the one certificate that is right.
    Fingerprint([u8; 32]),
    /// Anything goes.
    Insecure,
}

/// What of a PVE cluster is the tenant's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionPolicy {
    /// The pool that the tenant's VMs are in.
    pub pool: PoolId,
    /// Storages that may be used. Empty means none.
    pub storages: BTreeMap<StorageId, StoragePolicy>,
    /// PVE nodes that may be used. Empty means none.
    pub pve_nodes: BTreeSet<PveNode>,
    /// In whose name disks are made.
    pub owners: Owners,
    /// What the owner is.
    pub mode: Mode,
    /// Volumes of other owners that are ours nevertheless.
    pub adopted: BTreeSet<VolumeId>,
}

/// The VMIDs that disks are named after.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owners {
    /// For PVE nodes without an entry of their own.
    pub default: Option<VmId>,
    /// For disks on one PVE node.
    pub per_node: BTreeMap<PveNode, VmId>,
}

/// What the owner of a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A VMID that no VM has.
    #[default]
    Reserved,
    /// A stopped VM of the tenant's pool.
    OwnerVm,
}

/// Quota and ceilings of one storage. `None` means no bound.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoragePolicy {
    /// Sum of all volumes.
    pub max_bytes: Option<Bytes>,
    /// Number of volumes.
    pub max_volumes: Option<u32>,
    /// Size of one volume.
    pub max_volume_bytes: Option<Bytes>,
    /// What must stay free on the storage.
    pub min_free: Option<Bytes>,
    /// Upper bounds of each disk's throughput.
    pub limits: Limits,
    /// What a `StorageClass` may ask for.
    pub allow: Allow,
}

/// Upper bounds that are applied at each attach. `None` means no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Operations per second.
    pub iops: Option<u32>,
    /// Megabytes per second.
    pub mbps: Option<u32>,
}

/// What a `StorageClass` may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow {
    /// Cache modes; `None` means any, an empty set none but the default.
    pub cache: Option<BTreeSet<CacheMode>>,
    /// AIO modes; `None` means any, an empty set none but the default.
    pub aio: Option<BTreeSet<AioMode>>,
    /// Whether a volume may be part of PVE's backups.
    pub backup: bool,
    /// Formats on file storages; `None` means any.
    pub formats: Option<BTreeSet<DiskFormat>>,
}

/// Why a config is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file is not there or not readable.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A key is missing, unknown or wrong: `<file>: <path of the key>: <what it must be>`.
    #[error("{0}")]
    Refused(String),
}

/// A document and what errors call it.
struct File {
    name: String,
    document: serde_json::Value,
}

impl Config {
    /// Reads and checks the config.
    ///
    /// `policy` names the policy file; without it a `policy.yaml` beside `path` is read if there is
    /// one. Relative paths in the config are relative to its folder.
    pub fn load(path: &Path, policy: Option<&Path>) -> Result<Self, ConfigError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let read = || {
            let main = File::read(path)?;
            let policy = match policy {
                Some(path) => Some(File::read(path)?),
                None => File::find(&folder.join(POLICY_FILE))?,
            };
            config(&main, policy.as_ref(), Beside::folder(folder)).map_err(ConfigError::Refused)
        };
        swap::in_one_piece(folder, read).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?
    }

    /// Checks the text of a config and of the policy file beside it, to which nothing else belongs: files that they name
    /// are refused. [`Config::load`] reads the same from files of these texts.
    pub fn of_texts(config_text: &str, policy_text: &str) -> Result<Self, ConfigError> {
        let main = File::of(CONFIG_FILE, config_text)?;
        let policy = File::of(POLICY_FILE, policy_text)?;
        config(&main, Some(&policy), Beside::NOTHING).map_err(ConfigError::Refused)
    }
}

impl File {
    fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::find(path)?.ok_or_else(|| ConfigError::Read {
            path: path.to_owned(),
            source: ErrorKind::NotFound.into(),
        })
    }

    fn find(path: &Path) -> Result<Option<Self>, ConfigError> {
        let failed = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let text = match bounded::read_to_string(path, FILE_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let name = path.file_name().unwrap_or(path.as_os_str());
        Self::of(&name.to_string_lossy(), &text).map(Some)
    }

    fn of(name: &str, text: &str) -> Result<Self, ConfigError> {
        let document = tree::parse(text)
            .map_err(|problem| ConfigError::Refused(format!("{name}: {problem}")))?;
        let name = name.to_owned();
        Ok(Self { name, document })
    }

    fn root(&self) -> Node<'_> {
        Node::root(&self.name, &self.document)
    }
}

fn config(main: &File, policy: Option<&File>, beside: Beside<'_>) -> Result<Config, String> {
    let root = main.root();
    let keys = root.keys(&["provider", "regions", "nodes", "clusters", "features"])?;
    let policies = policy
        .map(|file| policy::policies(&file.root()))
        .transpose()?;
    let former = keys.any(&["clusters", "features"]);
    let config = match (former, keys.any(&["regions", "provider", "nodes"])) {
        (Some(former), Some(_)) => {
            let why = "belongs to the former drivers' form and cannot stand beside ours";
            return Err(keys.refuse(former, why));
        }
        (Some(_), None) => {
            let features = former::features(&keys)?;
            Config {
                provider: features
                    .provider
                    .as_ref()
                    .map_or(Ok(Provider::Default), provider)?,
                regions: former::clusters(&keys, &features, policies, beside)?,
                nodes: features.nodes,
            }
        }
        (None, _) => Config {
            provider: keys
                .find("provider")
                .map_or(Ok(Provider::Default), |n| provider(&n))?,
            regions: regions::regions(&keys, policies, beside)?,
            nodes: nodes::nodes(&keys)?,
        },
    };
    if config.regions.is_empty() {
        return Err(root.refuse("at least one region is required"));
    }
    Ok(config)
}

fn provider(node: &Node<'_>) -> Result<Provider, String> {
    match node.text()? {
        "default" => Ok(Provider::Default),
        "capmox" => Ok(Provider::Capmox),
        _ => Err(node.refuse("must be default or capmox")),
    }
}

impl RegionPolicy {
    /// In whose name a disk is made: on `pve_node`, or on shared storage if `None`.
    pub fn owner_on(&self, pve_node: Option<&PveNode>) -> Option<VmId> {
        pve_node
            .and_then(|node| self.owners.per_node.get(node).copied())
            .or(self.owners.default)
    }

    /// Whether `owner` is one of ours.
    pub fn is_owner(&self, owner: VmId) -> bool {
        self.owners.default == Some(owner) || self.owners.per_node.values().any(|o| *o == owner)
    }
}

impl Allow {
    /// Whether `cache=<mode>` may be asked for.
    pub fn cache(&self, mode: CacheMode) -> bool {
        self.cache.as_ref().is_none_or(|set| set.contains(&mode))
    }

    /// Whether `aio=<mode>` may be asked for.
    pub fn aio(&self, mode: AioMode) -> bool {
        self.aio.as_ref().is_none_or(|set| set.contains(&mode))
    }

    /// Whether a disk of `format` may be made.
    pub fn format(&self, format: DiskFormat) -> bool {
        self.formats
            .as_ref()
            .is_none_or(|set| set.contains(&format))
    }
}

impl Default for Allow {
    fn default() -> Self {
        Self {
            cache: None,
            aio: None,
            backup: true,
            formats: None,
        }
    }
}

#[cfg(test)]
mod tests;
