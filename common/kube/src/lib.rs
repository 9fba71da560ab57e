//! What a program in the management cluster needs of Kubernetes API servers: kubeconfigs that are accepted, clients that a
//! hostile server can't exhaust, a Lease and Events on Nodes.
//!
//! It knows neither Proxmox's API nor any CSI message.

pub mod client;
pub mod events;
pub mod kubeconfig;
pub mod lease;

pub use client::{RequestError, answer};
pub use events::{EventKind, NodeRef, Recorder};
pub use kubeconfig::{KubeconfigError, Tenant, management};
pub use lease::{Holding, Leadership, LeaseError, LeaseSpec, lead};
