//! Waiting for the labels, and making the plugin known, with the test as API server and as kubelet.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::pluginregistration::registration_client::RegistrationClient;
use csi_proto::pluginregistration::{InfoRequest, RegistrationStatus};
use http::{Request, Response, StatusCode};
use kube::client::Body;
use prometheus_client::registry::Registry;
use pve_csi_node::registration::{self, Announcement, Progress};
use pve_csi_node::topology::NodeObject;
use pve_runtime::RpcMetrics;
use pve_runtime::rpc::RpcLayer;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

const DRIVER: &str = "csi.proxmox.sinextra.dev";

struct Plugin {
    folder: tempfile::TempDir,
    labelled: watch::Sender<bool>,
    progress: watch::Receiver<Progress>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Plugin {
    fn start(folder: tempfile::TempDir) -> Self {
        let (labelled, told) = watch::channel(false);
        let (seen, progress) = watch::channel(Progress::WaitingForLabels);
        let stop = CancellationToken::new();
        let announcement = Announcement {
            driver: DRIVER.to_owned(),
            kubelet_csi_path: "/var/lib/kubelet/plugins/x/csi.sock".to_owned(),
            folder: folder.path().to_owned(),
        };
        let layer = RpcLayer::new(RpcMetrics::register(&mut Registry::default()));
        let task = tokio::spawn(registration::run(
            announcement,
            layer,
            told,
            seen,
            stop.clone(),
        ));
        Self {
            folder,
            labelled,
            progress,
            stop,
            task,
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join(format!("{DRIVER}-reg.sock"))
    }

    /// How long until the socket is there, or gone.
    async fn until(&self, there: impl Fn(&Path) -> bool) -> Duration {
        let start = Instant::now();
        while !there(&self.socket()) {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{:?}",
                *self.progress.borrow()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        start.elapsed()
    }

    fn kubelet(&self) -> RegistrationClient<Channel> {
        let socket = self.socket();
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let socket = socket.clone();
            async move {
                tokio::net::UnixStream::connect(socket)
                    .await
                    .map(hyper_util::rt::TokioIo::new)
            }
        });
        RegistrationClient::new(
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector),
        )
    }

    async fn tell(&self, error: &str) {
        let status = RegistrationStatus {
            plugin_registered: error.is_empty(),
            error: error.to_owned(),
        };
        self.kubelet()
            .notify_registration_status(status)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn b64_the_kubelet_sees_the_plugin_once_it_is_labelled_and_until_it_ends() {
    let plugin = Plugin::start(tempfile::tempdir().unwrap());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!plugin.socket().exists());
    plugin.labelled.send_replace(true);
    assert!(plugin.until(Path::exists).await < Duration::from_secs(1));

    let info = plugin
        .kubelet()
        .get_info(InfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (info.r#type.as_str(), info.name.as_str()),
        ("CSIPlugin", DRIVER)
    );
    assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/x/csi.sock");
    assert_eq!(info.supported_versions, ["1.0.0"]);
    assert_eq!(*plugin.progress.borrow(), Progress::Offered);
    plugin.tell("").await;
    tokio::time::timeout(
        Duration::from_secs(5),
        plugin
            .progress
            .clone()
            .wait_for(|p| *p == Progress::Registered),
    )
    .await
    .unwrap()
    .unwrap();

    plugin.stop.cancel();
    plugin.until(|path| !path.exists()).await;
    tokio::time::timeout(Duration::from_secs(5), plugin.task)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_refused_registration_is_taken_back_and_tried_again() {
    let plugin = Plugin::start(tempfile::tempdir().unwrap());
    plugin.labelled.send_replace(true);
    plugin.until(Path::exists).await;
    for (least, most) in [(500, 1500), (1500, 3000)] {
        plugin.tell("NodeGetInfo failed").await;
        plugin.until(|path| !path.exists()).await;
        let pause = plugin.until(Path::exists).await.as_millis();
        assert!((least..most).contains(&pause), "{pause} ms");
    }
    plugin.tell("").await;
    assert!(plugin.socket().exists());
    plugin.stop.cancel();
}

#[tokio::test]
async fn the_socket_of_a_killed_predecessor_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("{DRIVER}-reg.sock"));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let plugin = Plugin::start(folder);
    plugin.labelled.send_replace(true);
    let start = Instant::now();
    while plugin.kubelet().get_info(InfoRequest {}).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    plugin.stop.cancel();
}

/// An API server that answers each request by `answer(count, is_watch)` and counts them.
fn api(
    answer: impl Fn(usize, bool) -> (StatusCode, serde_json::Value) + Send + Sync + 'static,
) -> (NodeObject, Arc<Mutex<usize>>) {
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let number = {
            let mut count = counted.lock().unwrap();
            *count += 1;
            *count
        };
        let query = request.uri().query().unwrap_or_default();
        assert!(
            query.contains("fieldSelector=metadata.name%3Dworker-1"),
            "{query}"
        );
        let (status, body) = answer(number, query.contains("watch=true"));
        let response = Response::builder()
            .status(status)
            .body(Body::from(format!("{body}\n").into_bytes()));
        async move { Ok::<_, std::convert::Infallible>(response.unwrap()) }
    });
    let client = kube::Client::new(service, "default");
    (NodeObject::new(client, "worker-1".parse().unwrap()), count)
}

fn refusal() -> (StatusCode, serde_json::Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": "Forbidden", "message": "forbidden", "code": 403});
    (StatusCode::FORBIDDEN, body)
}

fn node(labelled: bool, version: usize) -> serde_json::Value {
    let mut node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "worker-1", "resourceVersion": version.to_string()}});
    if labelled {
        node["metadata"]["labels"] =
            json!({"topology.kubernetes.io/region": "r1", "topology.kubernetes.io/zone": "pve1"});
        node["metadata"]["annotations"] = json!({"proxmox.sinextra.dev/instance-id": "104"});
    }
    node
}

fn list(labelled: bool) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [node(labelled, 1)]})
}

#[tokio::test(start_paused = true)]
async fn b64_labels_are_seen_when_they_are_written() {
    let (node_object, _) = api(|_, watch| {
        if watch {
            (
                StatusCode::OK,
                json!({"type": "MODIFIED", "object": node(true, 2)}),
            )
        } else {
            (StatusCode::OK, list(false))
        }
    });
    let (labelled, told) = watch::channel(false);
    let start = Instant::now();
    registration::watch_labels(node_object, labelled, CancellationToken::new()).await;
    assert!(*told.borrow());
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn b64_an_api_server_that_refuses_for_ten_minutes_is_asked_seldom_and_then_believed() {
    let start = Instant::now();
    let (node_object, count) = api(move |_, _| {
        if start.elapsed() < Duration::from_mins(10) {
            refusal()
        } else {
            (StatusCode::OK, list(true))
        }
    });
    let (labelled, told) = watch::channel(false);
    registration::watch_labels(node_object, labelled, CancellationToken::new()).await;
    assert!(*told.borrow());
    assert!(
        start.elapsed() < Duration::from_mins(11),
        "{:?}",
        start.elapsed()
    );
    let count = *count.lock().unwrap();
    assert!((10..100).contains(&count), "{count} requests");
}
