//! The CSI volume handle: `region/pveNode/storage/disk`, or `region//storage/disk` on shared storage.
//!
//! It is the grammar of the driver that people run today, so that their PVs stay valid, minus every
//! character that could mean something to a URL or to a drive string.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::ids::{PveNode, Region, StorageId, VmId};

/// A handle that is not of the grammar. It names the part, never the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed volume handle: {0}")]
pub struct ParseVolumeIdError(pub &'static str);

/// Longest volume name that becomes part of a disk name as it is. LVM allows 127 bytes for a logical
/// volume and CSI 128 for a whole handle.
const NAME_MAX: usize = 63;
const HASHED_HEAD: &str = "x-";

/// How a disk on a file storage (`dir`, `nfs`, …) is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DiskFormat {
    /// A plain image file.
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2,
}

impl DiskFormat {
    /// The format's name in PVE, which is the file's suffix too.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// The name of a PVE volume below its storage: `vm-<owner>-<name>`, on file storages `<owner>/vm-<owner>-<name>.<format>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskName {
    owner: VmId,
    name: String,
    format: Option<DiskFormat>,
}

impl DiskName {
    /// The disk of the volume that CSI calls `volume` (any text of 1 byte or more); `format` is given on file
    /// storages only. The same name always gives the same disk; a name that PVE or LVM would not bear is replaced
    /// by a hash of it.
    pub fn for_volume(owner: VmId, volume: &str, format: Option<DiskFormat>) -> Self {
        let plain = is_name(volume) && volume.len() <= NAME_MAX && !is_hashed(volume);
        let name = if plain {
            volume.to_owned()
        } else {
            hashed(volume)
        };
        Self {
            owner,
            name,
            format,
        }
    }

    /// The VMID inside the name, which PVE takes as owner of the disk.
    pub const fn owner(&self) -> VmId {
        self.owner
    }

    /// The file format, on file storages.
    pub const fn format(&self) -> Option<DiskFormat> {
        self.format
    }

    /// The last path segment: what `POST …/content` takes as `filename`.
    pub fn file_name(&self) -> String {
        match self.format {
            Some(format) => format!("vm-{}-{}.{}", self.owner, self.name, format.as_str()),
            None => format!("vm-{}-{}", self.owner, self.name),
        }
    }
}

fn hashed(volume: &str) -> String {
    let digest = Sha256::digest(volume.as_bytes());
    let head: u128 = digest
        .iter()
        .take(16)
        .fold(0, |acc, byte| acc << 8 | u128::from(*byte));
    let tail: u32 = digest
        .iter()
        .skip(16)
        .take(4)
        .fold(0, |acc, byte| acc << 8 | u32::from(*byte));
    format!("{HASHED_HEAD}{head:032x}{tail:08x}")
}

