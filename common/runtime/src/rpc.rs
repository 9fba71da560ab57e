//! What every RPC gets: a span, a correlation id, metrics, one log line, a size limit, and
//! INTERNAL instead of a dead connection when it panics. Contents of requests are never logged.

use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument, Span};

/// Largest request. CSI's own limits (128 bytes per string, 4 KiB per map) leave far less.
const REQUEST_MAX: usize = 1 << 20;

/// Names of RPCs that get a label of their own: the client chooses the path, and labels stay for ever.
const NAMES_MAX: usize = 64;

/// Seconds; sidecars give up after 180.
const BUCKETS: [f64; 12] = [
    0.005, 0.02, 0.1, 0.3, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 180.0,
];

tokio::task_local! {
    static CURRENT: CorrelationId;
}

/// Ties what the tenant is told to the operator's log. Random, 8 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CorrelationId(u32);

/// `rpc_seconds{rpc,code}` and `rpc_inflight{rpc}`. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct RpcMetrics {
    seconds: Family<Outcome, Histogram, fn() -> Histogram>,
    inflight: Family<Name, Gauge>,
    names: Arc<Mutex<HashSet<Arc<str>>>>,
}

/// The tower layer that gives an RPC all of this.
#[derive(Debug, Clone)]
pub struct RpcLayer {
    metrics: RpcMetrics,
}

/// A service within [`RpcLayer`].
#[derive(Debug, Clone)]
pub struct RpcService<S> {
    inner: S,
    metrics: RpcMetrics,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    rpc: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    rpc: Arc<str>,
    code: &'static str,
}

/// One RPC while it runs. Dropped before its end, it counts as cancelled: the caller went away.
struct Call {
    metrics: RpcMetrics,
    rpc: Arc<str>,
    span: Span,
    started: Instant,
    ended: bool,
}

// === impl CorrelationId ===

impl CorrelationId {
    /// The id of the RPC that the caller works for, also within [`crate::Work::spawn_owned`].
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|id| *id).ok()
    }

    /// Runs `op` under the caller's id.
    pub(crate) fn carry<F: Future>(op: F) -> impl Future<Output = F::Output> {
        let id = Self::current();
        async move {
            match id {
                Some(id) => CURRENT.scope(id, op).await,
                None => op.await,
            }
        }
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

// === impl RpcMetrics ===

impl RpcMetrics {
    /// Registers the metrics; give a sub-registry with the program's prefix.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "rpc_seconds",
            "Time that an RPC took, by its gRPC code",
            metrics.seconds.clone(),
        );
        registry.register("rpc_inflight", "RPCs that run", metrics.inflight.clone());
        metrics
    }

    fn name(&self, path: &str) -> Arc<str> {
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return Arc::clone(known);
        }
        if names.len() >= NAMES_MAX || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Arc::from("other");
        }
        let name: Arc<str> = Arc::from(name);
        names.insert(Arc::clone(&name));
        name
    }
}

impl Default for RpcMetrics {
    fn default() -> Self {
        Self {
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            inflight: Family::default(),
            names: Arc::default(),
        }
    }
}

// === impl RpcLayer, RpcService ===

impl RpcLayer {
    /// A layer that counts in `metrics`.
    pub fn new(metrics: RpcMetrics) -> Self {
        Self { metrics }
    }
}

impl<S> Layer<S> for RpcLayer {
    type Service = RpcService<S>;

    fn layer(&self, inner: S) -> RpcService<S> {
        RpcService {
            inner,
            metrics: self.metrics.clone(),
        }
    }
}

impl<S> Service<Request<Body>> for RpcService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let id = CorrelationId(rand::random());
        let call = Call::begin(self.metrics.clone(), request.uri().path(), id);
        let span = call.span.clone();
        let answer = self.inner.call(request.map(limited));
        let run = async move {
            let answer = AssertUnwindSafe(answer).catch_unwind().await;
            let response = match answer {
                Ok(answer) => answer?,
                // The panic itself has gone to standard error by the panic hook.
                Err(_) => Status::internal(format!("internal error (id {id})")).into_http(),
            };
            call.end(&response);
            Ok(response)
        };
        Box::pin(CURRENT.scope(id, run).instrument(span))
    }
}

fn limited(body: Body) -> Body {
    let body = Limited::new(body, REQUEST_MAX).map_err(|error| {
        if error.is::<LengthLimitError>() {
            Status::resource_exhausted("the request is larger than 1 MiB")
        } else {
            Status::from_error(error)
        }
    });
    Body::new(body)
}

// === impl Call ===

impl Call {
    fn begin(metrics: RpcMetrics, path: &str, id: CorrelationId) -> Self {
        let rpc = metrics.name(path);
        let labels = Name {
            rpc: Arc::clone(&rpc),
        };
        metrics.inflight.get_or_create(&labels).inc();
        let span = tracing::info_span!(
            "rpc",
            rpc = &*rpc,
            id = %id,
            volume.id = Empty,
            pve.node = Empty,
            vm.id = Empty,
            storage = Empty,
        );
        Self {
            metrics,
            rpc,
            span,
            started: Instant::now(),
            ended: false,
        }
    }

    fn end(mut self, response: &Response<Body>) {
        self.ended = true;
        // tonic leaves the Status of an error beside the headers that it made of it.
        let status = response.extensions().get::<Status>();
        let code = match status {
            Some(status) => status.code(),
            None => response
                .headers()
                .get(Status::GRPC_STATUS)
                .map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes())),
        };
        self.record(code);
        let error = status.map_or_else(String::new, operator_text);
        let seconds = self.started.elapsed().as_secs_f64();
        let severity = severity(code);
        let code = code_name(code);
        match severity {
            Severity::Info if error.is_empty() => tracing::info!(code, seconds, "rpc"),
            Severity::Info => tracing::info!(code, seconds, error, "rpc"),
            Severity::Warn => tracing::warn!(code, seconds, error, "rpc"),
            Severity::Error => tracing::error!(code, seconds, error, "rpc"),
        }
    }

    fn record(&self, code: Code) {
        let labels = Outcome {
            rpc: Arc::clone(&self.rpc),
            code: code_name(code),
        };
        let seconds = self.started.elapsed().as_secs_f64();
        self.metrics.seconds.get_or_create(&labels).observe(seconds);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let labels = Name {
            rpc: Arc::clone(&self.rpc),
        };
        self.metrics.inflight.get_or_create(&labels).dec();
        if !self.ended {
            self.record(Code::Cancelled);
            let seconds = self.started.elapsed().as_secs_f64();
            let _entered = self.span.enter();
            tracing::info!(code = "Cancelled", seconds, "rpc: the caller went away");
        }
    }
}

/// What the tenant was told, and behind it the causes that only the operator sees.
fn operator_text(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

enum Severity {
    Info,
    Warn,
    Error,
}

const fn severity(code: Code) -> Severity {
    match code {
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => Severity::Warn,
        Code::Internal | Code::Unknown | Code::DataLoss => Severity::Error,
        _ => Severity::Info,
    }
}

const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "Ok",
        Code::Cancelled => "Cancelled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
