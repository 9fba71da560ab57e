//! Storages and their volumes: types, name rules, paths.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{State, VmNumber};
use crate::fail::Fail;
use crate::units;

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
    /// Further options of the definition, kept as they were given.
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
            options: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageKind {
    Dir,
    LvmThin,
}

impl StorageKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dir => "dir",
            Self::LvmThin => "lvmthin",
        }
    }

    /// Bytes that a volume of the asked size gets.
    pub(crate) fn round(self, bytes: u64) -> u64 {
        match self {
            Self::Dir => bytes,
            Self::LvmThin => units::extents(bytes),
        }
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

impl Storage {
    /// `parse_volname` of the storage plugin; its texts.
    pub(crate) fn parse_name(&self, name: &str) -> Result<ParsedName, Fail> {
        match self.kind {
            StorageKind::Dir => {
                let bad = || Fail::die(format!("unable to parse directory volume name '{name}'"));
                let (dir, file) = name.split_once('/').ok_or_else(bad)?;
                let owner = dir
                    .parse()
                    .ok()
                    .filter(|_| dir.bytes().all(|b| b.is_ascii_digit()))
                    .ok_or_else(bad)?;
                check_file_name(file)?;
                Ok(ParsedName {
                    owner,
                    format: suffix_format(file).unwrap_or("raw"),
                })
            }
            StorageKind::LvmThin => {
                let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
                if !name.chars().all(good)
                    || !ends(name.chars().next())
                    || !ends(name.chars().last())
                {
                    return Err(Fail::die(format!(
                        "lvm name '{name}' contains illegal characters"
                    )));
                }
                let bad = || Fail::die(format!("unable to parse lvm volume name '{name}'"));
                let rest = name
                    .strip_prefix("vm-")
                    .or_else(|| name.strip_prefix("base-"))
                    .ok_or_else(bad)?;
                let (number, tail) = rest.split_once('-').ok_or_else(bad)?;
                let owner = number
                    .parse()
                    .ok()
                    .filter(|_| !tail.is_empty())
                    .ok_or_else(bad)?;
                Ok(ParsedName {
                    owner,
                    format: "raw",
                })
            }
        }
    }

    /// The name inside the storage that an allocation gets.
    pub(crate) fn new_name(
        &self,
        vmid: VmNumber,
        file: &str,
        format: Option<&str>,
    ) -> Result<String, Fail> {
        match self.kind {
            StorageKind::Dir => {
                if format == Some("subvol") {
                    return Err(Fail::die("storage does not support subvol quotas"));
                }
                check_file_name(file)?;
                Ok(format!("{vmid}/{file}"))
            }
            StorageKind::LvmThin => {
                let format = format.or_else(|| suffix_format(file)).unwrap_or("raw");
                if format != "raw" {
                    return Err(Fail::die(format!(
                        "unsupported format '{format}' at /usr/share/perl5/PVE/Storage/LvmThinPlugin.pm line 102."
                    )));
                }
                if !file.starts_with(&format!("vm-{vmid}-")) {
                    return Err(Fail::die(format!(
                        "illegal name '{file}' - should be 'vm-{vmid}-*'"
                    )));
                }
                Ok(file.to_owned())
            }
        }
    }

    /// Path on the PVE node.
    pub(crate) fn path_of(&self, name: &str) -> String {
        match self.kind {
            StorageKind::Dir => format!("{}/images/{name}", self.path),
            StorageKind::LvmThin => format!("/dev/{}/{name}", self.vgname),
        }
    }

    pub(crate) fn exists_text(&self, name: &str) -> String {
        match self.kind {
            StorageKind::Dir => format!("disk image '{}' already exists", self.path_of(name)),
            StorageKind::LvmThin => {
                let vg = &self.vgname;
                format!(
                    "lvcreate '{vg}/{name}' error:   Logical Volume \"{name}\" already exists in volume group \"{vg}\""
                )
            }
        }
    }

    /// What reading the size of an absent volume says.
    pub(crate) fn no_size_text(&self, volid: &str, name: &str) -> String {
        match self.kind {
            StorageKind::Dir => format!("volume_size_info on '{volid}' failed - no format"),
            StorageKind::LvmThin => {
                let vg = &self.vgname;
                format!(
                    "can't get size of '/dev/{vg}/{name}':   Failed to find logical volume \"{vg}/{name}\""
                )
            }
        }
    }

    /// What using an absent volume as a drive says.
    pub(crate) fn absent_text(&self, volid: &str, name: &str) -> String {
        match self.kind {
            StorageKind::Dir => format!("volume '{volid}' does not exist"),
            StorageKind::LvmThin => format!("no such logical volume {}/{name}", self.vgname),
        }
    }

    /// What deleting says while something else holds the volume.
    pub(crate) fn busy_text(&self, name: &str) -> String {
        match self.kind {
            StorageKind::Dir => format!(
                "unlink '{}' failed - Device or resource busy",
                self.path_of(name)
            ),
            StorageKind::LvmThin => format!(
                "lvremove '{vg}/{name}' error:   Logical volume {vg}/{name} in use.",
                vg = self.vgname
            ),
        }
    }
}

fn check_file_name(file: &str) -> Result<(), Fail> {
    if suffix_format(file).is_none() || file.contains(['/', ' ', '\t', '\n']) {
        return Err(Fail::die(format!(
            "unable to parse volume filename '{file}'"
        )));
    }
    Ok(())
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
