//! Opening, reading and writing block devices.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};
use pve_model::size::Bytes;

use super::io;
use crate::host::{BLOCK, Claim, Device, DeviceNumber, Disk, HostError, Span};

const CHUNK: usize = 1 << 20;

/// Opens the node, makes sure that it is the disk's, and measures the device.
pub(super) fn open(path: PathBuf, disk: Disk) -> Result<Device, HostError> {
    let mut file = open_with(&path, OFlag::empty(), Mode::Read)?;
    is_of(&file, &path, disk.number)?;
    let size = file.seek(SeekFrom::End(0)).map_err(io("measure", &path))?;
    Ok(Device {
        path,
        disk,
        size: Bytes::new(size),
        hold: Some(Arc::new(file)),
    })
}

/// An exclusive open of a block device succeeds only while nothing in the kernel has claimed it: not a mount in any
/// mount namespace, device mapper, RAID or swap (kernel `block/bdev.c: bd_prepare_to_claim`).
pub(super) fn claim(device: &Device) -> Result<Claim, HostError> {
    match open_with(&device.path, OFlag::O_EXCL, Mode::Read) {
        Ok(file) => is_of(&file, &device.path, device.disk.number).map(|()| Claim::Free),
        Err(error) if error.errno() == Some(Errno::EBUSY as i32) => Ok(Claim::Taken),
        Err(error) => Err(error),
    }
}

pub(super) fn first_nonzero(device: &Device, spans: &[Span]) -> Result<Option<u64>, HostError> {
    let mut file = open_direct(device, Mode::Read)?;
    for span in spans {
        let mut offset = span.offset;
        let end = span.offset.saturating_add(span.length);
        while offset < end {
            let length = usize::try_from(end - offset).map_or(CHUNK, |left| left.min(CHUNK));
            if read_at(&mut file, &device.path, offset, length)?
                .iter()
                .any(|byte| *byte != 0)
            {
                return Ok(Some(offset));
            }
            offset = offset.saturating_add(length as u64);
        }
    }
    Ok(None)
}

pub(super) fn read_block(device: &Device, offset: u64) -> Result<Vec<u8>, HostError> {
    let mut file = open_direct(device, Mode::Read)?;
    read_at(&mut file, &device.path, offset, BLOCK)
}

/// Through the page cache, in which ext4 keeps its superblock while it is mounted.
pub(super) fn cached_head(device: &Device) -> Result<Vec<u8>, HostError> {
    let mut file = open_with(&device.path, OFlag::empty(), Mode::Read)?;
    is_of(&file, &device.path, device.disk.number)?;
    read_at(&mut file, &device.path, 0, BLOCK)
}

pub(super) fn write_block(device: &Device, offset: u64, block: &[u8]) -> Result<(), HostError> {
    let path = &device.path;
    let mut file = open_direct(device, Mode::Write)?;
    let (mut room, start) = aligned(block.len());
    let target = room
        .get_mut(start..start + block.len())
        .ok_or(HostError::Lost { doing: "write" })?;
    target.copy_from_slice(block);
    file.seek(SeekFrom::Start(offset))
        .map_err(io("seek in", path))?;
    file.write_all(target).map_err(io("write", path))?;
    file.sync_all().map_err(io("flush", path))
}

/// Bypasses the page cache where the device can: what is read is what the medium has.
fn open_direct(device: &Device, mode: Mode) -> Result<File, HostError> {
    let file = match open_with(&device.path, OFlag::O_DIRECT, mode) {
        Err(error) if error.errno() == Some(Errno::EINVAL as i32) => {
            open_with(&device.path, OFlag::empty(), mode)?
        }
        other => other?,
    };
    is_of(&file, &device.path, device.disk.number)?;
    Ok(file)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

fn open_with(path: &Path, flags: OFlag, mode: Mode) -> Result<File, HostError> {
    OpenOptions::new()
        .read(true)
        .write(mode == Mode::Write)
        .custom_flags((flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).bits())
        .open(path)
        .map_err(io("open", path))
}

fn is_of(file: &File, path: &Path, number: DeviceNumber) -> Result<(), HostError> {
    let metadata = file.metadata().map_err(io("look at", path))?;
    let found = DeviceNumber {
        major: major(metadata.rdev()),
        minor: minor(metadata.rdev()),
    };
    if metadata.file_type().is_block_device() && found == number {
        return Ok(());
    }
    Err(HostError::WrongNode {
        path: path.to_owned(),
        number,
    })
}

fn read_at(file: &mut File, path: &Path, offset: u64, length: usize) -> Result<Vec<u8>, HostError> {
    let (mut room, start) = aligned(length);
    let target = room
        .get_mut(start..start + length)
        .ok_or(HostError::Lost { doing: "read" })?;
    file.seek(SeekFrom::Start(offset))
        .map_err(io("seek in", path))?;
    file.read_exact(target).map_err(io("read", path))?;
    Ok(target.to_vec())
}

/// Room for `length` bytes at an address that suits direct I/O, and where in it they begin.
fn aligned(length: usize) -> (Vec<u8>, usize) {
    let room = vec![0; length + BLOCK];
    let start = room.as_ptr().align_offset(BLOCK);
    (room, start)
}
