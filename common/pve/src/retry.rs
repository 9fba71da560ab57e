//! Whether and when a request is repeated: by declared class and by the phase in which it failed.
//!
//! **Guarantees:** what may have been sent is repeated only if it reads. At most 3 attempts, none of them begun later
//! than the window after the first (so a 30 s silence of PVE's proxy is not repeated, a quick 595 is).
//! **Assumptions:** below is the failover: *not sent* means that no endpoint could be reached.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::metrics::Metrics;
use crate::request::{ApiRequest, OpClass};
use crate::transport::{Cause, Exchange, Phase, Reply, TransportError};

const ATTEMPTS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Repeats what may be repeated.
#[derive(Debug)]
pub(crate) struct Retry<S> {
    inner: S,
    window: Duration,
    metrics: Metrics,
}

impl<S> Retry<S> {
    pub(crate) fn new(inner: S, window: Duration, metrics: Metrics) -> Self {
        Self {
            inner,
            window,
            metrics,
        }
    }
}

/// The phase by which the outcome may be repeated, as the metric names it.
pub(crate) fn repeatable(
    class: OpClass,
    outcome: &Result<Reply, TransportError>,
) -> Option<&'static str> {
    let reads = class == OpClass::Read;
    match outcome {
        Err(error) => match (error.cause, error.phase) {
            (Cause::Queue | Cause::Refused | Cause::TooLarge, _) => None,
            (_, Phase::NotSent) => Some("not_sent"),
            (_, Phase::Sent) => reads.then_some("sent"),
        },
        // 595 had no effect, but the same host will not come up within a second: a caller that writes looks again.
        Ok(reply) => match reply.status {
            502..=504 | 595..=597 | 599 => reads.then_some("answered"),
            _ => None,
        },
    }
}

/// 200 ms, 800 ms, … by half more or less, so that many clients don't come back together.
fn pause(attempt: u32) -> Duration {
    let middle = FIRST_PAUSE * 4_u32.saturating_pow(attempt.saturating_sub(1));
    middle.mul_f64(rand::random_range(0.5..1.5))
}

impl<S: Exchange> Exchange for Retry<S> {
    async fn send(&self, request: &ApiRequest) -> Result<Reply, TransportError> {
        let begin = Instant::now();
        let mut attempt = 1;
        loop {
            let outcome = self.inner.send(request).await;
            let Some(phase) = repeatable(request.spec.class, &outcome) else {
                return outcome;
            };
            let pause = pause(attempt);
            if attempt >= ATTEMPTS || begin.elapsed() + pause > self.window {
                return outcome;
            }
            self.metrics.retry(request.spec, phase);
            tracing::debug!(endpoint = request.spec.name, attempt, phase, "repeated");
            sleep(pause).await;
            attempt += 1;
        }
    }
}
