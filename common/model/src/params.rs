//! `StorageClass` parameters and the volume context that is made of them.
//!
//! Strict where a user can still correct them (Create), lenient where a PV exists already: other provisioners and
//! former versions have added keys of their own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use crate::ids::StorageId;
use crate::volume_id::DiskFormat;

/// Keys that Kubernetes' sidecars add; they are no parameters of the driver.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// Keys of former versions whose default may be repeated; anything else that they asked for is not offered.
const REPLICATION: [&str; 3] = ["replicate", "replicateSchedule", "replicateZones"];

/// Why parameters were refused. The text is written for the person who wrote the `StorageClass`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// No such parameter.
    #[error("unknown parameter {key:?}; the nearest known one is {nearest:?}")]
    Unknown {
        /// What was given.
        key: String,
        /// What may have been meant.
        nearest: &'static str,
    },
    /// A required parameter is not there.
    #[error("parameter {0:?} is required")]
    Missing(&'static str),
    /// The value is not of the parameter's grammar.
    #[error("parameter {key:?} must be {expected}")]
    Invalid {
        /// The parameter.
        key: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// The feature is not offered.
    #[error("parameter {0:?} asks for replication, which this driver does not offer")]
    Replication(&'static str),
}

macro_rules! word_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// The word in PVE's drive string.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl FromStr for $name {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                match text { $($word => Ok(Self::$variant),)+ _ => Err(()) }
            }
        }
    };
}

word_enum!(
    /// `cache=` of a drive.
    CacheMode {
        /// Host page cache bypassed, writes synchronous.
        DirectSync = "directsync",
        /// Host page cache bypassed (PVE's default).
        None = "none",
        /// Flushes are ignored: data is lost when the host dies.
        Unsafe = "unsafe",
        /// Host page cache for writes.
        WriteBack = "writeback",
        /// Host page cache for reads.
        WriteThrough = "writethrough",
    }
);
word_enum!(
    /// `aio=` of a drive.
    AioMode {
        /// Linux `io_uring` (PVE's default).
        IoUring = "io_uring",
        /// Linux AIO.
        Native = "native",
        /// A pool of threads.
        Threads = "threads",
    }
);

/// What a `StorageClass` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parameters {
    /// `storage`: where the disk is made. Always there at Create.
    pub storage: Option<StorageId>,
    /// `storageFormat`: `raw` or `qcow2`, on file storages.
    pub format: Option<DiskFormat>,
    /// `cache`.
    pub cache: Option<CacheMode>,
    /// `aio`.
    pub aio: Option<AioMode>,
    /// `ssd`: tell the guest that the disk does not rotate, and pass discards on.
    pub ssd: bool,
    /// `backup`: let PVE's backup of the VM include the disk.
    pub backup: bool,
    /// `iothread`: true unless told otherwise.
    pub iothread: Option<bool>,
    /// `diskIOPS`: reads and writes per second, each.
    pub iops: Option<u32>,
    /// `diskMBps`: MB per second read and written, each.
    pub mbps: Option<u32>,
    /// `blockSize`: bytes, for mkfs.
    pub block_size: Option<u32>,
    /// `inodeSize`: bytes, for mkfs.
    pub inode_size: Option<u32>,
}

type Setter = fn(&mut Parameters, &str) -> Result<(), &'static str>;

/// One parameter: its key, what reads it, and what people are told of it.
struct Known {
    key: &'static str,
    /// The words after `Err` complete "must be …".
    set: Setter,
    absent: &'static str,
    meaning: &'static str,
}

/// What the reference says of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Documented {
    /// As it is written in a `StorageClass`.
    pub key: &'static str,
    /// Completes "must be …", as a refusal says it.
    pub grammar: &'static str,
    /// What holds without it.
    pub absent: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

const fn known(
    key: &'static str,
    set: Setter,
    absent: &'static str,
    meaning: &'static str,
) -> Known {
    Known {
        key,
        set,
        absent,
        meaning,
    }
}

const FORMER: &str = "of the former driver; only its default passes";

