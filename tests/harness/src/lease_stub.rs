//! Just enough of a management cluster for programs that hold a Lease: its versions, and lines that can be cut.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A running stand-in with room for one Lease.
#[derive(Debug)]
pub struct LeaseStub {
    address: SocketAddr,
    shared: Shared,
    _stop: DropGuard,
}

type Shared = Arc<Mutex<Record>>;

#[derive(Debug, Default)]
struct Record {
    version: u64,
    lease: Option<Value>,
    cut: BTreeSet<String>,
}

type Answer = (StatusCode, Json<Value>);

impl LeaseStub {
    /// Listens on a free port of 127.0.0.1, in plain HTTP.
    pub async fn start() -> Result<Self> {
        let shared = Shared::default();
        let path = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases";
        let app = Router::new()
            .route(path, post(create))
            .route(&format!("{path}/{{name}}"), get(read).put(replace))
            .with_state(Arc::clone(&shared));
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
            shared,
            _stop: stop.drop_guard(),
        })
    }

    /// Writes a kubeconfig for this server, for one who can be told from others by this name.
    pub fn kubeconfig(&self, folder: &FsPath, name: &str) -> Result<PathBuf> {
        let path = folder.join(format!("{name}.management"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stub",
            "clusters": [{ "name": "stub", "cluster": { "server": format!("http://{}", self.address) } }],
            "users": [{ "name": "stub", "user": { "token": name } }],
            "contexts": [{ "name": "stub", "context": { "cluster": "stub", "user": "stub" } }],
        });
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// From now on what this one asks is not done and gets no answer.
    pub fn cut(&self, name: &str) {
        record(&self.shared).cut.insert(name.to_owned());
    }

    /// Writes the Lease as that of somebody who holds it for so many seconds and never comes back.
    pub fn held_by_nobody_here(&self, seconds: u32) {
        let spec = json!({ "holderIdentity": "elsewhere", "leaseDurationSeconds": seconds });
        let mut record = record(&self.shared);
        drop(record.write(&spec, "pve-csi-controller"));
    }

    /// Who holds the Lease.
    pub fn holder(&self) -> String {
        let record = record(&self.shared);
        let holder = record.lease.as_ref().and_then(|lease| {
            let holder = lease.pointer("/spec/holderIdentity");
            holder.and_then(Value::as_str).map(str::to_owned)
        });
        holder.unwrap_or_default()
    }
}

impl Record {
    fn write(&mut self, spec: &Value, name: &str) -> Answer {
        self.version += 1;
        let metadata =
            json!({ "name": name, "uid": "u", "resourceVersion": self.version.to_string() });
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec,
        });
        self.lease = Some(lease.clone());
        (StatusCode::OK, Json(lease))
    }
}

fn record(shared: &Shared) -> MutexGuard<'_, Record> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(status: StatusCode) -> Answer {
    (
        status,
        Json(json!({ "kind": "Status", "code": status.as_u16() })),
    )
}

/// Never comes back to one who is cut off.
async fn connected(shared: &Shared, headers: &HeaderMap) {
    let token = headers.get(header::AUTHORIZATION).cloned();
    let token = token.as_ref().and_then(|value| value.to_str().ok());
    let name = token.and_then(|token| token.strip_prefix("Bearer "));
    let cut = name.is_some_and(|name| record(shared).cut.contains(name));
    if cut {
        std::future::pending::<()>().await;
    }
}

async fn read(State(shared): State<Shared>, headers: HeaderMap) -> Answer {
    connected(&shared, &headers).await;
    let lease = record(&shared).lease.clone();
    lease.map_or_else(
        || refused(StatusCode::NOT_FOUND),
        |lease| (StatusCode::OK, Json(lease)),
    )
}

async fn create(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Answer {
    connected(&shared, &headers).await;
    let mut record = record(&shared);
    if record.lease.is_some() {
        return refused(StatusCode::CONFLICT);
    }
    let name = body.pointer("/metadata/name").and_then(Value::as_str);
    let spec = body.get("spec").cloned().unwrap_or_default();
    record.write(&spec, name.unwrap_or_default())
}

async fn replace(
    State(shared): State<Shared>,
    Path((_, name)): Path<(String, String)>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Answer {
    connected(&shared, &headers).await;
    let mut record = record(&shared);
    let version = |lease: &Value| lease.pointer("/metadata/resourceVersion").cloned();
    match &record.lease {
        None => refused(StatusCode::NOT_FOUND),
        Some(lease) if version(lease) != version(&body) => refused(StatusCode::CONFLICT),
        Some(_) => {
            let spec = body.get("spec").cloned().unwrap_or_default();
            record.write(&spec, &name)
        }
    }
}
