//! Storages and their volumes: types, name rules, paths.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{State, StorageKind, VmNumber};
use crate::fail::Fail;

/// A storage definition of `/etc/pve/storage.cfg`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    pub kind: StorageKind,
    pub content: BTreeSet<String>,
    pub shared: bool,
    pub disable: bool,
    /// Empty: all nodes.
    pub nodes: BTreeSet<String>,
    /// Directory of a `dir` storage.
    pub path: String,
    pub vgname: String,
    pub thinpool: String,
    /// Bytes.
    pub total: u64,
    /// Bytes that something else uses.
    pub used: u64,
    /// Pool of `zfspool` and `rbd`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pool: String,
    /// Bytes that each volume is bigger than asked for.
    pub overhead: u64,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub quirks: BTreeSet<Quirk>,
    /// Further options of the definition, kept as they were given (`server`, `export`, `krbd`, …).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            kind: StorageKind::Dir,
            content: BTreeSet::from(["images".to_owned()]),
            shared: false,
            disable: false,
            nodes: BTreeSet::new(),
            path: String::new(),
            vgname: String::new(),
            thinpool: String::new(),
            total: 270_553_174_016,
            used: 34_439_151_616,
            pool: String::new(),
            overhead: 0,
            quirks: BTreeSet::new(),
            options: BTreeMap::new(),
        }
    }
}

/// What is unusual about a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quirk {
    /// A new volume gets another name than asked for (`drbd`).
    Renames,
    /// No room for anything new, whatever the figures say.
    Full,
    /// The storage behind it does not answer.
    Unreachable,
    /// Blocks of deleted volumes are wiped (`lvm`).
    Saferemove,
}

impl Storage {
    pub(crate) fn is(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }
}

/// An allocated volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    pub storage: String,
    /// `None` on a shared storage.
    #[serde(default)]
    pub node: Option<String>,
    /// The volume's name inside the storage: `9999/vm-9999-x.raw` (dir), `vm-9999-x` (lvmthin).
    pub name: String,
    /// Bytes.
    pub size: u64,
    #[serde(default = "raw")]
    pub format: String,
    #[serde(default)]
    pub ctime: u64,
}

fn raw() -> String {
    "raw".to_owned()
}

impl Volume {
    pub(crate) fn volid(&self) -> String {
        format!("{}:{}", self.storage, self.name)
    }
}

/// A volume name, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedName {
    pub(crate) owner: VmNumber,
    pub(crate) format: &'static str,
}

pub(crate) fn suffix_format(name: &str) -> Option<&'static str> {
    ["raw", "qcow2", "vmdk"].into_iter().find(|suffix| {
        name.strip_suffix(suffix)
            .is_some_and(|stem| stem.len() > 1 && stem.ends_with('.'))
    })
}

/// Owner of a volume as its id says, whatever the storage; `None` if the id is none.
pub(crate) fn volume_owner(state: &State, volid: &str) -> Option<VmNumber> {
    let (storage, name) = volid.split_once(':')?;
    state
        .storages
        .get(storage)?
        .parse_name(name)
        .ok()
        .map(|parsed| parsed.owner)
}

impl State {
    /// `storage_check_enabled`: the definition, if it can be used on that node.
    pub(crate) fn enabled_storage(&self, storage: &str, node: &str) -> Result<&Storage, Fail> {
        let found = self
            .storages
            .get(storage)
            .ok_or_else(|| Fail::die(format!("storage '{storage}' does not exist")))?;
        if found.disable {
            return Err(Fail::die(format!("storage '{storage}' is disabled")));
        }
        if !found.on_node(node) {
            return Err(Fail::die(format!(
                "storage '{storage}' is not available on node '{node}'"
            )));
        }
        Ok(found)
    }

    /// The definition, if it can be used there and answers.
    pub(crate) fn active_storage(&self, storage: &str, node: &str) -> Result<&Storage, Fail> {
        let found = self.enabled_storage(storage, node)?;
        if found.is(Quirk::Unreachable) {
            return Err(Fail::die(format!("storage '{storage}' is not online")));
        }
        Ok(found)
    }

    /// Bytes of all volumes of a storage as seen from a PVE node.
    pub(crate) fn allocated(&self, id: &str, storage: &Storage, node: &str) -> u64 {
        let here = self
            .volumes
            .iter()
            .filter(|v| v.storage == id && (storage.shared || v.node.as_deref() == Some(node)));
        here.map(|volume| volume.size).sum()
    }

    pub(crate) fn volume_at(&self, node: &str, volid: &str) -> Option<usize> {
        let (storage, name) = volid.split_once(':')?;
        let shared = self.storages.get(storage)?.shared;
        self.volumes.iter().position(|v| {
            v.storage == storage && v.name == name && (shared || v.node.as_deref() == Some(node))
        })
    }

    pub(crate) fn volume(&self, node: &str, volid: &str) -> Option<&Volume> {
        self.volumes.get(self.volume_at(node, volid)?)
    }
}

impl Storage {
    pub(crate) fn on_node(&self, node: &str) -> bool {
        self.nodes.is_empty() || self.nodes.contains(node)
    }
}
