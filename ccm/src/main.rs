//! `pve-ccm`: the cloud-controller-manager's process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use jiff::SignedDuration;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use pve_ccm::bucket::Bucket;
use pve_ccm::engine::Parts;
use pve_ccm::events::Teller;
use pve_ccm::health::Health;
use pve_ccm::lifecycle::Ending;
use pve_ccm::machines::Machines;
use pve_ccm::metrics::Metrics;
use pve_ccm::nodes::Nodes;
use pve_ccm::program::{self, Pace, Program};
use pve_ccm::sources::{Files, Settings};
use pve_kube::{ElectionArguments, Recorder, management};
use pve_region::{FenceMetrics, Fences};
use pve_runtime::admin::Admin;
use pve_runtime::config::FENCES_FILE;
use pve_runtime::process;
use pve_runtime::telemetry::LogFormat;
use tokio_util::sync::CancellationToken;

/// Names the Lease, and who tells the tenant of something.
const NAME: &str = "pve-ccm";
/// Nodes that may be deleted at once: a mistake that all checks missed shall not take a whole cluster.
const DELETIONS: u32 = 5;
/// And then one in each of these.
const ONE_MORE: Duration = Duration::from_secs(10);

/// Cloud-controller-manager for Kubernetes clusters whose Nodes are VMs of Proxmox VE.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The operator's config file.
    #[arg(long)]
    cloud_config: PathBuf,
    /// The operator's policy file; by default `policy.yaml` beside the config.
    #[arg(long)]
    policy: Option<PathBuf>,
    /// What the operator states of VMs that can't be seen, as `pvectl fence` writes it; by default `fences.yaml` beside the
    /// config. It need not be there.
    #[arg(long)]
    fences: Option<PathBuf>,
    /// How to reach the tenant's API server. It need not be there yet.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Which controllers run.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "*")]
    controllers: Vec<Controller>,
    /// Between two lists of VMs, per PVE cluster (`60s`, `2m`).
    #[arg(long, default_value = "60s", value_parser = duration)]
    poll_period: Duration,
    /// How long a VM has to be gone before its Node is deleted.
    #[arg(long, default_value = "60s", value_parser = duration)]
    deletion_grace: Duration,
    /// Only tell which Nodes would be deleted.
    #[arg(long)]
    dry_run_deletions: bool,
    #[command(flatten)]
    election: ElectionArguments,
    /// Namespace of the management cluster whose `ProxmoxMachines` may tell the VMID of a UUID. Without it none are read.
    #[arg(long)]
    machines_namespace: Option<String>,
    /// Where to serve /healthz, /readyz and /metrics.
    #[arg(long)]
    admin_address: Option<SocketAddr>,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// What is logged.
    #[arg(long, default_value = "info,kube_client::client::builder=off")]
    log_filter: String,
    /// Check the config and end: 0 if it can be used, 64 if not.
    #[arg(long)]
    check_config: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Controller {
    /// All of them.
    #[value(name = "*")]
    All,
    /// Nodes with the taint of initialisation.
    Initialise,
    /// Labels and addresses of the others.
    Refresh,
    /// Nodes that are not ready.
    Lifecycle,
    /// Initialise and refresh, as the framework of Kubernetes calls them.
    CloudNode,
    /// Lifecycle, as the framework of Kubernetes calls it.
    CloudNodeLifecycle,
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a duration like 60s or 2m, of a second or more".to_owned();
    let parsed: SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(parsed).map_err(|_| wrong())?;
    if duration < Duration::from_secs(1) {
        return Err(wrong());
    }
    Ok(duration)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (format, filter) = (arguments.log_format, arguments.log_filter.clone());
    process::run(format, &filter, start(arguments))
}

