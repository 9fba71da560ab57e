//! A real Kubernetes around the driver: control plane, kubelets and CSI sidecars built from upstream's Go modules.
//!
//! Everything listens on 127.0.0.1 and lives below one [`RunDir`]. Nothing here knows what a test wants to show.

mod api_server;
mod client_authority;
mod control_plane;
pub mod demo;
mod kubeconfig;
mod kubelet;
pub mod objects;
mod pki;
pub mod pvectl;
mod requirements;
mod scan;
pub(crate) mod sidecars;
mod stack;
mod wait;
mod workload;

pub use crate::run_dir::{RunDir, mounted_at};
pub use api_server::{PodSecurity, ServerOptions};
pub use client_authority::{ClientAuthority, ClientCertificate};
pub use control_plane::ControlPlane;
pub use kubelet::{CloudProvider, Kubelet, NodeSpec};
pub use requirements::{Programs, requirements};
pub use scan::tenant_leaks;
pub use sidecars::{Sidecars, sidecar_flags};
pub use stack::{Place, REGISTERED, Stack, Worker};
pub use wait::{eventually, wait_content};
pub use workload::{Claim, STAY, Tenant, View, Workload};
