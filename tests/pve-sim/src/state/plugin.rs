//! What the storage plugins do differently: names, paths, rounding, texts (`pve-storage` 9.1.7, `src/PVE/Storage/*Plugin.pm`).

use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use super::storage::{ParsedName, suffix_format};
use super::{Quirk, Storage, VmNumber};
use crate::fail::Fail;
use crate::units;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageKind {
    Dir,
    LvmThin,
    /// Thick: a new volume shows what was on its blocks before, unless `saferemove` wipes them.
    Lvm,
    ZfsPool,
    Rbd,
    /// As `dir`, on all nodes.
    Nfs,
    /// A plugin of others, LINSTOR's: sizes with an `overhead`, and with `renames` names of its own.
    Drbd,
}

const MIB: u64 = 1 << 20;

impl StorageKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dir => "dir",
            Self::LvmThin => "lvmthin",
            Self::Lvm => "lvm",
            Self::ZfsPool => "zfspool",
            Self::Rbd => "rbd",
            Self::Nfs => "nfs",
            Self::Drbd => "drbd",
        }
    }

    pub(crate) fn is_file(self) -> bool {
        matches!(self, Self::Dir | Self::Nfs)
    }

    pub(crate) fn is_lvm(self) -> bool {
        matches!(self, Self::Lvm | Self::LvmThin)
    }

    /// Whether its volumes count in full from the start.
    pub(crate) fn is_thick(self) -> bool {
        matches!(self, Self::Lvm | Self::ZfsPool)
    }

    /// Whether a raw volume can be snapshotted (`volume_has_feature`).
    pub(crate) fn snapshots_raw(self) -> bool {
        matches!(self, Self::LvmThin | Self::ZfsPool | Self::Rbd | Self::Drbd)
    }

    fn round(self, bytes: u64) -> u64 {
        match self {
            Self::Dir | Self::Nfs => bytes,
            Self::Lvm | Self::LvmThin | Self::Drbd => units::extents(bytes),
            Self::ZfsPool | Self::Rbd => bytes.div_ceil(MIB) * MIB,
        }
    }
}

/// Digits before the next dash, and something after it.
fn owner_of(rest: &str) -> Option<VmNumber> {
    let (number, tail) = rest.split_once('-')?;
    let digits = number.bytes().all(|b| b.is_ascii_digit());
    number.parse().ok().filter(|_| digits && !tail.is_empty())
}

fn check_lv_name(name: &str) -> Result<(), Fail> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if name.chars().all(good) && ends(name.chars().next()) && ends(name.chars().last()) {
        return Ok(());
    }
    Err(Fail::die(format!(
        "lvm name '{name}' contains illegal characters"
    )))
}

fn check_file_name(file: &str) -> Result<(), Fail> {
    if suffix_format(file).is_none() || file.contains(['/', ' ', '\t', '\n']) {
        return Err(Fail::die(format!(
            "unable to parse volume filename '{file}'"
        )));
    }
    Ok(())
}

impl Storage {
    /// Bytes that a volume of the asked size gets.
    pub(crate) fn round(&self, bytes: u64) -> u64 {
        self.kind.round(bytes) + self.overhead
    }

    /// `parse_volname` of the storage plugin; its texts. A linked clone's name begins with its base's.
    pub(crate) fn parse_name(&self, name: &str) -> Result<ParsedName, Fail> {
        if self.kind.is_file() {
            return parse_file(name);
        }
        if self.kind.is_lvm() {
            check_lv_name(name)?;
        }
        let word = if self.kind.is_lvm() {
            "lvm"
        } else {
            match self.kind {
                StorageKind::ZfsPool => "zfs",
                other => other.name(),
            }
        };
        let bad = || Fail::die(format!("unable to parse {word} volume name '{name}'"));
        let own = match self.kind {
            StorageKind::ZfsPool | StorageKind::Rbd => {
                name.split_once('/').map_or(name, |(_, own)| own)
            }
            _ => name,
        };
        let renamed = || {
            let (hash, number) = own.strip_prefix("pm-")?.split_once('_')?;
            let hex = hash.bytes().all(|b| b.is_ascii_hexdigit());
            number.parse().ok().filter(|_| hex)
        };
        let base = || {
            own.strip_prefix("base-")
                .filter(|_| self.kind != StorageKind::Lvm)
        };
        let plain = own.strip_prefix("vm-").or_else(base).and_then(owner_of);
        let owner = plain.or_else(|| renamed().filter(|_| self.kind == StorageKind::Drbd));
        Ok(ParsedName {
            owner: owner.ok_or_else(bad)?,
            format: "raw",
        })
    }

