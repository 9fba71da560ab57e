//! Protobuf in, domain requests out: the only file that reads raw requests. Whatever it lets through is within every
//! grammar and limit that needs no look at PVE.

use pve_model::{NodeId, Parameters, VolumeId};

/// ControllerPublishVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// To which VM.
    pub node: NodeId,
    /// The context of the PV, read leniently.
    pub parameters: Parameters,
    /// Whether the workload asked for read-only; the disk stays writable for the guest.
    pub readonly: bool,
}

/// ControllerUnpublishVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpublishRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// From which VM; none means from all of them.
    pub node: Option<NodeId>,
}
