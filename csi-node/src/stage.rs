//! NodeStage and NodeUnstage: a volume's file system at its one place on this machine.
//!
//! Guarantees: after success the file system of exactly this volume's disk is mounted at exactly this path; a
//! device is formatted only as [`crate::filesystem`] allows; a foreign mount is never covered nor taken away;
//! Unstage writes nothing on a device of its own, and after its success nothing on this machine has the file system.
//! A file system that is smaller than its device stays so: the kubelet asks for its growth after the stage.
//! Assumptions: the caller holds the volume's lock until the returned future ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pve_model::volume_id::VolumeId;
use pve_model::wwn::Wwn;
use tokio::time::Instant;

use crate::device::{self, VerifiedDevice, Wanted};
use crate::error::{Error, Unfit};
use crate::filesystem::{self, Content, FormatOptions, Mark};
use crate::host::{Access, Claim, DeviceNumber, Host, MountPlan, Unmount};
use crate::mounted;
use crate::mountinfo::{self, Mount};
use crate::mountopts::MountOptions;
use crate::place;
use crate::unmount::{self, Owner};

/// The only file system so far.
pub const EXT4: &str = "ext4";

/// A disk shows up in the guest within a second of being plugged; the controller has seen it in QEMU before.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);

/// NodeStageVolume, checked.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// Which disk.
    pub wanted: Wanted,
    /// Where; absolute.
    pub staging: PathBuf,
    /// How it is used.
    pub usage: StageUsage,
}

/// How a volume is used.
#[derive(Debug, Clone)]
pub enum StageUsage {
    /// As a raw device: there is nothing to mount.
    Block,
    /// As a file system.
    Mount {
        /// Options of the mount.
        options: MountOptions,
        /// Options of a new file system.
        format: FormatOptions,
    },
}

/// What is to be done about the staging path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is mounted as it should be.
    Done,
    /// Nothing is mounted there.
    Mount,
    /// Ours, read-only after errors, and nobody else has it: unmount, repair, mount.
    Renew,
}

/// Makes the volume ready on this machine.
pub async fn stage(host: &dyn Host, request: &StageRequest) -> Result<(), Error> {
    let device = device::find(host, request.wanted, Instant::now() + APPEARS_WITHIN).await?;
    let StageUsage::Mount { options, format } = &request.usage else {
        device.trust(request.wanted)?;
        return not_mounted(&host.mounts().await?, &device);
    };
    let staging = place::resolve(host, &request.staging).await?;
    unmount::dead(host, &request.volume, &staging).await?;
    let mounts = host.mounts().await?;
    let paths = (staging.as_path(), host.kubelet_dir());
    match decide(&mounts, paths, &device, options.access())? {
        Step::Done => return Ok(()),
        Step::Mount => {
            not_raw(host, &mounts, &device).await?;
            place::outside_volumes(host, &mounts, &staging).await?;
            place::ensure_directory(host, &staging).await?;
        }
        Step::Renew => unmount::all(host, &request.volume, &staging).await?,
    }
    prepare(host, &device, request.wanted, (options, *format)).await?;
    mount(host, &device, &staging, options).await
}

/// Unmounts what of the volume is mounted at exactly this path. Nothing mounted there is success, and the path stays.
///
/// What else has the volume's disk then, as a mount namespace that was copied from ours while the volume was staged,
/// is an error: success lets the controller take the disk away, and PVE asks nobody.
pub async fn unstage(host: &dyn Host, volume: &VolumeId, staging: &Path) -> Result<(), Error> {
    let staging = place::resolve(host, staging).await?;
    let mounts = host.mounts().await?;
    let top = mountinfo::at(&mounts, &staging).last().copied();
    if let Some(top) = top
        && unmount::owner(host, volume, top).await? == Owner::Volume
    {
        // Before anything is unmounted: by the mount a disk is known whose name comes from a slot.
        if let Some(other) = elsewhere(&mounts, top.number, (&staging, host.kubelet_dir())) {
            return Err(in_use(other));
        }
        write_out(host, top).await;
    }
    unmount::all(host, volume, &staging).await?;
    released(host, volume, top.map(|top| top.number)).await
}

/// Refuses a device to who wants it raw while a file system on it is mounted.
pub(crate) fn not_mounted(mounts: &[Mount], device: &VerifiedDevice) -> Result<(), Error> {
    let number = device.device().disk.number;
    match mounts.iter().find(|mount| mount.number == number) {
        Some(mount) => Err(device.unfit(Unfit::MountedAt(mount.point.clone()))),
        None => Ok(()),
    }
}

/// Refuses a device to who wants to mount it while it is published raw.
pub(crate) async fn not_raw(
    host: &dyn Host,
    mounts: &[Mount],
    device: &VerifiedDevice,
) -> Result<(), Error> {
    let disk = &device.device().disk;
    match mounted::raw_elsewhere(host, mounts, disk, Path::new("")).await? {
        Some(path) => Err(device.unfit(Unfit::RawAt(path))),
        None => Ok(()),
    }
}

/// A mount of the device inside the kubelet's root that is not at `except`.
fn elsewhere<'a>(
    mounts: &'a [Mount],
    number: DeviceNumber,
    (except, root): (&Path, &Path),
) -> Option<&'a Mount> {
    let other = |mount: &&Mount| {
        mount.number == number && mount.point != except && place::is_inside(root, &mount.point)
    };
    mounts.iter().find(other)
}

fn in_use(mount: &Mount) -> Error {
    Error::InUse {
        path: mount.point.clone(),
    }
}

/// An unmount writes a file system out only if it was its last mount.
async fn write_out(host: &dyn Host, mount: &Mount) {
    if let Err(error) = host.sync(&mount.point).await {
        // So it answers for ever once it has stopped writing after errors: unmounting is all that is left to do.
        tracing::warn!(%error, "a file system that is to be unmounted cannot be written out");
    }
}

