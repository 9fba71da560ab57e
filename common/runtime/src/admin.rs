//! The admin port: `/healthz`, `/readyz` and `/metrics` over plain HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The kubelet and Prometheus need one each.
const CONNECTIONS_MAX: usize = 32;

/// From the begin of a connection to its end.
const REQUEST: Duration = Duration::from_secs(5);

/// For requests that run when the program is told to end.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// Answers whether the program can do its work, and if not, why. It must not block.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A port that is bound and not yet served.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
}

#[derive(Clone)]
struct Shared {
    registry: Arc<Registry>,
    ready: Ready,
}

impl Admin {
    /// Binds `address`; port 0 takes any.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { listener })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is cancelled. Requests that run then have a second to end; if one has not by then, all that are
    /// left are cut off and the error is `TimedOut`.
    ///
    /// At most 32 connections are served at once, others wait in the kernel's queue. Each is for one request, which has
    /// five seconds.
    pub async fn serve(
        self,
        registry: Arc<Registry>,
        ready: Ready,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(Shared { registry, ready });
        let mut listener = self.listener;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => {}
                // axum's accept tries again by itself, a second later where file descriptors have run out.
                (stream, _) = Listener::accept(&mut listener), if connections.len() < CONNECTIONS_MAX => {
                    connections.spawn(connection(stream, router.clone()));
                }
            }
        }
        drop(listener);
        let ended = async { while connections.join_next().await.is_some() {} };
        timeout(LAST_REQUESTS, ended).await.map_err(io::Error::from)
    }
}

async fn connection(stream: TcpStream, router: Router) {
    let served = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match timeout(REQUEST, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to the admin port"),
        Err(_) => tracing::debug!("a connection to the admin port took too long"),
    }
}

async fn readyz(State(shared): State<Shared>) -> Response {
    match (shared.ready)() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut text = String::new();
    match encode(&mut text, &shared.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn health_readiness_and_metrics_are_served_until_the_end() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("things", "Things", counter.clone());
        counter.inc_by(3);
        let up = Arc::new(AtomicBool::new(false));
        let ready: Ready = Arc::new({
            let up = Arc::clone(&up);
            move || {
                let up = up.load(Ordering::Relaxed);
                up.then_some(()).ok_or("no endpoint answers".to_owned())
            }
        });
        let stop = CancellationToken::new();
        let admin = Admin::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = admin.address().unwrap();
        let served = tokio::spawn(admin.serve(Arc::new(registry), ready, stop.clone()));

        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let not_ready = get(address, "/readyz").await;
        assert!(not_ready.starts_with("HTTP/1.1 503"), "{not_ready}");
        assert!(not_ready.ends_with("no endpoint answers\n"), "{not_ready}");
        up.store(true, Ordering::Relaxed);
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/metrics").await.contains("things_total 3\n"));
        assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));

        stop.cancel();
        served.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    async fn healthy() -> (SocketAddr, CancellationToken, JoinHandle<io::Result<()>>) {
        let admin = Admin::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let (address, stop) = (admin.address().unwrap(), CancellationToken::new());
        let serve = admin.serve(Arc::default(), Arc::new(|| Ok(())), stop.clone());
        (address, stop, tokio::spawn(serve))
    }

    async fn half_a_request(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /met").await.unwrap();
        stream
    }

    #[tokio::test]
    async fn a_request_without_end_does_not_keep_the_program_from_ending() {
        let (address, stop, served) = healthy().await;
        let _open = half_a_request(address).await;
        get(address, "/healthz").await;
        let begun = Instant::now();
        stop.cancel();
        let ended = timeout(Duration::from_secs(2), served).await;
        let error = ended.unwrap().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    #[tokio::test]
    async fn connections_beyond_the_bound_wait_until_others_are_cut_off() {
        let (address, ..) = healthy().await;
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            open.push(half_a_request(address).await);
        }
        let begun = Instant::now();
        let soon = timeout(Duration::from_secs(1), get(address, "/healthz")).await;
        assert!(soon.is_err(), "{soon:?}");
        let late = timeout(REQUEST, get(address, "/healthz")).await.unwrap();
        assert!(late.starts_with("HTTP/1.1 200"), "{late}");
        assert!(begun.elapsed() <= REQUEST + Duration::from_secs(1));
        for mut stream in open {
            let mut rest = Vec::new();
            let cut = timeout(Duration::from_secs(1), stream.read_to_end(&mut rest)).await;
            assert!(cut.is_ok(), "a connection outlives its time");
        }
    }
}
