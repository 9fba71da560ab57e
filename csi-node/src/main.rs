//! `pve-csi-node`: the node plugin's process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use csi_proto::csi::v1::identity_server::IdentityServer;
use csi_proto::csi::v1::node_server::NodeServer;
use prometheus_client::registry::Registry;
use pve_csi_node::linux_host::{LinuxHost, MOUNT_TABLE};
use pve_csi_node::mountinfo::{self, Spread};
use pve_csi_node::registration::{self, Announcement, Progress};
use pve_csi_node::service::Service;
use pve_csi_node::topology::NodeObject;
use pve_model::ids::KubeNode;
use pve_model::topology::DEFAULT_DRIVER_NAME;
use pve_runtime::admin::{Admin, Ready};
use pve_runtime::rpc::RpcLayer;
use pve_runtime::telemetry::LogFormat;
use pve_runtime::{RpcMetrics, Socket, Work, process, server};
use tokio::sync::watch;
use tonic::service::Routes;

/// For requests that are answered yet when the program is told to end, and then for work that goes on without them.
/// Kubernetes kills the program after 30 s.
const PATIENCE: Duration = Duration::from_secs(15);
const LAST_WORK: Duration = Duration::from_secs(10);
const API_CONNECT: Duration = Duration::from_secs(5);
/// Longer than a watch lasts, which is silent for as long as nothing changes.
const API_SILENCE: Duration = Duration::from_secs(75);

/// CSI node plugin for Proxmox VE guests.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where to serve CSI.
    #[arg(long, default_value = "unix:///csi/csi.sock")]
    csi_address: String,
    /// The kubelet's folder of plugin sockets (`plugins_registry`).
    #[arg(long)]
    registration_dir: PathBuf,
    /// The CSI socket as the kubelet sees it.
    #[arg(long)]
    kubelet_csi_path: String,
    /// The kubelet's root, at the same path as the kubelet has it. Nothing outside of it is mounted or unmounted.
    #[arg(long, default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Start although mounts below the kubelet's root are not seen by other mount namespaces: for tests, where all
    /// programs share one.
    #[arg(long)]
    allow_private_mounts: bool,
    /// Name of the Node that this is.
    #[arg(long, env = "NODE_NAME")]
    node_name: KubeNode,
    /// How to reach the API server; in-cluster if absent.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Name of the CSI driver.
    #[arg(long, default_value = DEFAULT_DRIVER_NAME, value_parser = driver_name)]
    driver_name: String,
    /// Where disks are looked up.
    #[arg(long, default_value = "/sys")]
    sys_root: PathBuf,
    /// Where their device nodes are.
    #[arg(long, default_value = "/dev")]
    dev_root: PathBuf,
    /// Where to serve /healthz, /readyz and /metrics.
    #[arg(long)]
    admin_address: Option<SocketAddr>,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// What is logged. The API client's errors are told by whoever asked.
    #[arg(long, default_value = "info,kube_client::client::builder=off")]
    log_filter: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (format, filter) = (arguments.log_format, arguments.log_filter.clone());
    process::run(format, &filter, start(arguments))
}

