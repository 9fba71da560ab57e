//! The Lease as an object: how it is read and written, and what is written into it.

use std::time::Duration;

use http::Request;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec as Record};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{GetParams, PostParams};
use kube::core::Request as Path;

use super::LeaseSpec;
use crate::client::{RequestError, answer};

/// A Lease has some hundred bytes, and what others write into its annotations.
const LEASE_MAX: usize = 1 << 20;
/// Longest wait for one answer. Two of them fit into client-go's renew deadline of 10 s.
const ANSWER: Duration = Duration::from_secs(5);

/// The one Lease, and who asks for it.
pub(super) struct Store {
    client: Client,
    path: Path,
    namespace: String,
    name: String,
    identity: String,
    duration: i32,
    within: Duration,
}

// === impl Store ===

impl Store {
    pub(super) fn new(client: Client, spec: &LeaseSpec) -> Self {
        Self {
            client,
            path: Path::new(format!(
                "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
                spec.namespace
            )),
            namespace: spec.namespace.clone(),
            name: spec.name.clone(),
            identity: format!("{}_{:016x}", spec.identity, rand::random::<u64>()),
            duration: whole(spec.duration),
            within: ANSWER.min(spec.renew_deadline / 2),
        }
    }

    /// How the record calls us: nobody else, and we not before now.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    pub(super) async fn get(&self) -> Result<Option<Lease>, RequestError> {
        let get = self.path.get(&self.name, &GetParams::default())?;
        match self.send(get).await {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if error.is_status(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates it as ours. Status 409: it is there.
    pub(super) async fn create(&self) -> Result<Lease, RequestError> {
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        let spec = Some(self.ours(Record::default(), 0));
        let text = text(&Lease { metadata, spec })?;
        self.send(self.path.create(&PostParams::default(), text)?)
            .await
    }

    /// Replaces the version that `lease` was made of. Status 409: another has written.
    pub(super) async fn replace(&self, lease: Lease) -> Result<Lease, RequestError> {
        let put = self
            .path
            .replace(&self.name, &PostParams::default(), text(&lease)?)?;
        self.send(put).await
    }

    /// An object without a version would be replaced whatever it is.
    async fn send(&self, request: Request<Vec<u8>>) -> Result<Lease, RequestError> {
        let lease: Lease = answer(&self.client, request, LEASE_MAX, self.within).await?;
        match lease.metadata.resource_version.as_deref() {
            None | Some("") => Err(RequestError::Other(0, 0)),
            Some(_) => Ok(lease),
        }
    }

    /// The record as ours, from now on.
    pub(super) fn taken(&self, mut lease: Lease) -> Lease {
        if holder(&lease) == Some(self.identity()) {
            return self.renewed(&lease);
        }
        let before = lease.spec.take().unwrap_or_default();
        let transitions = before.lease_transitions.unwrap_or(0).max(0);
        lease.spec = Some(self.ours(before, transitions.saturating_add(1)));
        lease
    }

    fn ours(&self, before: Record, transitions: i32) -> Record {
        let now = Some(now_after(before.renew_time.as_ref()));
        Record {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.duration),
            lease_transitions: Some(transitions),
            acquire_time: now.clone(),
            renew_time: now,
            ..before
        }
    }

    /// The record as it is, but renewed now.
    pub(super) fn renewed(&self, held: &Lease) -> Lease {
        let mut lease = held.clone();
        if let Some(record) = &mut lease.spec {
            record.renew_time = Some(now_after(record.renew_time.as_ref()));
            record.lease_duration_seconds = Some(self.duration);
        }
        lease
    }
}

/// The record as nobody's, as client-go leaves it.
pub(super) fn released(held: &Lease) -> Lease {
    let mut lease = held.clone();
    if let Some(record) = &mut lease.spec {
        let now = now_after(record.renew_time.as_ref());
        record.holder_identity = Some(String::new());
        record.lease_duration_seconds = Some(1);
        record.acquire_time = Some(now.clone());
        record.renew_time = Some(now);
    }
    lease
}

/// Who holds it, if somebody does.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}

/// How long its holder asks others to wait; zero if it does not say.
pub(super) fn duration(lease: &Lease) -> Duration {
    let seconds = lease
        .spec
        .as_ref()
        .and_then(|record| record.lease_duration_seconds);
    Duration::from_secs(u64::try_from(seconds.unwrap_or(0)).unwrap_or(0))
}

/// Whether nobody has written in between.
pub(super) fn is_same(one: &Lease, other: &Lease) -> bool {
    let (one, other) = (&one.metadata, &other.metadata);
    one.uid == other.uid && one.resource_version == other.resource_version
}

fn text(lease: &Lease) -> Result<Vec<u8>, RequestError> {
    let text = serde_json::to_vec(lease);
    text.map_err(|error| RequestError::Request(kube::core::request::Error::SerializeBody(error)))
}

fn now_after(before: Option<&MicroTime>) -> MicroTime {
    other_than(before, Timestamp::now())
}

/// Now, but another time than the one before: the API server keeps the version of an object that is written as it was.
fn other_than(before: Option<&MicroTime>, now: Timestamp) -> MicroTime {
    let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
    if before.is_some_and(|before| before.0 == now) {
        let next = now.saturating_add(SignedDuration::from_micros(1));
        return MicroTime(next.unwrap_or(now));
    }
    MicroTime(now)
}

/// Whole seconds, never fewer than it lasts.
fn whole(duration: Duration) -> i32 {
    let up = u64::from(duration.subsec_nanos() > 0);
    i32::try_from(duration.as_secs().saturating_add(up)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stands_still_renews_nevertheless() {
        let now: Timestamp = "2026-01-02T03:04:05.678901234Z".parse().unwrap();
        let first = other_than(None, now);
        let next = other_than(Some(&first), now);
        assert_eq!(first.0.to_string(), "2026-01-02T03:04:05.678901Z");
        assert_eq!(next.0.to_string(), "2026-01-02T03:04:05.678902Z");
    }

    #[test]
    fn the_record_never_says_less_than_it_lasts() {
        for (millis, seconds) in [(1, 1), (1000, 1), (1001, 2), (15_000, 15)] {
            assert_eq!(whole(Duration::from_millis(millis)), seconds);
        }
    }
}
