//! Pure domain types that the controller, the node plugin and the operator's tools share.
//!
//! Owns the grammars of everything that comes from outside: PVE names, volume handles, node ids,
//! sizes, `StorageClass` parameters and the controller → node hand-off. It knows no I/O, no async
//! runtime, no gRPC and no Proxmox endpoint.

pub mod cidr;
pub mod handoff;
pub mod ids;
pub mod node_id;
#[cfg(any(test, fuzzing))]
pub mod oracles;
pub mod params;
pub mod provider_id;
pub mod size;
pub mod slot;
pub mod topology;
pub mod volume_id;
pub mod wwn;

pub use cidr::Cidr;
pub use handoff::PublishContext;
pub use ids::{KubeNode, ParseIdError, PoolId, PveNode, Region, StorageId, Uuid, VmId};
pub use node_id::NodeId;
pub use params::{ParameterError, Parameters};
pub use provider_id::ProviderId;
pub use size::Bytes;
pub use slot::{Bus, Slot};
pub use volume_id::{DiskFormat, DiskName, ParseVolumeIdError, VolumeId};
pub use wwn::Wwn;