    /// The name inside the storage that an allocation gets.
    pub(crate) fn new_name(
        &self,
        vmid: VmNumber,
        file: &str,
        format: Option<&str>,
    ) -> Result<String, Fail> {
        if self.kind.is_file() {
            if format == Some("subvol") {
                return Err(Fail::die("storage does not support subvol quotas"));
            }
            check_file_name(file)?;
            return Ok(format!("{vmid}/{file}"));
        }
        let format = format.or_else(|| suffix_format(file)).unwrap_or("raw");
        let at = |line: u32, plugin: &str| {
            Fail::die(format!(
                "unsupported format '{format}' at /usr/share/perl5/PVE/Storage/{plugin}.pm line {line}."
            ))
        };
        match (self.kind, format) {
            (StorageKind::LvmThin, "raw")
            | (StorageKind::Lvm, "raw" | "qcow2")
            | (StorageKind::ZfsPool, "raw" | "subvol") => {}
            (StorageKind::LvmThin, _) => return Err(at(102, "LvmThinPlugin")),
            (StorageKind::Lvm, _) => return Err(at(697, "LVMPlugin")),
            (StorageKind::ZfsPool, _) => return Err(at(293, "ZFSPoolPlugin")),
            _ => {}
        }
        if self.kind == StorageKind::Lvm {
            if format == "qcow2" {
                return Err(Fail::die(
                    "snapshot-as-volume-chain option need to be enabled to use qcow2 format at /usr/share/perl5/PVE/Storage/LVMPlugin.pm line 699.",
                ));
            }
            // Only the shape of the name counts, not its number.
            self.parse_name(file)?;
            return Ok(file.to_owned());
        }
        if !file.starts_with(&format!("vm-{vmid}-")) {
            return Err(Fail::die(format!(
                "illegal name '{file}' - should be 'vm-{vmid}-*'"
            )));
        }
        if self.is(Quirk::Renames) {
            let hash = units::hex(&Sha1::digest(file.as_bytes()));
            return Ok(format!("pm-{}_{vmid}", hash.get(..8).unwrap_or_default()));
        }
        Ok(file.to_owned())
    }

    /// Path on the PVE node.
    pub(crate) fn path_of(&self, name: &str) -> String {
        let own = name.rsplit('/').next().unwrap_or(name);
        match self.kind {
            StorageKind::Dir | StorageKind::Nfs => format!("{}/images/{name}", self.path),
            StorageKind::Lvm | StorageKind::LvmThin => format!("/dev/{}/{name}", self.vgname),
            StorageKind::ZfsPool => format!("/dev/zvol/{}/{own}", self.pool),
            StorageKind::Rbd => format!("rbd:{}/{own}", self.pool),
            StorageKind::Drbd => format!("/dev/drbd/by-res/{name}/0"),
        }
    }

    pub(crate) fn exists_text(&self, name: &str) -> String {
        match self.kind {
            StorageKind::Dir | StorageKind::Nfs => {
                format!("disk image '{}' already exists", self.path_of(name))
            }
            StorageKind::Lvm | StorageKind::LvmThin => {
                let vg = &self.vgname;
                format!(
                    "lvcreate '{vg}/{name}' error:   Logical Volume \"{name}\" already exists in volume group \"{vg}\""
                )
            }
            StorageKind::ZfsPool => {
                format!(
                    "zfs error: cannot create '{}/{name}': dataset already exists",
                    self.pool
                )
            }
            StorageKind::Rbd => {
                format!("rbd create '{name}' error: rbd: create error: (17) File exists")
            }
            StorageKind::Drbd => format!("resource definition '{name}' already exists"),
        }
    }

    /// What reading the size of an absent volume says.
    pub(crate) fn no_size_text(&self, volid: &str, name: &str) -> String {
        match self.kind {
            StorageKind::Dir | StorageKind::Nfs => {
                format!("volume_size_info on '{volid}' failed - no format")
            }
            StorageKind::Lvm | StorageKind::LvmThin => {
                let vg = &self.vgname;
                format!(
                    "can't get size of '/dev/{vg}/{name}':   Failed to find logical volume \"{vg}/{name}\""
                )
            }
            StorageKind::ZfsPool => {
                format!(
                    "zfs error: cannot open '{}/{name}': dataset does not exist",
                    self.pool
                )
            }
            StorageKind::Rbd => {
                format!("rbd error: rbd: error opening image {name}: (2) No such file or directory")
            }
            StorageKind::Drbd => format!("resource definition '{name}' not found"),
        }
    }

