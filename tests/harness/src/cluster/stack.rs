//! A tenant cluster on a simulated PVE cluster: control plane, sidecars, controller, and a kubelet with a node plugin for each VM.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::ListParams;
use kube::{Api, Client};
use nix::sys::signal::Signal;
use pve_model::topology::{DEFAULT_DRIVER_NAME, UNINITIALIZED_TAINT};
use pve_sim::Timing;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

use super::control_plane::ControlPlane;
use super::kubelet::{CloudProvider, Kubelet, NodeSpec};
use super::objects::{CCM, CONTROLLER, Class, NAMESPACE, NODE_PLUGIN, install};
use super::requirements::Programs;
use super::sidecars::{Sidecars, account_kubeconfig, account_token};
use super::wait::eventually;
use crate::ccm;
use crate::process::{Process, built};
use crate::run_dir::RunDir;
use crate::world::{FILES, REGION, SHARED, THIN, World, tenant, uuid};

/// What the driver promises: from the labels of a Node to its entry in the `CSINode`.
pub const REGISTERED: Duration = Duration::from_secs(5);
/// How long is waited for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// One in a process at a time: tests measure seconds, and each cluster fills two cores while it starts.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A VM that is a worker.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Its number.
    pub vmid: u32,
    /// The PVE node on which it runs.
    pub pve_node: &'static str,
}

/// A worker: kubelet and node plugin. Dropped, both are killed.
#[derive(Debug)]
pub struct Worker {
    /// The plugin.
    pub plugin: Process,
    /// The kubelet.
    pub kubelet: Kubelet,
    place: Place,
    arguments: Vec<String>,
    logs: PathBuf,
}

/// All of it. Dropped in this order: what holds mounts ends first, then the mounts go, then the disks.
#[derive(Debug)]
pub struct Stack {
    sidecars: Sidecars,
    /// `n1`, `n2`, …
    pub workers: Vec<Worker>,
    ccm: Option<Process>,
    pub(super) plane: ControlPlane,
    run: RunDir,
    /// The simulator and the controller.
    pub world: World,
    _alone: MutexGuard<'static, ()>,
}

impl Stack {
    /// Starts everything and waits until PVCs can be bound.
    pub async fn start(programs: &Programs, places: &[Place]) -> Result<Self> {
        let mut stack = Self::start_without_workers(programs, places).await?;
        stack.start_ccm().await?;
        stack.start_workers(places).await?;
        for worker in &stack.workers {
            if let Err(error) = worker.wait_registered().await {
                return Err(error.context(stack.logs()));
            }
        }
        if let Err(error) = stack.wait_capacities().await {
            return Err(error.context(stack.logs()));
        }
        Ok(stack)
    }

    /// Waits until the scheduler can know how much each class has on each PVE node: before, it places no Pod.
    async fn wait_capacities(&self) -> Result<()> {
        let places = self.workers.iter().map(|worker| worker.place.pve_node);
        let wanted = classes().len() * places.collect::<BTreeSet<_>>().len();
        let capacities: Api<CSIStorageCapacity> = Api::namespaced(self.client(), NAMESPACE);
        eventually("the capacities of the classes", PATIENCE, async || {
            let known = capacities.list(&ListParams::default()).await?.items;
            let known = known.iter().filter(|one| one.capacity.is_some()).count();
            Ok((known >= wanted).then_some(()))
        })
        .await?;
        Ok(())
    }

    /// Starts everything but the cloud-controller-manager: the Nodes are tainted and have no labels yet.
    pub async fn start_uninitialised(programs: &Programs, places: &[Place]) -> Result<Self> {
        let mut stack = Self::start_without_workers(programs, places).await?;
        stack.start_workers(places).await?;
        Ok(stack)
    }

    /// Starts what is there before any worker is. The VMs run.
    pub async fn start_without_workers(programs: &Programs, places: &[Place]) -> Result<Self> {
        let alone = ALONE.lock().await;
        let run = RunDir::new()?;
        let vms: Vec<(u32, &str)> = places
            .iter()
            .map(|place| (place.vmid, place.pve_node))
            .collect();
        let builder = ccm::granted(tenant(&vms)).timing(Timing::REAL);
        let (plane, world) = tokio::try_join!(
            ControlPlane::start(programs, run.path()),
            World::start_with_loop_devices(builder)
        )?;
        install(&plane.client(), &classes()).await?;
        let sidecars = Sidecars::start(&plane, &world.controller_socket()).await?;
        Ok(Self {
            sidecars,
            workers: Vec::new(),
            ccm: None,
            plane,
            run,
            world,
            _alone: alone,
        })
    }

