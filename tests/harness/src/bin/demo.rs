//! `make demo`: a volume's whole life, step by step.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Takes a volume through its whole life: simulated Proxmox VE, real controller, real node plugin.
#[derive(Debug, Parser)]
struct Arguments {
    /// Through PVC and Pod on a real Kubernetes control plane.
    #[arg(long, conflicts_with = "pve_config")]
    cluster: bool,
    /// The controller's half on a real Proxmox VE: its config file.
    #[arg(long, requires = "vm")]
    pve_config: Option<PathBuf>,
    /// VMID of a running VM in the pool of that config.
    #[arg(long, requires = "pve_config")]
    vm: Option<u32>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // kube and the simulator both want one rustls provider for the process; a second call changes nothing.
    drop(rustls::crypto::ring::default_provider().install_default());
    match (arguments.pve_config, arguments.vm) {
        (Some(config), Some(vmid)) => harness::demo::run_on(config, vmid).await,
        _ if arguments.cluster => harness::cluster::demo::run().await,
        _ => harness::demo::run().await,
    }
}
