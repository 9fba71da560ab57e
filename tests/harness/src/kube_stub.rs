//! Just enough of a Kubernetes API server for a node plugin to see its own Node: get, list and watch of Nodes; for a
//! controller the get of the `CSIDriver`; for an operator's command the list of `PersistentVolumes`.
//!
//! It stands in where a test is about the plugin; the cluster tests use the real server.

mod volumes;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

#[derive(Debug, Default, Clone)]
struct Nodes {
    version: u64,
    items: BTreeMap<String, Value>,
}

/// A running stand-in.
#[derive(Debug)]
pub struct KubeStub {
    address: SocketAddr,
    nodes: Arc<watch::Sender<Nodes>>,
    refuse: Arc<Mutex<Option<StatusCode>>>,
    volumes: Arc<Mutex<Vec<Value>>>,
    annotations: Arc<Mutex<Value>>,
    _stop: DropGuard,
}

#[derive(Clone)]
struct Shared {
    nodes: Arc<watch::Sender<Nodes>>,
    refuse: Arc<Mutex<Option<StatusCode>>>,
    volumes: Arc<Mutex<Vec<Value>>>,
    annotations: Arc<Mutex<Value>>,
}

/// Entries of one page of `PersistentVolumes`.
const PAGE: usize = 2;

impl KubeStub {
    /// Listens on a free port of 127.0.0.1, in plain HTTP.
    pub async fn start() -> Result<Self> {
        let nodes = Arc::new(watch::Sender::new(Nodes {
            version: 1,
            ..Default::default()
        }));
        let refuse = Arc::new(Mutex::new(None));
        let volumes = Arc::<Mutex<Vec<Value>>>::default();
        let annotations = Arc::new(Mutex::new(json!({})));
        let shared = Shared {
            nodes: Arc::clone(&nodes),
            refuse: Arc::clone(&refuse),
            volumes: Arc::clone(&volumes),
            annotations: Arc::clone(&annotations),
        };
        let app = Router::new()
            .route("/api/v1/nodes", get(list_or_watch))
            .route("/api/v1/nodes/{name}", get(one))
            .route("/api/v1/persistentvolumes", get(volumes::list))
            .route("/apis/storage.k8s.io/v1/csidrivers/{name}", get(driver))
            .with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = axum::serve(listener, app) => {}
                () = stopped.cancelled() => {}
            }
        });
        Ok(Self {
            address,
            nodes,
            refuse,
            volumes,
            annotations,
            _stop: stop.drop_guard(),
        })
    }

    /// Adds or changes a Node.
    pub fn set_node(
        &self,
        name: &str,
        uuid: &str,
        labels: &[(&str, &str)],
        annotations: &[(&str, &str)],
    ) {
        self.nodes.send_modify(|nodes| {
            nodes.version += 1;
            let node = json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "uid": format!("uid-{name}"),
                    "resourceVersion": nodes.version.to_string(),
                    "labels": labels.iter().copied().collect::<BTreeMap<_, _>>(),
                    "annotations": annotations.iter().copied().collect::<BTreeMap<_, _>>(),
                },
                "spec": {},
                "status": { "nodeInfo": {
                    "systemUUID": uuid, "machineID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                    "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
                    "operatingSystem": "linux", "architecture": "amd64",
                }},
            });
            nodes.items.insert(name.to_owned(), node);
        });
    }

    /// Writes `spec.providerID` of a Node that is there.
    pub fn set_provider_id(&self, name: &str, provider_id: &str) {
        self.nodes.send_modify(|nodes| {
            nodes.version += 1;
            let version = json!(nodes.version.to_string());
            let Some(node) = nodes.items.get_mut(name) else {
                return;
            };
            if let Some(spec) = node.get_mut("spec") {
                *spec = json!({ "providerID": provider_id });
            }
            if let Some(known) = node.pointer_mut("/metadata/resourceVersion") {
                *known = version;
            }
        });
    }

    /// Adds a `PersistentVolume` of a driver.
    pub fn add_volume(&self, name: &str, driver: &str, handle: &str) {
        let volume = volumes::volume(name, driver, handle);
        let mut all = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(volume);
    }

    /// Takes all `PersistentVolumes` away.
    pub fn clear_volumes(&self) {
        let mut all = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        all.clear();
    }

    /// From now on every request gets this status, or none of it again.
    pub fn refuse(&self, status: Option<u16>) {
        let status = status.and_then(|code| StatusCode::from_u16(code).ok());
        *self.refuse.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Writes the annotations of the `CSIDriver`, whatever its name.
    pub fn annotate_driver(&self, annotations: Value) {
        let mut known = self
            .annotations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *known = annotations;
    }

    /// Writes a kubeconfig for this server.
    pub fn kubeconfig(&self, folder: &FsPath) -> Result<PathBuf> {
        let path = folder.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stub",
            "clusters": [{ "name": "stub", "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": "stub", "user": { "token": "stub" } }],
            "contexts": [{ "name": "stub", "context": { "cluster": "stub", "user": "stub" } }],
        });
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