    /// Starts kubelet and node plugin of these VMs, once.
    pub async fn start_workers(&mut self, places: &[Place]) -> Result<()> {
        let kubeconfig = account_kubeconfig(&self.plane, NODE_PLUGIN).await?;
        let workers = places.iter().enumerate().map(|(index, place)| {
            Worker::start(&self.plane, &self.world, *place, index, &kubeconfig)
        });
        self.workers = try_join_all(workers).await?;
        Ok(())
    }

    /// Starts the cloud-controller-manager.
    pub async fn start_ccm(&mut self) -> Result<()> {
        let token = account_token(&self.plane, CCM).await?;
        let kubeconfig = self.plane.whole_kubeconfig(CCM, &token)?;
        let regions = json!({ REGION: ccm::region_config(&self.world.sim) });
        let config = json!({ "provider": "capmox", "regions": regions });
        let path = self.run.path().join("ccm.yaml");
        std::fs::write(&path, config.to_string())?;
        let args = [
            format!("--cloud-config={}", path.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--poll-period=5s".to_owned(),
        ];
        let process = Process::start(CCM, &built("pve-ccm")?, &args, &self.plane.logs())?;
        self.ccm = Some(process);
        Ok(())
    }

    /// Ends controller and sidecars and starts them again, as a new Pod of the management cluster, the
    /// controller with the tenant's kubeconfig.
    pub async fn restart_management(&mut self) -> Result<()> {
        self.sidecars.end().await?;
        if let Some(controller) = self.world.controller.take() {
            controller.stop().await?;
        }
        let token = account_token(&self.plane, CONTROLLER).await?;
        let kubeconfig = self.plane.whole_kubeconfig(CONTROLLER, &token)?;
        let arguments = [format!("--kubeconfig={}", kubeconfig.display())];
        self.world.start_controller_more(&arguments).await?;
        let socket = self.world.controller_socket();
        self.sidecars = Sidecars::start(&self.plane, &socket).await?;
        Ok(())
    }

    /// Starts one more set of sidecars, on another controller's socket.
    pub async fn more_sidecars(&self, socket: &Path) -> Result<Sidecars> {
        Sidecars::start(&self.plane, socket).await
    }

    /// Ends the sidecars: nobody looks after the tenant's claims and capacities any more.
    pub async fn end_sidecars(&mut self) -> Result<()> {
        self.sidecars.end().await
    }

    /// An administrator's client.
    pub fn client(&self) -> Client {
        self.plane.client()
    }

    /// Fails if any program of the driver has ended: in a cluster, each would be a restart.
    pub fn no_restarts(&mut self) -> Result<()> {
        let controller = self.world.controller.as_mut().context("no controller")?;
        ensure!(controller.ended()?.is_none(), "the controller has ended");
        for worker in &mut self.workers {
            let name = worker.kubelet.name();
            ensure!(
                worker.plugin.ended()?.is_none(),
                "the node plugin of {name} has ended"
            );
        }
        if let Some(ccm) = &mut self.ccm {
            ensure!(
                ccm.ended()?.is_none(),
                "the cloud-controller-manager has ended"
            );
        }
        let ended = self.sidecars.ended()?;
        ensure!(ended.is_empty(), "sidecars have ended: {ended:?}");
        Ok(())
    }

    /// The last lines that each program of the driver has written.
    pub fn logs(&self) -> String {
        let plugins = self
            .workers
            .iter()
            .map(|worker| (worker.kubelet.name().to_owned(), worker.plugin.log()));
        let controller = ("controller".to_owned(), self.world.controller_log());
        let ccm = self.ccm.iter().map(|ccm| (CCM.to_owned(), ccm.log()));
        let mut text = String::new();
        for (name, log) in [controller]
            .into_iter()
            .chain(ccm)
            .chain(plugins)
            .chain(self.sidecars.logs())
        {
            text.extend(["--- ", &name, "\n", &last_lines(&log, 30), "\n"]);
        }
        text
    }

    /// Ends the cluster after a test. If that failed, tells what the programs had to say.
    pub async fn finish(mut self, outcome: Result<()>) -> Result<()> {
        match outcome.and_then(|()| self.no_restarts()) {
            Ok(()) => self.stop().await,
            Err(error) => Err(error.context(self.logs())),
        }
    }

    /// Ends everything gracefully.
    pub async fn stop(self) -> Result<()> {
        let Self {
            sidecars,
            workers,
            ccm,
            plane,
            run,
            mut world,
            _alone,
        } = self;
        for worker in workers {
            worker.kubelet.stop().await?;
            worker.plugin.stop().await?;
        }
        if let Some(ccm) = ccm {
            let status = ccm.stop().await?;
            ensure!(
                status.success(),
                "the cloud-controller-manager ended with {status}"
            );
        }
        sidecars.stop().await?;
        plane.stop().await?;
        drop(run);
        if let Some(controller) = world.controller.take() {
            let status = controller.stop().await?;
            ensure!(status.success(), "the controller ended with {status}");
        }
        Ok(())
    }
}

impl Worker {
    async fn start(
        plane: &ControlPlane,
        world: &World,
        vm: Place,
        index: usize,
        kubeconfig: &Path,
    ) -> Result<Self> {
        let spec = NodeSpec {
            name: format!("n{}", index + 1),
            system_uuid: uuid(vm.vmid),
            cloud_provider: CloudProvider::External,
            images: Vec::new(),
        };
        let kubelet = Kubelet::start(plane, &spec).await?;
        let plugin_folder = kubelet.root().join("plugins").join(DEFAULT_DRIVER_NAME);
        std::fs::create_dir_all(&plugin_folder)?;
        let socket = plugin_folder.join("csi.sock");
        let tree = world.vm_tree(vm.vmid);
        let flags: [(&str, PathBuf); 7] = [
            ("--kubelet-csi-path", socket.clone()),
            ("--registration-dir", kubelet.registry()),
            ("--kubelet-dir", kubelet.root().to_owned()),
            ("--kubeconfig", kubeconfig.to_owned()),
            ("--sys-root", tree.join("sys")),
            ("--dev-root", tree.join("dev")),
            ("--node-name", PathBuf::from(&spec.name)),
        ];
        let args: Vec<String> = flags
            .iter()
            .map(|(flag, value)| format!("{flag}={}", value.display()))
            .chain([
                format!("--csi-address=unix://{}", socket.display()),
                "--log-filter=debug,h2=info,hyper=info,rustls=info,tower=info".to_owned(),
            ])
            .collect();
        let plugin = start_plugin(&spec.name, &args, &plane.logs())?;
        Ok(Self {
            plugin,
            kubelet,
            place: vm,
            arguments: args,
            logs: plane.logs(),
        })
    }

