//! What is on a device, and making, checking and mounting ext4: the programs' arguments and exit codes.
//!
//! Guarantees: a file system is made on a device only if all of it that was looked at could be read and is zero, and
//! blkid knows nothing on it; or if it carries our own mark that formatting had begun, and no signature but ext4's.
//! Assumptions: a new disk reads as zeros (thin LVM, ZFS, Ceph, sparse files).
//!
//! The mark: `mkfs.ext4` writes its superblock last, so a device on which it was interrupted is neither blank nor a
//! file system, and would be refused for ever. Before it runs, a block near the end, where it does not write, gets a
//! text with the volume's WWN; it is zeroed before the first mount. So the mark means "never mounted yet".

use std::time::Duration;

use pve_model::size::Bytes;
use pve_model::wwn::Wwn;

use crate::device::VerifiedDevice;
use crate::error::{Error, Unfit};
use crate::host::{Access, BLOCK, Device, Host, Span, Tool, ToolOutput};

/// Wide enough for every signature that has a fixed place, for ext4's first inode tables and for LVM's metadata.
const HEAD: u64 = 16 << 20;
/// RAID superblocks, backup GPT, ZFS labels.
const TAIL: u64 = 1 << 20;
const PROBES: u64 = 64;
const PROBE: u64 = 64 << 10;
/// Distance of the mark from the end. `mke2fs` zeroes up to the last 128 KiB (places of RAID superblocks).
const MARK_FROM_END: u64 = 512 << 10;
const MARK_LEAST_DISK: u64 = 16 << 20;

/// Probing reads some dozens of blocks.
const PROBE_LIMIT: Duration = Duration::from_mins(1);
/// Making a file system, or growing one, writes its tables only.
const MAKE_LIMIT: Duration = Duration::from_mins(30);
/// A check replays a journal at most, or walks the whole file system after an error: hours, for a big one, and it would
/// begin anew if it were ended while it repairs. The RPC does not wait as long.
const CHECK_LIMIT: Duration = Duration::from_hours(24);

/// What is on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing, proved.
    Blank,
    /// ext4, mountable or not.
    Ext4 {
        /// Whether it has been mounted by us.
        mark: Mark,
    },
    /// Our mark and no signature: the plugin or the machine died while formatting.
    FormatInterrupted,
    /// Anything else, in words.
    Foreign(String),
}

/// Whether the device says that it has never been mounted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It does.
    Present,
    /// It does not.
    Absent,
}

/// How to make a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FormatOptions {
    /// `-b`, bytes.
    pub block_size: Option<u32>,
    /// `-I`, bytes.
    pub inode_size: Option<u32>,
}

/// Looks at a device that nothing uses.
pub async fn inspect(host: &dyn Host, device: &VerifiedDevice, wwn: Wwn) -> Result<Content, Error> {
    let path = device.device().path.display().to_string();
    let args = ["-p", "-o", "export", path.as_str()].map(str::to_owned);
    let output = host.run(Tool::Blkid, args.into(), PROBE_LIMIT).await?;
    let signature = signature(&output)?;
    let mark = read_mark(host, device, wwn).await?;
    match (signature, mark) {
        (Some(Signature::Ext4), mark) => Ok(Content::Ext4 { mark }),
        (Some(Signature::Other(what)), _) => Ok(Content::Foreign(what)),
        (None, Mark::Present) => Ok(Content::FormatInterrupted),
        // blkid says "nothing" of what it can't read, too.
        (None, Mark::Absent) => {
            let spans = spans(device.device().size);
            match host.first_nonzero(device.device(), spans).await? {
                None => Ok(Content::Blank),
                Some(offset) => Ok(Content::Foreign(format!("unknown data near byte {offset}"))),
            }
        }
    }
}

/// Makes ext4 on a device whose content was found to be [`Content::Blank`] or [`Content::FormatInterrupted`],
/// or an ext4 with the mark that can't be repaired.
pub async fn format(
    host: &dyn Host,
    device: &VerifiedDevice,
    wwn: Wwn,
    options: FormatOptions,
) -> Result<(), Error> {
    if let Some(offset) = mark_offset(device.device().size) {
        host.write_block(device.device(), offset, mark_text(wwn))
            .await?;
    }
    let path = device.device().path.display().to_string();
    let output = host
        .run(Tool::MkfsExt4, mkfs_args(&path, options), MAKE_LIMIT)
        .await?;
    match output.code {
        Some(0) => Ok(()),
        _ => Err(failed(Tool::MkfsExt4, &output)),
    }
}

/// Repairs what can be repaired without a decision (`e2fsck -p`), everything of it while the mark is there.
pub async fn check(host: &dyn Host, device: &VerifiedDevice, mark: Mark) -> Result<(), Error> {
    let path = device.device().path.display().to_string();
    let mut args = vec!["-p".to_owned()];
    if mark == Mark::Present {
        args.push("-f".to_owned());
    }
    args.push(path);
    let output = host.run(Tool::E2fsck, args, CHECK_LIMIT).await?;
    check_outcome(&device.device().disk.name, &output)
}

/// Grows an ext4 to the end of its device, through the mount that it has (`resize2fs`, exit code 0 or not). One that
/// is not mounted after all has to be checked first, and is left as it is.
pub async fn grow(host: &dyn Host, device: &Device) -> Result<(), Error> {
    let args = vec![device.path.display().to_string()];
    let output = host.run(Tool::Resize2fs, args, MAKE_LIMIT).await?;
    match output.code {
        Some(0) => Ok(()),
        _ => Err(failed(Tool::Resize2fs, &output)),
    }
}

