//! Unmounting everything at one path, also of a device that was taken away.

use std::path::Path;

use crate::error::Error;
use crate::host::{Host, HostError, Unmount};
use crate::mountinfo::{self, Mount};
use crate::stage::EXT4;

/// More mounts than anyone stacks.
const MOST: usize = 64;

/// Unmounts until nothing is mounted at exactly `path`, which is resolved.
pub async fn all(host: &dyn Host, path: &Path) -> Result<(), Error> {
    for _ in 0..MOST {
        let mounts = host.mounts().await?;
        let Some(top) = mountinfo::at(&mounts, path).last().copied().cloned() else {
            return Ok(());
        };
        one(host, &top).await?;
    }
    Err(in_use(path))
}

async fn one(host: &dyn Host, mount: &Mount) -> Result<(), Error> {
    match host.unmount(&mount.point, Unmount::Clean).await {
        Ok(()) => Ok(()),
        Err(error) if is(&error, nix::errno::Errno::EBUSY) => {
            if !device_is_gone(host, mount).await? {
                return Err(in_use(&mount.point));
            }
            Ok(host.unmount(&mount.point, Unmount::Detach).await?)
        }
        // Someone else was quicker.
        Err(error) if is(&error, nix::errno::Errno::EINVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether this is a whole file system of ours whose disk is no more: what holds it open can't use it anyway.
async fn device_is_gone(host: &dyn Host, mount: &Mount) -> Result<bool, Error> {
    if mount.kind != EXT4 || mount.root != Path::new("/") {
        return Ok(false);
    }
    let disks = host.disks().await?;
    Ok(disks.iter().all(|disk| disk.number != mount.number))
}

fn is(error: &HostError, errno: nix::errno::Errno) -> bool {
    error.errno() == Some(errno as i32)
}

fn in_use(path: &Path) -> Error {
    Error::InUse {
        path: path.to_owned(),
    }
}
