//! Everything an RPC can fail with, and what each failure means to a sidecar.
//!
//! `Display` is the operator's text: it may say what PVE said. [`Error::tenant`] is what `kubectl describe` shows: a
//! closed phrase about the tenant's own objects, nothing of other guests, endpoints or PVE's words.

mod phrases;
mod pve;

use std::sync::Arc;

use pve_client::{ApiError, Effect, ErrorKind};
use pve_runtime::CorrelationId;
use tonic::{Code, Status};

/// The RPCs whose errors differ in meaning. The sidecars read codes per RPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rpc {
    /// external-provisioner `checkError`: four codes mean "may be running", all others "for sure not in progress".
    CreateVolume,
    /// external-provisioner repeats on any error.
    DeleteVolume,
    /// external-attacher: any error of attach is repeated; four codes mean "may be attached".
    ControllerPublishVolume,
    /// external-attacher repeats on any error.
    ControllerUnpublishVolume,
    /// external-resizer `IsFinalError`: five codes, `RESOURCE_EXHAUSTED` too, mean "may be in progress", so that the size
    /// that is asked for stays; at all others the person may ask for less. `IsInfeasibleError`: three of those, `OUT_OF_RANGE`
    /// one of them, are repeated seldom. It repeats on any error.
    ControllerExpandVolume,
    /// Not called by Kubernetes' sidecars.
    ValidateVolumeCapabilities,
    /// external-provisioner repeats and keeps the old capacity object.
    GetCapacity,
}

/// Why a volume handle is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// No region of that name in the config.
    Region,
    /// The storage is not in the region's policy.
    Storage,
    /// The PVE node is not in the region's policy.
    PveNode,
    /// The disk's owner is not this installation, and the volume is not adopted.
    Owner,
}

/// Why a volume can't be made in that place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// Less free space than wanted, or than the operator keeps free.
    Space,
    /// `maxBytes` or `maxVolumes` of the policy.
    Quota,
    /// `maxVolumeBytes` of the policy.
    VolumeSize,
    /// The storage is not there, disabled or unreachable on every host that was asked for.
    Storage,
    /// No free slot in the VM.
    Slots,
}

/// Why a VM may not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmRefusal {
    /// Not in the tenant's pool, or its pool can't be seen.
    Pool,
    /// A template.
    Template,
    /// A VM that owns disks.
    Owner,
    /// Two VMs have the UUID.
    Duplicate,
    /// On a host that the policy does not name.
    PveNode,
}

/// What an RPC could not do. Closed: each variant has a row in [`Error::code`] and in [`Error::tenant`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong. The text is made of the caller's own input and is shown to the tenant.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The size can't be made. The text is shown to the tenant.
    #[error("size out of range: {0}")]
    OutOfRange(String),
    /// The handle names something that the operator's policy does not give us.
    #[error("volume is not ours: {why:?} of {volume}")]
    Foreign {
        /// The handle.
        volume: String,
        /// Which part.
        why: Foreign,
    },
    /// No such volume: PVE was read and does not have it, or the text can't be a handle at all.
    #[error("volume does not exist")]
    UnknownVolume,
    /// No VM belongs to the node id.
    #[error("no VM for node id: {0}")]
    UnknownNode(String),
    /// The VM is there and may not be used.
    #[error("VM refused ({why:?}): {detail}")]
    VmRefused {
        /// Why.
        why: VmRefusal,
        /// Which VM (operator).
        detail: String,
    },
    /// A VM that we can neither see nor prove gone.
    #[error("VM can't be seen and is not proved gone: {0}")]
    VmInvisible(String),
    /// The name is taken by something that does not fit the request. The text is shown to the tenant.
    #[error("exists with other properties: {0}")]
    Exists(String),
    /// Another RPC is at work on the same volume, or waited too long for the same VM.
    #[error("another operation is in flight: {0}")]
    Busy(&'static str),
    /// The process is about to end.
    #[error("shutting down")]
    ShuttingDown,
    /// Another process is the active one.
    #[error("another process is the active one")]
    StandingBy,
    /// No new volumes are made, as those that are there are being removed.
    #[error("the CSIDriver of the tenant says that no new volumes are wanted")]
    Closed,
    /// No room in that place.
    #[error("no room ({why:?}): {detail}")]
    Exhausted {
        /// Why.
        why: Exhausted,
        /// Numbers and names (operator).
        detail: String,
    },
    /// A VM holds the volume: a worker other than the one asked for, or any at Delete.
    #[error("volume in use: {0}")]
    InUse(String),
    /// Another worker holds the volume, and its name may be told: it is the tenant's own.
    #[error("{tenant} ({detail})")]
    HeldBy {
        /// Sentence for the tenant, with the worker's name.
        tenant: String,
        /// For the operator.
        detail: String,
    },
    /// An operation of PVE (backup, migration, snapshot, …) has locked the VM's config.
    #[error("VM is locked: {0}")]
    VmLocked(String),
    /// A node-local volume was asked for on a VM of another host.
    #[error("volume lies on another host: {0}")]
    WrongHost(String),
    /// PVE or its configuration can't do it (storage type, `hotplug` of the VM, …). The sentence is shown to the tenant.
    #[error("not supported: {tenant} ({detail})")]
    Unsupported {
        /// Closed sentence for the tenant.
        tenant: &'static str,
        /// For the operator.
        detail: String,
    },
    /// Another worker may hold the volume and can't be asked.
    #[error("possible holder can't be read: {0}")]
    HolderUnknown(String),
    /// What QEMU really has is unknown at the moment.
    #[error("real state of the VM is unknown: {0}")]
    RealUnknown(String),
    /// The guest does not let the disk go.
    #[error("disk is still busy in the guest: {0}")]
    GuestBusy(String),
    /// An attach or a detach of the volume is half done, and has to be ended before the volume can grow.
    #[error("half attached: {0}")]
    HalfAttached(String),
    /// QEMU did not take the disk; the change was reverted.
    #[error("hotplug failed: {0}")]
    HotplugFailed(String),
    /// The VM's config changed under us too often.
    #[error("VM config keeps changing: {0}")]
    Changed(String),
    /// A task of PVE runs longer than we may wait.
    #[error("task still runs: {0}")]
    StillRunning(String),
    /// The backend refuses to free the disk for now.
    #[error("storage is busy: {0}")]
    StorageBusy(String),
    /// What an earlier call or this one did can't be observed now: the disk may exist.
    #[error("{doing}: outcome unknown")]
    Unsettled {
        /// What we were doing.
        doing: &'static str,
        /// What PVE said.
        #[source]
        source: ApiError,
    },
    /// PVE answered with an error, or not at all.
    #[error("{doing}")]
    Pve {
        /// What we were doing.
        doing: &'static str,
        /// What PVE said.
        #[source]
        source: ApiError,
    },
    /// PVE shows something else than what it was told; a disk may be there.
    #[error("PVE contradicts itself: {0}")]
    Contradiction(String),
    /// The operation died.
    #[error("internal: {0}")]
    Internal(String),
}

