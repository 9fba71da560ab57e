//! Several endpoints of one PVE cluster: any of them answers for all hosts.
//!
//! **Guarantees:** a request whose connect failed goes to the next endpoint, whatever its class; one that may have
//! been sent goes on only if it reads. All requests share the endpoint that answered last, so that a dead one is
//! tried once, not once per request. An answer, 595 included, ends the search: 595 means that the *host behind* the
//! endpoint is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::request::{ApiRequest, OpClass};
use crate::transport::{Cause, Exchange, Phase, Reply, TransportError};

/// Tries its endpoints in order, from the one that answered last.
#[derive(Debug)]
pub(crate) struct Failover<S> {
    endpoints: Vec<S>,
    current: AtomicUsize,
    moves: Arc<AtomicUsize>,
}

impl<S> Failover<S> {
    pub(crate) fn new(endpoints: Vec<S>) -> Self {
        Self {
            endpoints,
            current: AtomicUsize::new(0),
            moves: Arc::default(),
        }
    }

    /// How often an endpoint was left. Two requests between which the number did not change had the same endpoint.
    pub(crate) fn moves(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.moves)
    }

    /// Moves on from an endpoint that failed, unless somebody did so already.
    fn leave(&self, from: usize, to: usize) {
        // Before the move, so that nobody can be answered by the next endpoint and not see it.
        self.moves.fetch_add(1, Ordering::AcqRel);
        // A lost race means that another request moved it first, which is as good.
        let moved = self
            .current
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        if moved.is_ok() {
            tracing::debug!(from, to, "endpoint left");
        }
    }
}

impl<S: Exchange> Exchange for Failover<S> {
    async fn send(&self, request: &ApiRequest) -> Result<Reply, TransportError> {
        let count = self.endpoints.len();
        let start = self.current.load(Ordering::Acquire);
        let mut words = Vec::new();
        let mut last = TransportError::new(Phase::NotSent, Cause::Connect, "no endpoint");
        for index in (0..count).map(|step| (start + step) % count) {
            let Some(endpoint) = self.endpoints.get(index) else {
                continue;
            };
            match endpoint.send(request).await {
                Ok(reply) => return Ok(reply),
                Err(error) if error.cause == Cause::Inactive => return Err(error),
                Err(error) => {
                    if count > 1 {
                        self.leave(index, (index + 1) % count);
                    }
                    words.push(format!("endpoint {index}: {}", error.detail));
                    last = error;
                    if last.phase == Phase::Sent && request.spec.class != OpClass::Read {
                        break;
                    }
                }
            }
        }
        last.detail = words.join("; ");
        Err(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CONVERGE, ONCE, Outcome, READ, Script, lost, ok, request, status};

    fn pair(first: Outcome) -> (Script, Script, Failover<Script>) {
        let (first, second) = (Script::new([first]), Script::new([ok()]));
        let failover = Failover::new(vec![first.clone(), second.clone()]);
        (first, second, failover)
    }

    #[tokio::test]
    async fn a_failed_connect_moves_every_class_to_the_next_endpoint() {
        for spec in [&READ, &CONVERGE, &ONCE] {
            let (first, second, failover) = pair(lost(Phase::NotSent));
            assert_eq!(failover.send(&request(spec)).await, ok());
            assert_eq!((first.count(), second.count()), (1, 1));
        }
    }

    #[tokio::test]
    async fn what_may_have_been_sent_moves_on_only_if_it_reads() {
        for (spec, moved) in [(&READ, 1), (&CONVERGE, 0), (&ONCE, 0)] {
            let (_, second, failover) = pair(lost(Phase::Sent));
            assert_eq!(failover.send(&request(spec)).await.is_ok(), moved == 1);
            assert_eq!(second.count(), moved, "{}", spec.name);
        }
    }

    #[tokio::test]
    async fn a_dead_endpoint_is_tried_once_not_once_per_request() {
        let (first, second, failover) = pair(lost(Phase::NotSent));
        for _ in 0..3 {
            failover.send(&request(&READ)).await.unwrap();
        }
        assert_eq!((first.count(), second.count()), (1, 3));
    }

    #[tokio::test]
    async fn after_a_lost_write_the_next_request_goes_elsewhere() {
        let (first, second, failover) = pair(lost(Phase::Sent));
        failover.send(&request(&ONCE)).await.unwrap_err();
        failover.send(&request(&READ)).await.unwrap();
        assert_eq!((first.count(), second.count()), (1, 1));
    }

    #[tokio::test]
    async fn a_dead_host_behind_an_endpoint_is_an_answer() {
        let (_, second, failover) = pair(status(595));
        assert_eq!(failover.send(&request(&READ)).await.unwrap().status, 595);
        assert_eq!(second.count(), 0);
    }

    #[tokio::test]
    async fn when_none_answers_each_says_why() {
        let dead = || Script::new([lost(Phase::NotSent)]);
        let failover = Failover::new(vec![dead(), dead()]);
        let error = failover.send(&request(&ONCE)).await.unwrap_err();
        assert_eq!(error.phase, Phase::NotSent);
        assert_eq!(error.detail, "endpoint 0: broken; endpoint 1: broken");
    }
}
