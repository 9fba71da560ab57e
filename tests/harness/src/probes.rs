//! Each endpoint of the client asked once, to see what the token's rights let through.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pve_client::{
    ApiError, Client, ClientConfig, ConfigChange, Endpoint, ErrorKind, Limits, Metrics, Presence,
    Program, Started, StorageRef, TaskOutcome, Timeouts, Token, Trust, VmRef, Writes,
};
use pve_model::{Bytes, DiskName, Slot};
use pve_sim::SimHandle;
use tokio::time::Instant;

use crate::world::{FILES, OWNER, POOL, TOKEN};

pub use pve_client::Spec;
pub use pve_client::privileges::{Lack, Object, Right};

/// The endpoints that the CSI controller calls.
pub fn endpoints() -> impl Iterator<Item = &'static Spec> {
    pve_client::endpoints_of(Program::Csi)
}

/// What an endpoint needs of the CSI controller's token.
pub fn rights(spec: &Spec) -> impl Iterator<Item = &'static Right> {
    spec.rights_of(Program::Csi)
}

/// Path and privilege of what the CSI controller's token needs.
pub fn grants() -> impl Iterator<Item = (&'static str, &'static str)> {
    let grants = pve_client::privileges::grants(Program::Csi).into_iter();
    grants.map(|grant| (grant.on, grant.privilege))
}

/// The snapshot that the probed VM has.
pub const SNAPSHOT: &str = "before";
/// The disk that is in its slot `scsi1`, and the one that is in none; below [`FILES`] on its host.
pub const DISKS: [&str; 2] = ["9999/vm-9999-held.raw", "9999/vm-9999-free.raw"];
const TASK: Duration = Duration::from_secs(10);

/// What came of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// All that there is.
    All,
    /// The privileges whose part of the answer is missing.
    Without(Vec<&'static str>),
    /// PVE refused it, for want of this privilege on this path.
    Refused(String, String),
}

/// A client of the simulator and a VM to ask about.
#[derive(Debug)]
pub struct Probes {
    client: Client,
    at: VmRef,
    storage: StorageRef,
    held: DiskName,
    free: DiskName,
    /// Of the VM's config as it was at first.
    digest: String,
}

impl Probes {
    /// Probes about a VM on `pve1`, with the tenant's token, which must have its rights still.
    pub async fn new(sim: &SimHandle, vmid: u32) -> Result<Self> {
        // Another test of this process may have done it.
        drop(rustls::crypto::ring::default_provider().install_default());
        let token = || {
            Ok(Token {
                id: TOKEN.0.to_owned(),
                secret: TOKEN.1.to_owned().into(),
                csrf: None,
            })
        };
        let config = ClientConfig {
            endpoints: vec![Endpoint {
                url: sim.url().to_owned(),
                trust: Trust::Ca(sim.ca_pem().to_owned()),
            }],
            token: Arc::new(token),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            writes: Writes::default(),
        };
        let [held, free] = DISKS;
        let client = Client::new(config, Metrics::default())?;
        let at = VmRef {
            pve_node: "pve1".parse()?,
            vmid: vmid.try_into()?,
        };
        let digest = client.vm_pending(&at).await?.digest;
        Ok(Self {
            client,
            at,
            storage: StorageRef {
                pve_node: "pve1".parse()?,
                storage: FILES.parse()?,
            },
            held: held.parse()?,
            free: free.parse()?,
            digest,
        })
    }

