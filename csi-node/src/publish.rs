//! NodePublish and NodeUnpublish: the staged volume at the place of one Pod.
//!
//! Guarantees: after success the target shows exactly this volume, with the access that was asked for; nothing that
//! was there before is covered or deleted; Unpublish unmounts only what is the
//! volume's, and removes only what is empty.
//! Assumptions: the caller holds the volume's lock until the returned future ends.

use std::path::{Path, PathBuf};

use pve_model::volume_id::VolumeId;
use pve_model::wwn::Wwn;
use tokio::time::Instant;

use crate::device::{self, VerifiedDevice, Wanted};
use crate::error::{Error, Unfit};
use crate::filesystem;
use crate::host::{Access, DeviceNumber, Disk, Host, HostError, MountPlan, PathKind, Unmount};
use crate::mounted;
use crate::mountinfo::{self, Mount};
use crate::mountopts::per_mount_flags;
use crate::place::{self, wrong_path};
use crate::stage::{foreign, is_whole, not_mounted, not_raw};
use crate::unmount;

/// NodePublishVolume, checked.
#[derive(Debug, Clone)]
pub struct PublishRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// Which disk.
    pub wanted: Wanted,
    /// Where it is staged; absolute.
    pub staging: PathBuf,
    /// Where it is to be; absolute.
    pub target: PathBuf,
    /// How it is used.
    pub usage: PublishUsage,
    /// What the Pod may do.
    pub access: Access,
    /// Whether other Pods may have it at the same time.
    pub places: Places,
}

/// At how many targets of this machine a volume may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// `SINGLE_NODE_SINGLE_WRITER`, Kubernetes' `ReadWriteOncePod` (CSI 1.12, "NodePublishVolume").
    One,
    /// Any number.
    Any,
}

/// How a volume is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishUsage {
    /// As a raw device.
    Block,
    /// As a file system.
    Mount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    Bind,
    MakeReadOnly,
}

/// Shows the volume at the target.
pub async fn publish(host: &dyn Host, request: &PublishRequest) -> Result<(), Error> {
    let device = device::find(host, request.wanted, Instant::now()).await?;
    let target = place::resolve(host, &request.target).await?;
    let staging = place::resolve(host, &request.staging).await?;
    place::apart(&staging, &target)?;
    match request.usage {
        PublishUsage::Mount => publish_mount(host, request, &device, (&staging, &target)).await,
        PublishUsage::Block => publish_block(host, request, &device, &target).await,
    }
}

/// Takes away what is mounted at exactly this path, and the empty directory or file that it was mounted on.
pub async fn unpublish(host: &dyn Host, volume: &VolumeId, target: &Path) -> Result<(), Error> {
    let target = place::resolve(host, target).await?;
    let bound = bound_disk(host, volume, &target).await?;
    unmount::all(host, volume, &target).await?;
    match host.kind(&target).await? {
        PathKind::Missing => {}
        PathKind::Directory => remove_directory(host, &target).await?,
        PathKind::File(0) => host.remove_file(&target).await?,
        PathKind::File(_) => return Err(Error::NotEmpty { path: target }),
        PathKind::Device(_) | PathKind::Other => {
            return Err(wrong_path(&target, "no mount point", "a mount point"));
        }
    }
    match bound {
        Some(disk) if disk.access == Access::ReadOnly => release_read_only(host, &disk).await,
        Some(_) | None => Ok(()),
    }
}

// === file systems ===

