//! `pve-csi-controller`: the controller's process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use csi_proto::csi::v1::controller_server::ControllerServer;
use csi_proto::csi::v1::identity_server::IdentityServer;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use pve_csi_controller::Driver;
use pve_csi_controller::health::{self, Health};
use pve_csi_controller::identity::IdentityService;
use pve_csi_controller::refusals::Refusals;
use pve_csi_controller::reload::Source;
use pve_csi_controller::service::ControllerService;
use pve_csi_controller::teardown::Teardown;
use pve_kube::{ElectionArguments, Tenant};
use pve_model::topology::DEFAULT_DRIVER_NAME;
use pve_region::{FenceMetrics, Fences};
use pve_runtime::admin::Admin;
use pve_runtime::config::FENCES_FILE;
use pve_runtime::rpc::RpcLayer;
use pve_runtime::telemetry::LogFormat;
use pve_runtime::{Active, KeyedLock, RpcMetrics, Socket, Work, process, server};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// For requests that are answered yet when the program is told to end, and then for work that goes on without them.
/// Kubernetes kills the program after 30 s.
const PATIENCE: Duration = Duration::from_secs(15);
const LAST_WORK: Duration = Duration::from_secs(7);

/// Names the Lease.
const NAME: &str = "pve-csi-controller";

/// CSI controller for Kubernetes clusters whose Nodes are guests of Proxmox VE.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where to serve CSI.
    #[arg(long, default_value = "unix:///csi/csi.sock")]
    csi_address: String,
    /// The operator's config file.
    #[arg(long)]
    cloud_config: PathBuf,
    /// The operator's policy file; by default `policy.yaml` beside the config.
    #[arg(long)]
    policy: Option<PathBuf>,
    /// What the operator states of hosts and VMs that can't be asked, as `pvectl fence` writes it; by default `fences.yaml`
    /// beside the config. It need not be there.
    #[arg(long)]
    fences: Option<PathBuf>,
    /// How to reach the tenant's API server, only to understand node ids of the former driver, and to see that the tenant's
    /// volumes are being removed.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Name of the CSI driver.
    #[arg(long, default_value = DEFAULT_DRIVER_NAME)]
    driver_name: String,
    #[command(flatten)]
    election: ElectionArguments,
    /// Where to serve /healthz, /readyz and /metrics.
    #[arg(long)]
    admin_address: Option<SocketAddr>,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// What is logged.
    #[arg(long, default_value = "info")]
    log_filter: String,
    /// Check the config and end: 0 if it can be used, 64 if not.
    #[arg(long)]
    check_config: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LockLabel {
    key: &'static str,
}

struct Telemetry {
    registry: Registry,
    rpc: RpcLayer,
    pve: pve_client::Metrics,
    volumes: KeyedLock<String>,
    refusals: Refusals,
    fences: FenceMetrics,
    leading: Gauge,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (format, filter) = (arguments.log_format, arguments.log_filter.clone());
    process::run(format, &filter, start(arguments))
}

