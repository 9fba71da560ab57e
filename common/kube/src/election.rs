//! Which of several processes of a program is the active one: a Lease in the management cluster says so. The tenant's API
//! server is never asked: its Leases are the tenant's to forge.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::kubeconfig::{KubeconfigError, management};
use crate::lease::{Leadership, LeaseError, LeaseSpec, lead};

/// A pod's own namespace, where the kubelet mounts its `ServiceAccount`.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// client-go's: others wait that long after the last renewal that they saw.
const DURATION: Duration = Duration::from_secs(15);
/// And who leads has lost it so long after the last one that was confirmed.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);
/// For work to end in once the Lease is lost, and the process after it: 5 s later another may lead.
pub const LAST_WORK: Duration = Duration::from_secs(3);
/// For the Lease, at the end: it expires if that is not enough.
const GIVING_BACK: Duration = Duration::from_secs(3);

/// The flags of a program that can run more than once.
#[derive(Debug, Clone, Default, Args)]
pub struct ElectionArguments {
    /// Hold a Lease in the management cluster, so that one of several processes is the active one.
    #[arg(long)]
    pub leader_elect: bool,
    /// Name of the Lease; by default that of the program.
    #[arg(long)]
    pub lease_name: Option<String>,
    /// Namespace of the Lease; by default that of this pod.
    #[arg(long)]
    pub lease_namespace: Option<String>,
    /// How to reach the management cluster; by default as a pod of it.
    #[arg(long)]
    pub management_kubeconfig: Option<PathBuf>,
}

/// Why nobody can be elected.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// No client can be made.
    #[error("management cluster: {0}")]
    Management(#[from] KubeconfigError),
    /// No namespace was given, and there is none around.
    #[error("--lease-namespace is needed outside of a pod: {0}")]
    Namespace(#[source] io::Error),
    /// The Lease can't be asked for.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// The Lease is lost: another may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the Lease is lost")]
pub struct Lost;

impl ElectionArguments {
    /// Waits for the Lease; nothing if the program is to end first. The process calls itself by its host's name there.
    pub async fn elected(
        &self,
        program: &str,
        stop: &CancellationToken,
    ) -> Result<Option<Leadership>, ElectionError> {
        let client = management(self.management_kubeconfig.as_deref()).await?;
        let namespace = match &self.lease_namespace {
            Some(namespace) => namespace.clone(),
            None => std::fs::read_to_string(Path::new(NAMESPACE_FILE))
                .map_err(ElectionError::Namespace)?,
        };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let spec = LeaseSpec {
            namespace: namespace.trim().to_owned(),
            name: self.lease_name.clone().unwrap_or(program.to_owned()),
            identity: host.trim().to_owned(),
            duration: DURATION,
            renew_deadline: RENEW_DEADLINE,
            retry: RETRY,
        };
        match lead(client, spec, stop.clone()).await {
            Ok(leadership) => {
                tracing::info!("this process is the active one");
                Ok(Some(leadership))
            }
            Err(LeaseError::Stopped) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Leadership {
    /// Lets `work` run to its end, and then gives the Lease back. Once the Lease is lost, `stop` is cancelled, at which the
    /// work has to end; after [`LAST_WORK`] it is dropped.
    pub async fn during<T>(
        self,
        stop: CancellationToken,
        work: impl Future<Output = T>,
    ) -> Result<T, Lost> {
        let lost = self.lost();
        let mut work = std::pin::pin!(work);
        tokio::select! {
            done = &mut work => {
                if timeout(GIVING_BACK, self.release()).await.is_err() {
                    tracing::warn!("the Lease is not given back: the management cluster does not answer");
                }
                Ok(done)
            }
            () = lost.cancelled() => {
                stop.cancel();
                if timeout(LAST_WORK, work).await.is_err() {
                    tracing::warn!("work is cut off, as another process may become the active one");
                }
                Err(Lost)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::stub::Server;
    use crate::lease::tests::leading;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn who_has_done_its_work_gives_the_lease_back() {
        let server = Server::default();
        let leadership = leading(server.client().0, "a").await;
        let stop = CancellationToken::new();
        let work = async {
            sleep(Duration::from_mins(1)).await;
            7
        };
        assert_eq!(leadership.during(stop.clone(), work).await, Ok(7));
        assert_eq!(server.holder(), "");
        assert!(!stop.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_before_another_can_lead_whether_it_wants_or_not() {
        for obeys in [true, false] {
            let server = Server::default();
            let leadership = leading(server.client().0, "a").await;
            let (lost, stop) = (leadership.lost(), CancellationToken::new());
            let told = stop.clone();
            let work = async move {
                told.cancelled().await;
                let longer = if obeys { 1 } else { 3600 };
                sleep(Duration::from_secs(longer)).await;
            };
            let watched = tokio::spawn(async move {
                lost.cancelled().await;
                Instant::now()
            });
            sleep(Duration::from_secs(30)).await;
            server.delete();
            assert_eq!(leadership.during(stop, work).await, Err(Lost));
            let took = watched.await.unwrap().elapsed();
            let allowed = if obeys { 1 } else { 3 };
            assert_eq!(took.as_secs(), allowed);
            assert!(took + RENEW_DEADLINE < DURATION, "{took:?}");
        }
    }
}
