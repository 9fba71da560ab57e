//! The keys by which the driver, the CCM and the node plugin speak about places.

/// Node label and topology key of the region: which PVE cluster.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Node label and topology key of the zone: which PVE node.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// [`REGION`] as it was called before Kubernetes 1.17 (`k8s.io/api/core/v1/well_known_labels.go`).
pub const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// [`ZONE`] as it was called before Kubernetes 1.17 (`k8s.io/api/core/v1/well_known_labels.go`).
pub const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// Node label with the PVE node that runs the VM now, whatever the zone means.
pub const HOST_LABEL: &str = "topology.proxmox.sinextra.dev/node";
/// Node label with the region, as the former CCM writes it.
pub const FORMER_REGION: &str = "topology.proxmox.sinextra.dev/region";
/// Node label with the PVE node, as the former CCM writes it.
pub const FORMER_ZONE: &str = "topology.proxmox.sinextra.dev/zone";
/// Begins a Node label for each HA rule or group that names PVE nodes for its VM; the name of the rule follows.
pub const HA_GROUP_PREFIX: &str = "group.topology.proxmox.sinextra.dev/";
/// Begins a Node label for each HA rule or group that lets its VM run nowhere else; the name of the rule follows.
pub const HA_STRICT_PREFIX: &str = "strict.group.topology.proxmox.sinextra.dev/";
/// Node label with the kind of the VM: its SMBIOS SKU, else its size.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// [`INSTANCE_TYPE`] as it was called before Kubernetes 1.17 (`k8s.io/api/core/v1/well_known_labels.go`).
pub const BETA_INSTANCE_TYPE: &str = "beta.kubernetes.io/instance-type";
/// Taint of a Node that the kubelet registered and no CCM has seen yet (`k8s.io/cloud-provider/api/well_known_taints.go`).
pub const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Taint of a Node whose VM is known to be stopped (`k8s.io/cloud-provider/api/well_known_taints.go`).
pub const SHUTDOWN_TAINT: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// Node annotation with the addresses of the kubelet's `--node-ip`, divided by commas
/// (`k8s.io/cloud-provider/api/well_known_annotations.go`).
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Node annotation with the VMID, a hint that is proved on PVE.
pub const VMID_ANNOTATION: &str = "proxmox.sinextra.dev/instance-id";
/// Node annotation with the number of slots that the VM has for volumes; as a label: how many the cluster's administrator
/// wants to be used.
pub const ATTACH_LIMIT: &str = "csi.proxmox.sinextra.dev/max-volume-attachments";
/// The driver's default name, that of the driver that people run today.
pub const DEFAULT_DRIVER_NAME: &str = "csi.proxmox.sinextra.dev";
/// `CSIDriver` annotation: `true` while the tenant's volumes are being removed, so that no new ones are made. It is the
/// tenant's word, which can harm the tenant alone.
pub const TEARDOWN_ANNOTATION: &str = "csi.proxmox.sinextra.dev/teardown";
