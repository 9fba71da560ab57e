//! What the node plugin needs from the machine: the one seam between its decisions and the kernel.
//!
//! It knows disks, paths, mounts and programs; it knows no volume and no RPC. Each method does one thing and tells
//! what happened; whether that is good is decided elsewhere. A method returns when the kernel does, so a caller must
//! own its locks for as long.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::mount::MsFlags;
use pve_model::size::Bytes;
use pve_model::wwn::Wwn;

pub use crate::device_number::DeviceNumber;
pub use crate::host_error::HostError;
use crate::mountinfo::Mount;

/// Reads and writes of [`Host::read_block`] and [`Host::write_block`] are of this length and alignment, which
/// every logical block size divides.
pub const BLOCK: usize = 4096;

/// How sysfs writes the kind of a WWN before its digits.
const NAA: &str = "naa.";

/// A whole disk as sysfs shows it (`/sys/block/<name>`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// `sdb`.
    pub name: String,
    /// `dev`.
    pub number: DeviceNumber,
    /// `device/wwid`; many disks have none.
    pub wwid: Option<String>,
    /// `serial`, which disks of the virtio bus have instead.
    pub serial: Option<String>,
    /// `size`, which sysfs counts in 512 bytes whatever the disk's block size.
    pub size: Bytes,
    /// `ro`.
    pub access: Access,
    /// Names below `holders/`: device mapper and RAID devices made of it.
    pub holders: Vec<String>,
    /// Its partitions that the kernel knows.
    pub partitions: Vec<String>,
    /// `queue/rotational`.
    pub medium: Medium,
}

/// Whether something may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    ReadWrite,
    /// Read only.
    ReadOnly,
}

/// What a disk says of its medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A spinning disk, or one that says nothing.
    Rotating,
    /// An SSD.
    Solid,
}

/// A disk with the device node through which it is used. While it is kept, the kernel gives the device number to
/// no other disk.
#[derive(Debug, Clone)]
pub struct Device {
    /// `/dev/sdb`.
    pub path: PathBuf,
    /// What sysfs said.
    pub disk: Disk,
    /// Length that the open device has.
    pub size: Bytes,
    /// Keeps the device open.
    pub hold: Option<Arc<std::fs::File>>,
}

/// Whether anything in the kernel has the device for itself: a file system mounted in any mount namespace, device
/// mapper, swap, RAID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Nothing has.
    Free,
    /// Something has.
    Taken,
}

/// A stretch of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// What lies at a path, links not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing.
    Missing,
    /// A directory.
    Directory,
    /// A regular file of that many bytes.
    File(u64),
    /// A block device.
    Device(DeviceNumber),
    /// A link, a socket or the like.
    Other,
}

/// A mount to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountPlan {
    /// A file system from a device.
    Filesystem {
        /// The device's node.
        device: PathBuf,
        /// Where.
        target: PathBuf,
        /// The kernel's name of the file system.
        kind: &'static str,
        /// Flags of mount(2).
        flags: MsFlags,
        /// Options of the file system, divided by commas.
        data: String,
    },
    /// The same tree or file a second time.
    Bind {
        /// What.
        source: PathBuf,
        /// Where.
        target: PathBuf,
    },
    /// Make one mount of a file system read-only and leave its others as they are.
    ReadOnlyBind {
        /// Where.
        target: PathBuf,
        /// Per-mount flags that it has and keeps.
        keep: MsFlags,
    },
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only when nothing uses it.
    Clean,
    /// Out of sight now, gone when its last user is: for a file system whose device is no more.
    Detach,
}

/// A program that the plugin runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tool {
    /// util-linux: what is on a device.
    Blkid,
    /// util-linux: the read-only switch of a device.
    Blockdev,
    /// e2fsprogs: check and repair.
    E2fsck,
    /// e2fsprogs: make a file system.
    MkfsExt4,
    /// e2fsprogs: grow a file system, mounted or not.
    Resize2fs,
}

/// What a program said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    /// Exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Standard output, capped.
    pub stdout: String,
    /// Standard error, capped.
    pub stderr: String,
}

/// Room of a file system, or size of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in all, of which `used` and `available` (to ordinary users).
    pub bytes: Amount,
    /// The same for inodes.
    pub inodes: Amount,
}

/// A counted resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// All there is.
    pub total: u64,
    /// In use.
    pub used: u64,
    /// Free for ordinary users.
    pub available: u64,
}