impl Shared {
    fn volumes(&self) -> Vec<Value> {
        let all = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }

    fn refusal(&self) -> Option<Response> {
        let status = (*self.refuse.lock().unwrap_or_else(PoisonError::into_inner))?;
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(),
            "message": "refused", "reason": "Refused",
        });
        Some((status, Json(body)).into_response())
    }
}

async fn one(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    if let Some(refusal) = shared.refusal() {
        return refusal;
    }
    let node = shared.nodes.borrow().items.get(&name).cloned();
    node.map_or_else(
        || {
            let body = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                "message": format!("nodes {name:?} not found"), "reason": "NotFound",
            });
            (StatusCode::NOT_FOUND, Json(body)).into_response()
        },
        |node| Json(node).into_response(),
    )
}

async fn driver(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    if let Some(refusal) = shared.refusal() {
        return refusal;
    }
    let annotations = shared
        .annotations
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let metadata = json!({ "name": name, "annotations": annotations });
    Json(json!({ "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": metadata, "spec": {} }))
        .into_response()
}

async fn list_or_watch(
    State(shared): State<Shared>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if let Some(refusal) = shared.refusal() {
        return refusal;
    }
    let wanted = query
        .get("fieldSelector")
        .and_then(|text| text.strip_prefix("metadata.name="))
        .map(str::to_owned);
    if query
        .get("watch")
        .is_some_and(|value| matches!(value.as_str(), "1" | "true"))
    {
        return watch_nodes(&shared, wanted, &query);
    }
    let nodes = shared.nodes.borrow().clone();
    let items: Vec<&Value> = nodes
        .items
        .iter()
        .filter(|(name, _)| fits(wanted.as_deref(), name))
        .map(|(_, n)| n)
        .collect();
    Json(json!({
        "apiVersion": "v1", "kind": "NodeList",
        "metadata": { "resourceVersion": nodes.version.to_string() }, "items": items,
    }))
    .into_response()
}

fn fits(wanted: Option<&str>, name: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == name)
}

fn version_of(node: &Value) -> u64 {
    node.pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

/// A watch that sends every Node changed after `resourceVersion` and ends after a minute, as servers do.
fn watch_nodes(
    shared: &Shared,
    wanted: Option<String>,
    query: &BTreeMap<String, String>,
) -> Response {
    let seen = query
        .get("resourceVersion")
        .and_then(|v| v.parse().ok())
        .unwrap_or(0);
    let limit = query
        .get("timeoutSeconds")
        .and_then(|v| v.parse().ok())
        .unwrap_or(60);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(limit);
    let state = (shared.nodes.subscribe(), seen, wanted);
    let lines = stream::unfold(state, move |(mut nodes, seen, wanted)| async move {
        loop {
            let current = nodes.borrow_and_update().clone();
            let changed: Vec<&Value> = current
                .items
                .iter()
                .filter(|(name, node)| fits(wanted.as_deref(), name) && version_of(node) > seen)
                .map(|(_, node)| node)
                .collect();
            if !changed.is_empty() {
                let lines: Vec<String> = changed
                    .iter()
                    .map(|node| json!({"type": "MODIFIED", "object": node}).to_string())
                    .collect();
                let text = lines.join("\n") + "\n";
                return Some((
                    Ok::<_, Infallible>(Bytes::from(text)),
                    (nodes, current.version, wanted),
                ));
            }
            match tokio::time::timeout_at(deadline, nodes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    });
    Response::builder()
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from_stream(lines))
        .unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}
