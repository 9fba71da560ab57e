//! The server over a real socket, with a service that is written by hand: the crate knows no protocol.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which clippy does not take for tests"
)]

use std::convert::Infallible;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use prometheus_client::registry::Registry;
use pve_runtime::rpc::RpcLayer;
use pve_runtime::server::{BindError, ServeError, serve};
use pve_runtime::{CorrelationId, RpcMetrics, Socket, Work};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::{NamedService, UnaryService};
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

const PATIENCE: Duration = Duration::from_secs(20);

/// What `Wait` does: say that it has begun, go on when told.
#[derive(Clone, Default)]
struct Probe {
    work: Work,
    begun: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl NamedService for Probe {
    const NAME: &'static str = "test.Probe";
}

impl Service<http::Request<Body>> for Probe {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let verb = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let handler = Handler {
            verb,
            probe: self.clone(),
        };
        Box::pin(async move {
            let codec = ProstCodec::<String, String>::default();
            Ok(tonic::server::Grpc::new(codec)
                .unary(handler, request)
                .await)
        })
    }
}

struct Handler {
    verb: String,
    probe: Probe,
}

impl UnaryService<String> for Handler {
    type Response = String;
    type Future = BoxFuture<Result<Response<String>, Status>>;

    fn call(&mut self, _: Request<String>) -> Self::Future {
        let (verb, probe) = (self.verb.clone(), self.probe.clone());
        Box::pin(async move {
            match verb.as_str() {
                "Id" => {
                    let id = || CorrelationId::current().map_or("none".into(), |id| id.to_string());
                    let here = id();
                    let there = probe.work.spawn_owned(async move { id() }).await.unwrap();
                    Ok(Response::new(format!("{here} {there}")))
                }
                "Wait" => {
                    probe.begun.notify_one();
                    probe.go_on.notified().await;
                    Ok(Response::new("waited".into()))
                }
                "Panic" => panic!("expected by the test"),
                _ => Err(Status::aborted("the volume is busy")),
            }
        })
    }
}

