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

/// Every parameter with what reads it. The words after `Err` complete "must be …".
const KNOWN: [(&str, Setter); 14] = [
    ("storage", |p, v| {
        v.parse()
            .map(|s| p.storage = Some(s))
            .map_err(|_| "the id of a PVE storage")
    }),
    ("storageFormat", |p, v| {
        format(v).map(|f| p.format = Some(f))
    }),
    ("cache", |p, v| {
        v.parse()
            .map(|c| p.cache = Some(c))
            .map_err(|()| "one of directsync, none, unsafe, writeback, writethrough")
    }),
    ("aio", |p, v| {
        v.parse()
            .map(|a| p.aio = Some(a))
            .map_err(|()| "one of io_uring, native, threads")
    }),
    ("ssd", |p, v| boolean(v).map(|b| p.ssd = b)),
    ("backup", |p, v| boolean(v).map(|b| p.backup = b)),
    ("iothread", |p, v| boolean(v).map(|b| p.iothread = Some(b))),
    ("diskIOPS", |p, v| positive(v).map(|n| p.iops = Some(n))),
    ("diskMBps", |p, v| positive(v).map(|n| p.mbps = Some(n))),
    ("blockSize", |p, v| {
        power_of_two(v).map(|n| p.block_size = Some(n))
    }),
    ("inodeSize", |p, v| {
        power_of_two(v).map(|n| p.inode_size = Some(n))
    }),
    ("replicate", |_, v| {
        boolean(v).and_then(|on| if on { Err("false") } else { Ok(()) })
    }),
    ("replicateSchedule", |_, _| Ok(())),
    ("replicateZones", |_, _| Ok(())),
];

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
            let Some((key, set)) = KNOWN.iter().find(|(known, _)| known == key) else {
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
            match KNOWN.iter().find(|(known, _)| known == key) {
                Some((key, _)) if REPLICATION.contains(key) => ignored += 1,
                Some((key, set)) => {
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

fn nearest(key: &str) -> &'static str {
    KNOWN
        .iter()
        .map(|(known, _)| *known)
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
