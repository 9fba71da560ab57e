//! NodeGetVolumeStats: how full a volume is, and whether it is well.

use std::path::PathBuf;

use pve_model::volume_id::VolumeId;
use pve_model::wwn::Wwn;

use crate::error::Error;
use crate::host::{Access, Disk, Host, Usage};
use crate::mounted::{self, Found};
use crate::mountinfo::Mount;

/// NodeGetVolumeStats, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// Where; absolute.
    pub path: PathBuf,
    /// Where it is staged, if that is said; absolute.
    pub staging: Option<PathBuf>,
}

/// What is known of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// How full it is.
    pub room: Room,
    /// What is wrong with it, in a sentence, if anything is.
    pub trouble: Option<&'static str>,
}

/// How full a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// A file system.
    Filesystem(Usage),
    /// A device of that many bytes; what is used nobody knows.
    Device(u64),
    /// Its disk is no more.
    Unknown,
}

const GONE: &str = "the disk is no longer attached to this machine";
const READ_ONLY: &str = "the file system has become read-only after errors";
const DISK_READ_ONLY: &str = "the disk has become read-only under its file system";

/// Looks at what is mounted at exactly `path`.
pub async fn stats(host: &dyn Host, wanted: &StatsRequest) -> Result<Stats, Error> {
    let path = host.resolve(&wanted.path).await?;
    let staging = match &wanted.staging {
        Some(staging) => Some(host.resolve(staging).await?),
        None => None,
    };
    let paths = (path.as_path(), staging.as_deref());
    Ok(match mounted::look(host, &wanted.volume, paths).await? {
        Found::Gone => Stats {
            room: Room::Unknown,
            trouble: Some(GONE),
        },
        Found::Raw(disk) => Stats {
            room: Room::Device(disk.size.get()),
            trouble: None,
        },
        Found::Filesystem { mount, disk } => Stats {
            room: Room::Filesystem(host.usage(&path).await?),
            trouble: trouble(&mount, &disk),
        },
    })
}

/// What is wrong with a file system. One that was mounted read-only on purpose has a read-only mount, too.
fn trouble(mount: &Mount, disk: &Disk) -> Option<&'static str> {
    if mount.has_stopped() {
        Some(READ_ONLY)
    } else if mount.has_option("ro") {
        None
    } else if mount.filesystem_is_read_only() {
        Some(READ_ONLY)
    } else {
        (disk.access == Access::ReadOnly).then_some(DISK_READ_ONLY)
    }
}

/// Whether a disk may be the volume's: the former driver's disks carry the name of their slot.
pub(crate) fn is_of(disk: &Disk, volume: &VolumeId) -> bool {
    disk.has(Wwn::of(volume)) || disk.slot_made_name().is_some()
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
