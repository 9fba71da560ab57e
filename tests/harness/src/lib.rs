//! Starts the real programs around a simulated Proxmox VE, and asks whether the invariants hold.
//!
//! Test code only: no product crate depends on it.

pub mod cluster;
pub mod csi;
pub mod kube_stub;
pub mod process;
pub mod requirements;
