//! Starts the real programs around a simulated Proxmox VE, and asks whether the invariants hold.
//!
//! Test code only: no product crate depends on it.

pub mod caller;
pub mod ccm;
pub mod cluster;
pub mod csi;
pub mod demo;
pub mod exposure;
pub mod extra_controller;
pub mod kube_stub;
pub mod leaks;
pub mod lease_stub;
pub mod mounted;
pub mod probes;
pub mod process;
pub mod real_pve;
pub mod refusals;
pub mod replay;
pub mod requirements;
pub mod run_dir;
pub mod sweep;
pub mod truth;
pub mod two_tenants;
pub mod world;
