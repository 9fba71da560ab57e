//! The admin port: `/healthz`, `/readyz` and `/metrics` over plain HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

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

    /// Serves until `stop` is cancelled.
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
        axum::serve(self.listener, router)
            .with_graceful_shutdown(stop.cancelled_owned())
            .await
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
    use tokio::net::TcpStream;

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
}
