//! Leader election by a Lease (`coordination.k8s.io/v1`), as client-go's `leaderelection` does it and beside it.
//!
//! No two lead at once as long as their clocks run at equal rates; what the clocks show does not matter:
//!
//! - Every write is a PUT with the `resourceVersion` that was read, so of several who see the Lease free one gets it.
//! - Who waits takes the Lease no sooner than `duration` after it has itself seen the record change for the last time.
//! - Who leads has lost it `renew_deadline`, which is shorter, after it sent the last renewal that was confirmed. So its
//!   work has the difference of the two to end in; from then on it must write nothing.
//! - Who leads is one call of [`lead`], not a name: a program that comes back under its name waits like any other.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::record::Store;
use crate::client::RequestError;

mod record;
#[cfg(test)]
pub(crate) mod stub;

/// Longer ones of others are not waited for: a record may hold any number.
const DURATION_MAX: Duration = Duration::from_mins(10);

/// Which Lease, for whom and at what pace. client-go's pace is 15 s, 10 s and 2 s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSpec {
    /// Namespace of the Lease, in the management cluster.
    pub namespace: String,
    /// Name of the Lease; it is created if it is not there.
    pub name: String,
    /// How the Lease calls us, for people; what tells candidates apart is added to it.
    pub identity: String,
    /// How long others wait after the last change of the record; at most 10 min.
    pub duration: Duration,
    /// How long we lead after the last confirmed renewal was sent; shorter than `duration`.
    pub renew_deadline: Duration,
    /// Pause between two attempts; shorter than `renew_deadline`.
    pub retry: Duration,
}

/// Why nobody leads.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LeaseError {
    /// The spec makes no sense.
    #[error("lease: {0}")]
    Spec(&'static str),
    /// It was told to stop while it waited.
    #[error("lease: told to stop")]
    Stopped,
}

/// We lead. Dropping it ends that without giving the Lease back: others wait until it expires.
pub struct Leadership {
    term: Arc<Term>,
    /// Cancelled by us: renewing has to end.
    end: CancellationToken,
    renewing: Option<JoinHandle<Option<Renewer>>>,
}

/// Says by the clock whether a lead goes on. Clones share it.
#[derive(Debug, Clone)]
pub struct Holding(Arc<Term>);

/// How long we lead.
#[derive(Debug)]
struct Term {
    until: Mutex<Instant>,
    lost: CancellationToken,
}

/// Who waits for the Lease.
struct Candidate {
    store: Store,
    duration: Duration,
    /// The record that was last seen, and since when it is known.
    seen: Option<(Lease, Instant)>,
}

/// Who has the Lease.
struct Renewer {
    store: Store,
    term: Arc<Term>,
    spec: LeaseSpec,
    held: Lease,
    /// A write was sent whose outcome is not known: the record may be another than `held`.
    doubtful: bool,
}

