//! What a program in the management cluster needs of Kubernetes API servers: kubeconfigs that are accepted, clients that a
//! hostile server can't exhaust, a Lease, Events on Nodes, and the end of capacity objects.
//!
//! It knows neither Proxmox's API nor any CSI message.

mod access;
pub mod capacity;
pub mod client;
pub mod election;
pub mod events;
pub mod kubeconfig;
pub mod lease;

pub use access::Access;
pub use client::{RequestError, answer};
pub use election::{ElectionArguments, ElectionError, Lost};
pub use events::{EventKind, NodeRef, Recorder};
pub use kubeconfig::{KubeconfigError, Tenant, management};
pub use lease::{Holding, Leadership, LeaseError, LeaseSpec, lead};