/// Every parameter.
#[rustfmt::skip]
static KNOWN: [Known; 14] = [
    known("storage", |p, v| v.parse().map(|s| p.storage = Some(s)).map_err(|_| "the id of a PVE storage"),
        "required", "where disks are made"),
    known("storageFormat", |p, v| format(v).map(|f| p.format = Some(f)),
        "raw", "format of a disk on a storage of files"),
    known("cache", |p, v| v.parse().map(|c| p.cache = Some(c)).map_err(|()| "one of directsync, none, unsafe, writeback, writethrough"),
        "PVE's: none", "`cache` of the drive; with `unsafe` data is lost when the host dies"),
    known("aio", |p, v| v.parse().map(|a| p.aio = Some(a)).map_err(|()| "one of io_uring, native, threads"),
        "PVE's: io_uring", "`aio` of the drive"),
    known("ssd", |p, v| boolean(v).map(|b| p.ssd = b),
        "false", "the guest is told that the disk does not rotate, and its discards are passed on"),
    known("backup", |p, v| boolean(v).map(|b| p.backup = b),
        "false", "PVE's backup of the VM includes the disk"),
    known("iothread", |p, v| boolean(v).map(|b| p.iothread = Some(b)),
        "true", "the disk has a thread of its own; only with `virtio-scsi-single`"),
    known("diskIOPS", |p, v| positive(v).map(|n| p.iops = Some(n)),
        "no bound", "reads per second, and writes per second; the operator's ceiling holds all the same"),
    known("diskMBps", |p, v| positive(v).map(|n| p.mbps = Some(n)),
        "no bound", "MB per second read, and written; the operator's ceiling holds all the same"),
    known("blockSize", |p, v| power_of_two(v).map(|n| p.block_size = Some(n)),
        "that of mkfs", "bytes of a block of the file system"),
    known("inodeSize", |p, v| power_of_two(v).map(|n| p.inode_size = Some(n)),
        "that of mkfs", "bytes of an inode of the file system"),
    known("replicate", |_, v| boolean(v).and_then(|on| if on { Err("false") } else { Ok(()) }), "false", FORMER),
    known("replicateSchedule", |_, _| Ok(()), "", FORMER),
    known("replicateZones", |_, _| Ok(()), "", FORMER),
];

/// Every parameter, in the order of the reference.
pub fn documented() -> impl Iterator<Item = Documented> {
    KNOWN.iter().map(|known| Documented {
        key: known.key,
        // No parameter takes a control character.
        grammar: match (known.set)(&mut Parameters::default(), "\0") {
            _ if REPLICATION.contains(&known.key) => "empty or false",
            Ok(()) => "anything",
            Err(grammar) => grammar,
        },
        absent: known.absent,
        meaning: known.meaning,
    })
}

fn format(value: &str) -> Result<DiskFormat, &'static str> {
    match value {
        "raw" => Ok(DiskFormat::Raw),
        "qcow2" => Ok(DiskFormat::Qcow2),
        _ => Err("one of raw, qcow2"),
    }
}

fn boolean(value: &str) -> Result<bool, &'static str> {
    value.parse().map_err(|_| "true or false")
}

fn positive(value: &str) -> Result<u32, &'static str> {
    value
        .parse()
        .ok()
        .filter(|n| *n > 0)
        .ok_or("a whole number above 0")
}

fn power_of_two(value: &str) -> Result<u32, &'static str> {
    value
        .parse::<u32>()
        .ok()
        .filter(|n| n.is_power_of_two())
        .ok_or("a power of two")
}

impl Parameters {
    /// Reads the parameters of CreateVolume: every key must be known, every value of its grammar, `storage` there.
    pub fn strict(map: &HashMap<String, String>) -> Result<Self, ParameterError> {
        let mut parameters = Self::default();
        // In order, so that the same mistake gives the same message.
        for (key, value) in map.iter().collect::<BTreeMap<_, _>>() {
            if key.starts_with(SIDECAR_PREFIX) {
                continue;
            }
            let Some(Known { key, set, .. }) = find(key) else {
                return Err(ParameterError::Unknown {
                    key: printable(key),
                    nearest: nearest(key),
                });
            };
            if REPLICATION.contains(key) && !matches!(value.as_str(), "" | "false") {
                return Err(ParameterError::Replication(key));
            }
            set(&mut parameters, value)
                .map_err(|expected| ParameterError::Invalid { key, expected })?;
        }
        if parameters.storage.is_none() {
            return Err(ParameterError::Missing("storage"));
        }
        Ok(parameters)
    }

    /// Reads the volume context of an existing PV: unknown keys are ignored and counted, values are held to their
    /// grammar all the same.
    pub fn lenient(map: &HashMap<String, String>) -> Result<(Self, usize), ParameterError> {
        let mut parameters = Self::default();
        let mut ignored = 0;
        for (key, value) in map.iter().collect::<BTreeMap<_, _>>() {
            match find(key) {
                Some(Known { key, .. }) if REPLICATION.contains(key) => ignored += 1,
                Some(Known { key, set, .. }) => {
                    set(&mut parameters, value)
                        .map_err(|expected| ParameterError::Invalid { key, expected })?;
                }
                None => ignored += 1,
            }
        }
        Ok((parameters, ignored))
    }
}

/// A key as it may be shown: short, and no control characters.
fn printable(key: &str) -> String {
    key.chars().filter(|c| !c.is_control()).take(64).collect()
}

fn find(key: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.key == key)
}

fn nearest(key: &str) -> &'static str {
    KNOWN
        .iter()
        .map(|known| known.key)
        .min_by_key(|known| distance(key, known))
        .unwrap_or("storage")
}

/// Levenshtein distance, letters compared without case.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.to_lowercase().chars().take(64).enumerate() {
        let mut diagonal = i;
        let mut before = i + 1;
        for (cell, b) in row.iter_mut().skip(1).zip(&right) {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = *cell;
            *cell = substituted.min(diagonal + 1).min(before + 1);
            before = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

impl fmt::Display for DiskFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
