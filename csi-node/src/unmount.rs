//! Unmounting all of a volume at one path, also when its disk was taken away.

use std::path::Path;

use pve_model::volume_id::VolumeId;

use crate::error::Error;
use crate::host::{DeviceNumber, Disk, Host, HostError, PathKind, Unmount};
use crate::mountinfo::{self, Mount};
use crate::stage::{EXT4, foreign};
use crate::volume::is_of;

/// More mounts than anyone stacks.
const MOST: usize = 64;

/// Whose a mount is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The volume's, as far as its disk's name says.
    Volume,
    /// A disk's that is no more: what holds it open can't use it anyway.
    Gone,
    /// Somebody else's.
    Other,
}

/// Unmounts until nothing is mounted at exactly `path`, which is resolved. What is not the volume's stays and is an
/// error.
pub async fn all(host: &dyn Host, volume: &VolumeId, path: &Path) -> Result<(), Error> {
    for _ in 0..MOST {
        let mounts = host.mounts().await?;
        let Some(top) = mountinfo::at(&mounts, path).last().copied().cloned() else {
            return Ok(());
        };
        match owner(host, volume, &top).await? {
            Owner::Other => return Err(foreign(&top)),
            owner => one(host, &top, owner).await?,
        }
    }
    Err(in_use(path))
}

/// Unmounts what remains at exactly `path` of disks that were taken away under their mounts.
pub async fn dead(host: &dyn Host, volume: &VolumeId, path: &Path) -> Result<(), Error> {
    for _ in 0..MOST {
        let mounts = host.mounts().await?;
        let Some(top) = mountinfo::at(&mounts, path).last().copied().cloned() else {
            return Ok(());
        };
        match owner(host, volume, &top).await? {
            Owner::Gone => one(host, &top, Owner::Gone).await?,
            Owner::Volume | Owner::Other => return Ok(()),
        }
    }
    Err(in_use(path))
}

async fn one(host: &dyn Host, mount: &Mount, owner: Owner) -> Result<(), Error> {
    match host.unmount(&mount.point, Unmount::Clean).await {
        Ok(()) => Ok(()),
        Err(error) if is(&error, nix::errno::Errno::EBUSY) => {
            if owner != Owner::Gone {
                return Err(in_use(&mount.point));
            }
            Ok(host.unmount(&mount.point, Unmount::Detach).await?)
        }
        // Someone else was quicker.
        Err(error) if is(&error, nix::errno::Errno::EINVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whose a mount is, which is on top at its path.
pub async fn owner(host: &dyn Host, volume: &VolumeId, mount: &Mount) -> Result<Owner, Error> {
    let disks = host.disks().await?;
    let owner = owner_of(host, volume, &disks, mount.number).await?;
    if owner == Owner::Volume || (mount.kind == EXT4 && mount.root == Path::new("/")) {
        return Ok(owner);
    }
    // A raw volume is a bind of its device node, which lies on another file system.
    match host.kind(&mount.point).await? {
        PathKind::Device(number) => owner_of(host, volume, &disks, number).await,
        PathKind::Missing | PathKind::Directory | PathKind::File(_) | PathKind::Other => {
            Ok(Owner::Other)
        }
    }
}

/// Whose a device is.
async fn owner_of(
    host: &dyn Host,
    volume: &VolumeId,
    disks: &[Disk],
    number: DeviceNumber,
) -> Result<Owner, Error> {
    match disks.iter().find(|disk| disk.number == number) {
        Some(disk) if is_of(disk, volume) => Ok(Owner::Volume),
        Some(_) => Ok(Owner::Other),
        None if host.has_device(number).await? => Ok(Owner::Other),
        None => Ok(Owner::Gone),
    }
}

fn is(error: &HostError, errno: nix::errno::Errno) -> bool {
    error.errno() == Some(errno as i32)
}

fn in_use(path: &Path) -> Error {
    Error::InUse {
        path: path.to_owned(),
    }
}
