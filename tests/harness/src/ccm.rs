//! The cloud-controller-manager as a real program, between a real API server and a simulated PVE cluster. Nodes are
//! objects that tests write as kubelets do.

mod changes;
pub mod management;
mod many;
pub mod operator;
mod relay;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
pub use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use pve_model::topology::UNINITIALIZED_TAINT;
use pve_sim::{Builder, Sim, SimHandle, TokenGrant};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cluster::objects::{CCM, MANAGEMENT, install_ccm};
use crate::cluster::sidecars::account_token;
use crate::cluster::{ControlPlane, Programs, eventually};
use crate::process::{Process, built};
use crate::run_dir::RunDir;
use crate::world::{OWNER, POOL, REGION, free_port, uuid};

pub use self::changes::Changes;
pub use self::many::{Numbers, registered, resident};
pub use self::relay::{Line, Relay};

/// Id and secret of the token of the cloud-controller-manager.
pub const TOKEN: (&str, &str) = ("ccm@pve!tenant-a", "b2c9d3f4-0a6e-4f0c-8d57-1f4f7e0c2a68");
/// All that it needs on the pool.
pub const PRIVILEGES: [&str; 2] = ["VM.Audit", "Pool.Audit"];
/// Its role on the pool.
pub const ROLE: &str = "TenantNodes";
/// How often it lists VMs in tests.
pub const PERIOD: Duration = Duration::from_secs(1);
/// How long a VM has to be gone in tests.
pub const GRACE: Duration = Duration::from_secs(2);

/// What is logged in tests: all of the program's own.
pub const LOG_FILTER: &str = "debug,h2=info,hyper=info,rustls=info,tower=info,kube=info";

/// Longest wait for what should come soon.
const PATIENCE: Duration = Duration::from_secs(30);
/// And for a deletion: a Node that was asked about in vain is asked about again after a while.
const PATIENCE_FOR_END: Duration = Duration::from_secs(90);

/// A PVE cluster with the tenant's pool, the token of its cloud-controller-manager and these running VMs.
pub fn tenant(vms: &[(u32, &str)]) -> Builder {
    let numbers: Vec<u32> = vms.iter().map(|(vmid, _)| *vmid).collect();
    let base = Sim::builder()
        .node("pve1")
        .node("pve2")
        .pool(POOL, &numbers);
    vms.iter().fold(granted(base), |builder, (vmid, host)| {
        builder.vm(*vmid, host, &format!("worker-{vmid}"))
    })
}

/// Adds the token of the cloud-controller-manager, with what it needs on the tenant's pool.
pub fn granted(builder: Builder) -> Builder {
    builder.role(ROLE, &PRIVILEGES).token(TokenGrant {
        id: TOKEN.0.to_owned(),
        secret: TOKEN.1.to_owned(),
        privsep: true,
        roles: vec![(format!("/pool/{POOL}"), ROLE.to_owned())],
    })
}

/// How the program reaches a PVE cluster, and what of it is the tenant's, as the operator would write it.
pub fn region_config(sim: &SimHandle) -> Value {
    let endpoints: Vec<Value> = sim
        .urls()
        .iter()
        .map(|url| json!({ "url": url, "ca": sim.ca_pem() }))
        .collect();
    json!({
        "endpoints": endpoints,
        "token": { "id": TOKEN.0, "secret": TOKEN.1 },
        "pool": POOL,
        "storages": ["files"],
        "nodes": ["pve1", "pve2"],
        "owners": { "default": OWNER },
        "mode": "reserved",
    })
}

/// An API server, PVE clusters and the program between them.
#[derive(Debug)]
pub struct CcmWorld {
    /// The running programs.
    pub ccms: Vec<Process>,
    /// One PVE cluster per region: `r1`, then what was added.
    pub regions: Vec<(String, SimHandle)>,
    plane: ControlPlane,
    kubeconfig: PathBuf,
    management: PathBuf,
    run: RunDir,
}

