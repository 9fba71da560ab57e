//! What the machine says when it does not do what it was asked for.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;

use crate::host::{DeviceNumber, Tool};

/// The machine did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A system call failed.
    #[error("{doing} {path}: {source}", path = path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The device node is not that of the disk.
    #[error("{path} is not the device node of disk {number}", path = path.display())]
    WrongNode {
        /// The node.
        path: PathBuf,
        /// The disk it should be of.
        number: DeviceNumber,
    },
    /// Something that the kernel wrote could not be read.
    #[error("{path} has an unexpected form", path = path.display())]
    Malformed {
        /// Where.
        path: PathBuf,
    },
    /// The program could not be started.
    #[error("cannot run {tool}: {source}")]
    Spawn {
        /// Which one.
        tool: Tool,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program took too long and was killed.
    #[error("{tool} took longer than {} s and was killed", limit.as_secs())]
    ToolTimeout {
        /// Which one.
        tool: Tool,
        /// How long it was given.
        limit: Duration,
    },
    /// The thread that made the call died.
    #[error("{doing}: the call was lost")]
    Lost {
        /// What was being done.
        doing: &'static str,
    },
}

impl HostError {
    /// Whether the error is that the thing is not there (any more): the errors of files and devices that go away.
    pub fn says_gone(&self) -> bool {
        let gone = [Errno::ENOENT, Errno::ENODEV, Errno::ENXIO, Errno::ENOTDIR];
        gone.iter().any(|errno| self.errno() == Some(*errno as i32))
    }

    /// The error of the system call, if one failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Spawn { source, .. } => source.raw_os_error(),
            Self::WrongNode { .. }
            | Self::Malformed { .. }
            | Self::ToolTimeout { .. }
            | Self::Lost { .. } => None,
        }
    }
}