    /// Kills the plugin as a crash would, starts it again and waits until the kubelet has registered it anew.
    pub async fn crash_plugin(&mut self) -> Result<()> {
        self.plugin.signal(Signal::SIGKILL)?;
        let before = self.registrations();
        let plugin = &mut self.plugin;
        eventually("the end of the plugin", PATIENCE, async || plugin.ended()).await?;
        self.plugin = start_plugin(self.kubelet.name(), &self.arguments, &self.logs)?;
        eventually("a new registration", PATIENCE, async || {
            Ok((self.registrations() > before).then_some(()))
        })
        .await?;
        Ok(())
    }

    /// How often the kubelet has registered the plugin.
    fn registrations(&self) -> usize {
        let log = self.plugin.log();
        log.matches("registered with the kubelet").count()
    }

    /// Waits until the Node is initialised; returns how long it took.
    pub async fn wait_labelled(&self) -> Result<Duration> {
        let what = format!("the labels of {}", self.kubelet.name());
        let ((), took) = eventually(&what, PATIENCE, async || {
            let node = self.kubelet.node().await?;
            let is = |node| !ccm::has_taint(node, UNINITIALIZED_TAINT);
            Ok(node.as_ref().is_some_and(is).then_some(()))
        })
        .await?;
        Ok(took)
    }

    /// Waits for the `CSINode` entry; returns the CSI node id and how long it took.
    pub async fn wait_registered(&self) -> Result<(String, Duration)> {
        let what = format!("the CSINode entry of {}", self.kubelet.name());
        eventually(&what, PATIENCE, async || {
            self.kubelet.registered(DEFAULT_DRIVER_NAME).await
        })
        .await
    }

    /// The VM.
    pub fn vmid(&self) -> u32 {
        self.place.vmid
    }
}

fn start_plugin(node: &str, arguments: &[String], logs: &Path) -> Result<Process> {
    let name = format!("plugin-{node}");
    Process::start(&name, &built("pve-csi-node")?, arguments, logs)
}

/// A class for each storage of the world, named like it.
fn classes() -> Vec<Class> {
    [FILES, THIN, SHARED]
        .map(|storage| Class {
            name: storage,
            storage: storage.to_owned(),
        })
        .into()
}

fn last_lines(log: &str, count: usize) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let start = lines.len().saturating_sub(count);
    lines.get(start..).unwrap_or_default().join("\n")
}