async fn start(mut arguments: Arguments) -> ExitCode {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), ?arguments, "starting");
    match kubelet_dir(&arguments) {
        Ok(resolved) => arguments.kubelet_dir = resolved,
        Err(error) => {
            tracing::error!("{error:#}");
            return process::config_refused();
        }
    }
    let client = match kube_client(arguments.kubeconfig.as_deref()).await {
        Ok(client) => client,
        Err(error) => {
            tracing::error!("access to the API server: {error:#}");
            return process::config_refused();
        }
    };
    match run(arguments, client).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments, client: kube::Client) -> anyhow::Result<()> {
    let stop = process::shutdown_on_signals().context("signals")?;
    let mut registry = Registry::default();
    let metrics = registry.sub_registry_with_prefix("proxmox_csi");
    let layer = RpcLayer::new(RpcMetrics::register(metrics));
    let host = LinuxHost::new(
        arguments.sys_root,
        arguments.dev_root,
        arguments.kubelet_dir,
        metrics,
    );
    let node = NodeObject::new(client, arguments.node_name);
    let work = Work::new(stop.clone());
    let service = Service::new(
        arguments.driver_name.clone(),
        Arc::new(host),
        node.clone(),
        work.clone(),
    );

    let socket = Socket::bind(&arguments.csi_address)
        .await
        .context("CSI socket")?;
    let (progress, seen) = watch::channel(Progress::WaitingForLabels);
    let admin = admin(arguments.admin_address, registry, seen, stop.clone()).await?;
    let (labelled, told) = watch::channel(false);
    let announcement = Announcement {
        driver: arguments.driver_name,
        kubelet_csi_path: arguments.kubelet_csi_path,
        folder: arguments.registration_dir,
    };
    let routes =
        Routes::new(IdentityServer::new(service.clone())).add_service(NodeServer::new(service));
    let serving = server::serve(socket, routes, layer.clone(), stop.clone(), PATIENCE);
    let (served, (), (), ()) = tokio::join!(
        serving,
        registration::run(announcement, layer, told, progress, stop.clone()),
        registration::watch_labels(node, labelled, stop),
        admin,
    );
    let left = work.drain(LAST_WORK).await;
    if left > 0 {
        tracing::warn!(left, "ending while work still runs");
    }
    served.context("CSI socket")
}

/// The kubelet's root, resolved. Kubelet and Pods see the volumes only if mounts below it spread to their mount
/// namespaces; else they would write on the Node's own disk, and nothing would tell.
fn kubelet_dir(arguments: &Arguments) -> anyhow::Result<PathBuf> {
    let given = &arguments.kubelet_dir;
    let resolved = given
        .canonicalize()
        .with_context(|| format!("--kubelet-dir {}", given.display()))?;
    if arguments.allow_private_mounts {
        return Ok(resolved);
    }
    let table = std::fs::read(MOUNT_TABLE).context(MOUNT_TABLE)?;
    let mounts = mountinfo::parse(&table).context(MOUNT_TABLE)?;
    let spread = mountinfo::holding(&mounts, &resolved).map(|mount| mount.spread);
    anyhow::ensure!(
        spread == Some(Spread::Shared),
        "the kubelet's root {} is not on a shared mount, so the kubelet and Pods would not see the volumes: mount it \
         into the container with mountPropagation: Bidirectional",
        resolved.display()
    );
    Ok(resolved)
}

async fn admin(
    address: Option<SocketAddr>,
    registry: Registry,
    progress: watch::Receiver<Progress>,
    stop: tokio_util::sync::CancellationToken,
) -> anyhow::Result<impl Future<Output = ()>> {
    let admin = match address {
        Some(address) => Some(Admin::bind(address).await.context("admin address")?),
        None => None,
    };
    let ready: Ready = Arc::new(move || match *progress.borrow() {
        Progress::Registered => Ok(()),
        Progress::Offered => Err("the kubelet has not registered this plugin yet".to_owned()),
        Progress::WaitingForLabels => Err("the Node has not been labelled yet".to_owned()),
    });
    Ok(async move {
        let Some(admin) = admin else { return };
        if let Err(error) = admin.serve(Arc::new(registry), ready, stop).await {
            tracing::error!(%error, "the admin port");
        }
    })
}

/// A name of 63 characters at most, of the grammar of a DNS name (CSI 1.12, "GetPluginInfo").
fn driver_name(text: &str) -> Result<String, String> {
    match text.parse::<KubeNode>() {
        Ok(_) if text.len() <= 63 => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err("must be a DNS name of 63 characters at most".to_owned()),
    }
}

async fn kube_client(kubeconfig: Option<&Path>) -> anyhow::Result<kube::Client> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path)?;
            kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
                .await?
        }
        None => kube::Config::incluster()?,
    };
    config.connect_timeout = Some(API_CONNECT);
    config.read_timeout = Some(API_SILENCE);
    Ok(kube::Client::try_from(config)?)
}
