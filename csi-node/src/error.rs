//! Every way in which an RPC of the node plugin fails, and what the kubelet is told.
//!
//! The kubelet takes `CANCELLED`, `DEADLINE_EXCEEDED`, `UNAVAILABLE` and `ABORTED` of NodeStage and NodePublish as
//! "may have happened" and unmounts before it gives up; any other code means that nothing is mounted
//! (kubernetes `pkg/volume/csi/csi_client.go: isFinalError`).

#![deny(clippy::wildcard_enum_match_arm)]

use std::path::PathBuf;
use std::time::Duration;

use pve_model::size::Bytes;
use pve_model::wwn::Wwn;
use pve_runtime::{CorrelationId, WorkError};
use tonic::{Code, Status};

use crate::host::{HostError, Tool};

/// Why an RPC failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is not of the interface, or asks for what is not offered.
    #[error("{0}")]
    Invalid(String),
    /// Other work on the volume is under way.
    #[error("other work on this volume is under way")]
    Busy,
    /// The work goes on without the caller.
    #[error("still at work after {} s; ask again", .0.as_secs())]
    StillWorking(Duration),
    /// The program ends, or the work ended by a fault of ours.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// No disk of this name, or none with a size, yet.
    #[error("no disk with WWN {wwn} has appeared within {} s", waited.as_secs())]
    DeviceMissing {
        /// The name that was looked for.
        wwn: Wwn,
        /// How long.
        waited: Duration,
    },
    /// Several disks of this name: none of them is proved.
    #[error("{count} disks carry WWN {wwn}: {names}")]
    DeviceAmbiguous {
        /// The name.
        wwn: Wwn,
        /// How many.
        count: usize,
        /// Their names here.
        names: String,
    },
    /// The context names the disk of another volume.
    #[error("the publish context names disk {wwn}, which is not that of this volume")]
    ForeignContext {
        /// The name in the context.
        wwn: Wwn,
    },
    /// The disk is the right one and can't be used.
    #[error("disk {disk} cannot be used: {why}")]
    DeviceUnfit {
        /// Its name here.
        disk: String,
        /// What is wrong.
        why: Unfit,
    },
    /// There is something on the disk that is not ours to overwrite.
    #[error(
        "disk {disk} is not blank and carries no file system that can be mounted: {found}; it is left as it is"
    )]
    NotBlank {
        /// Its name here.
        disk: String,
        /// What was found.
        found: String,
    },
    /// The file system could not be repaired without a decision by a person.
    #[error("the file system on disk {disk} needs a check by hand: {said}")]
    FilesystemDamaged {
        /// Its name here.
        disk: String,
        /// What the check said.
        said: String,
    },
    /// Something else is mounted there.
    #[error("{path} is the mount point of something else ({found})", path = path.display())]
    ForeignMount {
        /// Where.
        path: PathBuf,
        /// What.
        found: String,
    },
    /// What is at the path is not what is needed there.
    #[error("{path} is {found}, {wanted} is needed", path = path.display())]
    WrongPath {
        /// Where.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// There is something in it.
    #[error("{path} is not empty and is left as it is", path = path.display())]
    NotEmpty {
        /// Where.
        path: PathBuf,
    },
    /// Publish without Stage.
    #[error("the volume is not staged at {path}", path = path.display())]
    NotStaged {
        /// Where it should be.
        path: PathBuf,
    },
    /// Expand of what is not there.
    #[error("the volume is not mounted at {path}", path = path.display())]
    NotMounted {
        /// Where it should be.
        path: PathBuf,
    },
    /// Its new size has not come to this machine.
    #[error("disk {disk} has {found} here yet, and {wanted} are asked for")]
    StillSmall {
        /// Its name here.
        disk: String,
        /// Size of the disk.
        found: Bytes,
        /// Size that is asked for.
        wanted: Bytes,
    },
    /// Larger than it may be.
    #[error("the volume has {found}, more than the limit of {limit}")]
    OverLimit {
        /// Size of the disk.
        found: Bytes,
        /// What was allowed.
        limit: Bytes,
    },
    /// Its file system can't be grown as it is.
    #[error("the file system at {path} cannot be grown: {why}", path = path.display())]
    CannotGrow {
        /// Where it is mounted.
        path: PathBuf,
        /// What stands in the way.
        why: &'static str,
    },
    /// The program said that it had grown the file system, and it has not.
    #[error("the file system on disk {disk} has {found} of {wanted} yet")]
    NotFilled {
        /// Its name here.
        disk: String,
        /// Size of the file system.
        found: Bytes,
        /// Size of the disk.
        wanted: Bytes,
    },
    /// Published there already, in another way.
    #[error("the volume is published at {path} {how} already", path = path.display())]
    PublishedOtherwise {
        /// Where.
        path: PathBuf,
        /// In which way.
        how: &'static str,
    },
    /// Wanted at one place only, and at another one already.
    #[error("the volume is published at {path} already, and its access mode allows one place", path = path.display())]
    PublishedElsewhere {
        /// Where.
        path: PathBuf,
    },
    /// Became read-only under a mount that should be writable.
    #[error("the file system at {path} has become read-only after errors", path = path.display())]
    ReadOnlyAfterErrors {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// Cannot be unmounted.
    #[error("{path} is in use and cannot be unmounted yet", path = path.display())]
    InUse {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// Unmounted here, and something that we don't see has its disk yet.
    #[error(
        "disk {disk} is still in use, perhaps by a container that has a mount of the volume of its own; it is not \
         taken away yet"
    )]
    StillHeld {
        /// Its name here.
        disk: String,
    },
    /// No volume of ours is there.
    #[error("no such volume at that path")]
    VolumeNotFound,
    /// A program failed.
    #[error("{tool} failed ({code}): {said}")]
    Tool {
        /// Which one.
        tool: Tool,
        /// Exit code, or "signal".
        code: String,
        /// What it said.
        said: String,
    },
    /// The Node has not been labelled yet.
    #[error("this Node is not ready for volumes: {0}")]
    NotLabelled(&'static str),
    /// The Node object could not be read.
    #[error("this Node's object cannot be read from the API server")]
    NodeUnreadable(#[source] Box<kube::Error>),
    /// The machine did not do what it was asked for.
    #[error(transparent)]
    Host(#[from] HostError),
    /// It went wrong after something had been mounted.
    #[error(transparent)]
    AfterMount(Box<Error>),
}

/// What an RPC that failed may have left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is mounted that was not before.
    None,
    /// Something may be mounted, or be mounted yet.
    Possible,
}

/// What is wrong with a disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Smaller than the volume.
    #[error("it has {found}, the volume has {wanted}")]
    Small {
        /// Size of the disk.
        found: Bytes,
        /// Size of the volume.
        wanted: Bytes,
    },
    /// A name made from a slot proves nothing unless the size fits.
    #[error("its name comes from a slot, and it has {found} where the volume has {wanted}")]
    OtherSize {
        /// Size of the disk.
        found: Bytes,
        /// Size of the volume.
        wanted: Bytes,
    },
    /// The former driver named a slot, said no size, and what is on the disk proves nothing.
    #[error(
        "its name comes from a slot, the volume's size is not known, and no ext4 is on it: detach it and attach it again"
    )]
    Unproved,
    /// Sysfs and the open device disagree.
    #[error("its size is changing")]
    SizeChanging,
    /// Device mapper, RAID or the like is built on it.
    #[error("{0} is built on it")]
    Held(String),
    /// It is divided.
    #[error("it has partitions")]
    Partitioned,
    /// It may not be written.
    #[error("it is read-only")]
    ReadOnly,
    /// It is mounted elsewhere.
    #[error("it is mounted at {path}", path = .0.display())]
    MountedAt(PathBuf),
    /// It is a raw volume, too.
    #[error("it is published as a raw device at {path}", path = .0.display())]
    RawAt(PathBuf),
    /// It is mounted, and what is mounted is no longer there.
    #[error("no ext4 is on it any more")]
    NoExt4,
    /// Something in another mount namespace or in the kernel has it.
    #[error("something else on this machine uses it")]
    InUse,
    /// It was taken away, or another one came in its place, meanwhile.
    #[error("it has changed while it was being prepared")]
    Changed,
}

