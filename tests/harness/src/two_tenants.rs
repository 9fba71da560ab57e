//! Two tenants on one simulated PVE cluster, with the controller of the first. Whatever is the other's has a name of its
//! own, so that it can be told in a request, a state or a text.

mod bounds;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use pve_sim::{Builder, Pool, Sim, State, StorageOptions, TokenGrant, Vm, Volume};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub use bounds::beyond_alpha;

use crate::caller::Caller;
use crate::csi::Csi;
use crate::kube_stub::KubeStub;
use crate::process::{Process, built};
use crate::world::{
    OWNER, POOL, POOL_PRIVILEGES, REGION, STORAGE_PRIVILEGES, TOKEN, World, free_port, uuid,
};

/// Thin pool of the first tenant, on every PVE node.
pub const OWN: &str = "alpha-thin";
/// File storage that all PVE nodes share and both tenants may use.
pub const BOTH: &str = "both";
/// In whose name the first tenant's disks on `pve2` are made; here a VM has the number.
pub const OWNER_ON_PVE2: u32 = 9998;
/// A volume of somebody else that the operator gave to the first tenant.
pub const ADOPTED: &str = "r1//both/100/vm-100-disk-1.raw";

/// The first tenant's VMs: workers, one with a root disk on its storage, two of one UUID, a template, the owner's number.
pub const WORKER: u32 = 101;
pub const WORKER_ON_PVE2: u32 = 102;
pub const WITH_ROOT_DISK: u32 = 104;
pub const TWINS: [u32; 2] = [105, 106];
pub const TEMPLATE: u32 = 107;

/// All that is the other tenant's.
pub mod bravo {
    /// Its region, in its own config.
    pub const REGION: &str = "bravo-region";
    /// Its pool.
    pub const POOL: &str = "bravo";
    /// Its storage.
    pub const STORAGE: &str = "bravo-thin";
    /// A PVE node that only it may use.
    pub const PVE_NODE: &str = "bravo-host";
    /// The owner of its disks.
    pub const OWNER: u32 = 78888;
    /// Its VMs, on `pve1` and on its own PVE node.
    pub const VMS: [u32; 2] = [77201, 77202];
    /// Its token.
    pub const TOKEN: (&str, &str) = ("bravo@pve!bravo", "0b7c3c90-5a4e-4a0e-9a53-4f5f7f0b77b1");
    /// A disk of its own storage, attached; one on the storage of both, attached; one there, free.
    pub const DISKS: [&str; 3] = [
        "bravo-thin:vm-78888-bravo-db",
        "both:78888/vm-78888-bravo-shared.raw",
        "both:78888/vm-78888-bravo-spare.raw",
    ];
}

/// What the first tenant's token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// Exactly what the reference says, on its pool and its storages.
    Least,
    /// Everything, everywhere.
    Root,
}

/// The simulator with both tenants, and the first one's controller.
#[derive(Debug)]
pub struct TwoTenants {
    /// The simulator and a folder.
    pub world: World,
    /// The first tenant's API server.
    pub kube: KubeStub,
    controller: Process,
    admin: SocketAddr,
}

/// What of a state is the other tenant's.
#[derive(Debug, Clone, PartialEq)]
pub struct Bravo {
    vms: Vec<(u32, Vm)>,
    volumes: Vec<Volume>,
    pool: Option<Pool>,
}

impl TwoTenants {
    /// Starts both.
    pub async fn start(power: Power) -> Result<Self> {
        let world = World::without_controller(cluster(power)).await?;
        let kube = KubeStub::start().await?;
        let admin = free_port()?;
        let config = world.folder().join("config.yaml");
        std::fs::write(&config, alpha_config(&world).to_string())?;
        let arguments = [
            "--csi-address".to_owned(),
            format!("unix://{}", world.controller_socket().display()),
            "--cloud-config".to_owned(),
            config.display().to_string(),
            "--kubeconfig".to_owned(),
            kube.kubeconfig(world.folder())?.display().to_string(),
            "--admin-address".to_owned(),
            admin.to_string(),
        ];
        let logs: PathBuf = world.folder().join("log");
        let program = built("pve-csi-controller")?;
        let mut controller = Process::start("controller", &program, &arguments, &logs)?;
        world.csi().served_by(&mut controller).await?;
        Ok(Self {
            world,
            kube,
            controller,
            admin,
        })
    }

    /// Calls to the first tenant's controller.
    pub fn caller(&self) -> Caller {
        self.world.caller()
    }

    /// Its services.
    pub fn csi(&self) -> Csi {
        self.world.csi()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.controller.log()
    }

    /// How many refusals it has counted, by kind.
    pub async fn refusals(&self) -> Result<Vec<(String, u64)>> {
        let text = timeout(Duration::from_secs(5), metrics(self.admin)).await??;
        let prefix = "proxmox_csi_refusals_total{why=\"";
        text.lines()
            .filter_map(|line| line.strip_prefix(prefix)?.split_once("\"} "))
            .map(|(why, count)| {
                let count = count.parse().context("a counter")?;
                Ok((why.to_owned(), count))
            })
            .collect()
    }

    /// What is the other tenant's now.
    pub fn bravo(&self) -> Bravo {
        Bravo::of(&self.world.sim.state())
    }
}

