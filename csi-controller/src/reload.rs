//! From the config file to the regions, again and again: a change takes effect without a restart and without failing a
//! running RPC, which keeps the regions that it began with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pve_client::{Metrics, Writes};
use pve_kube::Tenant;
use pve_model::Region;
use pve_region::{Connection, Fences};
use pve_runtime::Active;
use pve_runtime::config::{Config, ConfigError, RegionConfig};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::guests::{Guests, NoHints, NodeHints};
use crate::inventory::Inventory;
use crate::region::{Driver, RegionContext};
use crate::tenant::TenantNodes;

/// How often the files are read: the config, and what it names. The kubelet takes up to a minute to bring a changed
/// Secret into a pod.
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
    /// What the tenant says about its Nodes, if it is asked.
    pub tenant: Option<Tenant>,
    /// What the operator states of hosts and VMs that can't be asked.
    pub fences: Fences,
    /// Whether this process may change anything.
    pub active: Active,
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

impl Source {
    /// Reads the config and makes the regions of it. Nothing is sent to PVE.
    pub fn load(&self) -> Result<Driver, ReloadError> {
        self.load_after(&Driver::new([]))
    }

    /// The same for regions that are at work: one that has not changed stays as it is, and the locks on the VMs of the
    /// others last.
    fn load_after(&self, before: &Driver) -> Result<Driver, ReloadError> {
        let config = self.read()?;
        let regions: Result<Vec<Arc<RegionContext>>, ReloadError> = config
            .regions
            .into_iter()
            .map(|(name, region)| self.region(name, region, before))
            .collect();
        Ok(Driver::of(regions?))
    }

    fn region(
        &self,
        name: Region,
        region: RegionConfig,
        before: &Driver,
    ) -> Result<Arc<RegionContext>, ReloadError> {
        let before = before.region(&name);
        let connected = before
            .as_ref()
            .and_then(|before| before.connection.as_ref());
        let active = self.active.clone();
        let writes = Writes::only_while(move || active.is());
        let made = Connection::new(&region, connected, &self.metrics, &writes);
        let connection = made.map_err(|source| ReloadError::Client {
            region: name.to_string(),
            source,
        })?;
        if let Some(before) = &before
            && before.policy == region.policy
            && connected.is_some_and(|before| before.is(&connection))
        {
            return Ok(Arc::clone(before));
        }
        log_effective(name.as_str(), &region);
        let client = connection.client.clone();
        let inventory = Inventory::new(client.clone(), &region.policy);
        let guests =
            before.map_or_else(|| Guests::new(self.hints()), |before| before.guests.clone());
        let mut context = RegionContext::new(name, client, region.policy, inventory)
            .with_guests(guests)
            .with_fences(self.fences.clone());
        context.connection = Some(connection);
        Ok(Arc::new(context))
    }

    fn hints(&self) -> Arc<dyn NodeHints> {
        match &self.tenant {
            Some(tenant) => Arc::new(TenantNodes::new(tenant.clone())),
            None => Arc::new(NoHints),
        }
    }

    /// Reads and checks the config only.
    pub fn read(&self) -> Result<Config, ConfigError> {
        Config::load(&self.config, self.policy.as_deref())
    }

    /// Follows the files until `stop`. A config that is refused changes nothing and is logged once.
    pub async fn follow(self, driver: watch::Sender<Arc<Driver>>, stop: CancellationToken) {
        let mut complaint = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            if let Some(tenant) = &self.tenant {
                tenant.follow().await;
            }
            let before = Arc::clone(&driver.borrow());
            match self.load_after(&before) {
                Ok(new) => {
                    complaint = None;
                    if !new.is(&before) {
                        tracing::info!("the config has changed and is in force");
                        driver.send_replace(Arc::new(new));
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    if complaint.as_ref() != Some(&error) {
                        tracing::error!(%error, "the changed config is refused, the former stays in force");
                        complaint = Some(error);
                    }
                }
            }
        }
    }
}

/// What is in force, without secrets.
fn log_effective(name: &str, region: &RegionConfig) {
    let endpoints: Vec<&str> = region.endpoints.iter().map(|e| e.url.as_str()).collect();
    tracing::info!(region = name, ?endpoints, policy = ?region.policy, "region");
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;
    use std::time::SystemTime;

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
            tenant: None,
            fences: Fences::default(),
            active: Active::always(),
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

    #[test]
    fn only_what_changed_is_made_anew_and_a_file_that_the_config_names_counts() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let secret = folder.path().join("secret");
        let text = |pool: &str| config(pool).replace("secret: c", "secretFile: secret");
        std::fs::write(&path, text("first")).unwrap();
        std::fs::write(&secret, "c").unwrap();
        let source = Source {
            config: path.clone(),
            policy: None,
            metrics: Metrics::register(&mut Registry::default()),
            tenant: None,
            fences: Fences::default(),
            active: Active::always(),
        };
        let first = source.load().unwrap();
        let same = source.load_after(&first).unwrap();
        assert!(same.is(&first));
        std::fs::write(&secret, "another").unwrap();
        let rotated = source.load_after(&first).unwrap();
        assert!(!rotated.is(&first));
        let region = |driver: &Driver| Arc::clone(driver.regions().next().unwrap());
        let client = |driver: &Driver| region(driver).client.clone();
        assert!(!client(&rotated).is(&client(&first)));
        std::fs::write(&path, text("second")).unwrap();
        let moved = source.load_after(&rotated).unwrap();
        assert_eq!(region(&moved).policy.pool.as_str(), "second");
        assert!(
            client(&moved).is(&client(&rotated)),
            "nothing of it changed"
        );
        std::fs::remove_file(&secret).unwrap();
        assert!(source.load_after(&moved).is_err());
    }
}