// === impl Error ===

impl Error {
    /// A request that is refused with these words.
    pub fn invalid(words: impl Into<String>) -> Self {
        Self::Invalid(words.into())
    }

    /// This error, of something that happened after a mount.
    #[must_use]
    pub fn after_mount(self) -> Self {
        Self::AfterMount(Box::new(self))
    }

    /// What may have happened nevertheless.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Busy
            | Self::StillWorking(_)
            | Self::Work(WorkError::Panicked)
            | Self::Host(HostError::Lost { .. })
            | Self::AfterMount(_) => Effect::Possible,
            Self::Work(WorkError::Stopping)
            | Self::Invalid(_)
            | Self::DeviceMissing { .. }
            | Self::DeviceAmbiguous { .. }
            | Self::ForeignContext { .. }
            | Self::DeviceUnfit { .. }
            | Self::NotBlank { .. }
            | Self::FilesystemDamaged { .. }
            | Self::ForeignMount { .. }
            | Self::WrongPath { .. }
            | Self::NotEmpty { .. }
            | Self::NotStaged { .. }
            | Self::NotMounted { .. }
            | Self::StillSmall { .. }
            | Self::OverLimit { .. }
            | Self::CannotGrow { .. }
            | Self::NotFilled { .. }
            | Self::PublishedOtherwise { .. }
            | Self::PublishedElsewhere { .. }
            | Self::ReadOnlyAfterErrors { .. }
            | Self::InUse { .. }
            | Self::StillHeld { .. }
            | Self::VolumeNotFound
            | Self::Tool { .. }
            | Self::NotLabelled(_)
            | Self::NodeUnreadable(_)
            | Self::Host(
                HostError::Io { .. }
                | HostError::WrongNode { .. }
                | HostError::Malformed { .. }
                | HostError::Spawn { .. }
                | HostError::ToolTimeout { .. },
            ) => Effect::None,
        }
    }

    /// The code for the kubelet. An error of [`Effect::Possible`] has one of those that it takes so.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::Busy => Code::Aborted,
            Self::StillWorking(_) => Code::DeadlineExceeded,
            Self::Work(WorkError::Stopping | WorkError::Panicked)
            | Self::Host(HostError::Lost { .. })
            | Self::AfterMount(_)
            | Self::DeviceMissing { .. }
            | Self::StillSmall { .. }
            | Self::NotFilled { .. }
            | Self::NotLabelled(_)
            | Self::NodeUnreadable(_)
            | Self::InUse { .. }
            | Self::StillHeld { .. } => Code::Unavailable,
            Self::DeviceAmbiguous { .. }
            | Self::ForeignContext { .. }
            | Self::DeviceUnfit { .. }
            | Self::NotBlank { .. }
            | Self::FilesystemDamaged { .. }
            | Self::ForeignMount { .. }
            | Self::WrongPath { .. }
            | Self::NotEmpty { .. }
            | Self::NotStaged { .. }
            | Self::NotMounted { .. }
            | Self::CannotGrow { .. }
            | Self::PublishedElsewhere { .. }
            | Self::ReadOnlyAfterErrors { .. } => Code::FailedPrecondition,
            Self::OverLimit { .. } => Code::OutOfRange,
            Self::PublishedOtherwise { .. } => Code::AlreadyExists,
            Self::VolumeNotFound => Code::NotFound,
            Self::Tool { .. }
            | Self::Host(
                HostError::Io { .. }
                | HostError::WrongNode { .. }
                | HostError::Malformed { .. }
                | HostError::Spawn { .. }
                | HostError::ToolTimeout { .. },
            ) => Code::Internal,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let mut words = error.to_string();
        if let Some(id) = CorrelationId::current() {
            words = format!("{words} [{id}]");
        }
        let mut status = Self::new(error.code(), words);
        status.set_source(std::sync::Arc::new(error));
        status
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
