//! The taint of a Node whose VM is shut down: written on proof, taken back when the Node is ready or its VM runs.

use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use pve_client::{Client, RunState, VmRef};
use pve_model::topology::SHUTDOWN_TAINT;
use serde_json::json;
use tokio::time::timeout;

use crate::events::{Teller, Told};
use crate::node::NodeView;
use crate::nodes::Nodes;
use crate::plan;
use crate::writer::{WriteError, Writer};

/// For the state of one VM.
const WITHIN: Duration = Duration::from_secs(10);

/// Whether a VM that is listed as stopped is at this moment: the list is up to 10 s old.
pub async fn is_stopped(client: &Client, vm: &VmRef) -> bool {
    let status = timeout(WITHIN, client.vm_status(vm)).await;
    matches!(status, Ok(Ok(status)) if status.state == RunState::Stopped)
}

/// Writes the taint, or takes it back.
pub async fn mark(nodes: &Nodes, writer: &Writer, teller: &Teller, (node, is): (&NodeView, bool)) {
    let mut taints = plan::without_taint(&node.taints, SHUTDOWN_TAINT);
    if is {
        taints.push(Taint {
            key: SHUTDOWN_TAINT.to_owned(),
            value: None,
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let patch = json!({ "spec": { "taints": taints } });
    match writer.taint(node, &patch).await {
        Ok(written) => {
            nodes.see_written(node, written);
            tracing::info!(node = node.name, shut_down = is, "the taint of shutdown");
            let told = if is { Told::ShutDown } else { Told::Started };
            teller.tell(node, told);
        }
        Err(WriteError::Outdated | WriteError::Passive) => {}
        Err(WriteError::Request(error)) => {
            tracing::warn!(node = node.name, %error, "the taint of shutdown can't be written");
        }
    }
}
