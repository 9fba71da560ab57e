//! NodeGetVolumeStats: how full a volume is, and whether it is well.

use std::path::Path;

use pve_model::volume_id::VolumeId;
use pve_model::wwn::Wwn;

use crate::error::Error;
use crate::host::{Disk, Host, PathKind, Usage};
use crate::mountinfo::{self, Mount};
use crate::stage::EXT4;

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

/// Looks at what is mounted at exactly `path`.
pub async fn stats(host: &dyn Host, volume: &VolumeId, path: &Path) -> Result<Stats, Error> {
    let path = host.resolve(path).await?;
    let mounts = host.mounts().await?;
    let mount = mountinfo::at(&mounts, &path)
        .last()
        .copied()
        .ok_or(Error::VolumeNotFound)?;
    let disks = host.disks().await?;
    if mount.kind == EXT4 && mount.root == Path::new("/") {
        return filesystem(host, (volume, &path), mount, &disks).await;
    }
    let PathKind::Device(number) = host.kind(&path).await? else {
        return Err(Error::VolumeNotFound);
    };
    match disks.iter().find(|disk| disk.number == number) {
        Some(disk) if is_of(disk, volume) => Ok(Stats {
            room: Room::Device(disk.size.get()),
            trouble: None,
        }),
        Some(_) => Err(Error::VolumeNotFound),
        None => Ok(gone()),
    }
}

async fn filesystem(
    host: &dyn Host,
    (volume, path): (&VolumeId, &Path),
    mount: &Mount,
    disks: &[Disk],
) -> Result<Stats, Error> {
    match disks.iter().find(|disk| disk.number == mount.number) {
        None => Ok(gone()),
        Some(disk) if !is_of(disk, volume) => Err(Error::VolumeNotFound),
        Some(_) => Ok(Stats {
            room: Room::Filesystem(host.usage(path).await?),
            // A file system that was mounted read-only on purpose has a read-only mount, too.
            trouble: (mount.filesystem_is_read_only() && !mount.has_option("ro"))
                .then_some(READ_ONLY),
        }),
    }
}

fn gone() -> Stats {
    Stats {
        room: Room::Unknown,
        trouble: Some(GONE),
    }
}

/// The former driver's disks carry the name of their slot.
pub(crate) fn is_of(disk: &Disk, volume: &VolumeId) -> bool {
    disk.has(Wwn::of(volume)) || disk.has_slot_made_name()
}
