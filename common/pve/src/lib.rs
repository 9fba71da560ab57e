//! The typed client of Proxmox VE's API, as far as the driver uses it.
//!
//! It owns the way of a request to PVE and back: token, limits, repetition, failover, time-outs, TLS, and the reading
//! of PVE's answers and of its words about failures. It must not know gRPC, Kubernetes or what a CSI volume is.
//!
//! A request passes, from the outside in (`Stack` below):
//! trace and metrics → limits → retry → token → failover → may it write? → time-out → transport.

pub mod access;
pub mod admin;
pub mod agent;
mod auth;
mod classify;
pub mod cluster;
pub mod config;
pub mod drive;
pub mod error;
mod failover;
mod gate;
pub mod ha;
mod https;
mod limit;
mod login;
pub mod metrics;
#[cfg(any(test, fuzzing))]
pub mod oracles;
pub mod pending;
pub mod privileges;
pub mod qemu;
pub mod request;
pub mod resize;
pub mod resources;
mod retry;
pub mod snapshot;
pub mod storage;
pub mod task;
pub mod task_list;
#[cfg(test)]
mod testing;
mod tls;
pub mod transport;
pub mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pve_model::PveNode;
use serde_json::Value;
use tokio::time::Instant;

pub use admin::{AclEntry, Assignment, PermissionsByPath, PveUser, StorageConfig, UserToken};
pub use agent::{Interface, InterfaceAddress};
pub use cluster::{
    Absence, GuestKind, HostState, NodeEntry, RunState, StorageEntry, Version, VmEntry, VmidState,
};
pub use config::{ClientConfig, Endpoint, Limits, Timeouts, Token, TokenSource, Trust, Writes};
pub use drive::{Drive, ParseDriveError};
pub use error::{ApiError, ConfigError, Effect, ErrorKind};
pub use ha::{HaGroup, HaResource, HaRule, HaRuleKind};
pub use login::login;
pub use metrics::Metrics;
pub use pending::{PendingRow, VmPending};
pub use privileges::Program;
pub use qemu::{ConfigChange, VmConfig, VmRef, VmStatus};
pub use request::{OpClass, Spec};
pub use resources::Resources;
pub use storage::{ContentEntry, DiskInfo, Presence, StorageRef};
pub use task::{ParseUpidError, Started, TaskOutcome, Upid};
pub use task_list::{MOST_TASKS, TaskEntry};
pub use wire::Listing;

use auth::Authorize;
use failover::Failover;
use gate::Gate;
use limit::{Limit, Shared};
use request::ApiRequest;
use retry::Retry;
use transport::{Bottom, Deadline, Exchange, Transport};

/// The way of a request below tracing and metrics, outermost first.
type Stack = Limit<Retry<Authorize<Failover<Gate<Deadline<Transport>>>>>>;

/// A client of one PVE cluster. Clones share everything.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    stack: Stack,
    moves: Arc<AtomicUsize>,
    timeouts: Timeouts,
    metrics: Metrics,
}

impl Client {
    /// A client of these endpoints. The token is read; nothing is sent yet.
    pub fn new(config: ClientConfig, metrics: Metrics) -> Result<Self, ConfigError> {
        let limits = Shared::new(config.limits)?;
        Self::over_https(config, metrics, limits)
    }

    /// A client in the place of this one, whose requests may still be under way: both together stay within the limits of
    /// the first. Nothing else is taken over.
    pub fn successor(&self, config: ClientConfig) -> Result<Self, ConfigError> {
        let metrics = self.inner.metrics.clone();
        Self::over_https(config, metrics, self.inner.stack.shared())
    }

    fn over_https(
        config: ClientConfig,
        metrics: Metrics,
        limits: Arc<Shared>,
    ) -> Result<Self, ConfigError> {
        let bottoms = bottoms(&config.endpoints, &config.timeouts)?;
        Self::assemble(config, metrics, bottoms, limits)
    }

    /// A client over other transports than HTTP, one for each endpoint: for tests.
    pub fn with_bottoms(
        config: ClientConfig,
        metrics: Metrics,
        bottoms: Vec<Bottom>,
    ) -> Result<Self, ConfigError> {
        let limits = Shared::new(config.limits)?;
        Self::assemble(config, metrics, bottoms, limits)
    }

