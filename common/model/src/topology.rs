//! The keys by which the driver, the CCM and the node plugin speak about places.

/// Node label and topology key of the region: which PVE cluster.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Node label and topology key of the zone: which PVE node.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Node annotation with the VMID, a hint that is proved on PVE.
pub const VMID_ANNOTATION: &str = "proxmox.sinextra.dev/instance-id";
/// Node label or annotation with the number of volumes that may be attached.
pub const ATTACH_LIMIT: &str = "csi.proxmox.sinextra.dev/max-volume-attachments";
/// The driver's default name, that of the driver that people run today.
pub const DEFAULT_DRIVER_NAME: &str = "csi.proxmox.sinextra.dev";