    /// What using an absent volume as a drive says.
    pub(crate) fn absent_text(&self, volid: &str, name: &str) -> String {
        match self.kind {
            StorageKind::Dir | StorageKind::Nfs => format!("volume '{volid}' does not exist"),
            StorageKind::Lvm | StorageKind::LvmThin => {
                format!("no such logical volume {}/{name}", self.vgname)
            }
            StorageKind::ZfsPool => {
                format!("timeout: no zvol device link for '{name}' found after 10 sec.")
            }
            StorageKind::Rbd | StorageKind::Drbd => self.no_size_text(volid, name),
        }
    }

    /// What deleting an absent volume ends with; `None`: it is no error (`free_image`).
    pub(crate) fn absent_free_text(&self, name: &str) -> Option<String> {
        match self.kind {
            StorageKind::Dir | StorageKind::Nfs | StorageKind::LvmThin | StorageKind::ZfsPool => {
                None
            }
            StorageKind::Lvm => Some(format!(
                "lvremove '{vg}/{name}' error:   Failed to find logical volume \"{vg}/{name}\"",
                vg = self.vgname
            )),
            StorageKind::Rbd | StorageKind::Drbd => Some(self.no_size_text("", name)),
        }
    }

    /// What deleting says while something else holds the volume.
    pub(crate) fn busy_text(&self, name: &str) -> String {
        match self.kind {
            StorageKind::Dir | StorageKind::Nfs => format!(
                "unlink '{}' failed - Device or resource busy",
                self.path_of(name)
            ),
            StorageKind::Lvm | StorageKind::LvmThin => format!(
                "lvremove '{vg}/{name}' error:   Logical volume {vg}/{name} in use.",
                vg = self.vgname
            ),
            StorageKind::ZfsPool => {
                format!(
                    "zfs error: cannot destroy '{}/{name}': dataset is busy",
                    self.pool
                )
            }
            StorageKind::Rbd => {
                format!("rbd rm '{name}' error: rbd: error: image still has watchers")
            }
            StorageKind::Drbd => format!("resource '{name}' is in use"),
        }
    }

    /// What growing a volume says when there is no room for it.
    pub(crate) fn no_room_to_grow(&self, name: &str, bytes: u64) -> String {
        let path = self.path_of(name);
        match self.kind {
            StorageKind::ZfsPool => format!(
                "zfs error: cannot set property for '{}/{name}': size is greater than available space",
                self.pool
            ),
            _ => format!(
                "error resizing volume '{path}':   Insufficient free space: {} extents needed",
                bytes.div_ceil(units::EXTENT)
            ),
        }
    }

    /// Why a volume of this size finds no room, if it finds none; `free` bytes are left.
    pub(crate) fn no_room(&self, name: &str, bytes: u64, free: u64) -> Option<String> {
        let vg = &self.vgname;
        match self.kind {
            StorageKind::Dir | StorageKind::Nfs if self.is(Quirk::Full) => {
                let path = self.path_of(name);
                Some(format!(
                    "unable to create image: qemu-img: {path}: Could not create '{path}': No space left on device"
                ))
            }
            StorageKind::LvmThin if self.is(Quirk::Full) => Some(format!(
                "lvcreate '{vg}/{name}' error:   Cannot create new thin volume, free space in thin pool {vg}/{} reached threshold.",
                self.thinpool
            )),
            // Bytes are compared with KiB first (`LVMPlugin.pm` 713); then lvcreate looks itself.
            StorageKind::Lvm if free < bytes / units::KIB => Some(format!(
                "not enough free space ({free} < {})",
                bytes / units::KIB
            )),
            StorageKind::Lvm if free < bytes => Some(format!(
                "lvcreate '{vg}/{name}' error:   Volume group \"{vg}\" has insufficient free space ({} extents): {} required.",
                free / units::EXTENT,
                bytes.div_ceil(units::EXTENT)
            )),
            StorageKind::ZfsPool if free < bytes => Some(format!(
                "zfs error: cannot create '{}/{name}': out of space",
                self.pool
            )),
            StorageKind::Rbd | StorageKind::Drbd if self.is(Quirk::Full) => Some(format!(
                "rbd create '{name}' error: (28) No space left on device"
            )),
            _ => None,
        }
    }
}

fn parse_file(name: &str) -> Result<ParsedName, Fail> {
    let bad = || Fail::die(format!("unable to parse directory volume name '{name}'"));
    // `<base's owner>/<base>/<owner>/<file>` is a linked clone.
    let own = match name.splitn(3, '/').collect::<Vec<_>>().as_slice() {
        [_, base, own] if base.starts_with("base-") => *own,
        _ => name,
    };
    let (dir, file) = own.split_once('/').ok_or_else(bad)?;
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
