//! Events on Nodes of the tenant cluster: few, whatever happens, and none of them of consequence.

mod quota;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::core::Request;
use serde::Deserialize;
use tokio::time::Instant;

use self::quota::{Key, Quota};
use crate::client::{RequestError, answer};
use crate::kubeconfig::Tenant;

const ANSWER: Duration = Duration::from_secs(5);
/// The server answers with the Event.
const EVENT_MAX: usize = 1 << 20;
/// Where Events of objects without a namespace are.
const NAMESPACE: &str = "default";
/// What the API of Events allows.
const MESSAGE_MAX: usize = 1024;

/// Writes Events on Nodes, as `kubectl describe node` shows them: of each Node at most one per reason and hour, and of all
/// together at most one per second, after 50 at once.
pub struct Recorder {
    tenant: Tenant,
    component: &'static str,
    quota: Mutex<Quota>,
    failing: AtomicBool,
}

/// The Node that an Event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRef {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`; a Node that was made anew has another.
    pub uid: String,
}

/// How an Event is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It is for information only.
    Normal,
    /// Somebody should look at it.
    Warning,
}

/// What an Event counts as while it is sent; if it fails or is given up, it does not count as told.
struct Telling<'a> {
    recorder: &'a Recorder,
    key: Key,
    at: Instant,
    told: bool,
}

/// All that is read of an answer.
#[derive(Deserialize)]
struct Created {}

// === impl Recorder ===

impl Recorder {
    /// Events of `component`, the program's name, with the client of the tenant that is in force.
    pub fn new(tenant: Tenant, component: &'static str) -> Self {
        Self {
            tenant,
            component,
            quota: Mutex::new(Quota::new(Instant::now())),
            failing: AtomicBool::new(false),
        }
    }

    /// Writes an Event unless there were enough. It takes 5 s at most; a failure is logged and has no consequence. The
    /// tenant reads `message`, so it must be a closed phrase; of a long one the first 1024 bytes are written.
    pub async fn tell(
        &self,
        about: &NodeRef,
        reason: &'static str,
        kind: EventKind,
        message: &str,
    ) {
        let at = Instant::now();
        let Some(key) = self.quota().take(&about.uid, reason, at) else {
            return;
        };
        let mut telling = Telling {
            recorder: self,
            key,
            at,
            told: false,
        };
        match self.send(&self.event(about, reason, kind, message)).await {
            Ok(()) => {
                telling.told = true;
                self.failing.store(false, Ordering::Relaxed);
            }
            Err(error) if self.failing.swap(true, Ordering::Relaxed) => {
                tracing::debug!(%error, reason, "an Event can't be written");
            }
            Err(error) => tracing::warn!(%error, reason, "Events can't be written"),
        }
    }

    async fn send(&self, event: &Event) -> Result<(), RequestError> {
        let events = format!("/api/v1/namespaces/{NAMESPACE}/events");
        let text = serde_json::to_vec(event).map_err(kube::core::request::Error::SerializeBody)?;
        let post = Request::new(events).create(&PostParams::default(), text)?;
        let Created {} = answer(&self.tenant.client(), post, EVENT_MAX, ANSWER).await?;
        Ok(())
    }

    fn event(&self, about: &NodeRef, reason: &str, kind: EventKind, message: &str) -> Event {
        let now = Some(Time(Timestamp::now()));
        let kind = match kind {
            EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        };
        Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}.", about.name)),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            // kubectl looks for Events that name the Node's UID.
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(about.name.clone()),
                uid: Some(about.uid.clone()),
                ..ObjectReference::default()
            },
            type_: Some(kind.to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(cut(message).to_owned()),
            first_timestamp: now.clone(),
            last_timestamp: now,
            count: Some(1),
            source: Some(EventSource {
                component: Some(self.component.to_owned()),
                host: None,
            }),
            reporting_component: Some(self.component.to_owned()),
            ..Event::default()
        }
    }

    fn quota(&self) -> MutexGuard<'_, Quota> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("component", &self.component)
            .finish_non_exhaustive()
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.recorder.quota().give_back(self.key, self.at);
        }
    }
}

fn cut(message: &str) -> &str {
    // A character has 4 bytes at most.
    let ends = (0..=message.len().min(MESSAGE_MAX)).rev();
    ends.take(4)
        .find_map(|end| message.get(..end))
        .unwrap_or("")
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
