//! `PersistentVolumes`: a list in pages.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{PAGE, Shared};

/// As a provisioner writes it, as far as its volume is concerned.
pub(super) fn volume(name: &str, driver: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name, "uid": format!("uid-{name}") },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "csi": { "driver": driver, "volumeHandle": handle },
        },
        "status": { "phase": "Bound" },
    })
}

/// At most as many as the stub gives at once, with the place of the next one as the server's token.
pub(super) async fn list(
    State(shared): State<Shared>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if let Some(refusal) = shared.refusal() {
        return refusal;
    }
    let all = shared.volumes();
    let from: usize = query
        .get("continue")
        .and_then(|text| text.strip_prefix("from/"))
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let items: Vec<&Value> = all.iter().skip(from).take(PAGE).collect();
    let next = from + items.len();
    let token = if next < all.len() {
        format!("from/{next}")
    } else {
        String::new()
    };
    Json(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeList",
        "metadata": { "resourceVersion": "1", "continue": token }, "items": items,
    }))
    .into_response()
}
