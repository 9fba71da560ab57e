//! One PVE cluster as both controllers know it: the client that the operator's config makes, what proves that a VM is
//! gone, what tells that one has a disk, and what the operator states of what can't be asked.
//!
//! Knows neither CSI nor Kubernetes.

pub mod connect;
pub mod fences;
pub mod gone;
pub mod holders;

pub use connect::Connection;
pub use fences::{FenceMetrics, Fences};
