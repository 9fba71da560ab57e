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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;
    use crate::keyed_lock::KeyedLock;

    #[tokio::test]
    async fn work_and_its_lock_outlive_the_caller_that_went_away() {
        let work = Work::default();
        let locks = KeyedLock::default();
        let guard = locks.try_lock("volume").unwrap();
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let caller = tokio::spawn({
            let (work, begun, go_on) = (work.clone(), Arc::clone(&begun), Arc::clone(&go_on));
            async move {
                let op = async move {
                    begun.notify_one();
                    go_on.notified().await;
                    drop(guard);
                };
                work.spawn_owned(op).await
            }
        });
        begun.notified().await;
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert!(locks.try_lock("volume").is_none());
        assert_eq!(work.drain(Duration::ZERO).await, 1);
        go_on.notify_one();
        assert_eq!(work.drain(Duration::from_secs(5)).await, 0);
        assert!(locks.try_lock("volume").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn draining_ends_at_its_deadline_and_says_what_still_runs() {
        let stop = CancellationToken::new();
        let work = Work::new(stop.clone());
        let endless = tokio::spawn({
            let work = work.clone();
            async move { work.spawn_owned(std::future::pending::<()>()).await }
        });
        tokio::task::yield_now().await;
        stop.cancel();
        let refused = work.spawn_owned(async {}).await;
        assert_eq!(refused, Err(WorkError::Stopping));
        let begun = Instant::now();
        assert_eq!(work.drain(Duration::from_secs(30)).await, 1);
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
        endless.abort();
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_its_caller_and_releases_the_locks() {
        let work = Work::default();
        let locks = KeyedLock::default();
        let guard = locks.try_lock(1).unwrap();
        let op = async move {
            let _guard = guard;
            panic!("expected by the test");
        };
        assert_eq!(work.spawn_owned(op).await, Err(WorkError::Panicked));
        assert!(locks.is_empty());
    }
}
