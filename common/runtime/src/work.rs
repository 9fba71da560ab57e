//! Work that outlives the request that asked for it.
//!
//! gRPC drops a handler's future when its caller goes away. What has been begun on PVE or on a mount
//! table must come to its end nevertheless, and its locks must last as long as it does: so it runs in a
//! task of its own, and the handler only waits for it.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::rpc::CorrelationId;

/// The program's running work. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Work {
    tracker: TaskTracker,
    stopping: CancellationToken,
}

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// The program ends; nothing was begun.
    #[error("the program is shutting down")]
    Stopping,
    /// The work panicked; what it did is unknown.
    #[error("the work ended by a panic")]
    Panicked,
}

impl Work {
    /// Nothing runs. No new work begins once `stopping` is cancelled.
    pub fn new(stopping: CancellationToken) -> Self {
        Self {
            tracker: TaskTracker::new(),
            stopping,
        }
    }

    /// Runs `op` to its end, whether or not the returned future is polled to its own.
    ///
    /// Span and correlation id of the caller go with it. Move the guards of its locks into `op`.
    pub async fn spawn_owned<F, T>(&self, op: F) -> Result<T, WorkError>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        if self.stopping.is_cancelled() {
            return Err(WorkError::Stopping);
        }
        let op = CorrelationId::carry(op).in_current_span();
        self.tracker
            .spawn(op)
            .await
            .map_err(|_| WorkError::Panicked)
    }

    /// Cancelled when the program ends: for loops that run for ever.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// How many pieces of work run.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Waits until all work has ended, for `patience` at most. Answers how much still runs.
    pub async fn drain(&self, patience: Duration) -> usize {
        self.tracker.close();
        let deadline = Instant::now() + patience;
        match tokio::time::timeout_at(deadline, self.tracker.wait()).await {
            Ok(()) => 0,
            Err(_) => self.tracker.len(),
        }
    }
}