impl CcmWorld {
    /// Starts an API server and one PVE cluster.
    pub async fn start(programs: &Programs, builder: Builder) -> Result<Self> {
        let run = RunDir::new()?;
        let (plane, sim) = tokio::join!(
            ControlPlane::start_server(programs, run.path()),
            builder.start()
        );
        let (plane, sim) = (plane?, sim?);
        install_ccm(&plane.client()).await?;
        let token = account_token(&plane, CCM).await?;
        let management = account_token(&plane, MANAGEMENT).await?;
        Ok(Self {
            ccms: Vec::new(),
            regions: vec![(REGION.to_owned(), sim)],
            kubeconfig: plane.whole_kubeconfig("ccm", &token)?,
            management: plane.whole_kubeconfig("management", &management)?,
            plane,
            run,
        })
    }

    /// Adds a PVE cluster.
    pub async fn add_region(&mut self, name: &str, builder: Builder) -> Result<()> {
        self.regions.push((name.to_owned(), builder.start().await?));
        Ok(())
    }

    /// The first PVE cluster.
    ///
    /// # Panics
    /// Never: there is one from the start on.
    #[expect(clippy::indexing_slicing, reason = "there is one from the start on")]
    pub fn sim(&self) -> &SimHandle {
        &self.regions[0].1
    }

    /// The folder of everything that is written.
    pub fn folder(&self) -> &Path {
        self.run.path()
    }

    /// The tenant's kubeconfig, with the rights of the program.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A kubeconfig for the same API server in the part of the management cluster: it has the rights on Leases of the
    /// namespace [`NAMESPACE`](crate::cluster::objects::NAMESPACE) alone.
    pub fn management(&self) -> &Path {
        &self.management
    }

    /// The control plane.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// An administrator's client.
    pub fn client(&self) -> Client {
        self.plane.client()
    }

    /// The config as the operator would write it.
    pub fn config(&self) -> Value {
        let one = |(name, sim): &(String, SimHandle)| (name.clone(), region_config(sim));
        let regions = self.regions.iter().map(one);
        json!({ "provider": "capmox", "regions": regions.collect::<serde_json::Map<_, _>>() })
    }

    /// Starts the program with this config and more arguments, and waits until it has seen Nodes and VMs. It lists VMs
    /// every [`PERIOD`] and deletes after [`GRACE`] unless the arguments say otherwise.
    pub async fn start_ccm(&mut self, config: &Value, more: &[&str]) -> Result<()> {
        let admin = self.launch_ccm(config, more)?;
        self.wait_ready(admin).await
    }

    /// As [`CcmWorld::start_ccm`] without the wait; where it serves `/readyz` and `/metrics`.
    pub fn launch_ccm(&mut self, config: &Value, more: &[&str]) -> Result<SocketAddr> {
        let name = format!("ccm-{}", self.ccms.len());
        let path = self.folder().join(format!("{name}.yaml"));
        std::fs::write(&path, config.to_string())?;
        let admin = free_port()?;
        let given = |flag: &str| more.iter().any(|arg| arg.starts_with(flag));
        let mut args = vec![
            format!("--cloud-config={}", path.display()),
            format!("--admin-address={admin}"),
        ];
        for (flag, value) in [
            ("--kubeconfig", self.kubeconfig.display().to_string()),
            ("--poll-period", format!("{}s", PERIOD.as_secs())),
            ("--deletion-grace", format!("{}s", GRACE.as_secs())),
            ("--log-filter", LOG_FILTER.to_owned()),
        ] {
            if !given(flag) {
                args.push(format!("{flag}={value}"));
            }
        }
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        let logs = self.folder().join("log");
        let process = Process::start(&name, &built("pve-ccm")?, &args, &logs)?;
        self.ccms.push(process);
        Ok(admin)
    }

    /// Waits until `/readyz` says so.
    pub async fn wait_ready(&mut self, admin: SocketAddr) -> Result<()> {
        let process = self.ccms.last_mut().context("no program was started")?;
        process
            .ready(PATIENCE, async || {
                let answer = admin_page(admin, "/readyz").await;
                answer.is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
            })
            .await
    }

