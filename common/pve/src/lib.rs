//! The typed client of Proxmox VE's API, as far as the driver uses it.

pub mod access;
mod classify;
pub mod cluster;
pub mod config;
pub mod drive;
pub mod error;
pub mod metrics;
pub mod pending;
pub mod qemu;
pub mod request;
pub mod storage;
pub mod task;
mod transport;
pub mod wire;

use std::sync::Arc;

use serde_json::Value;

pub use cluster::{
    GuestKind, HostState, NodeEntry, RunState, StorageEntry, Version, VmEntry, VmidState,
};
pub use config::{ClientConfig, Endpoint, Limits, Timeouts, Token, TokenSource, Trust};
pub use drive::{Drive, ParseDriveError};
pub use error::{ApiError, ConfigError, Effect, ErrorKind};
pub use metrics::Metrics;
pub use pending::{PendingRow, VmPending};
pub use qemu::{ConfigChange, VmConfig, VmRef, VmStatus};
pub use request::{OpClass, Spec};
pub use storage::{ContentEntry, DiskInfo, Presence, StorageRef};
pub use task::{ParseUpidError, Started, TaskOutcome, Upid};
pub use wire::Listing;

use request::ApiRequest;

/// A client of one PVE cluster. Clones share everything.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    metrics: Metrics,
}

impl Client {
    /// A client of these endpoints. Nothing is sent yet.
    pub fn new(config: ClientConfig, metrics: Metrics) -> Result<Self, ConfigError> {
        if config.endpoints.is_empty() {
            return Err(ConfigError::NoEndpoint);
        }
        Ok(Self {
            inner: Arc::new(Inner { config, metrics }),
        })
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub(crate) fn background_delay(&self) -> String {
        self.inner
            .config
            .timeouts
            .background_delay
            .as_secs()
            .max(1)
            .to_string()
    }

    pub(crate) async fn read<T>(
        &self,
        request: ApiRequest,
        decode: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<T, ApiError> {
        self.call(request, decode).await
    }

    pub(crate) async fn write<T>(
        &self,
        request: ApiRequest,
        decode: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<T, ApiError> {
        self.call(request, decode).await
    }

    async fn call<T>(
        &self,
        request: ApiRequest,
        decode: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<T, ApiError> {
        let _ = (request, decode);
        std::future::pending().await
    }
}

/// Every endpoint that the client calls, for the table of privileges and for the simulator's.
pub fn endpoints() -> impl Iterator<Item = &'static Spec> {
    let groups: [&'static [&'static Spec]; 5] = [
        &cluster::ENDPOINTS,
        &storage::ENDPOINTS,
        &qemu::ENDPOINTS,
        &access::ENDPOINTS,
        &task::ENDPOINTS,
    ];
    groups.into_iter().flatten().copied()
}
