//! A real Proxmox VE as the demo sees it: one VM, one storage, and the controller with the operator's own config.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pve_client::{Client, Metrics, VmRef};
use pve_model::VmId;
use pve_region::Connection;
use pve_runtime::config::Config;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::csi::Csi;
use crate::process::{Process, built};
use crate::world::free_port;

/// Where the demo takes place.
#[derive(Debug)]
pub struct Target {
    /// Region of the VM.
    pub region: String,
    /// Its host.
    pub pve_node: String,
    /// Its SMBIOS UUID.
    pub uuid: String,
    /// Its number.
    pub vmid: u32,
    /// The first storage of the policy.
    pub storage: String,
    /// The name of the volume, new each time.
    pub name: String,
}

/// The controller that runs with the operator's config.
#[derive(Debug)]
pub struct Controller {
    process: Process,
    admin: SocketAddr,
    folder: TempDir,
}

/// Counts the controller's requests by its own metrics.
#[derive(Debug)]
pub struct Counter {
    admin: SocketAddr,
    seen: usize,
}

// === impl Target ===

impl Target {
    /// Finds the VM in one of the config's regions.
    pub async fn read(config: &Path, vmid: u32) -> Result<Self> {
        let config = Config::load(config, None)?;
        let wanted = VmId::try_from(vmid)?;
        for (region, settings) in &config.regions {
            let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
            let client =
                Connection::new(settings, None, &metrics, &pve_client::Writes::default())?.client;
            let vms = client
                .vms()
                .await
                .with_context(|| format!("region {region}"))?;
            let Some(vm) = vms.entries.into_iter().find(|vm| vm.vmid == wanted) else {
                continue;
            };
            let storage = settings
                .policy
                .storages
                .keys()
                .next()
                .context("the policy names no storage")?;
            let at = VmRef {
                pve_node: vm.pve_node,
                vmid: wanted,
            };
            return Ok(Self {
                region: region.to_string(),
                uuid: uuid_of(&client, &at).await?,
                pve_node: at.pve_node.to_string(),
                vmid,
                storage: storage.to_string(),
                name: format!("demo-{}", std::process::id()),
            });
        }
        anyhow::bail!(
            "no region of the config shows VM {vmid}: is it in the pool, and may the token see it (VM.Audit)?"
        )
    }

    /// Starts the controller with that config. Ctrl-C does not reach it: it is still needed then.
    pub async fn start_controller(&self, config: &Path) -> Result<Controller> {
        let folder = tempfile::Builder::new().prefix("pvc").tempdir()?;
        let admin = free_port()?;
        let socket = folder.path().join("csi.sock");
        let arguments = [
            "--csi-address".to_owned(),
            format!("unix://{}", socket.display()),
            "--cloud-config".to_owned(),
            config.display().to_string(),
            "--admin-address".to_owned(),
            admin.to_string(),
        ];
        let mut process = Process::start_apart(
            "controller",
            &built("pve-csi-controller")?,
            &arguments,
            folder.path(),
        )?;
        let csi = Csi::at(&socket);
        csi.served_by(&mut process).await?;
        Ok(Controller {
            process,
            admin,
            folder,
        })
    }
}

async fn uuid_of(client: &Client, at: &VmRef) -> Result<String> {
    let config = client.vm_config(at).await?;
    Ok(config
        .smbios_uuid()
        .context("the VM has no SMBIOS UUID")?
        .to_string())
}

// === impl Controller ===

impl Controller {
    /// Its services.
    pub fn csi(&self) -> Csi {
        Csi::at(&self.folder.path().join("csi.sock"))
    }

    /// Counts from now on.
    pub async fn counter(&self) -> Result<Counter> {
        let mut counter = Counter {
            admin: self.admin,
            seen: 0,
        };
        counter.since().await?;
        Ok(counter)
    }

    /// Ends it as Kubernetes would.
    pub async fn stop(self) -> Result<()> {
        let status = self.process.stop().await?;
        anyhow::ensure!(status.success(), "the controller ended with {status}");
        Ok(())
    }
}

// === impl Counter ===

impl Counter {
    /// Requests to PVE since the last call.
    pub async fn since(&mut self) -> Result<usize> {
        let total = timeout(Duration::from_secs(5), metrics(self.admin)).await??;
        let new = total.saturating_sub(self.seen);
        self.seen = total;
        Ok(new)
    }
}

/// The sum of all `pve_request_seconds_count` series.
async fn metrics(admin: SocketAddr) -> Result<usize> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let counts = text
        .lines()
        .filter(|line| line.contains("pve_request_seconds_count"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    // Counters of a short demo are far below 2^32 and whole.
    let total: f64 = counts.sum();
    format!("{total:.0}").parse().context("counters")
}
