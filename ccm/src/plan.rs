//! What a Node should say, and the writes that make it say so: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use pve_client::Interface;
use pve_model::topology::{
    ATTACH_LIMIT, BETA_INSTANCE_TYPE, BETA_REGION, BETA_ZONE, FORMER_REGION, FORMER_ZONE,
    HOST_LABEL, INSTANCE_TYPE, PROVIDED_NODE_IP, REGION, UNINITIALIZED_TAINT, VMID_ANNOTATION,
    ZONE,
};
use pve_model::{ProviderId, Uuid, provider_id};
use pve_runtime::config::{NodePolicy, Provider, ZonePolicy};
use serde_json::{Map, Value, json};

use crate::addresses::{self, Address, Sources};
use crate::inventory::{self, Doubt, RegionView, Vm};
use crate::node::{NodeView, is_ha_label};

/// What the operator wants of Nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Who made the VMs: the form of provider ids.
    pub provider: Provider,
    /// Labels and addresses.
    pub nodes: NodePolicy,
}

/// Why nothing is said about a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// Neither its firmware nor its provider id says a UUID.
    NoUuid,
    /// Its provider id names another UUID than its firmware.
    Contradiction,
    /// Its UUID means no VM, or not surely one.
    Doubt(Doubt),
}

/// What a Node should say.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    provider_id: String,
    labels: BTreeMap<&'static str, String>,
    /// `None`: not known, those that are there stay.
    ha: Option<BTreeMap<String, String>>,
    annotations: BTreeMap<&'static str, String>,
    /// `None`: nothing is known, those that are there stay.
    addresses: Option<Vec<Address>>,
}

/// The writes that a Node needs, both bound to a `resourceVersion`: merge patches.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changes {
    /// Of `status`, without the version.
    pub status: Option<Value>,
    /// Of `metadata` and `spec`, without the version.
    pub object: Option<Value>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn are_none(&self) -> bool {
        self.status.is_none() && self.object.is_none()
    }

    /// Whether the Node is initialised by them.
    pub fn lifts_taint(&self) -> bool {
        let spec = self.object.as_ref().and_then(|object| object.get("spec"));
        spec.is_some_and(|spec| spec.get("taints").is_some())
    }
}

/// The UUID by which a Node's VM is looked for.
pub fn identity(node: &NodeView) -> Result<Uuid, Refusal> {
    match (&node.system_uuid, node.provider()) {
        (Some(uuid), Some(ProviderId::Uuid(other))) if other != *uuid => {
            Err(Refusal::Contradiction)
        }
        (Some(uuid), _) => Ok(uuid.clone()),
        (None, Some(ProviderId::Uuid(uuid))) => Ok(uuid),
        (None, _) => Err(Refusal::NoUuid),
    }
}

/// The VM of a Node.
pub fn vm_of<'a>(regions: &'a [RegionView], uuid: &Uuid) -> Result<Vm<'a>, Refusal> {
    inventory::find(regions, uuid).map_err(Refusal::Doubt)
}

