//! From the operator's config to a client of one PVE cluster.

use std::fmt;
use std::sync::Arc;

use pve_client::{
    Client, ClientConfig, ConfigError, Endpoint, Limits, Metrics, Timeouts, Token, Trust,
};
use pve_runtime::config::{self, EndpointConfig, RegionConfig};
use secrecy::ExposeSecret;

/// A client and what it was made of: it can stay as long as that is the same.
#[derive(Clone)]
pub struct Connection {
    /// The client.
    pub client: Client,
    endpoints: Vec<EndpointConfig>,
    token: Token,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// A client for this region: the one of `before` if nothing about it has changed, else one that takes its place. The
    /// token is read from where the config says, now and each time PVE refuses it.
    pub fn new(
        region: &RegionConfig,
        before: Option<&Self>,
        metrics: &Metrics,
    ) -> Result<Self, ConfigError> {
        let config = client_config(region);
        let token = (config.token)().map_err(ConfigError::Token)?;
        let client = match before {
            Some(before) if before.endpoints == region.endpoints && same(&before.token, &token) => {
                before.client.clone()
            }
            Some(before) => before.client.successor(config)?,
            None => Client::new(config, metrics.clone())?,
        };
        Ok(Self {
            client,
            endpoints: region.endpoints.clone(),
            token,
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

fn client_config(region: &RegionConfig) -> ClientConfig {
    let source = region.token.clone();
    let token = move || {
        let token = source.read().map_err(|error| error.to_string())?;
        Ok(Token {
            id: token.id,
            secret: token.secret,
        })
    };
    let endpoints = region
        .endpoints
        .iter()
        .map(|endpoint| Endpoint {
            url: endpoint.url.clone(),
            trust: trust(&endpoint.trust),
        })
        .collect();
    ClientConfig {
        endpoints,
        token: Arc::new(token),
        limits: Limits::default(),
        timeouts: Timeouts::default(),
    }
}

fn trust(trust: &config::Trust) -> Trust {
    match trust {
        config::Trust::SystemRoots => Trust::SystemRoots,
        config::Trust::Ca(pem) => Trust::Ca(pem.clone()),
        config::Trust::Fingerprint(sha256) => Trust::Fingerprint(*sha256),
        config::Trust::Insecure => Trust::Insecure,
    }
}