async fn publish_mount(
    host: &dyn Host,
    request: &PublishRequest,
    device: &VerifiedDevice,
    (staging, target): (&Path, &Path),
) -> Result<(), Error> {
    let mounts = host.mounts().await?;
    let number = device.device().disk.number;
    let staged = staged_mount(&mounts, staging, number, request.access)?;
    let keep = per_mount_flags(staged);
    let step = decide(
        &mountinfo::at(&mounts, target),
        target,
        number,
        request.access,
    )?;
    if step == Step::Done {
        return Ok(());
    }
    if step == Step::Bind {
        let elsewhere = |mount: &&Mount| {
            is_whole(mount, number)
                && mount.point != staging
                && place::is_inside(host.kubelet_dir(), &mount.point)
        };
        let other = mounts.iter().find(elsewhere);
        alone(request.places, other.map(|mount| &mount.point))?;
        not_raw(host, &mounts, device).await?;
        place::outside_volumes(host, &mounts, target).await?;
        place::ensure_directory(host, target).await?;
        let plan = MountPlan::Bind {
            source: staging.to_owned(),
            target: target.to_owned(),
        };
        host.mount(plan).await?;
    }
    if step == Step::MakeReadOnly || (step, request.access) == (Step::Bind, Access::ReadOnly) {
        let plan = MountPlan::ReadOnlyBind {
            target: target.to_owned(),
            keep,
        };
        if let Err(error) = host.mount(plan).await {
            return Err(undone(host, target, error.into()).await.after_mount());
        }
    }
    let confirmed = confirm(host, target, number, request.access).await;
    confirmed.map_err(Error::after_mount)
}

/// Whether the target shows the device as it was asked for; anything else there came by our bind and goes again.
async fn confirm(
    host: &dyn Host,
    target: &Path,
    number: DeviceNumber,
    access: Access,
) -> Result<(), Error> {
    let after = host.mounts().await?;
    let here = mountinfo::at(&after, target);
    match decide(&here, target, number, access) {
        Ok(Step::Done) => Ok(()),
        Ok(Step::Bind) => Err(Error::NotStaged {
            path: target.to_owned(),
        }),
        Ok(Step::MakeReadOnly) => {
            let error = Error::PublishedOtherwise {
                path: target.to_owned(),
                how: "for writing",
            };
            Err(undone(host, target, error).await)
        }
        Err(error) => Err(undone(host, target, error).await),
    }
}

/// `error`, once the bind at the target is gone, or why it is not.
async fn undone(host: &dyn Host, target: &Path, error: Error) -> Error {
    match host.unmount(target, Unmount::Clean).await {
        Ok(()) => error,
        Err(stays) => stays.into(),
    }
}

fn alone(places: Places, elsewhere: Option<&PathBuf>) -> Result<(), Error> {
    match (places, elsewhere) {
        (Places::One, Some(path)) => Err(Error::PublishedElsewhere { path: path.clone() }),
        (Places::One, None) | (Places::Any, _) => Ok(()),
    }
}

/// The staging mount, which must be of this very device and writable if the Pod is to write.
fn staged_mount<'a>(
    mounts: &'a [Mount],
    staging: &Path,
    number: DeviceNumber,
    access: Access,
) -> Result<&'a Mount, Error> {
    let top = mountinfo::at(mounts, staging).last().copied();
    let top = top.ok_or_else(|| Error::NotStaged {
        path: staging.to_owned(),
    })?;
    if !is_whole(top, number) {
        return Err(foreign(top));
    }
    if access == Access::ReadWrite && top.is_read_only() {
        return Err(Error::ReadOnlyAfterErrors {
            path: staging.to_owned(),
        });
    }
    Ok(top)
}

fn decide(
    here: &[&Mount],
    target: &Path,
    number: DeviceNumber,
    access: Access,
) -> Result<Step, Error> {
    if let Some(other) = here.iter().find(|mount| !is_whole(mount, number)) {
        return Err(foreign(other));
    }
    match (here.last(), access) {
        (None, _) => Ok(Step::Bind),
        (Some(top), Access::ReadOnly) if top.is_read_only() => Ok(Step::Done),
        // The plugin died between the bind and its being made read-only.
        (Some(_), Access::ReadOnly) => Ok(Step::MakeReadOnly),
        (Some(top), Access::ReadWrite) if top.is_read_only() => Err(Error::PublishedOtherwise {
            path: target.to_owned(),
            how: "read-only",
        }),
        (Some(_), Access::ReadWrite) => Ok(Step::Done),
    }
}