/// Whether nothing on this machine has the volume's disk any more.
async fn released(
    host: &dyn Host,
    volume: &VolumeId,
    was_mounted: Option<DeviceNumber>,
) -> Result<(), Error> {
    let own = Wwn::of(volume);
    let mounts = host.mounts().await?;
    let mut disks = host.disks().await?;
    disks.retain(|disk| disk.has(own) || Some(disk.number) == was_mounted);
    for disk in disks {
        if let Some(other) = mounts.iter().find(|mount| mount.number == disk.number) {
            return Err(in_use(other));
        }
        let device = match host.open(&disk).await {
            Ok(device) => device,
            // Torn out, and sysfs is late.
            Err(error) if error.says_gone() => continue,
            Err(error) => return Err(error.into()),
        };
        if host.claim(&device).await? == Claim::Taken {
            return Err(Error::StillHeld { disk: disk.name });
        }
    }
    Ok(())
}

/// Whether a mount is the whole file system of this device.
pub(crate) fn is_whole(mount: &Mount, number: DeviceNumber) -> bool {
    mount.number == number && mount.root == Path::new("/") && mount.kind == EXT4
}

pub(crate) fn foreign(mount: &Mount) -> Error {
    Error::ForeignMount {
        path: mount.point.clone(),
        found: format!("{} from device {}", mount.kind, mount.number),
    }
}

fn decide(
    mounts: &[Mount],
    (staging, root): (&Path, &Path),
    device: &VerifiedDevice,
    access: Access,
) -> Result<Step, Error> {
    let number = device.device().disk.number;
    let here = mountinfo::at(mounts, staging);
    if let Some(other) = here.iter().find(|mount| !is_whole(mount, number)) {
        return Err(foreign(other));
    }
    let Some(top) = here.last() else {
        return not_mounted(mounts, device).map(|()| Step::Mount);
    };
    let other = elsewhere(mounts, number, (staging, root));
    match (access, top.filesystem_is_read_only(), other) {
        (Access::ReadWrite, true, None) => Ok(Step::Renew),
        (Access::ReadWrite, true, Some(_)) => Err(Error::ReadOnlyAfterErrors {
            path: staging.to_owned(),
        }),
        (Access::ReadWrite, false, _) | (Access::ReadOnly, ..) => Ok(Step::Done),
    }
}

/// Leaves a file system on the device that can be mounted.
async fn prepare(
    host: &dyn Host,
    device: &VerifiedDevice,
    wanted: Wanted,
    (options, format): (&MountOptions, FormatOptions),
) -> Result<(), Error> {
    if let Some(why) = device.occupation() {
        return Err(device.unfit(why));
    }
    if (device.access(), options.access()) == (Access::ReadOnly, Access::ReadWrite) {
        return Err(device.unfit(Unfit::ReadOnly));
    }
    if host.claim(device.device()).await? == Claim::Taken {
        return Err(device.unfit(Unfit::InUse));
    }
    let content = filesystem::inspect(host, device, wanted.wwn).await?;
    match (content, device.access()) {
        (Content::Foreign(found), _) => Err(Error::NotBlank {
            disk: device.device().disk.name.clone(),
            found,
        }),
        (Content::Ext4 { mark: Mark::Absent }, Access::ReadOnly) => Ok(()),
        (_, Access::ReadOnly) => Err(device.unfit(Unfit::ReadOnly)),
        (Content::Ext4 { mark }, Access::ReadWrite) => {
            match filesystem::check(host, device, mark).await {
                // A machine that dies may have written the superblock and little else; nothing was ever stored.
                Err(Error::FilesystemDamaged { .. }) if mark == Mark::Present => {
                    make(host, device, wanted, format).await
                }
                Err(error) => Err(error),
                Ok(()) => finish(host, device, wanted).await,
            }
        }
        (Content::Blank | Content::FormatInterrupted, Access::ReadWrite) => {
            make(host, device, wanted, format).await
        }
    }
}

async fn make(
    host: &dyn Host,
    device: &VerifiedDevice,
    wanted: Wanted,
    format: FormatOptions,
) -> Result<(), Error> {
    device.trust(wanted)?;
    device.verify_again(host, wanted).await?;
    filesystem::format(host, device, wanted.wwn, format).await?;
    finish(host, device, wanted).await
}

async fn finish(host: &dyn Host, device: &VerifiedDevice, wanted: Wanted) -> Result<(), Error> {
    device.verify_again(host, wanted).await?;
    filesystem::clear_mark(host, device, wanted.wwn).await
}

async fn mount(
    host: &dyn Host,
    device: &VerifiedDevice,
    staging: &Path,
    options: &MountOptions,
) -> Result<(), Error> {
    let disk = &device.device().disk;
    let plan = MountPlan::Filesystem {
        device: device.device().path.clone(),
        target: staging.to_owned(),
        kind: EXT4,
        flags: options.flags(disk.medium),
        data: options.data(),
    };
    host.mount(plan).await?;
    let confirmed = confirm(host, device, staging).await;
    confirmed.map_err(Error::after_mount)
}

/// Whether what has just been mounted is the device; anything else is unmounted again.
async fn confirm(host: &dyn Host, device: &VerifiedDevice, staging: &Path) -> Result<(), Error> {
    let mounts = host.mounts().await?;
    let right = mountinfo::at(&mounts, staging)
        .last()
        .is_some_and(|top| is_whole(top, device.device().disk.number));
    if right {
        return Ok(());
    }
    host.unmount(staging, Unmount::Clean).await?;
    Err(device.unfit(Unfit::Changed))
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
