//! Which of several processes is the active one: a Lease in the management cluster says so.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use pve_ccm::program::Program;
use pve_ccm::sources::Settings;
use pve_kube::{Leadership, LeaseError, LeaseSpec, lead, management};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A pod's own namespace, where the kubelet mounts its `ServiceAccount`.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// For the Lease, at the end: it expires if that is not enough.
const GIVING_BACK: Duration = Duration::from_secs(3);

/// Which Lease.
#[derive(Debug)]
pub(crate) struct Election {
    /// How to reach the management cluster; by default as a pod of it.
    pub(crate) management: Option<PathBuf>,
    /// By default that of this pod.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// Works while this process is the active one. One that lost its Lease ends: its memory is of a former time.
pub(crate) async fn work(
    election: Option<Election>,
    program: &Program,
    settings: Settings,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    program.health.waits_for(None);
    let Some(election) = election else {
        return Ok(program.run(settings, stop.clone(), None).await?);
    };
    program.health.stands_by(true);
    let Some(leadership) = elected(election, stop).await? else {
        return Ok(());
    };
    program.health.stands_by(false);
    tracing::info!("this process is the active one");
    let lost = leadership.lost();
    let active = stop.child_token();
    let holding = Some(leadership.holding());
    let running = program.run(settings, active.clone(), holding);
    tokio::pin!(running);
    tokio::select! {
        worked = &mut running => {
            if timeout(GIVING_BACK, leadership.release()).await.is_err() {
                tracing::warn!("the Lease is not given back: the management cluster does not answer");
            }
            Ok(worked?)
        }
        () = lost.cancelled() => {
            active.cancel();
            running.await?;
            anyhow::bail!("the Lease is lost")
        }
    }
}

/// Waits for the Lease; nothing if the program is to end first.
async fn elected(
    election: Election,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Leadership>> {
    let client = management(election.management.as_deref())
        .await
        .context("management cluster")?;
    let namespace = match election.namespace {
        Some(namespace) => namespace,
        None => std::fs::read_to_string(Path::new(NAMESPACE_FILE))
            .context("--lease-namespace is needed outside of a pod")?,
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let spec = LeaseSpec {
        namespace: namespace.trim().to_owned(),
        name: election.name,
        identity: host.trim().to_owned(),
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };
    match lead(client, spec, stop.clone()).await {
        Ok(leadership) => Ok(Some(leadership)),
        Err(LeaseError::Stopped) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
