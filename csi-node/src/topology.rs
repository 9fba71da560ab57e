//! Who this machine is and where: read from its Node object, which the cloud controller manager fills in.
//!
//! None of it is a proof: the controller proves the VM on PVE.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use pve_model::ids::{KubeNode, PveNode, Region, Uuid, VmId};
use pve_model::node_id::NodeId;
use pve_model::topology::{ATTACH_LIMIT, REGION, VMID_ANNOTATION, ZONE};

use crate::error::Error;
use crate::host::Host;

/// A VM has the slots `scsi0` to `scsi30`, of which one is the system's.
const SLOTS_FOR_VOLUMES: u8 = 30;
/// What the former driver told the scheduler.
const DEFAULT_ATTACH_LIMIT: u8 = 24;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The Node object of this machine.
#[derive(Clone)]
pub struct NodeObject {
    api: Api<Node>,
    name: KubeNode,
}

/// What the Node's labels and annotations say once it is initialised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// Which PVE cluster.
    pub region: Region,
    /// Which PVE node.
    pub zone: PveNode,
    /// Which VM there.
    pub vmid: VmId,
}

/// All that NodeGetInfo says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Which PVE cluster.
    pub region: Region,
    /// Which PVE node.
    pub zone: PveNode,
    /// `<uuid>/<vmid>`.
    pub node_id: NodeId,
    /// How many volumes may be attached.
    pub attach_limit: u8,
}

// === impl NodeObject ===

impl NodeObject {
    /// The Node called `name`.
    pub fn new(client: kube::Client, name: KubeNode) -> Self {
        Self {
            api: Api::all(client),
            name,
        }
    }

    /// Where it is read and watched.
    pub fn api(&self) -> &Api<Node> {
        &self.api
    }

    /// Its name.
    pub fn name(&self) -> &KubeNode {
        &self.name
    }

    /// Reads it now.
    pub async fn get(&self) -> Result<Node, Error> {
        match tokio::time::timeout(ANSWER_WITHIN, self.api.get(self.name.as_str())).await {
            Ok(answer) => answer.map_err(|error| Error::NodeUnreadable(Box::new(error))),
            Err(_) => Err(Error::NotLabelled("the API server does not answer")),
        }
    }
}

impl std::fmt::Debug for NodeObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeObject")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What the labels say, or what is still missing.
pub fn labels(node: &Node) -> Result<Labels, Error> {
    let text = |key: &str, missing| label(node, key).ok_or(Error::NotLabelled(missing));
    let region = text(REGION, "it has no region label yet")?;
    let zone = text(ZONE, "it has no zone label yet")?;
    let vmid = annotation(node, VMID_ANNOTATION)
        .ok_or(Error::NotLabelled("it has no VMID annotation yet"))?;
    Ok(Labels {
        region: region
            .parse()
            .map_err(|_| Error::NotLabelled("its region label is malformed"))?,
        zone: zone
            .parse()
            .map_err(|_| Error::NotLabelled("its zone label is malformed"))?,
        vmid: vmid
            .parse()
            .map_err(|_| Error::NotLabelled("its VMID annotation is malformed"))?,
    })
}

/// Everything that NodeGetInfo says. The UUID comes from the kubelet by way of the Node, else from the firmware.
pub async fn facts(node: &Node, host: &dyn Host) -> Result<Facts, Error> {
    let Labels { region, zone, vmid } = labels(node)?;
    let reported = node
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref())
        .and_then(|info| info.system_uuid.parse::<Uuid>().ok());
    let uuid =
        match reported {
            Some(uuid) => uuid,
            None => host.firmware_uuid().await?.parse().map_err(|_| {
                Error::NotLabelled("neither it nor the firmware says a usable UUID")
            })?,
        };
    Ok(Facts {
        region,
        zone,
        node_id: NodeId::Vm {
            uuid,
            vmid: Some(vmid),
        },
        attach_limit: attach_limit(node),
    })
}

/// The annotation says how many slots the VM has left (the cloud controller manager writes it), the label how many the
/// cluster's administrator wants: the smaller one holds.
fn attach_limit(node: &Node) -> u8 {
    let said = [label(node, ATTACH_LIMIT), annotation(node, ATTACH_LIMIT)];
    said.into_iter()
        .flatten()
        .filter_map(|text| text.parse().ok())
        .filter(|limit| (1..=SLOTS_FOR_VOLUMES).contains(limit))
        .min()
        .unwrap_or(DEFAULT_ATTACH_LIMIT)
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeHost;
    use k8s_openapi::api::core::v1::{NodeStatus, NodeSystemInfo};

    const UUID: &str = "ABCDEF00-1111-2222-3333-444455556666";

    fn node(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Node {
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let mut node = Node::default();
        node.metadata.labels = Some(map(labels));
        node.metadata.annotations = Some(map(annotations));
        node.status = Some(NodeStatus {
            node_info: Some(NodeSystemInfo {
                system_uuid: UUID.to_owned(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        });
        node
    }

    #[tokio::test]
    async fn a_labelled_node_has_an_id_and_a_place() {
        let object = node(
            &[(REGION, "r1"), (ZONE, "pve1")],
            &[(VMID_ANNOTATION, "104")],
        );
        let facts = facts(&object, &FakeHost::default()).await.unwrap();
        assert_eq!(
            facts.node_id.to_string(),
            "abcdef00-1111-2222-3333-444455556666/104"
        );
        assert_eq!((facts.region.as_str(), facts.zone.as_str()), ("r1", "pve1"));
        assert_eq!(facts.attach_limit, 24);
    }

    #[test]
    fn b64_a_node_that_lacks_anything_is_not_ready_yet() {
        let all = [(REGION, "r1"), (ZONE, "pve1")];
        for object in [
            Node::default(),
            node(&[], &[(VMID_ANNOTATION, "104")]),
            node(&all[..1], &[(VMID_ANNOTATION, "104")]),
            node(&all[1..], &[(VMID_ANNOTATION, "104")]),
            node(&all, &[]),
            node(&all, &[(VMID_ANNOTATION, "99")]),
            node(&[(REGION, ""), (ZONE, "pve1")], &[(VMID_ANNOTATION, "104")]),
        ] {
            assert_eq!(
                labels(&object).unwrap_err().code(),
                tonic::Code::Unavailable
            );
        }
    }

    #[test]
    fn the_attach_limit_is_a_number_of_slots_or_the_default() {
        for (text, limit) in [
            ("1", 1),
            ("30", 30),
            ("31", 24),
            ("0", 24),
            ("-1", 24),
            ("x", 24),
        ] {
            assert_eq!(
                attach_limit(&node(&[(ATTACH_LIMIT, text)], &[])),
                limit,
                "{text}"
            );
            assert_eq!(
                attach_limit(&node(&[], &[(ATTACH_LIMIT, text)])),
                limit,
                "{text}"
            );
        }
    }

    #[test]
    fn the_smaller_of_what_is_wanted_and_what_there_is_holds() {
        let both = |wanted, there_is| {
            attach_limit(&node(
                &[(ATTACH_LIMIT, wanted)],
                &[(ATTACH_LIMIT, there_is)],
            ))
        };
        assert_eq!(both("10", "27"), 10);
        assert_eq!(both("30", "27"), 27);
        assert_eq!(both("x", "27"), 27);
    }
}
