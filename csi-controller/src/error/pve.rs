//! What an answer of PVE means to a sidecar and to the tenant.

use pve_client::{ApiError, ErrorKind};
use tonic::Code;

/// One of external-provisioner's "may still be running" codes.
pub(super) fn unsettled(source: &ApiError) -> Code {
    match source.kind {
        ErrorKind::OutcomeUnknown => Code::DeadlineExceeded,
        ErrorKind::AlreadyExists
        | ErrorKind::Absent
        | ErrorKind::DiskAbsent
        | ErrorKind::Locked
        | ErrorKind::DigestMismatch
        | ErrorKind::PermissionDenied { .. }
        | ErrorKind::Unauthenticated
        | ErrorKind::Invalid(_)
        | ErrorKind::HostUnreachable
        | ErrorKind::HostUnknown
        | ErrorKind::Unreachable
        | ErrorKind::StorageUnavailable
        | ErrorKind::NoSpace
        | ErrorKind::Busy
        | ErrorKind::NoQuorum
        | ErrorKind::HotplugFailed { .. }
        | ErrorKind::NoAgent
        | ErrorKind::NotImplemented
        | ErrorKind::MigratedToRules
        | ErrorKind::TaskFailed
        | ErrorKind::Decode
        | ErrorKind::Throttled
        | ErrorKind::Other { .. } => Code::Unavailable,
    }
}

/// Never one of them.
pub(super) fn final_code(source: &ApiError) -> Code {
    match source.kind {
        ErrorKind::NoSpace
        | ErrorKind::StorageUnavailable
        | ErrorKind::HostUnreachable
        | ErrorKind::HostUnknown => Code::ResourceExhausted,
        ErrorKind::AlreadyExists
        | ErrorKind::Absent
        | ErrorKind::DiskAbsent
        | ErrorKind::Locked
        | ErrorKind::DigestMismatch
        | ErrorKind::PermissionDenied { .. }
        | ErrorKind::Unauthenticated
        | ErrorKind::Invalid(_)
        | ErrorKind::Unreachable
        | ErrorKind::OutcomeUnknown
        | ErrorKind::Busy
        | ErrorKind::NoQuorum
        | ErrorKind::HotplugFailed { .. }
        | ErrorKind::NoAgent
        | ErrorKind::NotImplemented
        | ErrorKind::MigratedToRules
        | ErrorKind::TaskFailed
        | ErrorKind::Decode
        | ErrorKind::Throttled
        | ErrorKind::Other { .. } => Code::Internal,
    }
}

/// For RPCs that are repeated whatever we answer: the code tells people, not machines.
pub(super) fn repeatable_code(source: &ApiError) -> Code {
    match &source.kind {
        ErrorKind::HostUnreachable
        | ErrorKind::HostUnknown
        | ErrorKind::Unreachable
        | ErrorKind::StorageUnavailable
        | ErrorKind::NoQuorum
        | ErrorKind::Throttled => Code::Unavailable,
        ErrorKind::OutcomeUnknown => Code::DeadlineExceeded,
        // A VM whose config is not where it was moves, or has just ended: the next call looks where it is.
        ErrorKind::Locked | ErrorKind::DigestMismatch | ErrorKind::Busy | ErrorKind::Absent => {
            Code::Aborted
        }
        ErrorKind::NoSpace => Code::ResourceExhausted,
        ErrorKind::AlreadyExists
        | ErrorKind::DiskAbsent
        | ErrorKind::PermissionDenied { .. }
        | ErrorKind::Unauthenticated
        | ErrorKind::Invalid(_)
        | ErrorKind::HotplugFailed { .. }
        | ErrorKind::NoAgent
        | ErrorKind::NotImplemented
        | ErrorKind::MigratedToRules
        | ErrorKind::TaskFailed
        | ErrorKind::Decode
        | ErrorKind::Other { .. } => Code::Internal,
    }
}

/// Of what could not be seen.
pub(super) fn unsettled_phrase(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::StorageUnavailable => {
            "whether the volume is there can't be seen, as its storage is not available; it will be tried again"
        }
        ErrorKind::PermissionDenied { .. } | ErrorKind::Unauthenticated => phrase(kind),
        _ => {
            "Proxmox VE did not say whether the last request was carried out; it will be tried again"
        }
    }
}

pub(super) fn phrase(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unreachable => "Proxmox VE can't be reached; it will be tried again",
        ErrorKind::HostUnreachable | ErrorKind::HostUnknown => {
            "the Proxmox VE host can't be reached; it will be tried again"
        }
        ErrorKind::StorageUnavailable => "the storage is not available there",
        ErrorKind::OutcomeUnknown => "Proxmox VE did not answer in time; it will be tried again",
        ErrorKind::NoQuorum => "the Proxmox VE cluster is read-only at the moment",
        ErrorKind::Throttled => "too many requests are waiting for Proxmox VE",
        ErrorKind::Locked => "the Node's virtual machine is locked by other work on it",
        ErrorKind::DigestMismatch => "the Node's virtual machine was changed by someone else",
        ErrorKind::Absent => {
            "the Node's virtual machine has moved or ended; it will be tried again"
        }
        ErrorKind::Busy => "Proxmox VE is busy; it will be tried again",
        ErrorKind::NoSpace => "the storage is full",
        ErrorKind::PermissionDenied { .. } | ErrorKind::Unauthenticated => {
            "Proxmox VE refuses this driver's token; ask its operator"
        }
        ErrorKind::HotplugFailed { .. } => "the Node's virtual machine did not take the change",
        ErrorKind::AlreadyExists
        | ErrorKind::DiskAbsent
        | ErrorKind::Invalid(_)
        | ErrorKind::NoAgent
        | ErrorKind::NotImplemented
        | ErrorKind::MigratedToRules
        | ErrorKind::TaskFailed
        | ErrorKind::Decode
        | ErrorKind::Other { .. } => "Proxmox VE refused the request; ask its operator",
    }
}
