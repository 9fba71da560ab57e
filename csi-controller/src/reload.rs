//! From the config file to the regions, again and again: a change takes effect without a restart and without failing a
//! running RPC, which keeps the regions that it began with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pve_client::Metrics;
use pve_runtime::config::{Config, ConfigError, RegionConfig};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::connect;
use crate::guests::{Guests, NodeHints};
use crate::inventory::Inventory;
use crate::region::{Driver, RegionContext};

/// How often the files are looked at. The kubelet takes up to a minute to bring a changed Secret into a pod.
const PERIOD: Duration = Duration::from_secs(5);

/// Where the config is and what regions are built with.
#[derive(Debug, Clone)]
pub struct Source {
    /// `--cloud-config`.
    pub config: PathBuf,
    /// `--policy`, if it was given.
    pub policy: Option<PathBuf>,
    /// Numbers of all clients.
    pub metrics: Metrics,
    /// What the tenant says about its Nodes.
    pub hints: Arc<dyn NodeHints>,
}

/// A config that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file is not right.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A region's client can't be made.
    #[error("regions.{region}: {source}")]
    Client {
        /// Which region.
        region: String,
        /// Why.
        source: pve_client::ConfigError,
    },
}

/// When each file was last changed; a file that is not there has no time.
type Stamp = [Option<SystemTime>; 2];

impl Source {
    /// Reads the config and makes the regions of it. Nothing is sent to PVE.
    pub fn load(&self) -> Result<Driver, ReloadError> {
        self.load_after(&Driver::new([]))
    }

    /// The same for regions that are at work: the locks on their VMs last.
    fn load_after(&self, before: &Driver) -> Result<Driver, ReloadError> {
        let config = self.read()?;
        let regions: Result<Vec<RegionContext>, ReloadError> = config
            .regions
            .into_iter()
            .map(|(name, region)| {
                log_effective(name.as_str(), &region);
                let client = connect::client(&region, self.metrics.clone()).map_err(|source| {
                    ReloadError::Client {
                        region: name.to_string(),
                        source,
                    }
                })?;
                let inventory = Inventory::new(client.clone(), &region.policy);
                let guests = before.region(&name).map_or_else(
                    || Guests::new(Arc::clone(&self.hints)),
                    |region| region.guests.clone(),
                );
                let context = RegionContext::new(name, client, region.policy, inventory);
                Ok(context.with_guests(guests))
            })
            .collect();
        Ok(Driver::new(regions?))
    }

    /// Reads and checks the config only.
    pub fn read(&self) -> Result<Config, ConfigError> {
        Config::load(&self.config, self.policy.as_deref())
    }

    /// Follows the files until `stop`. A config that is refused changes nothing and is logged once.
    pub async fn follow(self, driver: watch::Sender<Arc<Driver>>, stop: CancellationToken) {
        let mut seen = self.stamp().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            let now = self.stamp().await;
            if now == seen {
                continue;
            }
            seen = now;
            let before = Arc::clone(&driver.borrow());
            match self.load_after(&before) {
                Ok(new) => {
                    tracing::info!("the config has changed and is in force");
                    driver.send_replace(Arc::new(new));
                }
                Err(error) => {
                    tracing::error!(%error, "the changed config is refused, the former stays in force");
                }
            }
        }
    }

    async fn stamp(&self) -> Stamp {
        let beside = self.config.with_file_name("policy.yaml");
        let policy = self.policy.as_ref().unwrap_or(&beside);
        [changed(&self.config).await, changed(policy).await]
    }
}

async fn changed(path: &PathBuf) -> Option<SystemTime> {
    tokio::fs::metadata(path).await.ok()?.modified().ok()
}

/// What is in force, without secrets.
fn log_effective(name: &str, region: &RegionConfig) {
    let endpoints: Vec<&str> = region.endpoints.iter().map(|e| e.url.as_str()).collect();
    tracing::info!(region = name, ?endpoints, policy = ?region.policy, "region");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guests::NoHints;
    use prometheus_client::registry::Registry;

    fn config(pool: &str) -> String {
        format!(
            "regions:\n  r1:\n    endpoints:\n    - url: https://127.0.0.1:1\n      insecure: true\n    token:\n      \
             id: a@pve!b\n      secret: c\n    pool: {pool}\n    storages: [local]\n    nodes: [pve1]\n    owners:\n      \
             default: 9999\n    mode: reserved\n"
        )
    }

    fn pool(driver: &watch::Receiver<Arc<Driver>>) -> String {
        let driver = Arc::clone(&driver.borrow());
        let region = driver.regions().next().unwrap();
        region.policy.pool.to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_config_takes_effect_and_a_broken_one_changes_nothing() {
        // kube and reqwest both use the process' provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let write = |text: &str, second: u64| {
            std::fs::write(&path, text).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(time).unwrap();
        };
        write(&config("first"), 1);
        let source = Source {
            config: path.clone(),
            policy: None,
            metrics: Metrics::register(&mut Registry::default()),
            hints: Arc::new(NoHints),
        };
        let (sender, driver) = watch::channel(Arc::new(source.load().unwrap()));
        let stop = CancellationToken::new();
        let following = tokio::spawn(source.follow(sender, stop.clone()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        write("regions: 1", 2);
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!(pool(&driver), "first");
        write(&config("second"), 3);
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!(pool(&driver), "second");
        stop.cancel();
        following.await.unwrap();
    }
}