fn is_hashed(name: &str) -> bool {
    name.strip_prefix(HASHED_HEAD)
        .is_some_and(|hex| hex.len() == 40 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// No `.` and no `_`: deleting `a` on lvmthin also deletes everything that looks like a snapshot of `a_b`.
fn is_name(name: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    ends(name.bytes().next())
        && ends(name.bytes().next_back())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

impl FromStr for DiskName {
    type Err = ParseVolumeIdError;

    fn from_str(text: &str) -> Result<Self, ParseVolumeIdError> {
        let (folder, file) = match text.split_once('/') {
            Some((folder, file)) => (Some(folder), file),
            None => (None, text),
        };
        let (stem, format) = match file.rsplit_once('.') {
            Some((stem, "raw")) => (stem, Some(DiskFormat::Raw)),
            Some((stem, "qcow2")) => (stem, Some(DiskFormat::Qcow2)),
            Some(_) => return Err(ParseVolumeIdError("disk name")),
            None => (file, None),
        };
        let (owner, name) = stem
            .strip_prefix("vm-")
            .and_then(|rest| rest.split_once('-'))
            .ok_or(ParseVolumeIdError("disk name"))?;
        let owner: VmId = owner
            .parse()
            .map_err(|_| ParseVolumeIdError("owner of the disk"))?;
        if folder.is_some() != format.is_some()
            || folder.is_some_and(|folder| folder != owner.to_string())
        {
            return Err(ParseVolumeIdError("folder of the disk"));
        }
        if !is_name(name) || name.len() > 2 * NAME_MAX {
            return Err(ParseVolumeIdError("disk name"));
        }
        Ok(Self {
            owner,
            name: name.to_owned(),
            format,
        })
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.format.is_some() {
            write!(f, "{}/", self.owner)?;
        }
        f.write_str(&self.file_name())
    }
}

/// A volume of this driver, for ever.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId {
    /// Which PVE cluster.
    pub region: Region,
    /// Which host holds the disk; none on shared storage.
    pub pve_node: Option<PveNode>,
    /// Which storage.
    pub storage: StorageId,
    /// The disk there.
    pub disk: DiskName,
}

impl VolumeId {
    /// PVE's own name of the disk: `<storage>:<disk>`.
    pub fn volid(&self) -> String {
        format!("{}:{}", self.storage, self.disk)
    }
}

impl FromStr for VolumeId {
    type Err = ParseVolumeIdError;

    fn from_str(text: &str) -> Result<Self, ParseVolumeIdError> {
        let mut parts = text.splitn(4, '/');
        let mut part = |what| parts.next().ok_or(ParseVolumeIdError(what));
        let region = part("region")?
            .parse()
            .map_err(|_| ParseVolumeIdError("region"))?;
        let pve_node = match part("PVE node")? {
            "" => None,
            name => Some(name.parse().map_err(|_| ParseVolumeIdError("PVE node"))?),
        };
        let storage = part("storage")?
            .parse()
            .map_err(|_| ParseVolumeIdError("storage"))?;
        let disk = part("disk name")?.parse()?;
        Ok(Self {
            region,
            pve_node,
            storage,
            disk,
        })
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pve_node = self.pve_node.as_ref().map_or("", PveNode::as_str);
        write!(
            f,
            "{}/{pve_node}/{}/{}",
            self.region, self.storage, self.disk
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner() -> VmId {
        "9999".parse().unwrap()
    }

    #[test]
    fn handles_of_the_former_driver_round_trip() {
        for text in [
            "Region-1/pve-1/lvm/vm-9999-pvc-0d3f0ba5-5f3a-4d3c-9d61-0a9a3f7e1c55",
            "r1//rbd/vm-798497-pvc-1",
            "r1/pve1/local/9999/vm-9999-pvc-1.raw",
            "r1//nfs/9999/vm-9999-pvc-1.qcow2",
            "dev-1/pve-m-4/zfs/vm-100-disk-1",
        ] {
            assert_eq!(text.parse::<VolumeId>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn anything_outside_the_grammar_is_refused() {
        for bad in [
            "",
            "r1",
            "r1/pve1/store1",
            "r1/pve1/store1/",
            "/pve1/store1/vm-9999-a",
            "r1/pve1//vm-9999-a",
            "r1/../store1/vm-9999-a",
            "r1/pve1/store1/..",
            "r1/pve1/store1/../vm-9999-a",
            "r1/pve1/store1/vm-9999-a,size=1G",
            "r1/pve1/store1/vm-9999-a?x=1",
            "r1/pve1/store1/vm-9999-a#b",
            "r1/pve1/store1/vm-9999-a%2fb",
            "r1/pve1/store1/vm-9999-a\n",
            "r1/pve1/store1/vm-9999-a b",
            "r1/pve1/store1/vm-9999-a_b",
            "r1/pve1/store1/vm-9999-",
            "r1/pve1/store1/vm-99-a",
            "r1/pve1/store1/vm-09999-a",
            "r1/pve1/store1/base-9999-a",
            "r1/pve1/store1/9999/vm-9999-a",
            "r1/pve1/store1/vm-9999-a.raw",
            "r1/pve1/store1/9998/vm-9999-a.raw",
            "r1/pve1/store1/9999/9999/vm-9999-a.raw",
            "r1/pve1/store1/9999/vm-9999-a.iso",
            "r1/pve1/store1/vm-9999-pvc-\u{e4}",
        ] {
            assert!(bad.parse::<VolumeId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_that_pve_would_not_bear_become_a_hash_of_themselves() {
        let long = "a".repeat(128);
        let disk = DiskName::for_volume(owner(), &long, None);
        assert!(disk.to_string().len() < 60);
        assert_eq!(disk, DiskName::for_volume(owner(), &long, None));
        assert_ne!(disk, DiskName::for_volume(owner(), &"a".repeat(127), None));
        let forged = disk.to_string().replacen("vm-9999-", "", 1);
        assert_ne!(DiskName::for_volume(owner(), &forged, None), disk);
        assert_eq!(
            DiskName::for_volume(owner(), "pvc-1", None).to_string(),
            "vm-9999-pvc-1"
        );
        let raw = DiskName::for_volume(owner(), "pvc-1", Some(DiskFormat::Raw));
        assert_eq!(raw.to_string(), "9999/vm-9999-pvc-1.raw");
        assert_eq!(raw.file_name(), "vm-9999-pvc-1.raw");
    }

    proptest! {
        #[test]
        fn every_disk_that_is_made_can_be_named_in_a_handle(volume in "\\PC{1,200}", file in any::<bool>()) {
            let disk = DiskName::for_volume(owner(), &volume, file.then_some(DiskFormat::Raw));
            let id = VolumeId {
                region: "r1".parse().unwrap(), pve_node: None, storage: "store1".parse().unwrap(), disk,
            };
            prop_assert_eq!(id.to_string().parse::<VolumeId>().unwrap(), id);
        }

        #[test]
        fn parsing_is_the_inverse_of_printing(text in "[a-z0-9./_,?%-]{0,60}") {
            if let Ok(id) = text.parse::<VolumeId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