async fn start(arguments: Arguments) -> ExitCode {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), ?arguments, "starting");
    let telemetry = Telemetry::new();
    let (source, driver) = match configured(&arguments, &telemetry).await {
        Ok(configured) => configured,
        Err(error) => {
            tracing::error!("{error:#}");
            return process::config_refused();
        }
    };
    if arguments.check_config {
        return ExitCode::SUCCESS;
    }
    match Box::pin(run(arguments, telemetry, source, driver)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

type Configured = (Source, Arc<Driver>);

async fn configured(arguments: &Arguments, telemetry: &Telemetry) -> anyhow::Result<Configured> {
    let tenant = match &arguments.kubeconfig {
        Some(path) => Some(Tenant::of_kubeconfig(path).await?),
        None => None,
    };
    let source = Source {
        config: arguments.cloud_config.clone(),
        policy: arguments.policy.clone(),
        metrics: telemetry.pve.clone(),
        tenant,
        fences: Fences::at(fence_file(arguments), telemetry.fences.clone()),
        active: Active::default(),
    };
    let driver = Arc::new(source.load()?);
    Ok((source, driver))
}

fn fence_file(arguments: &Arguments) -> PathBuf {
    let beside = || arguments.cloud_config.with_file_name(FENCES_FILE);
    arguments.fences.clone().unwrap_or_else(beside)
}

async fn run(
    arguments: Arguments,
    telemetry: Telemetry,
    source: Source,
    driver: Arc<Driver>,
) -> anyhow::Result<()> {
    let stop = process::shutdown_on_signals().context("signals")?;
    let election = arguments.election;
    let (ready, probed) = watch::channel(false);
    let turn = Turn {
        active: source.active.clone(),
        ready,
        leading: telemetry.leading,
    };
    if !election.leader_elect {
        // The process is the active controller from its start on.
        health::check_owners(&driver).await;
        turn.begin(|| true);
    }
    let socket = Socket::bind(&arguments.csi_address)
        .await
        .context("CSI socket")?;
    let (changed, driver) = watch::channel(driver);
    let work = Work::new(stop.clone());
    let teardown = source
        .tenant
        .clone()
        .map_or_else(Teardown::default, |tenant| {
            Teardown::of(tenant, arguments.driver_name.clone())
        });
    let identity = IdentityService::new(arguments.driver_name, probed);
    let controller = ControllerService::new(driver.clone(), work.clone(), telemetry.volumes)
        .counting(telemetry.refusals)
        .while_active(source.active.clone())
        .closed_by(teardown);
    let routes =
        Routes::new(IdentityServer::new(identity)).add_service(ControllerServer::new(controller));
    let health = Arc::new(Health::default());
    let (address, registry) = (arguments.admin_address, telemetry.registry);
    let admin = admin(address, registry, &health, stop.clone()).await?;
    // Both may be waiting for PVE or for a name server when the program is told to end.
    let follow = source.follow(changed, stop.clone());
    let watch = Arc::clone(&health).watch(driver.clone(), stop.clone());
    let serving = async {
        let (served, _, _, ()) = tokio::join!(
            server::serve(socket, routes, telemetry.rpc, stop.clone(), PATIENCE),
            stop.run_until_cancelled(follow),
            stop.run_until_cancelled(watch),
            admin,
        );
        let left = work.drain(LAST_WORK).await;
        if left > 0 {
            tracing::warn!(left, "ending while work still runs");
        }
        served.context("CSI socket")
    };
    if election.leader_elect {
        Box::pin(turn.wait(&election, &driver, &stop, serving)).await
    } else {
        serving.await
    }
}

/// Says to all parts that this process is the active one.
struct Turn {
    active: Active,
    ready: watch::Sender<bool>,
    leading: Gauge,
}

impl Turn {
    fn begin(&self, holds: impl Fn() -> bool + Send + Sync + 'static) {
        self.active.begin(holds);
        self.ready.send_replace(true);
        self.leading.set(1);
    }

    /// Serves, at first only to say that others are to wait: until the Lease is held. What goes on after it is lost is cut
    /// off before another process can have it.
    async fn wait(
        self,
        election: &ElectionArguments,
        driver: &watch::Receiver<Arc<Driver>>,
        stop: &CancellationToken,
        serving: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let mut serving = pin!(serving);
        let leadership = tokio::select! {
            served = &mut serving => return served,
            elected = election.elected(NAME, stop) => match elected {
                Ok(Some(leadership)) => leadership,
                Ok(None) => return serving.await,
                Err(error) => {
                    stop.cancel();
                    serving.await?;
                    return Err(error.into());
                }
            },
        };
        let holding = leadership.holding();
        let begun = async {
            let driver = Arc::clone(&driver.borrow());
            for region in driver.regions() {
                region.guests.witness.forget();
            }
            health::check_owners(&driver).await;
            self.begin(move || holding.holds());
        };
        let acting = async { tokio::join!(begun, serving).1 };
        leadership.during(stop.clone(), acting).await?
    }
}

async fn admin(
    address: Option<SocketAddr>,
    registry: Registry,
    health: &Arc<Health>,
    stop: CancellationToken,
) -> anyhow::Result<impl Future<Output = ()>> {
    let admin = match address {
        Some(address) => Some(Admin::bind(address).await.context("admin address")?),
        None => None,
    };
    let ready = health.ready();
    Ok(async move {
        let Some(admin) = admin else { return };
        if let Err(error) = admin.serve(Arc::new(registry), ready, stop).await {
            tracing::error!(%error, "the admin port");
        }
    })
}

impl Telemetry {
    fn new() -> Self {
        let mut registry = Registry::default();
        let metrics = registry.sub_registry_with_prefix("proxmox_csi");
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        metrics.register("build", "What this program is", Info::new(version));
        let conflicts = Family::<LockLabel, Counter>::default();
        metrics.register(
            "lock_conflicts",
            "Operations that found another one on the same object",
            conflicts.clone(),
        );
        let volume = conflicts
            .get_or_create(&LockLabel { key: "volume" })
            .clone();
        let rpc = RpcLayer::new(RpcMetrics::register(metrics));
        let pve = pve_client::Metrics::register(metrics);
        let refusals = Refusals::register(metrics);
        let fences = FenceMetrics::register(metrics);
        let leading = Gauge::default();
        metrics.register(
            "leading",
            "Whether this process is the active one",
            leading.clone(),
        );
        Self {
            registry,
            rpc,
            pve,
            volumes: KeyedLock::new(volume),
            refusals,
            fences,
            leading,
        }
    }
}