/// How an attempt to renew has failed.
enum Failure {
    /// It is another's, or gone.
    Lost(&'static str),
    /// It can be tried again.
    Unknown(RequestError),
}

/// Waits until it leads, or for `stop`. No API server, no right and what else goes wrong is waited for, too, and logged
/// once per change.
pub async fn lead(
    client: Client,
    spec: LeaseSpec,
    stop: CancellationToken,
) -> Result<Leadership, LeaseError> {
    check(&spec)?;
    let mut candidate = Candidate {
        store: Store::new(client, &spec),
        duration: spec.duration,
        seen: None,
    };
    let mut said = String::new();
    loop {
        let taken = tokio::select! {
            () = stop.cancelled() => return Err(LeaseError::Stopped),
            taken = candidate.attempt() => taken,
        };
        let now = match taken {
            Ok(Some((held, sent))) => {
                return Ok(Leadership::begin(candidate.store, spec, held, sent));
            }
            Ok(None) => match candidate
                .seen
                .as_ref()
                .and_then(|(lease, _)| record::holder(lease))
            {
                Some(holder) => format!("another leads: {holder}"),
                None => "another was faster".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        if now != said {
            tracing::info!(lease = spec.name, reason = now, "waiting to lead");
            said = now;
        }
        tokio::select! {
            () = stop.cancelled() => return Err(LeaseError::Stopped),
            () = sleep(spec.retry) => {}
        }
    }
}

fn check(spec: &LeaseSpec) -> Result<(), LeaseError> {
    let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let named = |name: &str| !name.is_empty() && name.chars().all(label);
    let refused = [
        (!named(&spec.namespace), "the namespace is malformed"),
        (!named(&spec.name), "the name is malformed"),
        (spec.retry.is_zero(), "there is no pause between attempts"),
        (
            spec.renew_deadline <= spec.retry,
            "the deadline must be longer than the pause between attempts",
        ),
        (
            spec.duration <= spec.renew_deadline,
            "the duration must be longer than the deadline",
        ),
        (spec.duration > DURATION_MAX, "the duration is too long"),
    ];
    let refused = refused.into_iter().find(|(refused, _)| *refused);
    refused.map_or(Ok(()), |(_, why)| Err(LeaseError::Spec(why)))
}

// === impl Candidate ===

impl Candidate {
    /// Takes the Lease if it is free; then the record, and when the request that took it was sent.
    async fn attempt(&mut self) -> Result<Option<(Lease, Instant)>, RequestError> {
        let found = self.store.get().await?;
        if let Some(found) = &found
            && !self.is_free(found)
        {
            return Ok(None);
        }
        let sent = Instant::now();
        let taken = match found {
            Some(found) => self.store.replace(self.store.taken(found)).await,
            None => self.store.create().await,
        };
        match taken {
            Ok(held) => Ok(Some((held, sent))),
            // Another has written, or deleted it.
            Err(RequestError::Status(404 | 409)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether nobody holds it, or we do (an attempt whose answer was lost), or it has expired.
    fn is_free(&mut self, found: &Lease) -> bool {
        let now = Instant::now();
        let since = match &self.seen {
            Some((seen, since)) if record::is_same(seen, found) => *since,
            _ => now,
        };
        self.seen = Some((found.clone(), since));
        let Some(holder) = record::holder(found) else {
            return true;
        };
        let duration = record::duration(found).min(DURATION_MAX).max(self.duration);
        holder == self.store.identity() || now.duration_since(since) >= duration
    }
}

// === impl Leadership ===

impl Leadership {
    fn begin(store: Store, spec: LeaseSpec, held: Lease, sent: Instant) -> Self {
        tracing::info!(lease = spec.name, identity = store.identity(), "leading");
        let term = Arc::new(Term {
            until: Mutex::new(sent + spec.renew_deadline),
            lost: CancellationToken::new(),
        });
        let renewer = Renewer {
            store,
            term: Arc::clone(&term),
            spec,
            held,
            doubtful: false,
        };
        let end = CancellationToken::new();
        let renewing = Some(tokio::spawn(renewer.run(end.clone())));
        Self {
            term,
            end,
            renewing,
        }
    }

    /// Is cancelled when we no longer lead: at the latest when the renew deadline has passed without a confirmed renewal,
    /// which is before another may take the Lease. What writes must end then.
    pub fn lost(&self) -> CancellationToken {
        self.term.lost.child_token()
    }

    /// Whether we lead at this moment, by the clock: [`Leadership::lost`] may be late if the runtime is.
    pub fn holds(&self) -> bool {
        self.term.holds()
    }

    /// The same for who writes.
    pub fn holding(&self) -> Holding {
        Holding(Arc::clone(&self.term))
    }

    /// Gives the Lease back, so that another need not wait until it expires. What writes must have ended before. It
    /// takes some seconds at most; if it fails, the Lease expires.
    pub async fn release(mut self) {
        self.end.cancel();
        self.term.lost.cancel();
        let Some(renewing) = self.renewing.take() else {
            return;
        };
        let Ok(Some(renewer)) = renewing.await else {
            return;
        };
        let name = renewer.spec.name.clone();
        match renewer.release().await {
            Ok(()) => tracing::info!(lease = name, "the lease is given back"),
            Err(failure) => tracing::warn!(lease = name, %failure, "the lease is not given back"),
        }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.end.cancel();
        self.term.lost.cancel();
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("holds", &self.holds())
            .finish_non_exhaustive()
    }
}

// === impl Holding ===

impl Holding {
    /// As [`Leadership::holds`].
    pub fn holds(&self) -> bool {
        self.0.holds()
    }
}

// === impl Term ===

impl Term {
    fn holds(&self) -> bool {
        !self.lost.is_cancelled() && Instant::now() < self.until()
    }

    fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extend(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

// === impl Renewer ===

impl Renewer {
    /// Renews until it is lost, or until `end`: then itself.
    async fn run(mut self, end: CancellationToken) -> Option<Self> {
        let lost = self.term.lost.clone().drop_guard();
        let mut said = String::new();
        let why = loop {
            let (until, retry) = (self.term.until(), self.spec.retry);
            let renewed = tokio::select! {
                biased;
                () = end.cancelled() => {
                    drop(lost);
                    return Some(self);
                }
                () = sleep_until(until) => break "it was not renewed in time",
                renewed = async { sleep(retry).await; self.renew().await } => renewed,
            };
            match renewed {
                Ok(()) => said.clear(),
                Err(Failure::Lost(why)) => break why,
                Err(Failure::Unknown(error)) => {
                    let now = error.to_string();
                    if now != said {
                        tracing::warn!(lease = self.spec.name, reason = now, "not renewed");
                        said = now;
                    }
                }
            }
        };
        drop(lost);
        tracing::error!(lease = self.spec.name, reason = why, "no longer leading");
        None
    }

    async fn renew(&mut self) -> Result<(), Failure> {
        self.settle().await?;
        let sent = Instant::now();
        self.write(self.store.renewed(&self.held)).await?;
        self.term.extend(sent + self.spec.renew_deadline);
        Ok(())
    }

    async fn release(mut self) -> Result<(), Failure> {
        self.settle().await?;
        self.write(record::released(&self.held)).await
    }

    /// Finds out what came of the last write.
    async fn settle(&mut self) -> Result<(), Failure> {
        if !self.doubtful {
            return Ok(());
        }
        let found = self.store.get().await.map_err(Failure::Unknown)?;
        let found = found.ok_or(Failure::Lost("it was deleted"))?;
        if record::holder(&found) != Some(self.store.identity()) {
            return Err(Failure::Lost("another has taken it"));
        }
        self.held = found;
        self.doubtful = false;
        Ok(())
    }

    async fn write(&mut self, lease: Lease) -> Result<(), Failure> {
        self.doubtful = true;
        self.held = match self.store.replace(lease).await {
            Ok(held) => held,
            Err(RequestError::Status(404)) => return Err(Failure::Lost("it was deleted")),
            Err(RequestError::Status(409)) => return Err(Failure::Lost("another has written it")),
            Err(error) => return Err(Failure::Unknown(error)),
        };
        self.doubtful = false;
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) => f.write_str(why),
            Self::Unknown(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
pub(crate) mod tests;

#[cfg(test)]
#[path = "lease_chaos_tests.rs"]
mod chaos_tests;
