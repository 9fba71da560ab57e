//! From the operator's config to a client of one PVE cluster.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use pve_client::{
    Client, ClientConfig, ConfigError, Endpoint, Limits, Metrics, Timeouts, Token, Trust, Writes,
};
use pve_runtime::TokenConfig;
use pve_runtime::config::{self, EndpointConfig, RegionConfig};
use secrecy::ExposeSecret;

/// A client and what it was made of: it can stay as long as that is the same.
#[derive(Clone)]
pub struct Connection {
    /// The client.
    pub client: Client,
    endpoints: Vec<EndpointConfig>,
    token: Token,
    source: Source,
}

/// Where the token in force comes from, for a client and for those that it takes the place of: work that began with a
/// former token goes on with the new one once PVE refuses its own.
type Source = Arc<RwLock<TokenConfig>>;

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// A client for this region: the one of `before` if nothing about it has changed, else one that takes its place. The
    /// token is read from where the config says, now and each time PVE refuses it. `writes` says whether anything may be
    /// changed.
    pub fn new(
        region: &RegionConfig,
        before: Option<&Self>,
        metrics: &Metrics,
        writes: &Writes,
    ) -> Result<Self, ConfigError> {
        let source = match before {
            // At other endpoints may be another PVE cluster, and whoever is believed by another authority, or by none, may
            // be anyone: neither has any business with the new token.
            Some(before) if before.endpoints == region.endpoints => Arc::clone(&before.source),
            _ => Arc::new(RwLock::new(region.token.clone())),
        };
        let token = read(&region.token).map_err(ConfigError::Token)?;
        let config = client_config(region, &source, writes);
        let client = match before {
            Some(before) if before.endpoints == region.endpoints && same(&before.token, &token) => {
                before.client.clone()
            }
            Some(before) => before.client.successor(config)?,
            None => Client::new(config, metrics.clone())?,
        };
        region
            .token
            .clone_into(&mut source.write().unwrap_or_else(PoisonError::into_inner));
        Ok(Self {
            client,
            endpoints: region.endpoints.clone(),
            token,
            source,
        })
    }

    /// Whether both reach the same PVE cluster in the same way, by whatever token.
    pub fn reaches_the_same(&self, other: &Self) -> bool {
        self.endpoints == other.endpoints
    }

    /// Whether it is the connection that `other` is.
    pub fn is(&self, other: &Self) -> bool {
        self.endpoints == other.endpoints && same(&self.token, &other.token)
    }
}

fn same(one: &Token, other: &Token) -> bool {
    one.id == other.id && one.secret.expose_secret() == other.secret.expose_secret()
}

fn read(token: &TokenConfig) -> Result<Token, String> {
    let token = token.read().map_err(|error| error.to_string())?;
    Ok(Token {
        id: token.id,
        secret: token.secret,
        csrf: None,
    })
}

fn client_config(region: &RegionConfig, source: &Source, writes: &Writes) -> ClientConfig {
    let source = Arc::clone(source);
    let token = move || {
        let now = source
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        read(&now)
    };
    ClientConfig {
        endpoints: endpoints(&region.endpoints),
        token: Arc::new(token),
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        writes: writes.clone(),
    }
}

/// The endpoints as the client takes them.
pub fn endpoints(endpoints: &[EndpointConfig]) -> Vec<Endpoint> {
    let endpoint = |endpoint: &EndpointConfig| Endpoint {
        url: endpoint.url.clone(),
        trust: trust(&endpoint.trust),
    };
    endpoints.iter().map(endpoint).collect()
}

fn trust(trust: &config::Trust) -> Trust {
    match trust {
        config::Trust::SystemRoots => Trust::SystemRoots,
        config::Trust::Ca(pem) => Trust::Ca(pem.clone()),
        config::Trust::Fingerprint(sha256) => Trust::Fingerprint(*sha256),
        config::Trust::Insecure => Trust::Insecure,
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use pve_runtime::Config;

    use super::*;

    fn region(url: &str, secret: &str) -> RegionConfig {
        trusting("insecure: true", url, secret)
    }

    fn trusting(whom: &str, url: &str, secret: &str) -> RegionConfig {
        let config = format!(
            "regions: {{r1: {{endpoints: [{{url: '{url}', {whom}}}], token: {{id: a@b!c, secret: {secret}}}}}}}"
        );
        let policy = "regions: {r1: {pool: a, storages: [], nodes: [], owners: {default: 9999}}}";
        let config = Config::of_texts(&config, policy).unwrap();
        config.regions.into_values().next().unwrap()
    }

    fn secret(connection: &Connection) -> String {
        let token = read(&connection.source.read().unwrap()).unwrap();
        token.secret.expose_secret().to_owned()
    }

    #[test]
    fn work_that_began_with_a_former_token_has_the_new_one_where_it_belongs() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let metrics = Metrics::register(&mut Registry::default());
        let made = |region: &RegionConfig, before: Option<&Connection>| {
            Connection::new(region, before, &metrics, &Writes::default()).unwrap()
        };
        let first = made(&region("https://127.0.0.1:1", "one"), None);
        let second = made(&region("https://127.0.0.1:1", "two"), Some(&first));
        assert!(!second.is(&first));
        assert_eq!(secret(&first), "two");
        let other = made(&region("https://127.0.0.1:2", "three"), Some(&second));
        assert_eq!(
            (secret(&second), secret(&other)),
            ("two".to_owned(), "three".to_owned())
        );
        let fingerprint = format!("fingerprint: '{}AA'", "AA:".repeat(31));
        let strict = trusting(&fingerprint, "https://127.0.0.1:1", "four");
        let strict = made(&strict, Some(&second));
        assert_eq!(
            (secret(&second), secret(&strict)),
            ("two".to_owned(), "four".to_owned()),
            "whoever was believed without a check does not get the new token"
        );
    }
}