/// Zeroes the mark. To be done, and to reach the medium, before the first mount.
pub async fn clear_mark(host: &dyn Host, device: &VerifiedDevice, wwn: Wwn) -> Result<(), Error> {
    let Some(offset) = mark_offset(device.device().size) else {
        return Ok(());
    };
    if read_mark(host, device, wwn).await? == Mark::Present {
        host.write_block(device.device(), offset, vec![0; BLOCK])
            .await?;
    }
    match read_mark(host, device, wwn).await? {
        Mark::Absent => Ok(()),
        Mark::Present => Err(device.unfit(Unfit::Changed)),
    }
}

/// Switches a raw block volume to read-only or back (`blockdev`, exit code 0 or not).
pub async fn switch(
    host: &dyn Host,
    device: &std::path::Path,
    access: Access,
) -> Result<(), Error> {
    let flag = match access {
        Access::ReadOnly => "--setro",
        Access::ReadWrite => "--setrw",
    };
    let args = vec![flag.to_owned(), device.display().to_string()];
    let output = host.run(Tool::Blockdev, args, PROBE_LIMIT).await?;
    match output.code {
        Some(0) => Ok(()),
        _ => Err(failed(Tool::Blockdev, &output)),
    }
}

async fn read_mark(host: &dyn Host, device: &VerifiedDevice, wwn: Wwn) -> Result<Mark, Error> {
    let Some(offset) = mark_offset(device.device().size) else {
        return Ok(Mark::Absent);
    };
    let found = host.read_block(device.device(), offset).await?;
    Ok(if found == mark_text(wwn) {
        Mark::Present
    } else {
        Mark::Absent
    })
}

fn mark_offset(size: Bytes) -> Option<u64> {
    let block = u64::try_from(BLOCK).ok()?;
    (size.get() >= MARK_LEAST_DISK).then(|| (size.get() - MARK_FROM_END) / block * block)
}

fn mark_text(wwn: Wwn) -> Vec<u8> {
    let mut block =
        format!("pve-csi-node: ext4 is being made on {wwn}, never mounted yet\n").into_bytes();
    block.resize(BLOCK, 0);
    block
}

/// Head, tail, and probes at even distances between them.
fn spans(size: Bytes) -> Vec<Span> {
    let size = size.get();
    if size <= HEAD + TAIL + PROBES * PROBE {
        return vec![Span {
            offset: 0,
            length: size,
        }];
    }
    let step = (size - HEAD - TAIL) / PROBES / PROBE * PROBE;
    let probes = (0..PROBES).map(|index| Span {
        offset: HEAD + index * step,
        length: PROBE,
    });
    // Direct reads begin at a whole block; the tail may be a little longer for it.
    let tail = (size - TAIL) / PROBE * PROBE;
    let ends = [
        Span {
            offset: 0,
            length: HEAD,
        },
        Span {
            offset: tail,
            length: size - tail,
        },
    ];
    ends.into_iter().chain(probes).collect()
}

fn mkfs_args(path: &str, options: FormatOptions) -> Vec<String> {
    // -m0: no blocks for root only. nodiscard: the disk is blank.
    let mut args = ["-q", "-m0", "-E", "nodiscard"].map(str::to_owned).to_vec();
    let sizes = [("-b", options.block_size), ("-I", options.inode_size)];
    for (flag, size) in sizes {
        if let Some(size) = size {
            args.extend([flag.to_owned(), size.to_string()]);
        }
    }
    args.push(path.to_owned());
    args
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Signature {
    Ext4,
    Other(String),
}

/// Exit codes of `blkid -p`: 0 found, 2 nothing found or unreadable, 8 several things found (blkid(8)).
fn signature(output: &ToolOutput) -> Result<Option<Signature>, Error> {
    match output.code {
        Some(0) => Ok(Some(found(&output.stdout))),
        Some(2) => Ok(None),
        Some(8) => Ok(Some(Signature::Other(
            "signatures of several kinds".to_owned(),
        ))),
        _ => Err(failed(Tool::Blkid, output)),
    }
}

fn found(export: &str) -> Signature {
    let value = |key: &str| {
        export
            .lines()
            .filter_map(|line| line.split_once('='))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    };
    match (value("TYPE"), value("PTTYPE")) {
        (Some("ext4"), None) => Signature::Ext4,
        (Some(kind), _) => Signature::Other(format!("signature of {}", word(kind))),
        (None, Some(kind)) => Signature::Other(format!("partition table of kind {}", word(kind))),
        (None, None) => Signature::Other("an unknown signature".to_owned()),
    }
}

fn word(text: &str) -> String {
    text.chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        .take(32)
        .collect()
}

/// Exit codes of `e2fsck`: a sum of 1 repaired, 2 repaired and the machine should be rebooted (it concerns mounted
/// file systems only), 4 errors left, 8 operational error, 16 usage, 32 cancelled, 128 library (e2fsck(8)).
fn check_outcome(disk: &str, output: &ToolOutput) -> Result<(), Error> {
    match output.code {
        Some(0..=3) => Ok(()),
        Some(code) if (4..=7).contains(&code) => Err(Error::FilesystemDamaged {
            disk: disk.to_owned(),
            said: said(output),
        }),
        _ => Err(failed(Tool::E2fsck, output)),
    }
}

fn failed(tool: Tool, output: &ToolOutput) -> Error {
    Error::Tool {
        tool,
        code: output.code.map_or_else(
            || "killed by a signal".to_owned(),
            |code| format!("exit code {code}"),
        ),
        said: said(output),
    }
}

/// The last line that a program wrote, for a message.
fn said(output: &ToolOutput) -> String {
    let mut lines = output
        .stdout
        .lines()
        .chain(output.stderr.lines())
        .map(str::trim);
    let last = lines.rfind(|line| !line.is_empty());
    last.unwrap_or("it said nothing")
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect()
}

#[cfg(test)]
#[path = "filesystem_tests.rs"]
mod tests;