impl Error {
    /// Wraps what PVE said with what we were doing.
    pub fn pve(doing: &'static str) -> impl FnOnce(ApiError) -> Self {
        move |source| Self::Pve { doing, source }
    }

    /// Whether PVE may carry out later what it was asked for. A task that failed has ended.
    pub fn may_still_come(&self) -> bool {
        match self {
            Self::StillRunning(_) => true,
            Self::Unsettled { source, .. } | Self::Pve { source, .. } => {
                source.effect == Effect::Possible && source.kind == ErrorKind::OutcomeUnknown
            }
            _ => false,
        }
    }

    /// Whether PVE may have been changed, now or by an earlier call of the same RPC whose outcome was never seen;
    /// [`Effect::Possible`] too where this call does not know.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Pve { source, .. } => source.effect,
            Self::Busy(_)
            | Self::ShuttingDown
            | Self::StandingBy
            | Self::Changed(_)
            | Self::StillRunning(_)
            | Self::StorageBusy(_)
            | Self::GuestBusy(_)
            | Self::RealUnknown(_)
            | Self::HolderUnknown(_)
            | Self::VmInvisible(_)
            | Self::VmLocked(_)
            | Self::HalfAttached(_)
            | Self::Unsettled { .. }
            | Self::Contradiction(_)
            | Self::Internal(_) => Effect::Possible,
            Self::Invalid(_)
            | Self::OutOfRange(_)
            | Self::Foreign { .. }
            | Self::UnknownVolume
            | Self::UnknownNode(_)
            | Self::VmRefused { .. }
            | Self::Exists(_)
            | Self::Exhausted { .. }
            | Self::InUse(_)
            | Self::HeldBy { .. }
            | Self::WrongHost(_)
            | Self::Unsupported { .. }
            | Self::Closed
            | Self::HotplugFailed(_) => Effect::None,
        }
    }

    /// What a sidecar is told. For CreateVolume the effect rule decides: [`Effect::Possible`] is one of `ABORTED`,
    /// `UNAVAILABLE`, `DEADLINE_EXCEEDED`, at which the provisioner keeps calling; [`Effect::None`] is never one.
    pub fn code(&self, rpc: Rpc) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::OutOfRange(_) => Code::OutOfRange,
            Self::Foreign { .. } | Self::VmRefused { .. } => Code::PermissionDenied,
            Self::UnknownVolume | Self::UnknownNode(_) => Code::NotFound,
            Self::Exists(_) => Code::AlreadyExists,
            Self::Exhausted {
                why: Exhausted::VolumeSize,
                ..
            } if rpc == Rpc::ControllerExpandVolume => Code::OutOfRange,
            Self::Exhausted { .. } => Code::ResourceExhausted,
            Self::InUse(_)
            | Self::HeldBy { .. }
            | Self::WrongHost(_)
            | Self::Closed
            | Self::Unsupported { .. } => Code::FailedPrecondition,
            Self::HotplugFailed(_) => Code::Internal,
            Self::Busy(_) | Self::Changed(_) | Self::StillRunning(_) => Code::Aborted,
            Self::ShuttingDown
            | Self::StandingBy
            | Self::VmInvisible(_)
            | Self::HolderUnknown(_)
            | Self::RealUnknown(_)
            | Self::VmLocked(_)
            | Self::HalfAttached(_)
            | Self::GuestBusy(_)
            | Self::StorageBusy(_) => Code::Unavailable,
            Self::Unsettled { source, .. } => pve::unsettled(source),
            Self::Pve { source, .. } => match (rpc, source.effect) {
                (Rpc::CreateVolume | Rpc::ControllerExpandVolume, Effect::Possible) => {
                    pve::unsettled(source)
                }
                (Rpc::CreateVolume, Effect::None) => pve::final_code(source),
                (
                    Rpc::DeleteVolume
                    | Rpc::ControllerPublishVolume
                    | Rpc::ControllerUnpublishVolume
                    | Rpc::ControllerExpandVolume
                    | Rpc::ValidateVolumeCapabilities
                    | Rpc::GetCapacity,
                    _,
                ) => pve::repeatable_code(source),
            },
            Self::Contradiction(_) | Self::Internal(_) => match rpc {
                Rpc::CreateVolume | Rpc::ControllerExpandVolume => Code::Aborted,
                Rpc::DeleteVolume
                | Rpc::ControllerPublishVolume
                | Rpc::ControllerUnpublishVolume
                | Rpc::ValidateVolumeCapabilities
                | Rpc::GetCapacity => Code::Internal,
            },
        }
    }

    /// What the person who reads `kubectl describe` is told, without the correlation id.
    pub fn tenant(&self) -> &str {
        match self {
            Self::Invalid(text) | Self::OutOfRange(text) | Self::Exists(text) => text,
            Self::Foreign { why, .. } => why.tenant(),
            Self::UnknownVolume => "the volume does not exist",
            Self::UnknownNode(_) => {
                "no virtual machine belongs to this Node's id; if another driver registered the Node, restart its node plugin"
            }
            Self::VmRefused { .. } => {
                "the Node's virtual machine may not be used by this cluster; ask the operator of Proxmox VE"
            }
            Self::VmInvisible(_) => {
                "the Node's virtual machine can't be seen any more; ask the operator of Proxmox VE"
            }
            Self::Busy(what) => what,
            Self::StandingBy => "another controller is the active one; it will be tried again",
            Self::Closed => {
                "no new volumes: those of this cluster are being removed, as an annotation of the CSIDriver says"
            }
            Self::ShuttingDown => "the controller is about to restart; it will be tried again",
            Self::Exhausted { why, .. } => why.tenant(),
            Self::InUse(_) => "the volume is still attached to a Node",
            Self::HeldBy { tenant, .. } => tenant,
            Self::VmLocked(_) => {
                "the Node's virtual machine is in a backup, migration or other operation of Proxmox VE; it will be tried again"
            }
            Self::WrongHost(_) => {
                "the volume lies on the local storage of another host than the Node's"
            }
            Self::Unsupported { tenant, .. } => tenant,
            Self::HolderUnknown(_) => {
                "another Node may still hold the volume and its host can't be asked; it will be tried again"
            }
            Self::RealUnknown(_) => {
                "the Node's virtual machine does not tell its disks at the moment; it will be tried again"
            }
            Self::GuestBusy(_) => "the Node does not let the volume go; it will be tried again",
            Self::HalfAttached(_) => {
                "the volume is being attached to a Node or detached from it; it will be tried again"
            }
            Self::HotplugFailed(_) => "the Node's virtual machine did not take the volume",
            Self::Changed(_) => {
                "the Node's virtual machine is being changed by someone else; it will be tried again"
            }
            Self::StillRunning(_) => "Proxmox VE is still at work; it will be tried again",
            Self::StorageBusy(_) => "the storage is busy; it will be tried again",
            Self::Unsettled { source, .. } => pve::unsettled_phrase(&source.kind),
            Self::Pve { source, .. } => pve::phrase(&source.kind),
            Self::Contradiction(_) => {
                "Proxmox VE does not show what it was told to do; it will be tried again"
            }
            Self::Internal(_) => "internal error",
        }
    }

    /// The answer to the sidecar: a closed phrase and the id under which the operator finds the cause, which stays
    /// behind as the status' source and is logged at the edge.
    pub fn into_status(self, rpc: Rpc) -> Status {
        let id = CorrelationId::current().map_or_else(String::new, |id| format!(" (id {id})"));
        let mut status = Status::new(self.code(rpc), format!("{}{id}", self.tenant()));
        status.set_source(Arc::new(self));
        status
    }
}

#[cfg(test)]
mod tests;
