//! The bottom of the stack: one endpoint, one attempt, no second thoughts.
//!
//! Below it is any `tower::Service` of `http` requests: `https.rs` in production, a mock in tests. This file makes
//! the HTTP request of an [`ApiRequest`] and says in which phase an attempt failed.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use tokio::time::timeout;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

use crate::request::ApiRequest;

/// What carries requests to one endpoint. An error that is a [`TransportError`] says in which phase it came; any
/// other counts as [`Phase::Sent`].
pub type Bottom = BoxCloneSyncService<http::Request<Bytes>, Reply, BoxError>;

/// One answer, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status, `AnyEvent`'s 595 to 599 included.
    pub status: u16,
    /// The reason phrase as it was sent.
    pub reason: String,
    /// The body.
    pub body: Bytes,
}

/// How far a request came that has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not a byte of it reached PVE.
    NotSent,
    /// It may have reached PVE.
    Sent,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No connection: DNS, TCP, TLS, or a certificate that is not trusted.
    Connect,
    /// The connection broke, or no HTTP came back.
    Wire,
    /// The attempt's time was up.
    TimedOut,
    /// The answer is larger than anything PVE has reason to send.
    TooLarge,
    /// Our own limits would have held it back for too long.
    Queue,
    /// The token was refused a short while ago.
    Refused,
    /// This process may not change anything.
    Inactive,
}

/// An attempt without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct TransportError {
    /// How far it came.
    pub phase: Phase,
    /// Why.
    pub cause: Cause,
    /// For the operator.
    pub detail: String,
}

impl TransportError {
    pub(crate) fn new(phase: Phase, cause: Cause, detail: impl Into<String>) -> Self {
        Self {
            phase,
            cause,
            detail: detail.into(),
        }
    }
}

/// A layer of the stack, seen from above.
pub(crate) trait Exchange: Send + Sync {
    /// Carries the request to PVE and its answer, whatever its status, back.
    fn send(
        &self,
        request: &ApiRequest,
    ) -> impl Future<Output = Result<Reply, TransportError>> + Send;
}

/// One endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    base: String,
    service: Bottom,
}

impl Transport {
    /// `base` is the normalised URL, `/api2/json` included.
    pub(crate) fn new(base: String, service: Bottom) -> Self {
        Self { base, service }
    }

    fn http_request(&self, request: &ApiRequest) -> Result<http::Request<Bytes>, http::Error> {
        let mut builder = http::Request::builder()
            .method(request.spec.method())
            .uri(format!("{}{}", self.base, request.target()));
        if let Some(credentials) = request.credentials() {
            builder = builder.header(AUTHORIZATION, credentials.authorization.clone());
            if let Some(csrf) = &credentials.csrf {
                builder = builder.header("CSRFPreventionToken", csrf.clone());
            }
        }
        match request.form() {
            Some(form) => builder
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(Bytes::from(form)),
            None => builder.body(Bytes::new()),
        }
    }
}

impl Exchange for Transport {
    async fn send(&self, request: &ApiRequest) -> Result<Reply, TransportError> {
        let not_sent = |text: String| TransportError::new(Phase::NotSent, Cause::Connect, text);
        let http = self
            .http_request(request)
            .map_err(|error| not_sent(error.to_string()))?;
        let answer = self.service.clone().oneshot(http).await;
        answer.map_err(|error| match error.downcast::<TransportError>() {
            Ok(known) => *known,
            Err(other) => TransportError::new(Phase::Sent, Cause::Wire, other.to_string()),
        })
    }
}

/// Ends an attempt that takes too long. The connect has its own, shorter limit below, so what runs out here was sent.
#[derive(Debug, Clone)]
pub(crate) struct Deadline<S> {
    inner: S,
    limit: Duration,
}

impl<S> Deadline<S> {
    pub(crate) fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit }
    }
}

impl<S: Exchange> Exchange for Deadline<S> {
    async fn send(&self, request: &ApiRequest) -> Result<Reply, TransportError> {
        let answer = timeout(self.limit, self.inner.send(request)).await;
        answer.unwrap_or_else(|_| {
            let text = format!("no answer within {} s", self.limit.as_secs());
            Err(TransportError::new(Phase::Sent, Cause::TimedOut, text))
        })
    }
}
