//! `pve-credentials`: the process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use jiff::SignedDuration;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use pve_credentials::Trouble;
use pve_credentials::compose::{Use, Wanted};
use pve_credentials::follow::{Loader, Operator, Tenant};
use pve_credentials::kubeconfig::Impersonation;
use pve_credentials::metrics::Metrics;
use pve_credentials::store::Store;
use pve_model::Region;
use pve_runtime::admin::Admin;
use pve_runtime::config::Provider;
use pve_runtime::process;
use pve_runtime::telemetry::LogFormat;
use tokio_util::sync::CancellationToken;

/// Writes what the drivers read, from the operator's Secret and the tenant's kubeconfig, into memory.
///
/// Exit codes: 0 done, 1 something is not there or can't be read or written, 2 wrong usage, 64 refused.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// For which program the Secret has to be.
    #[arg(long = "use", value_enum)]
    purpose: Use,
    /// Where the operator's Secret is mounted.
    #[arg(long)]
    secret_dir: PathBuf,
    /// Where config.yaml, policy.yaml and fences.yaml go: a folder in memory of this user alone, made if it is not there.
    #[arg(long)]
    config_dir: PathBuf,
    /// How the Secret has to name Nodes (default or capmox). A difference is refused.
    #[arg(long, value_parser = provider)]
    expect_provider: Option<Provider>,
    /// A region that the Secret has to have, and no other than those given. A difference is refused.
    #[arg(long)]
    expect_region: Vec<Region>,
    /// The tenant's kubeconfig: a file of a mounted Secret, which need not be there yet.
    #[arg(long, requires = "kubeconfig_dir")]
    kubeconfig_source: Option<PathBuf>,
    /// Where kubeconfigs go: another such folder.
    #[arg(long, requires = "kubeconfig_source")]
    kubeconfig_dir: Option<PathBuf>,
    /// Write NAME.kubeconfig that acts as USER of the tenant's cluster; without any, tenant.kubeconfig is written.
    #[arg(long, value_name = "NAME=USER", requires = "kubeconfig_source")]
    impersonate: Vec<Impersonation>,
    /// How long a kubeconfig is waited for (`10m`). With --watch it is waited for without end.
    #[arg(long, default_value = "10m", value_parser = duration)]
    wait: Duration,
    /// Follow both sources until the program is told to end.
    #[arg(long)]
    watch: bool,
    /// How often sources are read with --watch.
    #[arg(long, default_value = "10s", value_parser = duration)]
    poll_period: Duration,
    /// Where to serve /healthz, /readyz and /metrics with --watch.
    #[arg(long, requires = "watch")]
    admin_address: Option<SocketAddr>,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// What is logged.
    #[arg(long, default_value = "info")]
    log_filter: String,
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a duration like 10s or 10m, of a second or more".to_owned();
    let parsed: SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(parsed).map_err(|_| wrong())?;
    if duration < Duration::from_secs(1) {
        return Err(wrong());
    }
    Ok(duration)
}

fn provider(text: &str) -> Result<Provider, &'static str> {
    match text {
        "default" => Ok(Provider::Default),
        "capmox" => Ok(Provider::Capmox),
        _ => Err("must be default or capmox"),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (format, filter) = (arguments.log_format, arguments.log_filter.clone());
    process::run(format, &filter, async {
        code(Box::pin(run(arguments)).await)
    })
}

fn code(ended: anyhow::Result<()>) -> ExitCode {
    let Err(error) = ended else {
        return ExitCode::SUCCESS;
    };
    tracing::error!("{error:#}");
    match error.downcast_ref::<Trouble>() {
        Some(Trouble::Refused(_)) => process::config_refused(),
        _ => ExitCode::FAILURE,
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), ?arguments, "starting");
    let stop = process::shutdown_on_signals().context("signals")?;
    let mut registry = Registry::default();
    let numbers = registry.sub_registry_with_prefix("proxmox_credentials");
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    numbers.register("build", "What this program is", Info::new(version));
    let loader = loader(&arguments, Metrics::register(numbers))?;
    if !arguments.watch {
        loader.once(arguments.wait, &stop).await?;
        tracing::info!("all files are written");
        return Ok(());
    }
    let admin = match arguments.admin_address {
        Some(address) => Some(Admin::bind(address).await.context("admin address")?),
        None => None,
    };
    let serving = serve(admin, registry, &loader, stop.clone());
    let following = async {
        let followed = loader.follow(arguments.poll_period, &stop).await;
        stop.cancel();
        followed
    };
    let (followed, ()) = tokio::join!(following, serving);
    Ok(followed?)
}

fn loader(arguments: &Arguments, metrics: Metrics) -> Result<Loader, Trouble> {
    let operator = Operator {
        folder: arguments.secret_dir.clone(),
        wanted: Wanted {
            purpose: arguments.purpose,
            provider: arguments.expect_provider,
            regions: arguments.expect_region.iter().cloned().collect(),
        },
        store: Store::open(&arguments.config_dir)?,
    };
    let tenant = match (&arguments.kubeconfig_source, &arguments.kubeconfig_dir) {
        (Some(source), Some(folder)) => Some(Tenant {
            source: source.clone(),
            impersonations: impersonations(&arguments.impersonate)?,
            store: Store::open(folder)?,
        }),
        _ => None,
    };
    if let Some(tenant) = &tenant
        && tenant.store.is_same(&operator.store)
    {
        let why =
            "--config-dir and --kubeconfig-dir are the same folder: each needs one of its own";
        return Err(Trouble::Refused(why.to_owned()));
    }
    Ok(Loader::new(operator, tenant, metrics))
}

fn impersonations(given: &[Impersonation]) -> Result<Vec<Impersonation>, Trouble> {
    for (index, one) in given.iter().enumerate() {
        if given
            .iter()
            .skip(index + 1)
            .any(|other| other.name == one.name)
        {
            let name = &one.name;
            return Err(Trouble::Refused(format!(
                "--impersonate names {name} twice"
            )));
        }
    }
    Ok(given.to_vec())
}

fn serve(
    admin: Option<Admin>,
    registry: Registry,
    loader: &Loader,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let ready = loader.ready();
    async move {
        let Some(admin) = admin else { return };
        if let Err(error) = admin.serve(Arc::new(registry), ready, stop).await {
            tracing::error!(%error, "the admin port");
        }
    }
}
