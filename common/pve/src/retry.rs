//! Whether and when a request is repeated: by declared class and by the phase in which it failed.
//!
//! **Guarantees:** what may have been sent is repeated only if it reads. At most 3 attempts, none of them begun later
//! than the window after the first. An answer of PVE's proxy is asked for again only if it came quickly: a daemon that
//! restarts refuses at once, a dead host costs 3 s (`No route to host`) or 30 s each time.
//! **Assumptions:** below is the failover: *not sent* means that no endpoint could be reached.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::metrics::Metrics;
use crate::request::{ApiRequest, OpClass};
use crate::transport::{Cause, Exchange, Phase, Reply, TransportError};

const ATTEMPTS: u32 = 3;
const QUICK: Duration = Duration::from_secs(2);
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
            (Cause::Queue | Cause::Refused | Cause::TooLarge | Cause::Inactive, _) => None,
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
            let sent = Instant::now();
            let outcome = self.inner.send(request).await;
            let slow = outcome.is_ok() && sent.elapsed() > QUICK;
            let Some(phase) = repeatable(request.spec.class, &outcome) else {
                return outcome;
            };
            let pause = pause(attempt);
            if slow || attempt >= ATTEMPTS || begin.elapsed() + pause > self.window {
                return outcome;
            }
            self.metrics.retry(request.spec, phase);
            tracing::debug!(endpoint = request.spec.name, attempt, phase, "repeated");
            sleep(pause).await;
            attempt += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CONVERGE, ONCE, Outcome, READ, Script, lost, ok, reply, request, status};

    async fn attempts(spec: &'static crate::Spec, outcome: Outcome) -> usize {
        let script = Script::new([outcome]);
        let retry = Retry::new(script.clone(), Duration::from_secs(10), Metrics::default());
        drop(retry.send(&request(spec)).await);
        script.count()
    }

    #[tokio::test(start_paused = true)]
    async fn the_class_and_the_phase_decide_what_is_repeated() {
        let refused = |cause| Err(TransportError::new(Phase::NotSent, cause, ""));
        let large = Err(TransportError::new(Phase::Sent, Cause::TooLarge, ""));
        let timed_out = Err(TransportError::new(Phase::Sent, Cause::TimedOut, ""));
        let busy = Ok(reply(500, "VM is locked (backup)", ""));
        // outcome, attempts of a read, of a converging write, of a write that is done once
        let matrix: [(Outcome, [usize; 3]); 18] = [
            (ok(), [1, 1, 1]),
            (lost(Phase::NotSent), [3, 3, 3]),
            (lost(Phase::Sent), [3, 1, 1]),
            (timed_out, [3, 1, 1]),
            (large, [1, 1, 1]),
            (refused(Cause::Queue), [1, 1, 1]),
            (refused(Cause::Refused), [1, 1, 1]),
            (status(595), [3, 1, 1]),
            (status(596), [3, 1, 1]),
            (status(597), [3, 1, 1]),
            (status(599), [3, 1, 1]),
            (status(502), [3, 1, 1]),
            (status(503), [3, 1, 1]),
            (status(504), [3, 1, 1]),
            (busy, [1, 1, 1]),
            (status(400), [1, 1, 1]),
            (status(401), [1, 1, 1]),
            (status(403), [1, 1, 1]),
        ];
        for (outcome, expected) in matrix {
            for (spec, expected) in [&READ, &CONVERGE, &ONCE].into_iter().zip(expected) {
                let seen = attempts(spec, outcome.clone()).await;
                assert_eq!(seen, expected, "{} {outcome:?}", spec.name);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_goes_on_once_it_succeeds() {
        let script = Script::new([status(595), lost(Phase::Sent), ok()]);
        let retry = Retry::new(script.clone(), Duration::from_secs(10), Metrics::default());
        let begin = Instant::now();
        assert_eq!(retry.send(&request(&READ)).await.unwrap().status, 200);
        assert_eq!(script.count(), 3);
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(500) && took <= Duration::from_millis(1500));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_host_is_not_waited_for_again() {
        for (outcome, seconds) in [(status(595), 3), (status(596), 30)] {
            let script = Script::new([outcome]).taking(Duration::from_secs(seconds));
            let retry = Retry::new(script.clone(), Duration::from_secs(10), Metrics::default());
            assert!(retry.send(&request(&READ)).await.unwrap().status > 594);
            assert_eq!(script.count(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_attempt_begins_after_the_window() {
        let script = Script::new([lost(Phase::NotSent)]).taking(Duration::from_secs(6));
        let retry = Retry::new(script.clone(), Duration::from_secs(10), Metrics::default());
        retry.send(&request(&READ)).await.unwrap_err();
        assert_eq!(script.count(), 2);
    }
}