struct Server {
    folder: tempfile::TempDir,
    probe: Probe,
    registry: Registry,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    async fn start(patience: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = Socket::bind(&address(folder.path())).await.unwrap();
        let (probe, stop) = (Probe::default(), CancellationToken::new());
        let mut registry = Registry::default();
        let layer = RpcLayer::new(RpcMetrics::register(&mut registry));
        let routes = Routes::new(probe.clone());
        let task = tokio::spawn(serve(socket, routes, layer, stop.clone(), patience));
        Self {
            folder,
            probe,
            registry,
            stop,
            task,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("csi.sock")
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(address(self.folder.path())).unwrap();
        endpoint.connect().await.unwrap()
    }

    async fn call(&self, verb: &str, text: &str) -> Result<String, Status> {
        call(self.channel().await, verb, text).await
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

async fn call(channel: Channel, verb: &str, text: &str) -> Result<String, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path: PathAndQuery = format!("/test.Probe/{verb}").parse().unwrap();
    let codec = ProstCodec::<String, String>::default();
    let request = Request::new(text.to_owned());
    let answer = client.unary(request, path, codec).await?;
    Ok(answer.into_inner())
}

fn address(folder: &Path) -> String {
    format!("unix://{}/csi.sock", folder.display())
}

#[tokio::test]
async fn each_rpc_has_an_id_that_goes_with_its_work() {
    let server = Server::start(PATIENCE).await;
    let first = server.call("Id", "").await.unwrap();
    let (here, there) = first.split_once(' ').unwrap();
    assert_eq!(here, there);
    assert!(here.len() == 8 && here.bytes().all(|b| b.is_ascii_hexdigit()));
    assert_ne!(server.call("Id", "").await.unwrap(), first);
}

#[tokio::test]
async fn a_panic_becomes_internal_and_the_server_goes_on() {
    let server = Server::start(PATIENCE).await;
    let channel = server.channel().await;
    let status = call(channel.clone(), "Panic", "").await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(
        status.message().starts_with("internal error (id "),
        "{status}"
    );
    assert!(
        call(channel, "Id", "").await.is_ok(),
        "the same connection still works"
    );
    let metrics = server.metrics();
    assert!(
        metrics.contains(r#"rpc_seconds_count{rpc="Panic",code="Internal"} 1"#),
        "{metrics}"
    );
    assert!(
        metrics.contains(r#"rpc_seconds_count{rpc="Id",code="Ok"} 1"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_before_it_is_read() {
    let server = Server::start(PATIENCE).await;
    assert!(server.call("Id", &"x".repeat(1 << 19)).await.is_ok());
    let status = server.call("Id", &"x".repeat(1 << 20)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
}

#[tokio::test]
async fn a_caller_that_goes_away_is_counted_and_leaves_nothing_in_flight() {
    let server = Server::start(PATIENCE).await;
    let channel = server.channel().await;
    let caller = tokio::spawn(async move { call(channel, "Wait", "").await });
    server.probe.begun.notified().await;
    assert!(server.metrics().contains(r#"rpc_inflight{rpc="Wait"} 1"#));
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    let gone = async {
        while !server.metrics().contains(r#"rpc_inflight{rpc="Wait"} 0"#) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    let counted = r#"rpc_seconds_count{rpc="Wait",code="Cancelled"} 1"#;
    assert!(server.metrics().contains(counted), "{}", server.metrics());
}

#[tokio::test]
async fn names_that_a_client_invents_share_one_label() {
    let server = Server::start(PATIENCE).await;
    let channel = server.channel().await;
    for number in 0..100 {
        let status = call(channel.clone(), &format!("Nonsense{number}"), "").await;
        assert_eq!(status.unwrap_err().code(), Code::Aborted);
    }
    let metrics = server.metrics();
    assert_eq!(metrics.matches("rpc_inflight{").count(), 65, "{metrics}");
    assert!(
        metrics.contains(r#"rpc_seconds_count{rpc="other",code="Aborted"} 36"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_stop_removes_the_socket_and_lets_running_requests_end() {
    let server = Server::start(PATIENCE).await;
    let channel = server.channel().await;
    let caller = tokio::spawn(async move { call(channel, "Wait", "").await });
    server.probe.begun.notified().await;
    server.stop.cancel();
    let removed = async {
        while server.path().exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, removed).await.unwrap();
    assert!(!server.task.is_finished());
    server.probe.go_on.notify_one();
    assert_eq!(caller.await.unwrap().unwrap(), "waited");
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_that_never_ends_does_not_hold_up_the_stop() {
    let server = Server::start(Duration::from_millis(50)).await;
    let channel = server.channel().await;
    let caller = tokio::spawn(async move { call(channel, "Wait", "").await });
    server.probe.begun.notified().await;
    server.stop.cancel();
    let ended = tokio::time::timeout(PATIENCE, server.task).await.unwrap();
    ended.unwrap().unwrap();
    caller.abort();
}

#[tokio::test]
async fn a_socket_is_private_and_alone_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let socket = Socket::bind(&address(folder.path())).await.unwrap();
    let found = std::fs::symlink_metadata(socket.path()).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    drop(socket);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_live_socket_stays_a_stale_one_goes_and_a_file_is_never_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let bind = async || Socket::bind(&address(folder.path())).await;

    let live = bind().await.unwrap();
    assert!(matches!(bind().await, Err(BindError::Live(_))));
    assert!(path.exists());
    drop(live);

    // The file of a process that was killed: std does not remove it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(bind().await.unwrap());

    std::fs::write(&path, "data").unwrap();
    assert!(matches!(bind().await, Err(BindError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
}

#[tokio::test]
async fn a_successor_s_socket_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let first = Socket::bind(&address(folder.path())).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = Socket::bind(&address(folder.path())).await.unwrap();
    drop(first);
    assert!(path.exists());
}

#[tokio::test]
async fn addresses_of_other_kinds_are_refused() {
    for bad in [
        "",
        "csi.sock",
        "tcp://127.0.0.1:1",
        "unix://",
        "unix://csi.sock",
        "/",
    ] {
        assert!(
            matches!(Socket::bind(bad).await, Err(BindError::Address)),
            "{bad:?}"
        );
    }
    let nowhere = Socket::bind("/nonexistent/csi.sock").await;
    assert!(matches!(nowhere, Err(BindError::Io { .. })));
}
