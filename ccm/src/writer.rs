//! Writes to the tenant's Nodes: each is bound to the version that was decided on, has a deadline, and is not begun once
//! this process is not the active one any more.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use pve_kube::{Holding, RequestError, Tenant, answer};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, Write};
use crate::node::NodeView;
use crate::plan::Changes;

const NODES: &str = "/api/v1/nodes";
const WITHIN: Duration = Duration::from_secs(10);
/// Largest answer: etcd takes objects of 1.5 MiB.
const NODE_MAX: usize = 4 << 20;

/// Until when this process is the active one.
#[derive(Debug, Clone)]
pub struct Active {
    /// Is cancelled when it is not any more.
    pub stop: CancellationToken,
    /// Says so by the clock, too, if there is a Lease: a process that stood still learns late of what it has lost.
    pub holding: Option<Holding>,
}

/// Writes Nodes as long as it may.
#[derive(Debug, Clone)]
pub struct Writer {
    tenant: Tenant,
    active: Active,
    metrics: Metrics,
}

/// Why a Node was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It changed since it was looked at, or is no more.
    #[error("the Node changed meanwhile")]
    Outdated,
    /// This process is not the active one any more.
    #[error("another process is the active one")]
    Passive,
    /// The API server did not take it.
    #[error(transparent)]
    Request(RequestError),
}

impl From<RequestError> for WriteError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Status(404 | 409) => Self::Outdated,
            error => Self::Request(error),
        }
    }
}

impl Active {
    fn is(&self) -> bool {
        let holds = self.holding.as_ref().is_none_or(Holding::holds);
        holds && !self.stop.is_cancelled()
    }
}

impl Writer {
    /// Writes as long as the process is the active one.
    pub fn new(tenant: Tenant, active: Active, metrics: Metrics) -> Self {
        Self {
            tenant,
            active,
            metrics,
        }
    }

    /// Makes the changes, the addresses first: a Node without its taint has them. Returns the Node as it is then.
    pub async fn change(
        &self,
        node: &NodeView,
        changes: &Changes,
    ) -> Result<Option<Node>, WriteError> {
        let mut version = node.version.clone();
        let mut written = None;
        if let Some(status) = &changes.status {
            let node = self
                .patch(&node.name, &version, status, Write::Status)
                .await?;
            version = node.metadata.resource_version.clone().unwrap_or_default();
            written = Some(node);
        }
        if let Some(object) = &changes.object {
            let what = if changes.lifts_taint() {
                Write::Initialise
            } else {
                Write::Object
            };
            written = Some(self.patch(&node.name, &version, object, what).await?);
        }
        Ok(written)
    }

    /// Writes the taints.
    pub async fn taint(&self, node: &NodeView, patch: &Value) -> Result<Node, WriteError> {
        self.patch(&node.name, &node.version, patch, Write::Taint)
            .await
    }

    /// Deletes exactly this Node in exactly this state.
    pub async fn delete(&self, node: &NodeView) -> Result<(), WriteError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(node.uid.clone()),
                resource_version: Some(node.version.clone()),
            }),
            ..DeleteParams::default()
        };
        let request = Request::new(NODES)
            .delete(&node.name, &params)
            .map_err(RequestError::from)?;
        let _: Value = self.send(request, Write::Delete).await?;
        Ok(())
    }

    async fn patch(
        &self,
        name: &str,
        version: &str,
        patch: &Value,
        what: Write,
    ) -> Result<Node, WriteError> {
        let mut patch = patch.clone();
        if let Some(whole) = patch.as_object_mut() {
            let metadata = whole.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".to_owned(), json!(version));
            }
        }
        let params = PatchParams::default();
        let patch = Patch::Merge(patch);
        let request = Request::new(NODES);
        let request = match what {
            Write::Status => request.patch_subresource("status", name, &params, &patch),
            _ => request.patch(name, &params, &patch),
        };
        self.send(request.map_err(RequestError::from)?, what).await
    }

    async fn send<T: serde::de::DeserializeOwned>(
        &self,
        request: http::Request<Vec<u8>>,
        what: Write,
    ) -> Result<T, WriteError> {
        if !self.active.is() {
            return Err(WriteError::Passive);
        }
        let client = self.tenant.client();
        let sent = answer(&client, request, NODE_MAX, WITHIN);
        let outcome = match self.active.stop.run_until_cancelled(sent).await {
            Some(outcome) => outcome.map_err(WriteError::from),
            None => Err(WriteError::Passive),
        };
        self.metrics.write(what, outcome.is_ok());
        outcome
    }
}