async fn start(arguments: Arguments) -> ExitCode {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), ?arguments, "starting");
    let mut registry = Registry::default();
    let numbers = registry.sub_registry_with_prefix("proxmox_ccm");
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    numbers.register("build", "What this program is", Info::new(version));
    let metrics = Metrics::register(numbers);
    let fence_metrics = FenceMetrics::register(numbers);
    let files = Files {
        config: arguments.cloud_config.clone(),
        policy: arguments.policy.clone(),
        metrics: pve_client::Metrics::register(numbers),
    };
    let settings = match files.load(None) {
        Ok(settings) => settings,
        Err(error) => {
            tracing::error!("{error}");
            return process::config_refused();
        }
    };
    if arguments.check_config {
        return ExitCode::SUCCESS;
    }
    let beside = || arguments.cloud_config.with_file_name(FENCES_FILE);
    let fences = arguments.fences.clone().unwrap_or_else(beside);
    let parts = Ready {
        files,
        fences: Fences::at(fences, fence_metrics),
        metrics,
        registry,
    };
    match Box::pin(run(&arguments, parts, settings)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is made before anything is sent.
struct Ready {
    files: Files,
    fences: Fences,
    metrics: Metrics,
    registry: Registry,
}

async fn run(arguments: &Arguments, ready: Ready, settings: Settings) -> anyhow::Result<()> {
    let stop = process::shutdown_on_signals().context("signals")?;
    let health = Health::default();
    let admin = match arguments.admin_address {
        Some(address) => Some(Admin::bind(address).await.context("admin address")?),
        None => None,
    };
    let answer = health.ready(arguments.poll_period);
    let registry = ready.registry.into();
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move {
            let Some(admin) = admin else { return };
            if let Err(error) = admin.serve(registry, answer, stop).await {
                tracing::error!(%error, "the admin port");
            }
        }
    });
    health.waits_for(Some("the tenant's kubeconfig"));
    let worked = match program::tenant(&arguments.kubeconfig, &stop).await {
        Some(tenant) => {
            let machines = Machines::default();
            let recorder = Recorder::new(tenant.clone(), NAME);
            let (teller, telling) = Teller::new(recorder, stop.clone());
            let program = Program {
                files: ready.files,
                tenant,
                machines: machines.clone(),
                fences: ready.fences,
                pace: pace(arguments),
                nodes: Nodes::default(),
                teller,
                deletions: Arc::new(Mutex::new(Bucket::new(DELETIONS, ONE_MORE))),
                metrics: ready.metrics,
                health,
            };
            let working = async {
                let worked = Box::pin(work(&arguments.election, &program, settings, &stop)).await;
                stop.cancel();
                worked
            };
            let following = machines_of(arguments, &machines, &stop);
            let (worked, (), ()) = tokio::join!(working, telling, following);
            worked
        }
        None => Ok(()),
    };
    stop.cancel();
    serving.await.context("admin port")?;
    worked
}

fn pace(arguments: &Arguments) -> Pace {
    use Controller::{All, CloudNode, CloudNodeLifecycle, Initialise, Lifecycle, Refresh};
    let any = |of: &[Controller]| arguments.controllers.iter().any(|c| of.contains(c));
    Pace {
        parts: Parts {
            initialise: any(&[All, Initialise, CloudNode]),
            refresh: any(&[All, Refresh, CloudNode]),
        },
        lifecycle: any(&[All, Lifecycle, CloudNodeLifecycle]),
        period: arguments.poll_period,
        ending: Ending {
            grace: arguments.deletion_grace,
            dry_run: arguments.dry_run_deletions,
        },
    }
}

/// Works while this process is the active one. One that lost its Lease ends: its memory is of a former time.
async fn work(
    election: &ElectionArguments,
    program: &Program,
    settings: Settings,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    program.health.waits_for(None);
    if !election.leader_elect {
        return Ok(program.run(settings, stop.clone(), None).await?);
    }
    program.health.stands_by(true);
    let Some(leadership) = election.elected(NAME, stop).await? else {
        return Ok(());
    };
    program.health.stands_by(false);
    let active = stop.child_token();
    let holding = Some(leadership.holding());
    let running = program.run(settings, active.clone(), holding);
    Ok(Box::pin(leadership.during(active, running)).await??)
}

async fn machines_of(arguments: &Arguments, machines: &Machines, stop: &CancellationToken) {
    let Some(namespace) = &arguments.machines_namespace else {
        return;
    };
    match management(arguments.election.management_kubeconfig.as_deref()).await {
        Ok(client) => {
            let period = arguments.poll_period;
            machines
                .follow(&client, namespace, period, stop.clone())
                .await;
        }
        Err(error) => {
            tracing::error!(%error, "the management cluster: no ProxmoxMachines are read");
        }
    }
}