/// What the Node of this VM should say. `agent` is what the guest agent told, if it was asked and told something.
pub fn wanted(
    node: &NodeView,
    uuid: &Uuid,
    vm: &Vm<'_>,
    agent: Option<&[Interface]>,
    rules: &Rules,
) -> Wanted {
    let region = vm.region.to_string();
    let host = vm.entry.pve_node.to_string();
    let kind = vm.facts.instance_type.clone();
    let labels = BTreeMap::from([
        (REGION, region.clone()),
        (BETA_REGION, region.clone()),
        (FORMER_REGION, region),
        (ZONE, host.clone()),
        (BETA_ZONE, host.clone()),
        (FORMER_ZONE, host.clone()),
        (HOST_LABEL, host),
        (INSTANCE_TYPE, kind.clone()),
        (BETA_INSTANCE_TYPE, kind),
    ]);
    let ha = match (rules.nodes.ha, &vm.snapshot.ha) {
        (false, _) => Some(BTreeMap::new()),
        (true, seen) => seen.as_ref().map(|ha| ha.labels(vm.entry.vmid)),
    };
    let provided = node.annotations.get(PROVIDED_NODE_IP);
    let sources = Sources {
        name: &node.name,
        provided: provided.map_or_else(Vec::new, |text| addresses::provided(text)),
        agent,
        macs: &vm.facts.macs,
        fixed: &vm.facts.fixed,
        current: &node.addresses,
    };
    Wanted {
        provider_id: match rules.provider {
            Provider::Capmox => provider_id::of_uuid(uuid),
            Provider::Default => provider_id::of_place(vm.region, vm.entry.vmid),
        },
        labels,
        ha,
        annotations: BTreeMap::from([
            (VMID_ANNOTATION, vm.entry.vmid.to_string()),
            (ATTACH_LIMIT, vm.facts.attach_limit.to_string()),
        ]),
        addresses: addresses::wanted(&sources, &rules.nodes.addresses),
    }
}

/// What has to be written so that the Node says what is wanted. An uninitialised one loses its taint with it.
pub fn changes(node: &NodeView, wanted: &Wanted, rules: &Rules) -> Changes {
    let initialise = node.is_uninitialised();
    let mut labels = Map::new();
    for (key, text) in &wanted.labels {
        let is_zone = [ZONE, BETA_ZONE].contains(key);
        let stays = is_zone && !initialise && rules.nodes.zone == ZonePolicy::Fixed;
        let now = node.labels.get(*key);
        if now != Some(text) && !(stays && now.is_some()) {
            labels.insert((*key).to_owned(), json!(text));
        }
    }
    if let Some(ha) = &wanted.ha {
        for key in node.labels.keys().filter(|key| is_ha_label(key)) {
            if !ha.contains_key(key) {
                labels.insert(key.clone(), Value::Null);
            }
        }
        for (key, text) in ha {
            if node.labels.get(key) != Some(text) {
                labels.insert(key.clone(), json!(text));
            }
        }
    }
    let annotations: Map<String, Value> = wanted
        .annotations
        .iter()
        .filter(|(key, text)| node.annotations.get(**key) != Some(*text))
        .map(|(key, text)| ((*key).to_owned(), json!(text)))
        .collect();
    let mut spec = Map::new();
    if node.provider_id.is_none() {
        spec.insert("providerID".to_owned(), json!(wanted.provider_id));
    }
    if initialise {
        let left = without_taint(&node.taints, UNINITIALIZED_TAINT);
        spec.insert("taints".to_owned(), json!(left));
    }
    Changes {
        status: wanted
            .addresses
            .as_ref()
            .filter(|addresses| **addresses != node.addresses)
            .map(|addresses| json!({ "status": { "addresses": listed(addresses) } })),
        object: object(labels, annotations, spec),
    }
}

/// All taints but that one.
pub fn without_taint(taints: &[Taint], key: &str) -> Vec<Taint> {
    let others = taints.iter().filter(|taint| taint.key != key);
    others.cloned().collect()
}

fn listed(addresses: &[Address]) -> Vec<Value> {
    let one =
        |address: &Address| json!({ "type": address.kind.as_str(), "address": address.address });
    addresses.iter().map(one).collect()
}

fn object(
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    spec: Map<String, Value>,
) -> Option<Value> {
    let mut metadata = Map::new();
    for (key, map) in [("labels", labels), ("annotations", annotations)] {
        if !map.is_empty() {
            metadata.insert(key.to_owned(), Value::Object(map));
        }
    }
    let mut whole = Map::new();
    for (key, map) in [("metadata", metadata), ("spec", spec)] {
        if !map.is_empty() {
            whole.insert(key.to_owned(), Value::Object(map));
        }
    }
    (!whole.is_empty()).then_some(Value::Object(whole))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