    /// Asks one endpoint. Fails if it has no probe, or with an answer that no lack of rights explains.
    pub async fn ask(&self, spec: &Spec) -> Result<Seen> {
        let (client, at, storage) = (&self.client, &self.at, &self.storage);
        let all = |()| Seen::All;
        let answer = match spec.name {
            "GET /version" => client.version().await.map(|_| Seen::All),
            "GET /access/permissions" => client.permissions("/").await.map(|_| Seen::All),
            "GET /cluster/nextid" => client.vmid_state(at.vmid).await.map(|_| Seen::All),
            "GET /cluster/resources" => self.resources().await,
            "GET /nodes/{node}/tasks" => client.own_tasks(&at.pve_node).await.map(|_| Seen::All),
            "GET /nodes/{node}/tasks/{upid}/status" => self.task().await,
            "GET /nodes/{node}/qemu/{vmid}/config" => {
                client.snapshot_disks(at, SNAPSHOT).await.map(|_| Seen::All)
            }
            "GET /nodes/{node}/qemu/{vmid}/pending" => {
                client.vm_pending(at).await.map(|_| Seen::All)
            }
            "GET /nodes/{node}/qemu/{vmid}/status/current" => {
                client.vm_status(at).await.map(|_| Seen::All)
            }
            "GET /nodes/{node}/qemu/{vmid}/snapshot" => {
                client.snapshots(at).await.map(|_| Seen::All)
            }
            "POST /nodes/{node}/qemu/{vmid}/config" => self.attach().await.map(all),
            "PUT /nodes/{node}/qemu/{vmid}/resize" => self.grow().await.map(all),
            "GET /nodes/{node}/storage/{storage}/content" => self.list().await,
            "POST /nodes/{node}/storage/{storage}/content" => {
                let disk = DiskName::for_volume(OWNER.try_into()?, "new", self.free.format());
                let made = client.allocate_disk(storage, &disk, Bytes::MIB).await;
                made.map(|_| Seen::All)
            }
            "GET /nodes/{node}/storage/{storage}/content/{volume}" => {
                match client.disk(storage, &self.held).await {
                    Ok(Presence::Absent) => bail!("a disk that is there is called absent"),
                    other => other.map(|_| Seen::All),
                }
            }
            "DELETE /nodes/{node}/storage/{storage}/content/{volume}" => client
                .delete_disk(storage, &self.free)
                .await
                .map(|_| Seen::All),
            other => bail!("{other} has no probe"),
        };
        match answer {
            Ok(seen) => Ok(seen),
            Err(ApiError {
                kind: ErrorKind::PermissionDenied { path, privilege },
                ..
            }) => Ok(Seen::Refused(path, privilege)),
            Err(error) => Err(error).context(spec.name),
        }
    }

    async fn resources(&self) -> Result<Seen, ApiError> {
        let seen = self.client.resources().await?;
        let guest = seen
            .guests
            .entries
            .iter()
            .find(|vm| vm.vmid == self.at.vmid);
        let mut without = Vec::new();
        match guest {
            None => without.push("VM.Audit"),
            Some(guest) if guest.pool.as_ref().is_none_or(|pool| pool.as_str() != POOL) => {
                without.push("Pool.Audit");
            }
            Some(_) => {}
        }
        let mut storages = seen.storages.entries.iter();
        if !storages.any(|entry| entry.storage == self.storage.storage) {
            without.push("Datastore.Audit");
        }
        Ok(part(without))
    }

    async fn list(&self) -> Result<Seen, ApiError> {
        let disks = self
            .client
            .disks_of(&self.storage, self.held.owner())
            .await?;
        let lacking = disks.entries.is_empty().then_some("Datastore.Allocate");
        Ok(part(lacking.into_iter().collect()))
    }

    async fn attach(&self) -> Result<(), ApiError> {
        let change = ConfigChange {
            set: vec![("scsi2".to_owned(), format!("{FILES}:{}", self.free))],
            ..ConfigChange::default()
        };
        match self.client.update_vm(&self.at, &change).await? {
            Started::Done => Ok(()),
            Started::Running(upid) => self.ended(&upid).await,
        }
    }

    async fn grow(&self) -> Result<(), ApiError> {
        let slot: Slot = "scsi1".parse().map_err(|_| ApiError::of_task("no slot"))?;
        let upid = self
            .client
            .resize_disk(&self.at, slot, Bytes::GIB, &self.digest)
            .await?;
        self.ended(&upid).await
    }

    /// How a task of this token ended, well or not.
    async fn task(&self) -> Result<Seen, ApiError> {
        let tasks = self.client.own_tasks(&self.at.pve_node).await?;
        if let Some(task) = tasks.entries.first() {
            self.client
                .wait_task(&task.upid, Instant::now() + TASK)
                .await?;
        }
        Ok(Seen::All)
    }

    async fn ended(&self, upid: &pve_client::Upid) -> Result<(), ApiError> {
        match self.client.wait_task(upid, Instant::now() + TASK).await? {
            TaskOutcome::Failed(text) => Err(ApiError::of_task(&text)),
            _ => Ok(()),
        }
    }
}

fn part(without: Vec<&'static str>) -> Seen {
    if without.is_empty() {
        Seen::All
    } else {
        Seen::Without(without)
    }
}