    /// What the programs have logged.
    pub fn logs(&self) -> String {
        self.ccms.iter().map(Process::log).collect()
    }

    /// Kills all programs.
    pub async fn kill_ccms(&mut self) -> Result<()> {
        for process in self.ccms.drain(..) {
            process.kill().await?;
        }
        Ok(())
    }

    /// The Nodes.
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client())
    }

    /// Registers a Node as a kubelet of that VM does with `--cloud-provider=external`: ready, tainted, without labels.
    pub async fn register(&self, name: &str, vmid: u32) -> Result<()> {
        self.register_as(name, &uuid(vmid), json!({})).await
    }

    /// As [`CcmWorld::register`], with that system UUID and a `spec` of its own on top.
    pub async fn register_as(&self, name: &str, system_uuid: &str, spec: Value) -> Result<()> {
        let nodes = self.nodes();
        let taint = json!({ "key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule" });
        let mut whole = serde_json::Map::new();
        whole.insert("taints".to_owned(), json!([taint]));
        whole.extend(spec.as_object().cloned().unwrap_or_default());
        let node = json!({ "metadata": { "name": name }, "spec": whole });
        nodes
            .create(&PostParams::default(), &serde_json::from_value(node)?)
            .await?;
        let info = many::node_info(system_uuid);
        let status = json!({ "status": { "nodeInfo": info } });
        let params = PatchParams::default();
        nodes
            .patch_status(name, &params, &Patch::Merge(status))
            .await?;
        self.set_ready(name, true).await
    }

    /// Writes the condition `Ready` of a Node.
    pub async fn set_ready(&self, name: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "Unknown" };
        let now = "2026-01-01T00:00:00Z";
        let condition = json!({
            "type": "Ready", "status": status, "reason": "Test", "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now,
        });
        let patch = json!({ "status": { "conditions": [condition] } });
        self.nodes()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// A Node, if it is there.
    pub async fn node(&self, name: &str) -> Result<Option<Node>> {
        Ok(self.nodes().get_opt(name).await?)
    }

    /// All Nodes.
    pub async fn all_nodes(&self) -> Result<Vec<Node>> {
        Ok(self.nodes().list(&ListParams::default()).await?.items)
    }

    /// Waits until a Node is as `is` says.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&Node) -> bool,
    ) -> Result<(Node, Duration)> {
        eventually(&format!("{name}: {what}"), PATIENCE, async || {
            Ok(self.node(name).await?.filter(&is))
        })
        .await
    }

    /// Waits until a Node has lost the taint of initialisation.
    pub async fn initialised(&self, name: &str) -> Result<(Node, Duration)> {
        self.until(name, "initialised", |node| {
            !has_taint(node, UNINITIALIZED_TAINT)
        })
        .await
    }

    /// Waits until there is no such Node.
    pub async fn deleted(&self, name: &str) -> Result<Duration> {
        let ((), took) = eventually(&format!("{name}: deleted"), PATIENCE_FOR_END, async || {
            Ok(self.node(name).await?.is_none().then_some(()))
        })
        .await?;
        Ok(took)
    }

    /// Deletes a Node, as an administrator does.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.nodes().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// The Events about a Node.
    pub async fn events(&self, name: &str) -> Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.client(), "default");
        let params = ListParams::default().fields(&format!("involvedObject.name={name}"));
        Ok(events.list(&params).await?.items)
    }

    /// Ends everything; fails if a program has ended by itself.
    pub async fn stop(mut self) -> Result<()> {
        for process in &mut self.ccms {
            ensure!(
                process.ended()?.is_none(),
                "the program has ended: {}",
                process.log()
            );
        }
        for process in self.ccms {
            let status = process.stop().await?;
            ensure!(status.success(), "the program ended with {status}");
        }
        self.plane.stop().await
    }
}

/// What a program's admin port answers, head and body.
pub async fn admin_page(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: ccm\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Whether a Node has a taint of that key.
pub fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == key))
}

/// A label of a Node.
pub fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// An annotation of a Node.
pub fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// `spec.providerID` of a Node.
pub fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref()
}
