//! One tenant on one simulated PVE cluster: the controller and node plugins as real programs around it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::Result;
use pve_sim::{Builder, HardwareKind, Sim, SimHandle, StorageOptions, TokenGrant};
use serde_json::{Value, json};

use crate::csi::Csi;
use crate::extra_controller;
use crate::kube_stub::KubeStub;
use crate::process::{Process, built};
use crate::run_dir::RunDir;

/// The region of every world.
pub const REGION: &str = "r1";
/// The VMID in whose name disks are made; no VM has it.
pub const OWNER: u32 = 9999;
/// Local file storage, on every PVE node.
pub const FILES: &str = "files";
/// Local thin pool, on every PVE node.
pub const THIN: &str = "thin";
/// File storage that all PVE nodes share.
pub const SHARED: &str = "shared";
/// The tenant's pool.
pub const POOL: &str = "tenant-a";

/// Id and secret of the tenant's token.
pub const TOKEN: (&str, &str) = ("csi@pve!tenant-a", "7a1c1a52-3f0e-4a65-8c3f-2f5e9c1d7b11");

/// What a role of the tenant may do on its pool.
pub const POOL_PRIVILEGES: [&str; 3] = ["VM.Audit", "VM.Config.Disk", "Pool.Audit"];
/// And on its storages.
pub const STORAGE_PRIVILEGES: [&str; 3] = [
    "Datastore.Allocate",
    "Datastore.AllocateSpace",
    "Datastore.Audit",
];

/// The SMBIOS UUID that the simulator gives a VM unless told otherwise.
pub fn uuid(vmid: u32) -> String {
    format!("00000000-0000-4000-a000-{vmid:012}")
}

/// The CSI node id of a VM.
pub fn node_id(vmid: u32) -> String {
    format!("{}/{vmid}", uuid(vmid))
}

/// A simulator with two PVE nodes, the three storages, the tenant's pool and token, and these running VMs in the pool.
pub fn tenant(vms: &[(u32, &str)]) -> Builder {
    let numbers: Vec<u32> = vms.iter().map(|(vmid, _)| *vmid).chain([OWNER]).collect();
    let local = StorageOptions::default();
    let shared = StorageOptions {
        shared: true,
        ..local
    };
    let roles = [FILES, THIN, SHARED]
        .map(|storage| (format!("/storage/{storage}"), "TenantStorage".to_owned()))
        .into_iter()
        .chain([(format!("/pool/{POOL}"), "TenantPool".to_owned())]);
    let base = Sim::builder()
        .node("pve1")
        .node("pve2")
        .storage_dir(FILES, local)
        .storage_lvmthin(THIN, local)
        .storage_dir(SHARED, shared)
        .pool(POOL, &numbers)
        .role("TenantPool", &POOL_PRIVILEGES)
        .role("TenantStorage", &STORAGE_PRIVILEGES)
        .token(TokenGrant {
            id: TOKEN.0.to_owned(),
            secret: TOKEN.1.to_owned(),
            privsep: true,
            roles: roles.collect(),
        });
    vms.iter().fold(base, |builder, (vmid, pve_node)| {
        builder.vm(*vmid, pve_node, &format!("worker-{vmid}"))
    })
}

/// A simulator, a controller and a folder for everything that they write.
#[derive(Debug)]
pub struct World {
    /// The Proxmox that is not there.
    pub sim: SimHandle,
    /// The controller, while it runs.
    pub controller: Option<Process>,
    folder: RunDir,
}

/// A running node plugin and the API server in which it sees its Node.
#[derive(Debug)]
pub struct NodePlugin {
    /// The program.
    pub process: Process,
    /// Its services.
    pub csi: Csi,
    /// Where its Node is.
    pub kube: KubeStub,
    /// `plugins_registry` of its kubelet.
    pub registration: PathBuf,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
    /// The name of its Node.
    pub name: String,
    vmid: u32,
}

impl World {
    /// Starts the simulator and the controller.
    pub async fn start(builder: Builder) -> Result<Self> {
        let mut world = Self::without_controller(builder).await?;
        world.start_controller().await?;
        Ok(world)
    }

    /// Starts the simulator with loop devices as hardware, and the controller.
    pub async fn start_with_loop_devices(builder: Builder) -> Result<Self> {
        let folder = RunDir::new()?;
        let run_dir = folder.path().join("pve");
        let sim = builder
            .hardware(HardwareKind::Loop { run_dir })
            .start()
            .await?;
        let mut world = Self {
            sim,
            controller: None,
            folder,
        };
        world.start_controller().await?;
        Ok(world)
    }

    /// Starts the simulator alone.
    pub async fn without_controller(builder: Builder) -> Result<Self> {
        let sim = builder.start().await?;
        Ok(Self {
            sim,
            controller: None,
            folder: RunDir::new()?,
        })
    }

    /// The folder of this world; it goes with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The controller's config as the operator would write it.
    pub fn config(&self) -> Value {
        let endpoints: Vec<Value> = self
            .sim
            .urls()
            .iter()
            .map(|url| json!({ "url": url, "ca": self.sim.ca_pem() }))
            .collect();
        json!({
            "provider": "capmox",
            "regions": { REGION: {
                "endpoints": endpoints,
                "token": { "id": TOKEN.0, "secret": TOKEN.1 },
                "pool": POOL,
                "storages": [FILES, THIN, SHARED],
                "nodes": ["pve1", "pve2"],
                "owners": { "default": OWNER },
                "mode": "reserved",
            }},
        })
    }

