//! Listening and connections. A listener can be taken away and given back (the whole API unreachable).

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::tls::Identity;
use super::wire::{Connection, Incoming, Keep};
use super::{Reply, Request};

type Answering = Pin<Box<dyn Future<Output = Option<Reply>> + Send>>;

/// Answers one request; `None` ends the connection without a word.
pub(crate) type Service = Arc<dyn Fn(Request) -> Answering + Send + Sync>;

/// Where and how to listen.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) service: Service,
    /// `None`: plain HTTP.
    pub(crate) tls: Option<watch::Receiver<Option<Identity>>>,
    /// `false` while nothing may connect; `None`: always open.
    pub(crate) reachable: Option<watch::Receiver<bool>>,
    pub(crate) stop: CancellationToken,
    pub(crate) tracker: TaskTracker,
}

/// Binds and serves until the token is cancelled; returns the address.
pub(crate) async fn serve(address: SocketAddr, endpoint: Endpoint) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let tracker = endpoint.tracker.clone();
    tracker.spawn(accept(bound, Some(listener), endpoint));
    Ok(bound)
}

async fn accept(address: SocketAddr, mut listener: Option<TcpListener>, endpoint: Endpoint) {
    let mut reachable = endpoint.reachable.clone();
    let mut connections = endpoint.stop.child_token();
    loop {
        let open = reachable
            .as_mut()
            .is_none_or(|wanted| *wanted.borrow_and_update());
        if !open && listener.take().is_some() {
            connections.cancel();
        } else if open && listener.is_none() {
            connections = endpoint.stop.child_token();
            listener = TcpListener::bind(address)
                .await
                .inspect_err(|error| tracing::warn!(%error, "cannot listen again"))
                .ok();
        }
        tokio::select! {
            () = endpoint.stop.cancelled() => return,
            () = changed(reachable.as_mut()) => {}
            accepted = next_stream(listener.as_ref()) => match accepted {
                Ok((stream, _)) => {
                    let (endpoint, token) = (endpoint.clone(), connections.clone());
                    endpoint.tracker.clone().spawn(async move {
                        tokio::select! { () = token.cancelled() => {}, () = connected(stream, &endpoint) => {} }
                    });
                }
                Err(error) => tracing::debug!(%error, "accept failed"),
            }
        }
    }
}

/// Returns when the wish changes; never if there is none to come.
async fn changed(reachable: Option<&mut watch::Receiver<bool>>) {
    if let Some(reachable) = reachable
        && reachable.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

async fn next_stream(listener: Option<&TcpListener>) -> std::io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn connected(stream: TcpStream, endpoint: &Endpoint) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let Some(mut tls) = endpoint.tls.clone() else {
        return talk(stream, &endpoint.service, || false).await;
    };
    let Some(identity) = tls.borrow_and_update().clone() else {
        return;
    };
    match identity.acceptor.accept(stream).await {
        Ok(stream) => {
            let replaced = || tls.has_changed().unwrap_or(false);
            talk(stream, &endpoint.service, replaced).await;
        }
        Err(error) => tracing::debug!(%error, "tls handshake failed"),
    }
}

/// pveproxy serves 100 requests per connection and ends it after every answer of 400 or more.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    service: &Service,
    replaced: impl Fn() -> bool,
) {
    let mut connection = Connection::new(stream);
    for _ in 0..100 {
        let reply = match connection.next().await {
            Incoming::Closed => break,
            Incoming::Bad(fail) => Reply::from_fail(&fail),
            Incoming::Request(request) => service(*request).await,
        };
        let Some(reply) = reply else { break };
        let keep = if reply.status < 400 && !replaced() {
            Keep::Open
        } else {
            Keep::Close
        };
        if connection.send(&reply, keep).await.is_err() || keep == Keep::Close {
            break;
        }
    }
    connection.close().await;
}
