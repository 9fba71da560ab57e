//! What is said of each key of the operator's files.

/// A key.
pub(crate) struct Key {
    pub(crate) path: &'static str,
    pub(crate) value: &'static str,
    pub(crate) absent: &'static str,
    pub(crate) meaning: &'static str,
}

const fn key(
    path: &'static str,
    value: &'static str,
    absent: &'static str,
    meaning: &'static str,
) -> Key {
    Key {
        path,
        value,
        absent,
        meaning,
    }
}

const SIZE: &str = "bytes, or a number with Ki, Mi, Gi, Ti, Pi";
const NETWORKS: &str = "list of networks, 64 at most";
const TRUTH: &str = "true or false";
const FILE: &str = "name of a file";

#[rustfmt::skip]
pub(crate) const CONFIG: &[Key] = &[
    key("provider", "default or capmox", "default", "how the tenant's Nodes were made: `capmox` by Cluster API"),
    key("nodes", "mapping", "see below", "what the cloud-controller-manager writes on Nodes; the CSI controller has no use for it"),
    key("nodes.zone", "follow or fixed", "follow", "what becomes of the label of the zone when a VM moves: it names the PVE node where the VM is, or was first"),
    key("nodes.ha", TRUTH, "false", "HA rules (groups before PVE 9) become labels"),
    key("nodes.addresses", "mapping", "see below", "addresses beside those of the kubelet's `--node-ip`"),
    key("nodes.addresses.agent", TRUTH, "false", "the guest agent is asked for those of the VM's interfaces"),
    key("nodes.addresses.cloudInit", TRUTH, "false", "static ones of cloud-init in the VM's config count"),
    key("nodes.addresses.external", NETWORKS, "none", "whose addresses are `ExternalIP`; the others are `InternalIP`"),
    key("nodes.addresses.include", NETWORKS, "all", "whose addresses are taken; an empty list means all"),
    key("nodes.addresses.exclude", NETWORKS, "none", "whose addresses are left out, even if `include` names them"),
    key("nodes.addresses.order", NETWORKS, "as found", "whose addresses come first"),
    key("nodes.addresses.ipv6", TRUTH, "true", "IPv6 addresses are taken"),
    key("regions", "mapping of one or more", "required", "one entry for each PVE cluster"),
    key("regions.<region>", "mapping", "", "its name is the label `topology.kubernetes.io/region` of the Nodes"),
    key("regions.<region>.endpoints", "list of one or more", "required", "members of the same PVE cluster: the next one is asked when one does not answer"),
    key("regions.<region>.endpoints[].url", "https://host:8006, with or without /api2/json", "required", "its API"),
    key("regions.<region>.endpoints[].ca", "PEM", "the system's authorities", "whom to trust; one of `ca`, `caFile`, `fingerprint`"),
    key("regions.<region>.endpoints[].caFile", FILE, "the system's authorities", "the same in a file"),
    key("regions.<region>.endpoints[].fingerprint", "SHA-256, 64 hex digits, with or without colons", "the system's authorities", "the one certificate that is right"),
    key("regions.<region>.endpoints[].insecure", TRUTH, "false", "trust anyone"),
    key("regions.<region>.token", "mapping", "required", "API token with separated privileges; each half here or in a file, which is read again when PVE refuses the token"),
    key("regions.<region>.token.id", "user@realm!name", "`idFile`", ""),
    key("regions.<region>.token.idFile", FILE, "`id`", ""),
    key("regions.<region>.token.secret", "UUID", "`secretFile`", ""),
    key("regions.<region>.token.secretFile", FILE, "`secret`", ""),
    key("regions.<region>.pool", "id of a pool", "required", "*policy*: the pool of the tenant's VMs; a VM outside of it is never touched"),
    key("regions.<region>.storages", "mapping or list", "required", "*policy*: storages that volumes may be made on; an empty one means none"),
    key("regions.<region>.storages.<storage>", "mapping or nothing", "", "*policy*: quota and ceilings of one storage"),
    key("regions.<region>.storages.<storage>.maxBytes", SIZE, "no bound", "the sum of all volumes"),
    key("regions.<region>.storages.<storage>.maxVolumes", "whole number", "no bound", "their number"),
    key("regions.<region>.storages.<storage>.maxVolumeBytes", SIZE, "no bound", "the size of one"),
    key("regions.<region>.storages.<storage>.minFree", SIZE, "0", "what must stay free on the storage, whatever the quota says"),
    key("regions.<region>.storages.<storage>.limits", "mapping", "no bound", "ceilings of each disk, applied at every attach"),
    key("regions.<region>.storages.<storage>.limits.iops", "whole number above 0", "no bound", "reads, and writes, per second"),
    key("regions.<region>.storages.<storage>.limits.mbps", "whole number above 0", "no bound", "MB read, and written, per second"),
    key("regions.<region>.storages.<storage>.allow", "mapping", "anything", "what a StorageClass may ask for; an empty list allows nothing"),
    key("regions.<region>.storages.<storage>.allow.cache", "list", "any", "cache modes"),
    key("regions.<region>.storages.<storage>.allow.aio", "list", "any", "AIO modes"),
    key("regions.<region>.storages.<storage>.allow.backup", TRUTH, "true", "PVE's backups may include a volume"),
    key("regions.<region>.storages.<storage>.allow.formats", "list of raw, qcow2", "any", "formats on storages of files"),
    key("regions.<region>.nodes", "list", "required", "*policy*: PVE nodes whose VMs and storages may be used; an empty list means none"),
    key("regions.<region>.owners", "mapping", "required", "*policy*: disks are named `vm-<owner>-<PV name>`"),
    key("regions.<region>.owners.default", "VMID", "", "for PVE nodes without an entry of their own"),
    key("regions.<region>.owners.<PVE node>", "VMID", "the default", "for disks on one PVE node"),
    key("regions.<region>.mode", "reserved", "reserved", "*policy*: what an owner is: a VMID that no VM has"),
    key("regions.<region>.adopted", "list of handles", "none", "*policy*: volumes of other owners that are the tenant's nevertheless"),
];