    /// Starts the controller with the config of this world.
    pub async fn start_controller(&mut self) -> Result<()> {
        let config = self.config();
        self.start_controller_with(&config).await
    }

    /// Starts the controller with a config (JSON is YAML too).
    pub async fn start_controller_with(&mut self, config: &Value) -> Result<()> {
        self.start_controller_as(config, &[]).await
    }

    /// Starts the controller with the config of this world and more arguments.
    pub async fn start_controller_more(&mut self, arguments: &[String]) -> Result<()> {
        let config = self.config();
        self.start_controller_as(&config, arguments).await
    }

    async fn start_controller_as(&mut self, config: &Value, more: &[String]) -> Result<()> {
        let path = self.folder().join("config.yaml");
        std::fs::write(&path, config.to_string())?;
        let socket = self.controller_socket();
        let mut process =
            extra_controller::start(self.folder(), "controller", (&socket, &path), more)?;
        self.csi().served_by(&mut process).await?;
        self.controller = Some(process);
        Ok(())
    }

    /// Ends the controller as a crash would, and starts it again.
    pub async fn crash_controller(&mut self) -> Result<()> {
        if let Some(process) = self.controller.take() {
            process.kill().await?;
        }
        self.start_controller().await
    }

    /// Where the controller listens.
    pub fn controller_socket(&self) -> PathBuf {
        self.folder().join("csi.sock")
    }

    /// The controller's services.
    pub fn csi(&self) -> Csi {
        Csi::at(&self.controller_socket())
    }

    /// What the controller has logged.
    pub fn controller_log(&self) -> String {
        self.controller
            .as_ref()
            .map(Process::log)
            .unwrap_or_default()
    }

    /// What `operation` answered, and how many requests PVE got meanwhile.
    pub async fn counted<T>(&self, operation: impl Future<Output = T>) -> (T, usize) {
        self.sim.clear_requests();
        let answer = operation.await;
        (answer, self.sim.requests().len())
    }

    /// Where the hardware shows a VM its `/sys` and `/dev`.
    pub fn vm_tree(&self, vmid: u32) -> PathBuf {
        self.folder().join("pve").join(format!("vm-{vmid}"))
    }

    /// Starts the node plugin of a VM, its Node labelled as the CCM would do it if `zone` is given.
    pub async fn start_node(&self, vmid: u32, zone: Option<&str>) -> Result<NodePlugin> {
        let name = format!("worker-{vmid}");
        let kube = KubeStub::start().await?;
        let kubelet = self.folder().join(format!("k{vmid}"));
        let registration = kubelet.join("plugins_registry");
        std::fs::create_dir_all(&registration)?;
        let (process, csi) = self.node_process(vmid, &kube, &kubelet).await?;
        let plugin = NodePlugin {
            process,
            csi,
            kube,
            registration,
            kubelet,
            name,
            vmid,
        };
        match zone {
            Some(zone) => plugin.label(zone),
            None => plugin.kube.set_node(&plugin.name, &uuid(vmid), &[], &[]),
        }
        Ok(plugin)
    }

    async fn node_process(
        &self,
        vmid: u32,
        kube: &KubeStub,
        kubelet: &Path,
    ) -> Result<(Process, Csi)> {
        let socket = kubelet.join("csi.sock");
        let tree = self.vm_tree(vmid);
        let name = format!("worker-{vmid}");
        let arguments = [
            ("--csi-address", format!("unix://{}", socket.display())),
            ("--kubelet-csi-path", socket.display().to_string()),
            (
                "--registration-dir",
                kubelet.join("plugins_registry").display().to_string(),
            ),
            ("--kubelet-dir", kubelet.display().to_string()),
            ("--node-name", name.clone()),
            (
                "--kubeconfig",
                kube.kubeconfig(kubelet)?.display().to_string(),
            ),
            ("--sys-root", tree.join("sys").display().to_string()),
            ("--dev-root", tree.join("dev").display().to_string()),
            (
                "--log-filter",
                "debug,h2=info,hyper=info,rustls=info,tower=info".to_owned(),
            ),
        ];
        let flat: Vec<String> = arguments
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .chain(["--allow-private-mounts".to_owned()])
            .collect();
        let mut process = Process::start(
            &name,
            &built("pve-csi-node")?,
            &flat,
            &self.folder().join("log"),
        )?;
        let csi = Csi::at(&socket);
        csi.served_by(&mut process).await?;
        Ok((process, csi))
    }

    /// Ends a node plugin as a crash would, and starts it again.
    pub async fn crash_node(&self, plugin: NodePlugin) -> Result<NodePlugin> {
        let NodePlugin {
            process,
            kube,
            registration,
            kubelet,
            name,
            vmid,
            ..
        } = plugin;
        process.kill().await?;
        let (process, csi) = self.node_process(vmid, &kube, &kubelet).await?;
        Ok(NodePlugin {
            process,
            csi,
            kube,
            registration,
            kubelet,
            name,
            vmid,
        })
    }
}

impl NodePlugin {
    /// Writes region, zone and VMID on the Node, as the CCM does.
    pub fn label(&self, zone: &str) {
        let labels = [
            ("topology.kubernetes.io/region", REGION),
            ("topology.kubernetes.io/zone", zone),
        ];
        let vmid = self.vmid.to_string();
        let annotations = [("proxmox.sinextra.dev/instance-id", vmid.as_str())];
        self.kube
            .set_node(&self.name, &uuid(self.vmid), &labels, &annotations);
    }
}

/// A port of 127.0.0.1 that was free a moment ago.
pub fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
