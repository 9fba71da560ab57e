//! What of a volume is at a path that the kubelet names, and whether it is the volume's at all.
//!
//! Guarantees: what is found is mounted at exactly the path, and its disk carries the volume's own name, or a name that
//! the former driver made from a slot and the kubelet's own paths say that this volume is on it.
//! Assumptions: the kubelet stages a file system in `…/<SHA-256 of the handle in hex>/globalmount` and publishes a raw
//! volume at `…/publish/<name of the PV>/<UID of the Pod>` (kubernetes `pkg/volume/csi: makeDeviceMountPath, getPublishPath`).

use std::path::{Path, PathBuf};

use pve_model::volume_id::{DiskName, VolumeId};
use pve_model::wwn::Wwn;

use crate::device;
use crate::error::Error;
use crate::host::{DeviceNumber, Disk, Host, PathKind};
use crate::mountinfo::{self, Mount};
use crate::place;
use crate::stage::EXT4;

/// What is mounted at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The volume's file system.
    Filesystem {
        /// How it is mounted.
        mount: Mount,
        /// What it is on.
        disk: Disk,
    },
    /// The volume as a raw device.
    Raw(Disk),
    /// A disk that is no more.
    Gone,
}

/// Looks at exactly `path`, which is resolved. Nothing there, or something that is not proved to be the volume, is
/// [`Error::VolumeNotFound`]. Where a staging path is said, a file system has to be staged there; a raw volume has nothing
/// at it.
pub async fn look(
    host: &dyn Host,
    volume: &VolumeId,
    (path, staging): (&Path, Option<&Path>),
) -> Result<Found, Error> {
    let mounts = host.mounts().await?;
    let top = mountinfo::at(&mounts, path).last().copied();
    let mount = top.ok_or(Error::VolumeNotFound)?;
    let disks = host.disks().await?;
    let whole = mount.kind == EXT4 && mount.root == Path::new("/");
    let number = if whole {
        mount.number
    } else {
        match host.kind(path).await? {
            PathKind::Device(number) => number,
            PathKind::Missing | PathKind::Directory | PathKind::File(_) | PathKind::Other => {
                return Err(Error::VolumeNotFound);
            }
        }
    };
    let staged = |staging: &Path| {
        let top = mountinfo::at(&mounts, staging).last().copied();
        top.is_some_and(|top| top.number == number)
    };
    if whole && !staging.is_none_or(staged) {
        return Err(Error::VolumeNotFound);
    }
    let Some(disk) = disks.iter().find(|disk| disk.number == number) else {
        return Ok(Found::Gone);
    };
    let kept_for = if whole {
        is_staged_on(&mounts, host.kubelet_dir(), (volume, number))
    } else {
        is_raw_target(volume, path)
    };
    if !speaks_for(disk, &disks, volume, kept_for)? {
        return Err(Error::VolumeNotFound);
    }
    let disk = disk.clone();
    Ok(if whole {
        Found::Filesystem {
            mount: mount.clone(),
            disk,
        }
    } else {
        Found::Raw(disk)
    })
}

/// Whether the disk's name says that it is the volume's. One that came from a slot says so only together with what the
/// kubelet keeps there, and not while another disk has the volume's own name.
fn speaks_for(
    disk: &Disk,
    disks: &[Disk],
    volume: &VolumeId,
    kept_for: bool,
) -> Result<bool, Error> {
    let own = Wwn::of(volume);
    let owner = device::only(disks.to_vec(), own)?;
    match (owner, disk.slot_made_name()) {
        (Some(owner), _) => Ok(owner.number == disk.number),
        (None, Some(name)) => Ok(kept_for && device::only(disks.to_vec(), name)?.is_some()),
        (None, None) => Ok(false),
    }
}

/// Whether the kubelet's staging path of this very volume has the device.
fn is_staged_on(
    mounts: &[Mount],
    root: &Path,
    (volume, number): (&VolumeId, DeviceNumber),
) -> bool {
    let staged = |mount: &Mount| {
        mount.number == number
            && place::is_inside(root, &mount.point)
            && mount.point.ends_with("globalmount")
            && name_above(&mount.point).is_some_and(|name| is_digest_of(volume, name))
    };
    mounts.iter().any(staged)
}

/// The volume's own WWN has the first 60 bits of the digest.
fn is_digest_of(volume: &VolumeId, hex: &str) -> bool {
    let own = Wwn::of(volume).to_string();
    let head = own.strip_prefix("0x5");
    hex.len() == 64 && head.is_some_and(|head| hex.starts_with(head))
}

fn name_above(path: &Path) -> Option<&str> {
    path.parent()?.file_name()?.to_str()
}

/// Whether the path is one where the kubelet publishes this very volume as a raw device. The name of its disk ends with
/// that of its PV, unless it came from elsewhere: then nothing says so.
fn is_raw_target(volume: &VolumeId, path: &Path) -> bool {
    let disk = &volume.disk;
    let own = |name: &str| DiskName::for_volume(disk.owner(), name, disk.format()) == *disk;
    let published = path.parent().and_then(name_above) == Some("publish");
    published && name_above(path).is_some_and(own)
}

/// A place inside the kubelet's root, other than `except`, where the disk is bound as a raw device.
pub(crate) async fn raw_elsewhere(
    host: &dyn Host,
    mounts: &[Mount],
    disk: &Disk,
    except: &Path,
) -> Result<Option<PathBuf>, Error> {
    let named = |mount: &&Mount| {
        mount.point != except
            && mount.root.file_name() == Some(disk.name.as_ref())
            && place::is_inside(host.kubelet_dir(), &mount.point)
    };
    for mount in mounts.iter().filter(named) {
        if host.kind(&mount.point).await? == PathKind::Device(disk.number) {
            return Ok(Some(mount.point.clone()));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[path = "mounted_tests.rs"]
mod tests;
