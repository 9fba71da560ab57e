//! NodeExpandVolume: the file system of a volume whose disk has grown, grown too while it is in use.
//!
//! Guarantees: after success the disk has the size that was asked for, and the file system, if there is one, has been
//! read to fill it. A file system that can't be grown now is left as it is, and nothing is unmounted.
//! Assumptions: the caller holds the volume's lock until the returned future ends.
//!
//! The kubelet takes `FAILED_PRECONDITION` as "not while it is mounted": it goes on with the mount and asks again at the
//! next one, whose Stage repairs the file system. `INVALID_ARGUMENT`, `OUT_OF_RANGE` and `NOT_FOUND` give the expansion
//! up for good (kubernetes `pkg/volume/csi/expander.go`), so they are not for what may change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pve_model::size::Bytes;
use pve_model::volume_id::VolumeId;
use pve_model::wwn::Wwn;
use tokio::time::Instant;

use crate::error::{Error, Unfit};
use crate::ext4::Superblock;
use crate::filesystem;
use crate::host::{Device, Disk, Host};
use crate::mounted::{self, Found};
use crate::mountinfo::Mount;
use crate::place::{self, wrong_path};

/// The controller has seen the new size on Proxmox VE; QEMU tells the guest within milliseconds.
const GROWS_WITHIN: Duration = Duration::from_secs(20);
const FIRST_LOOK: Duration = Duration::from_millis(50);
const SLOWEST_LOOK: Duration = Duration::from_secs(1);

/// NodeExpandVolume, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// Where it is, staged or published; absolute.
    pub path: PathBuf,
    /// Where it is staged, if that is said; absolute.
    pub staging: Option<PathBuf>,
    /// The size that it has to have; none: the one that its disk has.
    pub required: Option<Bytes>,
    /// The size that it may have at most.
    pub limit: Option<Bytes>,
    /// What the kubelet takes it for, if it says so.
    pub usage: Option<ExpandUsage>,
}

/// How a volume is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpandUsage {
    /// As a raw device.
    Block,
    /// As a file system.
    Mount,
}

/// Grows what is at the path, and answers the size of the disk.
pub async fn expand(host: &dyn Host, request: &ExpandRequest) -> Result<Bytes, Error> {
    let path = place::resolve(host, &request.path).await?;
    let staging = match &request.staging {
        Some(staging) => Some(place::resolve(host, staging).await?),
        None => None,
    };
    let paths = (path.as_path(), staging.as_deref());
    let (disk, mount) = match mounted::look(host, &request.volume, paths).await {
        Ok(Found::Filesystem { mount, disk }) => (disk, Some(mount)),
        Ok(Found::Raw(disk)) => (disk, None),
        Ok(Found::Gone) => {
            return Err(Error::DeviceMissing {
                wwn: Wwn::of(&request.volume),
                waited: Duration::ZERO,
            });
        }
        // It may be there in a moment, or be on its way out: nothing that is final.
        Err(Error::VolumeNotFound) => return Err(Error::NotMounted { path }),
        Err(error) => return Err(error),
    };
    agree(request.usage, mount.as_ref(), &path)?;
    let device = grown(host, disk, request.required).await?;
    if let Some(limit) = request.limit.filter(|limit| device.size > *limit) {
        return Err(Error::OverLimit {
            found: device.size,
            limit,
        });
    }
    if let Some(mount) = mount {
        fill(host, &device, &mount).await?;
    }
    Ok(device.size)
}

/// What is there decides; a request that takes it for something else is about something else.
fn agree(wanted: Option<ExpandUsage>, found: Option<&Mount>, path: &Path) -> Result<(), Error> {
    match (wanted, found) {
        (Some(ExpandUsage::Block), Some(_)) => {
            Err(wrong_path(path, "a file system", "a raw device"))
        }
        (Some(ExpandUsage::Mount), None) => Err(wrong_path(path, "a raw device", "a file system")),
        (None | Some(ExpandUsage::Mount), Some(_)) | (None | Some(ExpandUsage::Block), None) => {
            Ok(())
        }
    }
}

/// Waits until the kernel knows the disk's new size.
async fn grown(host: &dyn Host, disk: Disk, required: Option<Bytes>) -> Result<Device, Error> {
    let start = Instant::now();
    let mut pause = FIRST_LOOK;
    loop {
        let known = again(host, &disk).await?.size;
        if required.is_none_or(|required| known < required)
            && let Err(error) = host.rescan(&disk).await
        {
            // Most disks tell their size by themselves; the wait shows whether this one does.
            tracing::warn!(%error, disk = disk.name, "a disk cannot be asked for its size");
        }
        let now = again(host, &disk).await?;
        let found = now.size;
        if required.is_none_or(|required| found >= required) {
            let device = host.open(&now).await?;
            if device.size == found {
                return Ok(device);
            }
        }
        if start.elapsed() + pause > GROWS_WITHIN {
            return Err(Error::StillSmall {
                disk: disk.name,
                found,
                wanted: required.unwrap_or(found),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(SLOWEST_LOOK);
    }
}

/// The same disk as it is now.
async fn again(host: &dyn Host, disk: &Disk) -> Result<Disk, Error> {
    let same = |now: &Disk| {
        (&now.name, now.number, &now.wwid, &now.serial)
            == (&disk.name, disk.number, &disk.wwid, &disk.serial)
    };
    let mut disks = host.disks().await?.into_iter();
    disks.find(same).ok_or_else(|| Error::DeviceUnfit {
        disk: disk.name.clone(),
        why: Unfit::Changed,
    })
}

/// Grows a mounted ext4 to the end of its device.
async fn fill(host: &dyn Host, device: &Device, mount: &Mount) -> Result<(), Error> {
    let before = superblock(host, device).await?;
    if before.fills(device.size) {
        return Ok(());
    }
    let refused = |why| Error::CannotGrow {
        path: mount.point.clone(),
        why,
    };
    if mount.filesystem_is_read_only() {
        return Err(refused("it is read-only"));
    }
    if before.has_errors() {
        return Err(refused(
            "errors have been found in it, and only a check before the next mount repairs them",
        ));
    }
    filesystem::grow(host, device).await?;
    let after = superblock(host, device).await?;
    if after.fills(device.size) {
        return Ok(());
    }
    Err(Error::NotFilled {
        disk: device.disk.name.clone(),
        found: after.size(),
        wanted: device.size,
    })
}

async fn superblock(host: &dyn Host, device: &Device) -> Result<Superblock, Error> {
    let head = host.cached_head(device).await?;
    Superblock::parse(&head).ok_or_else(|| Error::DeviceUnfit {
        disk: device.disk.name.clone(),
        why: Unfit::NoExt4,
    })
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
