//! The few fields of Kubernetes' objects that are read, each bounded.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use super::names::{Name, Text};

/// An object of a list.
pub(crate) trait Item: DeserializeOwned {
    /// How many bytes are kept of it, roughly.
    fn weight(&self) -> usize;
}

/// `metadata`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Meta {
    pub(crate) name: Name,
    #[serde(default)]
    pub(crate) namespace: Option<Name>,
    #[serde(default)]
    pub(crate) uid: Option<Text>,
    #[serde(default)]
    pub(crate) creation_timestamp: Option<Text>,
    #[serde(default)]
    pub(crate) deletion_timestamp: Option<Text>,
    #[serde(default)]
    pub(crate) finalizers: Vec<Text>,
    #[serde(default)]
    pub(crate) owner_references: Vec<Owner>,
    #[serde(default)]
    pub(crate) annotations: Annotations,
}

/// Who makes an object anew when it is deleted.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Owner {
    pub(crate) kind: Text,
    pub(crate) name: Text,
    #[serde(default)]
    pub(crate) controller: bool,
}

/// The annotations that mean something here.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Annotations {
    /// Who is to make the volume; csi-provisioner's library looks for it.
    #[serde(default, rename = "volume.kubernetes.io/storage-provisioner")]
    pub(crate) provisioner: Option<Text>,
    /// [`Annotations::provisioner`] as it was called before Kubernetes 1.23.
    #[serde(default, rename = "volume.beta.kubernetes.io/storage-provisioner")]
    pub(crate) beta_provisioner: Option<Text>,
    /// For how many seconds a probe has use for its objects.
    #[serde(default, rename = "pvectl.proxmox.sinextra.dev/seconds")]
    pub(crate) seconds: Option<Text>,
    /// [`pve_model::topology::TEARDOWN_ANNOTATION`], of a `CSIDriver`.
    #[serde(default, rename = "csi.proxmox.sinextra.dev/teardown")]
    pub(crate) teardown: Option<Text>,
}

/// A `CSIDriver`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Driver {
    pub(crate) metadata: Meta,
}

/// A `StorageClass`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Class {
    pub(crate) metadata: Meta,
    pub(crate) provisioner: Text,
    /// `Delete` if none is there.
    #[serde(default)]
    pub(crate) reclaim_policy: Option<Text>,
}

/// Namespace and name of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct ClaimId {
    pub(crate) namespace: Name,
    pub(crate) name: Name,
}

/// A `PersistentVolumeClaim`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Claim {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: ClaimSpec,
    #[serde(default)]
    pub(crate) status: Phase,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimSpec {
    #[serde(default, deserialize_with = "reference")]
    pub(crate) volume_name: Option<Name>,
    #[serde(default, deserialize_with = "reference")]
    pub(crate) storage_class_name: Option<Name>,
}

/// `status`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Phase {
    #[serde(default)]
    pub(crate) phase: Option<Text>,
}

