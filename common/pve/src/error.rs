//! What went wrong on PVE's API, and whether PVE may have acted.
//!
//! PVE says what it means in text; the table that reads it is in `classify.rs`. Nothing here is meant for
//! the tenant: `detail` holds PVE's own words.

use std::collections::BTreeMap;
use std::fmt;

use crate::request::Spec;

/// Whether a request that failed may have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    /// Nothing can have happened.
    None,
    /// Something may have happened, or may still be happening.
    Possible,
}

/// What a failure means, as far as a caller can act on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    /// The disk or VMID is there already.
    AlreadyExists,
    /// The VM's config is not on that host: moved, or gone.
    Absent,
    /// The disk is not on its storage.
    DiskAbsent,
    /// The VM's config carries a `lock` (backup, migrate, snapshot, …) that lasts as long as that work.
    Locked,
    /// The config changed since it was read.
    DigestMismatch,
    /// The token lacks a privilege.
    PermissionDenied {
        /// ACL path, if PVE named one.
        path: String,
        /// Privilege or alternatives (`A|B`), if PVE named one.
        privilege: String,
    },
    /// PVE does not accept the token, or did not within the last minute.
    Unauthenticated,
    /// PVE refused parameters: name → its words.
    Invalid(BTreeMap<String, String>),
    /// The endpoint answers, the PVE node behind it could not be reached; nothing was sent to it (595).
    HostUnreachable,
    /// The endpoint knows no PVE node of that name. While it has not joined its cluster it knows only itself.
    HostUnknown,
    /// The request left and no answer came back (596, 597, 599, broken connection, time-out).
    OutcomeUnknown,
    /// No endpoint could be reached.
    Unreachable,
    /// The storage is missing, disabled, offline, or not on that PVE node.
    StorageUnavailable,
    /// The storage is full.
    NoSpace,
    /// Somebody else holds PVE's short-lived lock, or the disk is in use.
    Busy,
    /// The PVE cluster has no quorum, its configuration is read-only.
    NoQuorum,
    /// A hotplug or hot-unplug failed and left its change pending.
    HotplugFailed {
        /// The slot as PVE wrote it (`scsi1`).
        slot: String,
        /// PVE's words.
        text: String,
    },
    /// The VM's guest agent is not configured, does not answer, or refuses; or the VM doesn't run.
    NoAgent,
    /// This PVE has no such endpoint (501): it is older than the question.
    NotImplemented,
    /// HA groups are no more, there are rules instead: PVE 9 without any group.
    MigratedToRules,
    /// A background task failed for a reason that has no kind of its own.
    TaskFailed,
    /// The answer is not what this endpoint answers.
    Decode,
    /// Our own limit: the wait for a permit would have been too long, or this process may not change anything (any more).
    /// Nothing was sent.
    Throttled,
    /// Anything else.
    Other {
        /// HTTP status.
        status: u16,
    },
}

impl ErrorKind {
    /// A short name for metrics and logs, from a closed set.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::AlreadyExists => "already_exists",
            Self::Absent => "absent",
            Self::DiskAbsent => "disk_absent",
            Self::Locked => "locked",
            Self::DigestMismatch => "digest_mismatch",
            Self::PermissionDenied { .. } => "permission_denied",
            Self::Unauthenticated => "unauthenticated",
            Self::Invalid(_) => "invalid",
            Self::HostUnreachable => "host_unreachable",
            Self::HostUnknown => "host_unknown",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Unreachable => "unreachable",
            Self::StorageUnavailable => "storage_unavailable",
            Self::NoSpace => "no_space",
            Self::Busy => "busy",
            Self::NoQuorum => "no_quorum",
            Self::HotplugFailed { .. } => "hotplug_failed",
            Self::NoAgent => "no_agent",
            Self::NotImplemented => "not_implemented",
            Self::MigratedToRules => "migrated_to_rules",
            Self::TaskFailed => "task_failed",
            Self::Decode => "decode",
            Self::Throttled => "throttled",
            Self::Other { .. } => "other",
        }
    }
}

/// A request that PVE refused, failed, or never answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// Method and path template, e.g. `GET /nodes/{node}/qemu/{vmid}/pending`.
    pub endpoint: &'static str,
    /// What it means.
    pub kind: ErrorKind,
    /// Whether PVE may have acted.
    pub effect: Effect,
    /// PVE's or the network's words, for the operator only.
    pub detail: String,
}

impl ApiError {
    pub(crate) fn new(
        spec: &'static Spec,
        kind: ErrorKind,
        effect: Effect,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            endpoint: spec.name,
            kind,
            effect,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint, self.kind.label())?;
        if self.detail.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.detail)
        }
    }
}

impl std::error::Error for ApiError {}

/// Settings with which no client can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no endpoint at all.
    #[error("no endpoint is configured")]
    NoEndpoint,
    /// An endpoint's URL is not `https://host[:port][/api2/json]`.
    #[error("endpoints[{index}].url: {reason}")]
    Url {
        /// Which endpoint.
        index: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An endpoint's trust settings can't be used.
    #[error("endpoints[{index}]: {reason}")]
    Trust {
        /// Which endpoint.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A limit of zero would let nothing through.
    #[error("limits.{0} must not be zero")]
    ZeroLimit(&'static str),
    /// The token source failed.
    #[error("token: {0}")]
    Token(String),
    /// The HTTP client could not be built.
    #[error("http client: {0}")]
    Http(String),
}
