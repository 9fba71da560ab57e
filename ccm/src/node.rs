//! A Node of the tenant cluster, cut down to what is decided by and written to. The tenant writes Nodes as large and as
//! many as its API server takes; none of it is proof of anything.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use pve_model::topology::{
    ATTACH_LIMIT, BETA_INSTANCE_TYPE, BETA_REGION, BETA_ZONE, FORMER_REGION, FORMER_ZONE,
    HA_GROUP_PREFIX, HA_STRICT_PREFIX, HOST_LABEL, INSTANCE_TYPE, PROVIDED_NODE_IP, REGION,
    SHUTDOWN_TAINT, UNINITIALIZED_TAINT, VMID_ANNOTATION, ZONE,
};
use pve_model::{ProviderId, Uuid, VmId};

use crate::addresses::{Address, AddressKind};

/// Largest Node that is looked at, counted over the parts that are kept. Those of kubelets have some hundred bytes.
const MOST_BYTES: usize = 8 << 10;
/// Longest name of an object (`k8s.io/apimachinery` `DNS1123SubdomainMaxLength`).
pub const MOST_NAME: usize = 253;
/// What each entry of a map or a list takes beside its text.
const ENTRY: usize = 100;

/// The labels that the CCM writes, but for those of HA.
const LABELS: [&str; 9] = [
    REGION,
    ZONE,
    BETA_REGION,
    BETA_ZONE,
    INSTANCE_TYPE,
    BETA_INSTANCE_TYPE,
    FORMER_REGION,
    FORMER_ZONE,
    HOST_LABEL,
];
/// The annotations that are read or written.
const ANNOTATIONS: [&str; 3] = [VMID_ANNOTATION, ATTACH_LIMIT, PROVIDED_NODE_IP];

/// What is kept of a Node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// The object's identity: another one after the Node was deleted and registered again.
    pub uid: String,
    /// `resourceVersion`: every write is bound to it.
    pub version: String,
    /// `spec.providerID`, if it has one.
    pub provider_id: Option<String>,
    /// `status.nodeInfo.systemUUID` as the kubelet read it in the firmware.
    pub system_uuid: Option<Uuid>,
    /// The labels that are ours.
    pub labels: BTreeMap<String, String>,
    /// The annotations that are read or written.
    pub annotations: BTreeMap<String, String>,
    /// All taints: the list is written as a whole.
    pub taints: Vec<Taint>,
    /// `status.addresses`.
    pub addresses: Vec<Address>,
    /// Whether its condition `Ready` is `True`.
    pub ready: bool,
}

/// A Node that is larger than a kubelet's can be, or has no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the Node is too large or has no identity")]
pub struct Unusable;

impl NodeView {
    /// Cuts a Node down.
    pub fn read(node: Node) -> Result<Self, Unusable> {
        let status = node.status.unwrap_or_default();
        let spec = node.spec.unwrap_or_default();
        let metadata = node.metadata;
        let info = status.node_info.as_ref();
        let view = Self {
            name: metadata.name.ok_or(Unusable)?,
            uid: metadata.uid.ok_or(Unusable)?,
            version: metadata.resource_version.ok_or(Unusable)?,
            provider_id: spec.provider_id.filter(|text| !text.is_empty()),
            system_uuid: info.and_then(|info| info.system_uuid.parse().ok()),
            labels: kept(metadata.labels, is_our_label),
            annotations: kept(metadata.annotations, |key| ANNOTATIONS.contains(&key)),
            taints: spec.taints.unwrap_or_default(),
            addresses: status
                .addresses
                .unwrap_or_default()
                .into_iter()
                .map(|address| Address {
                    kind: AddressKind::from(address.type_.as_str()),
                    address: address.address,
                })
                .collect(),
            ready: status
                .conditions
                .unwrap_or_default()
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        };
        let is_named = [&view.name, &view.uid]
            .iter()
            .all(|text| text.len() <= MOST_NAME);
        if view.bytes() > MOST_BYTES || !is_named {
            return Err(Unusable);
        }
        Ok(view)
    }

    /// What its provider id says.
    pub fn provider(&self) -> Option<ProviderId> {
        self.provider_id.as_deref().map(ProviderId::read)
    }

    /// Whether another provider's controller looks after it.
    pub fn is_foreign(&self) -> bool {
        self.provider() == Some(ProviderId::Foreign)
    }

    /// Whether no cloud-controller-manager has initialised it yet.
    pub fn is_uninitialised(&self) -> bool {
        self.has_taint(UNINITIALIZED_TAINT)
    }

    /// Whether it is marked as shut down.
    pub fn is_shut_down(&self) -> bool {
        self.has_taint(SHUTDOWN_TAINT)
    }