/// A `PersistentVolume`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Volume {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: VolumeSpec,
    #[serde(default)]
    pub(crate) status: Phase,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeSpec {
    #[serde(default)]
    pub(crate) csi: Option<Source>,
    #[serde(default)]
    pub(crate) claim_ref: Option<ClaimRef>,
    #[serde(default)]
    pub(crate) persistent_volume_reclaim_policy: Option<Text>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Source {
    pub(crate) driver: Text,
    pub(crate) volume_handle: Text,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ClaimRef {
    #[serde(default)]
    pub(crate) uid: Option<Text>,
}

/// A Pod.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Pod {
    pub(crate) metadata: Meta,
    #[serde(default)]
    pub(crate) spec: PodSpec,
    #[serde(default)]
    pub(crate) status: Phase,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSpec {
    #[serde(default, deserialize_with = "reference")]
    pub(crate) node_name: Option<Name>,
    #[serde(default)]
    pub(crate) volumes: Vec<PodVolume>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodVolume {
    pub(crate) name: Text,
    #[serde(default)]
    pub(crate) persistent_volume_claim: Option<ClaimSource>,
    #[serde(default)]
    pub(crate) ephemeral: Option<Ephemeral>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimSource {
    #[serde(default, deserialize_with = "reference")]
    pub(crate) claim_name: Option<Name>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Ephemeral {}

/// A `VolumeAttachment`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) metadata: Meta,
    pub(crate) spec: AttachmentSpec,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttachmentSpec {
    pub(crate) attacher: Text,
    pub(crate) node_name: Name,
    #[serde(default)]
    pub(crate) source: AttachmentSource,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttachmentSource {
    #[serde(default, deserialize_with = "reference")]
    pub(crate) persistent_volume_name: Option<Name>,
}

/// A Node.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ClusterNode {
    pub(crate) metadata: Meta,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: Text,
    status: Text,
}

// === impl Meta, Claim, Pod, ClusterNode ===

impl Meta {
    /// Whether it is deleted and only waits for its finalizers, or a Pod for its containers.
    pub(crate) fn is_ending(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    fn weight(&self) -> usize {
        let finalizers = self.finalizers.iter().map(|one| one.as_str().len() + 24);
        let owners = self.owner_references.iter();
        let owners = owners.map(|one| one.kind.as_str().len() + one.name.as_str().len() + 56);
        400 + self.name.as_str().len() + finalizers.chain(owners).sum::<usize>()
    }
}

impl Claim {
    /// Of a claim without a namespace there is none.
    pub(crate) fn id(&self) -> Option<ClaimId> {
        Some(ClaimId {
            namespace: self.metadata.namespace.clone()?,
            name: self.metadata.name.clone(),
        })
    }
}

impl Pod {
    /// All claims that it mounts. That of an ephemeral volume is called after the Pod and the volume
    /// (`k8s.io/component-helpers/storage/ephemeral`).
    pub(crate) fn claims(&self) -> impl Iterator<Item = ClaimId> + '_ {
        let named = |volume: &PodVolume| {
            let by_name = volume.persistent_volume_claim.as_ref();
            let of_pod = || {
                format!("{}-{}", self.metadata.name, volume.name)
                    .parse()
                    .ok()
            };
            match by_name {
                Some(source) => source.claim_name.clone(),
                None => volume.ephemeral.as_ref().and_then(|_| of_pod()),
            }
        };
        self.spec.volumes.iter().filter_map(move |volume| {
            Some(ClaimId {
                namespace: self.metadata.namespace.clone()?,
                name: named(volume)?,
            })
        })
    }
}

impl ClusterNode {
    /// Whether its kubelet is heard of.
    pub(crate) fn is_ready(&self) -> bool {
        let ready = |one: &Condition| one.kind.as_str() == "Ready" && one.status.as_str() == "True";
        self.status.conditions.iter().any(ready)
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Item for Class {
    fn weight(&self) -> usize {
        self.metadata.weight() + 100
    }
}

impl Item for Claim {
    fn weight(&self) -> usize {
        self.metadata.weight() + 300
    }
}

impl Item for Volume {
    fn weight(&self) -> usize {
        self.metadata.weight() + 800
    }
}

impl Item for Pod {
    fn weight(&self) -> usize {
        let volumes = self.spec.volumes.iter().map(|volume| {
            let claim = volume.persistent_volume_claim.as_ref();
            80 + volume.name.as_str().len()
                + claim
                    .and_then(|claim| claim.claim_name.as_ref())
                    .map_or(0, |name| name.as_str().len())
        });
        self.metadata.weight() + 100 + volumes.sum::<usize>()
    }
}

impl Item for Attachment {
    fn weight(&self) -> usize {
        self.metadata.weight() + 400
    }
}

impl Item for ClusterNode {
    fn weight(&self) -> usize {
        self.metadata.weight() + self.status.conditions.len() * 64
    }
}

/// The name of another object; none if it can be none's. Kubernetes takes any text in some of these places (a Pod's
/// `claimName`, a claim's `volumeName`), and an empty one where nothing was chosen.
fn reference<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Name>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
