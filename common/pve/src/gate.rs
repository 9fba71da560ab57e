//! Holds back what changes something while another process is the active one. It is asked last, so that neither a wait nor
//! a repetition comes between the answer and the request.

use crate::config::Writes;
use crate::request::{ApiRequest, OpClass};
use crate::transport::{Cause, Exchange, Phase, Reply, TransportError};

/// Lets reads pass, and the rest while it may.
#[derive(Debug, Clone)]
pub(crate) struct Gate<S> {
    inner: S,
    writes: Writes,
}

impl<S> Gate<S> {
    pub(crate) fn new(inner: S, writes: Writes) -> Self {
        Self { inner, writes }
    }
}

impl<S: Exchange> Exchange for Gate<S> {
    async fn send(&self, request: &ApiRequest) -> Result<Reply, TransportError> {
        if request.spec.class != OpClass::Read && !self.writes.may() {
            let text = "this process is not the active one (any more): nothing was sent";
            return Err(TransportError::new(Phase::NotSent, Cause::Inactive, text));
        }
        self.inner.send(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::Failover;
    use crate::testing::{CONVERGE, ONCE, READ, Script, ok, request};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn one_that_is_not_active_reads_and_changes_nothing_on_any_endpoint() {
        let active = Arc::new(AtomicBool::new(false));
        let says = Arc::clone(&active);
        let writes = Writes::only_while(move || says.load(Ordering::Relaxed));
        let (first, second) = (Script::new([ok()]), Script::new([ok()]));
        let gates = [&first, &second].map(|script| Gate::new(script.clone(), writes.clone()));
        let failover = Failover::new(gates.to_vec());
        for spec in [&CONVERGE, &ONCE] {
            let error = failover.send(&request(spec)).await.unwrap_err();
            assert_eq!(
                (error.phase, error.cause),
                (Phase::NotSent, Cause::Inactive)
            );
        }
        assert_eq!((first.count(), second.count()), (0, 0));
        failover.send(&request(&READ)).await.unwrap();
        active.store(true, Ordering::Relaxed);
        failover.send(&request(&ONCE)).await.unwrap();
        assert_eq!(
            (first.count(), second.count()),
            (2, 0),
            "no endpoint was left"
        );
    }
}
