//! What the simulated cluster consists of. Plain data (it is also the scenario format); must not know HTTP, clocks or hardware.

mod guest;
mod ha;
mod plugin;
mod storage;
mod version;
mod vm;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use guest::Guest;
pub use ha::{Ha, HaRule};
pub use plugin::StorageKind;
pub use storage::{Quirk, Storage, Volume};
pub(crate) use storage::{suffix_format, volume_owner};
pub use version::Version;
pub use vm::{Device, Vm, VmFaults};

/// Number of a VM.
pub type VmNumber = u32;

/// The whole cluster; the JSON form is the scenario file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// What all nodes run; 8 or 9.
    pub version: Version,
    /// PVE nodes by name.
    pub nodes: BTreeMap<String, Node>,
    pub storages: BTreeMap<String, Storage>,
    pub volumes: Vec<Volume>,
    pub pools: BTreeMap<String, Pool>,
    pub vms: BTreeMap<VmNumber, Vm>,
    /// Users by `name@realm`; `root@pam` always exists.
    pub users: BTreeMap<String, User>,
    pub groups: BTreeMap<String, BTreeSet<String>>,
    /// Comments of groups.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub group_comments: BTreeMap<String, String>,
    /// Roles besides the built-in ones.
    pub roles: BTreeMap<String, BTreeSet<String>>,
    pub acl: Vec<AclEntry>,
    pub ha: Ha,
    /// Whether the cluster has quorum; `None`: it follows from the nodes' health (three and more nodes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quorate: Option<bool>,
}

/// A PVE node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Node {
    pub ip: String,
    pub health: Health,
    /// Whether this node has quorum; `None`: as the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quorate: Option<bool>,
    /// As systemd knows it; `null`: the host has no systemd to ask.
    pub timezone: Option<String>,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            ip: "10.99.0.1".to_owned(),
            health: Health::Online,
            quorate: None,
            timezone: Some("Etc/UTC".to_owned()),
        }
    }
}

/// How a PVE node answers what the others forward to it (facts 17, running.md 13c to 13k).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Online,
    /// Powered off: 595 `No route to host` after 3 s, out of the cluster.
    Offline,
    /// Powered off a moment ago, or packets are dropped: 595 `Connection timed out` after 30 s, out of the cluster.
    Silent,
    /// Its network has just ended: 596 `Connection reset by peer` at once; the cluster has not noticed.
    Reset,
    /// Alive for the cluster, its daemons are stopped: 596 after 30 s, nothing is done.
    Hung,
    /// Its pveproxy is down: 595 `Connection refused`.
    ProxyDown,
    /// Its pvedaemon is down: 595 `Connection refused` to what is `protected`, the rest is answered.
    DaemonDown,
    /// Its pvedaemon hangs: 596 after 30 s to what is `protected`, and the work is done when it goes on.
    DaemonHung,
    /// Cut off from the others while its VMs run on: 595 `No route to host`, out of the cluster.
    Isolated,
}

impl Health {
    /// Whether the other nodes see it as a member.
    pub(crate) fn in_cluster(self) -> bool {
        !matches!(self, Self::Offline | Self::Silent | Self::Isolated)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    pub comment: Option<String>,
    /// Members; a VMID need not have a VM.
    pub vms: BTreeSet<VmNumber>,
    pub storages: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct User {
    pub enabled: bool,
    /// Seconds since 1970; 0 never.
    pub expire: u64,
    /// For logins; `None`: none fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// `firstname`, `lastname`, `email`, `comment`, `keys`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
    /// Tokens by id (the part after `!`).
    pub tokens: BTreeMap<String, Token>,
}

impl Default for User {
    fn default() -> Self {
        Self {
            enabled: true,
            expire: 0,
            password: None,
            details: BTreeMap::new(),
            tokens: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Token {
    pub secret: String,
    pub privsep: bool,
    /// Seconds since 1970; 0 never.
    pub expire: u64,
    pub comment: Option<String>,
}

impl Default for Token {
    fn default() -> Self {
        Self {
            secret: String::new(),
            privsep: true,
            expire: 0,
            comment: None,
        }
    }
}

/// One line of the access control list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AclEntry {
    pub path: String,
    /// `user@realm`, `user@realm!token` or `@group`.
    pub subject: String,
    pub role: String,
    #[serde(default = "yes")]
    pub propagate: bool,
}

fn yes() -> bool {
    true
}

impl State {
    /// The pool of a VM, present or not.
    pub(crate) fn pool_of_vm(&self, vmid: VmNumber) -> Option<&str> {
        self.pools
            .iter()
            .find(|(_, pool)| pool.vms.contains(&vmid))
            .map(|(name, _)| name.as_str())
    }
}
