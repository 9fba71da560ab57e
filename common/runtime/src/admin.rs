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