async fn remove_directory(host: &dyn Host, target: &Path) -> Result<(), Error> {
    let not_empty = |error: &HostError| error.errno() == Some(nix::errno::Errno::ENOTEMPTY as i32);
    match host.remove_dir(target).await {
        Err(error) if not_empty(&error) => Err(Error::NotEmpty {
            path: target.to_owned(),
        }),
        other => Ok(other?),
    }
}

// === raw devices ===

async fn publish_block(
    host: &dyn Host,
    request: &PublishRequest,
    device: &VerifiedDevice,
    target: &Path,
) -> Result<(), Error> {
    device.trust(request.wanted)?;
    let mounts = host.mounts().await?;
    let number = device.device().disk.number;
    let kind = host.kind(target).await?;
    let bound = match (kind, mountinfo::at(&mounts, target).last()) {
        (PathKind::Device(found), Some(_)) if found == number => true,
        (_, Some(other)) => return Err(foreign(other)),
        (PathKind::File(0) | PathKind::Missing, None) => false,
        (PathKind::File(_), None) => {
            return Err(wrong_path(target, "a file with content", "a new file"));
        }
        (PathKind::Directory, None) => return Err(wrong_path(target, "a directory", "a file")),
        (PathKind::Device(_), None) => return Err(wrong_path(target, "a device", "a file")),
        (PathKind::Other, None) => return Err(wrong_path(target, "a link or the like", "a file")),
    };
    if !bound {
        not_mounted(&mounts, device)?;
        place::outside_volumes(host, &mounts, target).await?;
    }
    if request.places == Places::One && !bound {
        let elsewhere =
            mounted::raw_elsewhere(host, &mounts, &device.device().disk, target).await?;
        alone(request.places, elsewhere.as_ref())?;
    }
    set_access(host, request.access, device, (&mounts, target)).await?;
    if bound {
        return Ok(());
    }
    if kind == PathKind::Missing {
        host.create_file(target).await?;
    }
    let plan = MountPlan::Bind {
        source: device.device().path.clone(),
        target: target.to_owned(),
    };
    host.mount(plan).await?;
    let error = match host.kind(target).await {
        Ok(PathKind::Device(found)) if found == number => return Ok(()),
        Ok(_) => undone(host, target, device.unfit(Unfit::Changed)).await,
        Err(error) => error.into(),
    };
    Err(error.after_mount())
}

/// Read-only is a property of the whole device: all Pods that have it must want the same.
async fn set_access(
    host: &dyn Host,
    access: Access,
    device: &VerifiedDevice,
    (mounts, target): (&[Mount], &Path),
) -> Result<(), Error> {
    if device.access() == access {
        return Ok(());
    }
    if let Some(other) = mounted::raw_elsewhere(host, mounts, &device.device().disk, target).await?
    {
        let how = match access {
            Access::ReadOnly => "for writing",
            Access::ReadWrite => "read-only",
        };
        return Err(Error::PublishedOtherwise { path: other, how });
    }
    filesystem::switch(host, &device.device().path, access).await
}

/// The volume's disk, if its device is bound at the target.
async fn bound_disk(
    host: &dyn Host,
    volume: &VolumeId,
    target: &Path,
) -> Result<Option<Disk>, Error> {
    if mountinfo::at(&host.mounts().await?, target).is_empty() {
        return Ok(None);
    }
    let PathKind::Device(number) = host.kind(target).await? else {
        return Ok(None);
    };
    let own = Wwn::of(volume);
    let mut disks = host.disks().await?.into_iter();
    Ok(disks.find(|disk| disk.number == number && disk.has(own)))
}

/// Undoes what a read-only publish did, once nobody has the device any more.
async fn release_read_only(host: &dyn Host, disk: &Disk) -> Result<(), Error> {
    let mounts = host.mounts().await?;
    if mounted::raw_elsewhere(host, &mounts, disk, Path::new(""))
        .await?
        .is_some()
    {
        return Ok(());
    }
    let device = host.open(disk).await?;
    filesystem::switch(host, &device.path, Access::ReadWrite).await
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