    /// The VMID that it or its provider id names: a hint.
    pub fn vmid(&self) -> Option<VmId> {
        let annotated = self.annotations.get(VMID_ANNOTATION);
        annotated
            .and_then(|text| text.parse().ok())
            .or_else(|| match self.provider() {
                Some(ProviderId::Place { vmid, .. }) => Some(vmid),
                _ => None,
            })
    }

    fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| taint.key == key)
    }

    /// About the memory that it takes.
    pub fn bytes(&self) -> usize {
        let pairs = |map: &BTreeMap<String, String>| -> usize {
            let pair = |(key, text): (&String, &String)| ENTRY + key.len() + text.len();
            map.iter().map(pair).sum()
        };
        let taint = |taint: &Taint| {
            2 * ENTRY + taint.key.len() + taint.value.as_ref().map_or(0, String::len)
        };
        let texts = [&self.name, &self.uid, &self.version];
        texts.into_iter().map(String::len).sum::<usize>()
            + self.provider_id.as_ref().map_or(0, String::len)
            + pairs(&self.labels)
            + pairs(&self.annotations)
            + self.taints.iter().map(taint).sum::<usize>()
            + self
                .addresses
                .iter()
                .map(|address| ENTRY + address.address.len())
                .sum::<usize>()
    }
}

/// Whether the CCM writes and removes the label.
pub fn is_our_label(key: &str) -> bool {
    LABELS.contains(&key) || is_ha_label(key)
}

/// Whether the label tells of an HA rule or group.
pub fn is_ha_label(key: &str) -> bool {
    key.starts_with(HA_GROUP_PREFIX) || key.starts_with(HA_STRICT_PREFIX)
}

fn kept(
    all: Option<BTreeMap<String, String>>,
    is_kept: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    all.unwrap_or_default()
        .into_iter()
        .filter(|(key, _)| is_kept(key))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(node: Value) -> Result<NodeView, Unusable> {
        NodeView::read(serde_json::from_value(node).unwrap())
    }

    fn node() -> Value {
        json!({
            "metadata": {
                "name": "worker-a", "uid": "u1", "resourceVersion": "7",
                "labels": { ZONE: "pve1", "kubernetes.io/hostname": "worker-a", "group.topology.proxmox.sinextra.dev/fast": "" },
                "annotations": { VMID_ANNOTATION: "104", "note": "x" },
            },
            "spec": { "taints": [{ "key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule" }] },
            "status": {
                "conditions": [{ "type": "Ready", "status": "Unknown" }],
                "addresses": [{ "type": "InternalIP", "address": "10.0.0.5" }],
                "nodeInfo": {
                    "systemUUID": "ABCDEF00-1111-2222-3333-444455556666", "architecture": "", "bootID": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "",
                },
            },
        })
    }

    #[test]
    fn only_what_is_decided_by_is_kept() {
        let view = read(node()).unwrap();
        let labels: Vec<&str> = view.labels.keys().map(String::as_str).collect();
        assert_eq!(labels, ["group.topology.proxmox.sinextra.dev/fast", ZONE]);
        assert_eq!(view.annotations.len(), 1);
        assert!(view.is_uninitialised() && !view.ready && !view.is_shut_down());
        assert_eq!(view.vmid(), Some("104".parse().unwrap()));
        let uuid = view.system_uuid.unwrap();
        assert_eq!(uuid.as_str(), "abcdef00-1111-2222-3333-444455556666");
    }

    #[test]
    fn a_node_without_identity_or_of_monstrous_size_is_not_looked_at() {
        let mut anonymous = node();
        anonymous["metadata"]["uid"] = Value::Null;
        assert_eq!(read(anonymous), Err(Unusable));
        let mut large = node();
        large["spec"]["providerID"] = json!(format!("proxmox://{}", "x".repeat(MOST_BYTES)));
        assert_eq!(read(large), Err(Unusable));
        let mut padded = node();
        padded["metadata"]["annotations"]["note"] = json!("x".repeat(MOST_BYTES));
        assert!(read(padded).is_ok(), "what is not kept does not count");
    }

    #[test]
    fn the_vmid_comes_from_the_annotation_or_else_from_the_provider_id() {
        let mut other = node();
        other["metadata"]["annotations"] = json!({});
        other["spec"]["providerID"] = json!("proxmox://r1/105");
        assert_eq!(read(other).unwrap().vmid(), Some("105".parse().unwrap()));
        let mut foreign = node();
        foreign["spec"]["providerID"] = json!("hcloud://105");
        assert!(read(foreign).unwrap().is_foreign());
    }
}
