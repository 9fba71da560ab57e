//! Many Nodes at once, and what the program itself counts.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use pve_model::topology::UNINITIALIZED_TAINT;
use serde_json::{Map, Value, json};

use super::{CcmWorld, admin_page};
use crate::cluster::eventually;
use crate::process::Process;

/// Requests that are sent to the API server at the same time.
const AT_A_TIME: usize = 48;
/// For all Nodes of a test.
const PATIENCE: Duration = Duration::from_mins(2);
const INFO: [&str; 9] = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
];

/// `status.nodeInfo` of a machine of that firmware.
pub(super) fn node_info(system_uuid: &str) -> Map<String, Value> {
    let info = INFO.iter().map(|key| ((*key).to_owned(), json!("")));
    let mut info: Map<String, Value> = info.collect();
    info.insert("systemUUID".to_owned(), json!(system_uuid));
    info
}

/// A Node as a kubelet creates it with `--cloud-provider=external`: with its status, in one request.
pub fn registered(name: &str, system_uuid: &str, ready: bool) -> Value {
    let info = node_info(system_uuid);
    let now = "2026-01-01T00:00:00Z";
    let status = if ready { "True" } else { "False" };
    let condition = json!({
        "type": "Ready", "status": status, "reason": "Test", "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    json!({
        "metadata": { "name": name, "labels": {}, "annotations": {} },
        "spec": { "taints": [{ "key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule" }] },
        "status": { "nodeInfo": info, "conditions": [condition] },
    })
}

/// Numbers of a running program.
#[derive(Debug)]
pub struct Numbers(String);

impl Numbers {
    /// Those of now.
    pub async fn of(admin: SocketAddr) -> Result<Self> {
        Ok(Self(admin_page(admin, "/metrics").await?))
    }

    /// The sum over all series of that name whose labels hold all of these texts (`what="initialise"`).
    pub fn sum(&self, name: &str, labels: &[&str]) -> u64 {
        let series = self.0.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        });
        let values = series.filter_map(|line| line.rsplit_once(' '));
        values
            .filter_map(|(_, value)| value.parse::<u64>().ok())
            .sum()
    }

    /// Writes to Nodes that were taken, of one kind or of all.
    pub fn writes(&self, what: Option<&str>) -> u64 {
        let what = what.map(|what| format!("what=\"{what}\""));
        let labels: Vec<&str> = what
            .as_deref()
            .into_iter()
            .chain(["outcome=\"ok\""])
            .collect();
        self.sum("proxmox_ccm_node_writes_total", &labels)
    }
}

impl CcmWorld {
    /// Creates these Nodes, many at the same time.
    pub async fn register_all(&self, nodes: Vec<Value>) -> Result<()> {
        let api = self.nodes();
        let all = iter(nodes.into_iter().map(|node| {
            let api = api.clone();
            async move {
                let node: Node = serde_json::from_value(node)?;
                api.create(&PostParams::default(), &node).await?;
                anyhow::Ok(())
            }
        }));
        all.buffer_unordered(AT_A_TIME).try_collect().await
    }

    /// Deletes these Nodes, many at the same time.
    pub async fn remove_all(&self, names: Vec<String>) -> Result<()> {
        let api = self.nodes();
        let all = iter(names.into_iter().map(|name| {
            let api = api.clone();
            async move {
                api.delete(&name, &DeleteParams::default()).await?;
                anyhow::Ok(())
            }
        }));
        all.buffer_unordered(AT_A_TIME).try_collect().await
    }

    /// Name and `resourceVersion` of all Nodes: what is equal was not written.
    pub async fn versions(&self) -> Result<Vec<(String, String)>> {
        let nodes = self.nodes().list_metadata(&ListParams::default()).await?;
        let mut all: Vec<_> = nodes
            .items
            .into_iter()
            .map(|node| node.metadata)
            .map(|meta| {
                let version = meta.resource_version.unwrap_or_default();
                (meta.name.unwrap_or_default(), version)
            })
            .collect();
        all.sort();
        Ok(all)
    }

    /// Of every Event, the uid of the Node that it is about and its reason.
    pub async fn told(&self) -> Result<Vec<(String, String)>> {
        let events: Api<Event> = Api::namespaced(self.client(), "default");
        let all = events.list(&ListParams::default()).await?.items;
        let of = |event: Event| {
            let uid = event.involved_object.uid.unwrap_or_default();
            (uid, event.reason.unwrap_or_default())
        };
        Ok(all.into_iter().map(of).collect())
    }

    /// Waits until the program has initialised that many Nodes since its start.
    pub async fn initialised_all(&self, admin: SocketAddr, count: u64) -> Result<Duration> {
        let what = format!("{count} Nodes initialised");
        let ((), took) = eventually(&what, PATIENCE, async || {
            let done = Numbers::of(admin).await?.writes(Some("initialise"));
            Ok((done >= count).then_some(()))
        })
        .await?;
        Ok(took)
    }
}

/// Resident memory of a running program, in MiB (`VmRSS`, proc(5)).
pub fn resident(process: &Process) -> Result<u64> {
    let pid = process.pid().context("the program has ended")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mut fields = status
        .lines()
        .filter_map(|line| line.strip_prefix("VmRSS:"));
    let text = fields.next().context("no VmRSS")?;
    let kib: u64 = text.trim().trim_end_matches(" kB").parse()?;
    Ok(kib >> 10)
}
