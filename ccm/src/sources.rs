//! From the operator's config to the PVE clusters, again and again: what has not changed stays as it is.

use std::path::PathBuf;
use std::sync::Arc;

use pve_client::{Metrics, Writes};
use pve_region::Connection;
use pve_runtime::config::{Config, ConfigError};

use crate::plan::Rules;
use crate::poll::Source;

/// Where the config is.
#[derive(Debug, Clone)]
pub struct Files {
    /// `--cloud-config`.
    pub config: PathBuf,
    /// `--policy`, if it was given.
    pub policy: Option<PathBuf>,
    /// Numbers of all clients.
    pub metrics: Metrics,
}

/// What follows from a config.
#[derive(Debug, Clone)]
pub struct Settings {
    /// One per PVE cluster.
    pub sources: Vec<Arc<Source>>,
    /// What the operator wants of Nodes.
    pub rules: Rules,
}

/// A config that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
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

impl Settings {
    /// Whether it is the same, clients included.
    pub fn are(&self, other: &Self) -> bool {
        let same = |(one, other): (&Arc<Source>, &Arc<Source>)| Arc::ptr_eq(one, other);
        self.rules == other.rules
            && self.sources.len() == other.sources.len()
            && self.sources.iter().zip(&other.sources).all(same)
    }
}

impl Files {
    /// Reads the config. Nothing is sent to PVE.
    pub fn load(&self, before: Option<&Settings>) -> Result<Settings, SettingsError> {
        let config = Config::load(&self.config, self.policy.as_deref())?;
        let ha = config.nodes.ha;
        let mut sources = Vec::new();
        for (name, region) in config.regions {
            let known = before
                .and_then(|before| before.sources.iter().find(|source| source.region == name));
            let connected = known.map(|known| &known.connection);
            let connection = Connection::new(&region, connected, &self.metrics, &Writes::default())
                .map_err(|source| SettingsError::Client {
                    region: name.to_string(),
                    source,
                })?;
            // What was read holds for the same PVE cluster and policy, by whatever token.
            let known = known.filter(|known| {
                known.policy == region.policy && known.connection.reaches_the_same(&connection)
            });
            let same =
                known.filter(|known| known.looks_at_ha() == ha && known.connection.is(&connection));
            sources.push(match same {
                Some(same) => Arc::clone(same),
                None => Arc::new(Source::new(
                    name,
                    region.policy,
                    connection,
                    ha,
                    known.map(Arc::as_ref),
                )),
            });
        }
        Ok(Settings {
            sources,
            rules: Rules {
                provider: config.provider,
                nodes: config.nodes,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::load;

    #[test]
    fn what_was_read_holds_for_the_same_pve_cluster_and_policy() {
        let folder = tempfile::tempdir().unwrap();
        let now = ("one", 9999, 8006, false);
        let before = load(folder.path(), None, now);
        for (sentence, then, kept, same) in [
            ("nothing changed", now, true, true),
            ("another token", ("two", 9999, 8006, false), true, false),
            ("HA", ("one", 9999, 8006, true), true, false),
            ("another owner", ("one", 9998, 8006, false), false, false),
            ("another endpoint", ("one", 9999, 8007, false), false, false),
        ] {
            let after = load(folder.path(), Some(&before), then);
            assert_eq!(after.remembers_with(&before), kept, "{sentence}");
            assert_eq!(Arc::ptr_eq(&after, &before), same, "{sentence}");
        }
    }
}