/// The machine.
#[async_trait]
pub trait Host: fmt::Debug + Send + Sync + 'static {
    /// All whole disks.
    async fn disks(&self) -> Result<Vec<Disk>, HostError>;
    /// Whether there is a block device of this number; partitions are, too.
    async fn has_device(&self, number: DeviceNumber) -> Result<bool, HostError>;
    /// Has the kernel ask the disk for its size once more. Disks that tell it by themselves have no way to be asked.
    async fn rescan(&self, disk: &Disk) -> Result<(), HostError>;
    /// The kubelet's root, resolved.
    fn kubelet_dir(&self) -> &Path;
    /// Opens the disk's device node and makes sure that it is that disk's.
    async fn open(&self, disk: &Disk) -> Result<Device, HostError>;
    /// Whether the device is in use.
    async fn claim(&self, device: &Device) -> Result<Claim, HostError>;
    /// Reads all of `spans` from the medium and answers the offset of a block that is not zero, if there is one.
    /// An unreadable block is an error.
    async fn first_nonzero(
        &self,
        device: &Device,
        spans: Vec<Span>,
    ) -> Result<Option<u64>, HostError>;
    /// Reads [`BLOCK`] bytes at a multiple of it.
    async fn read_block(&self, device: &Device, offset: u64) -> Result<Vec<u8>, HostError>;
    /// The first [`BLOCK`] bytes as a mounted file system has them: what it has written may not be on the medium yet.
    async fn cached_head(&self, device: &Device) -> Result<Vec<u8>, HostError>;
    /// Writes [`BLOCK`] bytes at a multiple of it, to the medium.
    async fn write_block(
        &self,
        device: &Device,
        offset: u64,
        block: Vec<u8>,
    ) -> Result<(), HostError>;
    /// Runs a program without input until it ends, or kills it after `limit`.
    async fn run(
        &self,
        tool: Tool,
        args: Vec<String>,
        limit: Duration,
    ) -> Result<ToolOutput, HostError>;
    /// The mount table.
    async fn mounts(&self) -> Result<Vec<Mount>, HostError>;
    /// Mounts.
    async fn mount(&self, plan: MountPlan) -> Result<(), HostError>;
    /// Writes out all that the file system at `path` still has in memory (syncfs).
    async fn sync(&self, path: &Path) -> Result<(), HostError>;
    /// Unmounts what is on top at `path`; links are not followed.
    async fn unmount(&self, path: &Path, how: Unmount) -> Result<(), HostError>;
    /// The path with all links on the way to it resolved, as the mount table has it.
    async fn resolve(&self, path: &Path) -> Result<PathBuf, HostError>;
    /// What lies there.
    async fn kind(&self, path: &Path) -> Result<PathKind, HostError>;
    /// Whether a directory has no entries.
    async fn is_empty(&self, path: &Path) -> Result<bool, HostError>;
    /// Makes a directory whose parent exists.
    async fn create_dir(&self, path: &Path) -> Result<(), HostError>;
    /// Makes an empty file where nothing is.
    async fn create_file(&self, path: &Path) -> Result<(), HostError>;
    /// Removes an empty directory.
    async fn remove_dir(&self, path: &Path) -> Result<(), HostError>;
    /// Removes a file.
    async fn remove_file(&self, path: &Path) -> Result<(), HostError>;
    /// Room of the file system at `path` (statvfs).
    async fn usage(&self, path: &Path) -> Result<Usage, HostError>;
    /// The VM's UUID as its firmware says it.
    async fn firmware_uuid(&self) -> Result<String, HostError>;
}

// === impl Disk ===

impl Disk {
    /// Whether the disk carries this name. On the virtio bus, which knows no WWN, its digits are the serial number.
    pub fn has(&self, wwn: Wwn) -> bool {
        let wwid = wwn.sysfs_wwid();
        let digits = wwid.strip_prefix(NAA);
        self.wwid.as_ref() == Some(&wwid) || self.serial.as_deref() == digits
    }

    /// Its name, if it is one that the former driver made from a slot.
    pub fn slot_made_name(&self) -> Option<Wwn> {
        let hex = self.wwid.as_deref()?.strip_prefix(NAA)?;
        format!("0x{hex}")
            .parse()
            .ok()
            .filter(|name: &Wwn| name.is_slot_made())
    }

    /// Whether its name is of the form that volumes' disks have. One that nobody gave a name has none.
    pub fn is_named_as_a_volume(&self) -> bool {
        let wwid = self.wwid.as_deref().and_then(|wwid| wwid.strip_prefix(NAA));
        let is_name = |hex: &str| format!("0x{hex}").parse::<Wwn>().is_ok() && hex.starts_with('5');
        [wwid, self.serial.as_deref()]
            .into_iter()
            .flatten()
            .any(is_name)
    }
}

// === impl Tool ===

impl Tool {
    /// The program's name.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Blkid => "blkid",
            Self::Blockdev => "blockdev",
            Self::E2fsck => "e2fsck",
            Self::MkfsExt4 => "mkfs.ext4",
            Self::Resize2fs => "resize2fs",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}