async fn metrics(admin: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

impl Bravo {
    /// Its VMs with config, pending changes and devices, its disks, its pool.
    pub fn of(state: &State) -> Self {
        let own = |volume: &&Volume| {
            let file = volume.name.rsplit('/').next().unwrap_or_default();
            let owners = bravo::VMS.into_iter().chain([bravo::OWNER]);
            let mut prefixes = owners.map(|owner| format!("vm-{owner}-"));
            volume.storage == bravo::STORAGE || prefixes.any(|prefix| file.starts_with(&prefix))
        };
        let vms = bravo::VMS.iter().filter_map(|vmid| {
            let vm = state.vms.get(vmid)?;
            Some((*vmid, vm.clone()))
        });
        Self {
            vms: vms.collect(),
            volumes: state.volumes.iter().filter(own).cloned().collect(),
            pool: state.pools.get(bravo::POOL).cloned(),
        }
    }
}

fn alpha_config(world: &World) -> Value {
    let mut config = world.config();
    if let Some(region) = config.pointer_mut(&format!("/regions/{REGION}")) {
        *region = json!({
            "endpoints": region["endpoints"],
            "token": region["token"],
            "pool": POOL,
            "storages": [OWN, BOTH],
            "nodes": ["pve1", "pve2"],
            "owners": { "default": OWNER, "pve2": OWNER_ON_PVE2 },
            "mode": "reserved",
            "adopted": [ADOPTED],
        });
    }
    config
}

fn cluster(power: Power) -> Builder {
    let local = StorageOptions::default();
    let shared = StorageOptions {
        shared: true,
        ..local
    };
    let base = Sim::builder()
        .node("pve1")
        .node("pve2")
        .node(bravo::PVE_NODE)
        .storage_lvmthin(OWN, local)
        .storage_lvmthin(bravo::STORAGE, local)
        .storage_dir(BOTH, shared)
        .role("TenantPool", &POOL_PRIVILEGES)
        .role("TenantStorage", &STORAGE_PRIVILEGES)
        .token(grant(TOKEN, POOL, OWN, power))
        .token(grant(
            bravo::TOKEN,
            bravo::POOL,
            bravo::STORAGE,
            Power::Least,
        ));
    bravo_guests(alpha_guests(base))
}

fn grant(token: (&str, &str), pool: &str, storage: &str, power: Power) -> TokenGrant {
    let least = [
        (format!("/pool/{pool}"), "TenantPool"),
        (format!("/storage/{storage}"), "TenantStorage"),
        (format!("/storage/{BOTH}"), "TenantStorage"),
    ];
    let roles = match power {
        Power::Least => least.map(|(path, role)| (path, role.to_owned())).to_vec(),
        Power::Root => vec![("/".to_owned(), "Administrator".to_owned())],
    };
    TokenGrant {
        id: token.0.to_owned(),
        secret: token.1.to_owned(),
        privsep: true,
        roles,
    }
}

fn alpha_guests(base: Builder) -> Builder {
    let twin = format!("uuid={}", uuid(TWINS[0]));
    let root_disk = format!("{OWN}:vm-{WITH_ROOT_DISK}-disk-0,size=1G");
    let options = |name: &'static str| [("name", name), ("scsihw", "virtio-scsi-single")];
    let with = |name, key, value| [options(name).as_slice(), &[(key, value)]].concat();
    let pool = [
        WORKER,
        WORKER_ON_PVE2,
        WITH_ROOT_DISK,
        TWINS[0],
        TWINS[1],
        TEMPLATE,
        OWNER,
        OWNER_ON_PVE2,
    ];
    base.pool(POOL, &pool)
        .vm(WORKER, "pve1", "alpha-1")
        .vm(WORKER_ON_PVE2, "pve2", "alpha-2")
        .volume(OWN, Some("pve1"), "vm-104-disk-0", 1 << 30)
        .volume(BOTH, None, "100/vm-100-disk-1.raw", 1 << 30)
        .vm_with(
            WITH_ROOT_DISK,
            "pve1",
            &with("alpha-4", "scsi0", &root_disk),
            true,
        )
        .vm(TWINS[0], "pve1", "alpha-5")
        .vm_with(TWINS[1], "pve2", &with("alpha-6", "smbios1", &twin), true)
        .vm_with(TEMPLATE, "pve1", &with("alpha-7", "template", "1"), false)
        .vm_with(OWNER_ON_PVE2, "pve2", &options("alpha-owner"), false)
}

fn bravo_guests(base: Builder) -> Builder {
    let [db, shared, spare] = bravo::DISKS;
    let disk = |volid: &str| format!("{volid},size=1G,wwn=0x5000000000000b01");
    let options = |name: &'static str, root: &'static str, data: &str| {
        [
            ("name", name.to_owned()),
            ("scsihw", "virtio-scsi-single".to_owned()),
            ("scsi0", format!("{root},size=1G")),
            ("scsi1", disk(data)),
        ]
    };
    let one = options("bravo-worker-1", "bravo-thin:vm-77201-disk-0", db);
    let two = options("bravo-worker-2", "both:77202/vm-77202-disk-0.raw", shared);
    let name = |volid: &'static str| volid.split_once(':').map_or("", |(_, name)| name);
    base.pool(bravo::POOL, &[bravo::VMS[0], bravo::VMS[1], bravo::OWNER])
        .volume(bravo::STORAGE, Some("pve1"), "vm-77201-disk-0", 1 << 30)
        .volume(bravo::STORAGE, Some("pve1"), name(db), 1 << 30)
        .volume(BOTH, None, "77202/vm-77202-disk-0.raw", 1 << 30)
        .volume(BOTH, None, name(shared), 1 << 30)
        .volume(BOTH, None, name(spare), 1 << 30)
        .vm_with(bravo::VMS[0], "pve1", &borrowed(&one), true)
        .vm_with(bravo::VMS[1], bravo::PVE_NODE, &borrowed(&two), true)
}

fn borrowed<'a>(options: &'a [(&'a str, String)]) -> Vec<(&'a str, &'a str)> {
    let pairs = options.iter();
    pairs.map(|(key, value)| (*key, value.as_str())).collect()
}