#[rustfmt::skip]
pub(crate) const FORMER: &[Key] = &[
    key("clusters", "list", "required", "PVE clusters, one endpoint each"),
    key("clusters[].url", "https://host:8006, with or without /api2/json", "required", ""),
    key("clusters[].insecure", TRUTH, "false", "trust anyone"),
    key("clusters[].region", "name", "required", "the region"),
    key("clusters[].token_id", "user@realm!name", "`token_id_file`", ""),
    key("clusters[].token_id_file", FILE, "`token_id`", ""),
    key("clusters[].token_secret", "UUID", "`token_secret_file`", ""),
    key("clusters[].token_secret_file", FILE, "`token_secret`", ""),
    key("clusters[].username", "", "", "refused: make an API token"),
    key("clusters[].password", "", "", "refused: make an API token"),
    key("features", "mapping", "see below", ""),
    key("features.provider", "default or capmox", "default", "`provider`"),
    key("features.controllerVmID", "VMID", "9999", "`owners.default`"),
    key("features.force_update_labels", TRUTH, "false", "`nodes.zone`: follow if true, else fixed"),
    key("features.ha_group", TRUTH, "false", "`nodes.ha`"),
    key("features.network", "mapping", "see below", "`nodes.addresses`"),
    key("features.network.mode", "default, qemu or auto", "default", "the last two are `agent`"),
    key("features.network.external_ip_cidrs", "networks, divided by commas", "none", "`external`; with `!` before it `exclude`"),
    key("features.network.ip_sort_order", "networks, divided by commas", "as found", "`order`; with `!` before it `exclude`"),
    key("features.network.ipv6_support_disabled", TRUTH, "false", "the contrary of `ipv6`"),
];

/// Keys that the parser knows so that it can say why they are not taken.
pub(crate) const REFUSED: [&str; 2] = ["clusters[].username", "clusters[].password"];

#[rustfmt::skip]
pub(crate) const FENCES: &[Key] = &[
    key("fences", "list", "required", "statements, 256 at most"),
    key("fences[].region", "name", "required", "the PVE cluster"),
    key("fences[].host", "name of a PVE node", "`gone`", "it is off and its VMs run no more"),
    key("fences[].gone", "VMID:UUID", "`host`", "that VM does not exist any more"),
    key("fences[].from", "time, RFC 3339", "required", "when it was stated"),
    key("fences[].until", "time, RFC 3339", "required", "when it ends: within 24 h of a PVE node, 30 days of a VM"),
    key("fences[].by", "64 characters at most", "required", "who stated it"),
    key("fences[].reason", "200 characters at most", "", "why"),
];
