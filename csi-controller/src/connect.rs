//! From the operator's config to a client of one PVE cluster.

use std::sync::Arc;

use pve_client::{
    Client, ClientConfig, ConfigError, Endpoint, Limits, Metrics, Timeouts, Token, Trust,
};
use pve_runtime::config::{self, RegionConfig};

/// A client for this region. The token is read from where the config says each time PVE refuses it.
pub fn client(region: &RegionConfig, metrics: Metrics) -> Result<Client, ConfigError> {
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
    let config = ClientConfig {
        endpoints,
        token: Arc::new(token),
        limits: Limits::default(),
        timeouts: Timeouts::default(),
    };
    Client::new(config, metrics)
}

fn trust(trust: &config::Trust) -> Trust {
    match trust {
        config::Trust::SystemRoots => Trust::SystemRoots,
        config::Trust::Ca(pem) => Trust::Ca(pem.clone()),
        config::Trust::Fingerprint(sha256) => Trust::Fingerprint(*sha256),
        config::Trust::Insecure => Trust::Insecure,
    }
}