    fn assemble(
        config: ClientConfig,
        metrics: Metrics,
        bottoms: Vec<Bottom>,
        limits: Arc<Shared>,
    ) -> Result<Self, ConfigError> {
        let timeouts = config.timeouts;
        let failover = ways(&config.endpoints, bottoms, &timeouts, &config.writes)?;
        let moves = failover.moves();
        let authorize = Authorize::new(failover, config.token)?;
        let retry = Retry::new(authorize, timeouts.retry_window, metrics.clone());
        let stack = Limit::new(retry, limits);
        Ok(Self {
            inner: Arc::new(Inner {
                stack,
                moves,
                timeouts,
                metrics,
            }),
        })
    }

    /// Whether both are clones of one client.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How often an endpoint was left for another one.
    fn moves(&self) -> usize {
        self.inner.moves.load(Ordering::Acquire)
    }

    fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// `delay` and `background_delay`; PVE takes whole seconds from 1 to 30.
    fn background_delay(&self) -> String {
        self.inner
            .timeouts
            .background_delay
            .as_secs()
            .clamp(1, 20)
            .to_string()
    }

    /// Sends a request, reads a success by `decode`, a failure by the table.
    async fn call<T>(
        &self,
        request: ApiRequest,
        decode: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<T, ApiError> {
        let begin = Instant::now();
        let answer = self.exchange(&request, decode).await;
        let answer = answer.map_err(|error| privileges::explained(error, &request));
        let outcome = answer
            .as_ref()
            .map_or_else(|error| error.kind.label(), |_| "ok");
        let took = begin.elapsed();
        self.inner.metrics.request(request.spec, outcome, took);
        tracing::debug!(
            endpoint = request.spec.name,
            pve.node = request.host().map(PveNode::as_str),
            outcome,
            millis = took.as_millis(),
            detail = answer.as_ref().err().map(|error| error.detail.as_str()),
            "pve request"
        );
        answer
    }

    async fn exchange<T>(
        &self,
        request: &ApiRequest,
        decode: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<T, ApiError> {
        let spec = request.spec;
        match self.inner.stack.send(request).await {
            Ok(reply) if reply.status == 200 => wire::data(&reply.body)
                .and_then(|data| decode(&data))
                .map_err(|reason| classify::undecodable(spec, reason)),
            Ok(reply) => Err(classify::reply(spec, &reply)),
            Err(error) => Err(classify::no_answer(spec, error)),
        }
    }
}

/// What carries requests to each endpoint.
fn bottoms(endpoints: &[Endpoint], timeouts: &Timeouts) -> Result<Vec<Bottom>, ConfigError> {
    let bottom = |(index, endpoint)| https::bottom(index, endpoint, timeouts);
    endpoints.iter().enumerate().map(bottom).collect()
}

/// The ways to the endpoints, tried in order.
fn ways(
    endpoints: &[Endpoint],
    bottoms: Vec<Bottom>,
    timeouts: &Timeouts,
    writes: &Writes,
) -> Result<Failover<Gate<Deadline<Transport>>>, ConfigError> {
    let mut ways = Vec::new();
    for (index, (endpoint, bottom)) in endpoints.iter().zip(bottoms).enumerate() {
        let transport = Transport::new(https::base(index, &endpoint.url)?, bottom);
        let attempt = Deadline::new(transport, timeouts.request);
        ways.push(Gate::new(attempt, writes.clone()));
    }
    if ways.is_empty() {
        return Err(ConfigError::NoEndpoint);
    }
    Ok(Failover::new(ways))
}

type Group = &'static [&'static Spec];

static SHARED: [Group; 2] = [&cluster::ENDPOINTS, &qemu::SHARED];
static ONLY_CSI: [Group; 7] = [
    &storage::ENDPOINTS,
    &qemu::ONLY_CSI,
    &resize::ENDPOINTS,
    &snapshot::ENDPOINTS,
    &access::ENDPOINTS,
    &task::ENDPOINTS,
    &task_list::ENDPOINTS,
];
static ONLY_CCM: [Group; 2] = [&agent::ENDPOINTS, &ha::ENDPOINTS];

/// Every endpoint that the client calls, with class and rights, for the reference and for checks.
pub fn endpoints() -> impl Iterator<Item = &'static Spec> {
    let groups = SHARED.iter().chain(&ONLY_CSI).chain(&ONLY_CCM);
    groups.copied().flatten().copied()
}

/// Those of [`endpoints`] that a program calls.
pub fn endpoints_of(program: Program) -> impl Iterator<Item = &'static Spec> {
    let own: &[Group] = match program {
        Program::Csi => &ONLY_CSI,
        Program::Ccm => &ONLY_CCM,
    };
    SHARED.iter().chain(own).copied().flatten().copied()
}

#[cfg(test)]
mod tests;
