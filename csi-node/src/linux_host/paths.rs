//! Paths, mounts and file systems.

use std::fs::{DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags};
use nix::sys::stat::{major, minor};

use super::io;
use crate::host::{Amount, DeviceNumber, HostError, MountPlan, PathKind, Unmount, Usage};

const STEADY_TRIES: usize = 5;

/// Reads a file of the kernel that may change between two reads of it, until two readings agree.
pub(super) fn read_steady(path: &Path) -> Result<Vec<u8>, HostError> {
    let read = || std::fs::read(path).map_err(io("read", path));
    let mut before = read()?;
    for _ in 0..STEADY_TRIES {
        let after = read()?;
        if before == after {
            break;
        }
        before = after;
    }
    Ok(before)
}

pub(super) fn mount(plan: &MountPlan) -> Result<(), HostError> {
    let none: Option<&str> = None;
    match plan {
        MountPlan::Filesystem {
            device,
            target,
            kind,
            flags,
            data,
        } => nix::mount::mount(
            Some(device),
            target,
            Some(*kind),
            *flags,
            Some(data.as_str()),
        )
        .map_err(io("mount on", target)),
        MountPlan::Bind { source, target } => {
            nix::mount::mount(Some(source), target, none, MsFlags::MS_BIND, none)
                .map_err(io("bind to", target))
        }
        MountPlan::ReadOnlyBind { target, keep } => {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | *keep;
            nix::mount::mount(none, target, none, flags, none).map_err(io("make read-only", target))
        }
    }
}

pub(super) fn sync(path: &Path) -> Result<(), HostError> {
    let folder = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).bits())
        .open(path)
        .map_err(io("open", path))?;
    nix::unistd::syncfs(folder).map_err(io("write out", path))
}

pub(super) fn unmount(path: &Path, how: Unmount) -> Result<(), HostError> {
    let flags = match how {
        Unmount::Clean => MntFlags::UMOUNT_NOFOLLOW,
        Unmount::Detach => MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH,
    };
    nix::mount::umount2(path, flags).map_err(io("unmount", path))
}

/// Not the last part: it may be a mount whose device is dead. What is missing can't be a link.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, HostError> {
    for folder in path.ancestors().skip(1) {
        match std::fs::canonicalize(folder) {
            Ok(real) => {
                return Ok(real.join(path.strip_prefix(folder).unwrap_or(path)));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io("resolve", folder)(error)),
        }
    }
    Ok(path.to_owned())
}

pub(super) fn kind(path: &Path) -> Result<PathKind, HostError> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(PathKind::Missing),
        Err(error) => return Err(io("look at", path)(error)),
    };
    let kind = metadata.file_type();
    Ok(if kind.is_dir() {
        PathKind::Directory
    } else if kind.is_file() {
        PathKind::File(metadata.len())
    } else if kind.is_block_device() {
        PathKind::Device(DeviceNumber {
            major: major(metadata.rdev()),
            minor: minor(metadata.rdev()),
        })
    } else {
        PathKind::Other
    })
}

pub(super) fn create_dir(path: &Path) -> Result<(), HostError> {
    DirBuilder::new()
        .mode(0o750)
        .create(path)
        .map_err(io("create", path))
}

pub(super) fn create_file(path: &Path) -> Result<(), HostError> {
    let options = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(path);
    options.map(drop).map_err(io("create", path))
}

pub(super) fn usage(path: &Path) -> Result<Usage, HostError> {
    let room = nix::sys::statvfs::statvfs(path).map_err(io("measure", path))?;
    let unit = room.fragment_size();
    let bytes = |count: u64| count.saturating_mul(unit);
    Ok(Usage {
        bytes: Amount {
            total: bytes(room.blocks()),
            used: bytes(room.blocks().saturating_sub(room.blocks_free())),
            available: bytes(room.blocks_available()),
        },
        inodes: Amount {
            total: room.files(),
            used: room.files().saturating_sub(room.files_free()),
            available: room.files_available(),
        },
    })
}
