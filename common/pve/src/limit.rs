//! How much of PVE one client takes: PVE has 3 blocking workers per host, shared by all tenants.
//!
//! **Guarantees:** a wait ends with a permit or, after `queue`, with [`Cause::Queue`] and nothing sent. Permits last as
//! long as the request with its repetitions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pve_model::PveNode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::config::Limits;
use crate::error::ConfigError;
use crate::request::{ApiRequest, OpClass};
use crate::transport::{Cause, Exchange, Phase, Reply, TransportError};

/// Holds requests back.
#[derive(Debug)]
pub(crate) struct Limit<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// What clients of the same PVE cluster have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    bucket: Bucket,
    mutating: PerHost,
    queue: Duration,
}

impl Shared {
    pub(crate) fn new(limits: Limits) -> Result<Arc<Self>, ConfigError> {
        if limits.mutating_per_host == 0 {
            return Err(ConfigError::ZeroLimit("mutating_per_host"));
        }
        Ok(Arc::new(Self {
            bucket: Bucket::new(limits.rate, limits.burst)?,
            mutating: PerHost::new(limits.mutating_per_host),
            queue: limits.queue,
        }))
    }
}

impl<S> Limit<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl<S: Exchange> Exchange for Limit<S> {
    async fn send(&self, request: &ApiRequest) -> Result<Reply, TransportError> {
        let deadline = Instant::now() + self.shared.queue;
        let too_long = |what: &str| {
            TransportError::new(Phase::NotSent, Cause::Queue, format!("{what} is full"))
        };
        let _permit = match request.host() {
            Some(host) if request.spec.class != OpClass::Read => {
                let permit = self.shared.mutating.acquire(host, deadline).await;
                Some(permit.ok_or_else(|| too_long("the queue of writes to the host"))?)
            }
            _ => None,
        };
        let turn = self.shared.bucket.reserve(deadline);
        sleep_until(turn.ok_or_else(|| too_long("the request rate"))?).await;
        self.inner.send(request).await
    }
}

/// A token bucket, kept as the time at which it would be full again (GCRA).
#[derive(Debug)]
struct Bucket {
    interval: Duration,
    depth: Duration,
    full: Mutex<Instant>,
}

impl Bucket {
    fn new(rate: u32, burst: u32) -> Result<Self, ConfigError> {
        let interval = Duration::from_secs(1)
            .checked_div(rate)
            .ok_or(ConfigError::ZeroLimit("rate"))?;
        let beyond_one = burst
            .checked_sub(1)
            .ok_or(ConfigError::ZeroLimit("burst"))?;
        Ok(Self {
            interval,
            depth: interval.saturating_mul(beyond_one),
            full: Mutex::new(Instant::now()),
        })
    }

    /// When the next request may go, unless that is after `deadline`.
    fn reserve(&self, deadline: Instant) -> Option<Instant> {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let base = (*full).max(now);
        let turn = base.checked_sub(self.depth).unwrap_or(now).max(now);
        if turn > deadline {
            return None;
        }
        *full = base + self.interval;
        Some(turn)
    }
}

/// A number of permits for each PVE node.
#[derive(Debug)]
pub(crate) struct PerHost {
    permits: usize,
    hosts: Mutex<HashMap<PveNode, Arc<Semaphore>>>,
}

impl PerHost {
    pub(crate) fn new(permits: usize) -> Self {
        Self {
            permits,
            hosts: Mutex::new(HashMap::new()),
        }
    }

    pub(crate) async fn acquire(
        &self,
        host: &PveNode,
        deadline: Instant,
    ) -> Option<OwnedSemaphorePermit> {
        let semaphore = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(self.permits));
            Arc::clone(hosts.entry(host.clone()).or_insert_with(new))
        };
        timeout_at(deadline, semaphore.acquire_owned())
            .await
            .ok()?
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ONCE, READ, Script, ok, request_on};
    use futures_util::future::join_all;

    fn limit(script: &Script, limits: Limits) -> Limit<Script> {
        Limit::new(script.clone(), Shared::new(limits).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_two_writes_are_in_flight_on_a_host() {
        let script = Script::new([ok()]).taking(Duration::from_secs(1));
        let limit = limit(&script, Limits::default());
        let begin = Instant::now();
        let on = |host| request_on(&ONCE, host);
        let writes = [on("pve1"), on("pve1"), on("pve1"), on("pve1"), on("pve2")];
        let answers = join_all(writes.iter().map(|request| limit.send(request))).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(begin.elapsed().as_secs(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_successor_adds_nothing_to_what_is_in_flight() {
        let script = Script::new([ok()]).taking(Duration::from_secs(1));
        let first = limit(&script, Limits::default());
        let second = Limit::new(script.clone(), first.shared());
        let begin = Instant::now();
        let write = request_on(&ONCE, "pve1");
        let answers = join_all([&first, &first, &second, &second].map(|limit| limit.send(&write)));
        assert!(answers.await.iter().all(Result::is_ok));
        assert_eq!(begin.elapsed().as_secs(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_do_not_queue_behind_writes() {
        let script = Script::new([ok()]).taking(Duration::from_secs(1));
        let limit = limit(&script, Limits::default());
        let begin = Instant::now();
        let reads: Vec<_> = (0..20).map(|_| request_on(&READ, "pve1")).collect();
        join_all(reads.iter().map(|request| limit.send(request))).await;
        assert_eq!(begin.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_does_not_move_is_left_with_nothing_sent() {
        let script = Script::new([ok()]).taking(Duration::from_hours(1));
        let limit = limit(&script, Limits::default());
        let write = request_on(&ONCE, "pve1");
        let mut held = join_all([limit.send(&write), limit.send(&write)]);
        let error = tokio::select! {
            biased;
            _ = &mut held => panic!("the held writes end later"),
            third = limit.send(&write) => third.unwrap_err(),
        };
        assert_eq!((error.phase, error.cause), (Phase::NotSent, Cause::Queue));
        assert_eq!(script.count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_holds_after_the_burst() {
        let script = Script::new([ok()]);
        let limits = Limits {
            rate: 10,
            burst: 5,
            ..Limits::default()
        };
        let limit = limit(&script, limits);
        let begin = Instant::now();
        let read = request_on(&READ, "pve1");
        for _ in 0..5 {
            limit.send(&read).await.unwrap();
        }
        assert!(begin.elapsed() < Duration::from_millis(10));
        for _ in 0..10 {
            limit.send(&read).await.unwrap();
        }
        let took = begin.elapsed();
        assert!(
            took >= Duration::from_secs(1) && took < Duration::from_millis(1100),
            "{took:?}"
        );
        assert!(Shared::new(Limits { rate: 0, ..limits }).is_err());
    }
}
