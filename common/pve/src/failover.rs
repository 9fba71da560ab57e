//! Several endpoints of one PVE cluster: any of them answers for all hosts.
//!
//! **Guarantees:** a request whose connect failed goes to the next endpoint, whatever its class; one that may have
//! been sent goes on only if it reads. All requests share the endpoint that answered last, so that a dead one is
//! tried once, not once per request. An answer, 595 included, ends the search: 595 means that the *host behind* the
//! endpoint is down.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::request::{ApiRequest, OpClass};
use crate::transport::{Cause, Exchange, Phase, Reply, TransportError};

/// Tries its endpoints in order, from the one that answered last.
#[derive(Debug)]
pub(crate) struct Failover<S> {
    endpoints: Vec<S>,
    current: AtomicUsize,
}

impl<S> Failover<S> {
    pub(crate) fn new(endpoints: Vec<S>) -> Self {
        Self {
            endpoints,
            current: AtomicUsize::new(0),
        }
    }

    /// Moves on from an endpoint that failed, unless somebody did so already.
    fn leave(&self, from: usize, to: usize) {
        // A lost race means that another request moved it first, which is as good.
        let moved = self
            .current
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        if moved.is_ok() {
            tracing::warn!(from, to, "endpoint left");
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
