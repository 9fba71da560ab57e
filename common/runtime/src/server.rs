//! A gRPC server on a private Unix socket.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::authority::LocalAuthority;
use crate::rpc::RpcLayer;

/// How long a socket that is found may take to show that somebody serves it.
const PROBE: Duration = Duration::from_secs(2);

/// Requests at once per connection; more wait in the client.
const STREAMS_MAX: u32 = 256;

/// Bytes of a request's headers.
const HEADERS_MAX: u32 = 16 << 10;

/// A socket that only this user can open. Its file goes when this is dropped, if it is still ours.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
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
    #[error("the address must be an absolute path or unix:///path")]
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

/// A socket's name and the inode that we gave it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

/// A folder for one socket. Dropped, it is removed with this socket and with nothing else.
struct PrivateDir(PathBuf);

// === impl Socket ===

impl Socket {
    /// Binds `address` (`unix:///csi/csi.sock` or an absolute path) with mode 0600.
    ///
    /// A socket that nobody serves is replaced; one that is served, or anything else, is an error.
    pub async fn bind(address: &str) -> Result<Self, BindError> {
        let path = socket_path(address)?;
        make_way(&path).await?;
        let io = |source| BindError::Io {
            path: path.clone(),
            source,
        };
        // bind(2) makes the file with the umask's mode, and the umask is the whole process's: the
        // socket is made in a folder of mode 0700 and moved when it is right and listening. The
        // kubelet's plugin watcher goes into every folder when it starts, and takes every socket for
        // a plugin whose own name does not begin with a dot (traversePluginDir, handleCreateEvent).
        let parent = path.parent().ok_or(BindError::Address)?;
        let dir = PrivateDir::create(parent).map_err(io)?;
        let hidden = dir.socket();
        let listener = UnixListener::bind(&hidden).map_err(io)?;
        fs::set_permissions(&hidden, Permissions::from_mode(0o600)).map_err(io)?;
        let inode = inode(&fs::symlink_metadata(&hidden).map_err(io)?);
        fs::rename(&hidden, &path).map_err(io)?;
        let file = SocketFile { path, inode };
        Ok(Self { listener, file })
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// Serves `routes` until `stop` is cancelled, then removes the socket and lets running requests end,
/// for `patience` at most. Requests that still run then go on until the process ends.
///
/// Build routes with `tonic::service::Routes::new(XServer::new(..)).add_service(..)`.
pub async fn serve(
    socket: Socket,
    routes: Routes,
    layer: RpcLayer,
    stop: CancellationToken,
    patience: Duration,
) -> Result<(), ServeError> {
    let Socket { listener, file } = socket;
    let connections = UnixListenerStream::new(listener).map_ok(LocalAuthority::new);
    let serving = Server::builder()
        .layer(layer)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADERS_MAX)
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, stop.cancelled());
    let late = async {
        stop.cancelled().await;
        drop(file);
        tokio::time::sleep(patience).await;
    };
    tokio::select! {
        ended = serving => ended.map_err(ServeError),
        () = late => {
            tracing::warn!("requests still run and will be cut off by the end of the process");
            Ok(())
        }
    }
}

fn socket_path(address: &str) -> Result<PathBuf, BindError> {
    let path = Path::new(address.strip_prefix("unix://").unwrap_or(address));
    if path.is_absolute() && path.file_name().is_some() {
        Ok(path.to_owned())
    } else {
        Err(BindError::Address)
    }
}

async fn make_way(path: &Path) -> Result<(), BindError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            let path = path.to_owned();
            return Err(BindError::Io { path, source });
        }
    };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    // unix(7): connecting to a socket that no process listens on is refused. It waits when the
    // backlog is full, so somebody is there.
    match tokio::time::timeout(PROBE, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Ok(_)) | Err(_) => Err(BindError::Live(path.to_owned())),
        Ok(Err(source)) => Err(BindError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

// === impl SocketFile, PrivateDir ===

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|m| inode(&m) == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

impl PrivateDir {
    fn create(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!(".{:08x}", rand::random::<u32>()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    fn socket(&self) -> PathBuf {
        self.0.join(".s")
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let removed = match fs::remove_file(self.socket()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::remove_dir(&self.0),
        };
        if let Err(error) = removed {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a temporary folder");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_name_that_a_socket_is_made_with_is_hidden_and_its_folder_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let socket = Socket::bind(&path.display().to_string()).await.unwrap();
        let made_as = socket.listener.local_addr().unwrap();
        let name = made_as.as_pathname().unwrap().file_name().unwrap();
        assert!(name.to_string_lossy().starts_with('.'), "{name:?}");
        let names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["csi.sock"]);
    }

    #[test]
    fn a_temporary_folder_goes_with_its_socket_and_leaves_what_others_put_there() {
        let parent = tempfile::tempdir().unwrap();
        let dir = PrivateDir::create(parent.path()).unwrap();
        fs::write(dir.socket(), "").unwrap();
        drop(dir);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        let dir = PrivateDir::create(parent.path()).unwrap();
        let others = dir.0.join("others");
        fs::write(dir.socket(), "").unwrap();
        fs::write(&others, "").unwrap();
        drop(dir);
        assert!(others.exists());
    }
}
