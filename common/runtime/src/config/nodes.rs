//! What the CCM writes on the tenant's Nodes: `nodes` at the top of our own form. The CSI controller reads the same file
//! and has no use for it.

use pve_model::Cidr;

use super::tree::{Keys, Node};

/// Networks in one list.
pub(super) const MOST_NETWORKS: usize = 64;

/// What the CCM writes on the tenant's Nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePolicy {
    /// What becomes of the zone when a VM moves.
    pub zone: ZonePolicy,
    /// Whether HA rules or groups become labels.
    pub ha: bool,
    /// Which addresses a Node has.
    pub addresses: AddressPolicy,
}

/// What becomes of the zone labels when a VM moves to another PVE node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZonePolicy {
    /// They name the PVE node where the VM is now.
    #[default]
    Follow,
    /// They name the one where it was when its Node was initialised.
    Fixed,
}

/// Which addresses a Node has beside those of the kubelet's `--node-ip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressPolicy {
    /// Whether the guest agent is asked for those of the VM's interfaces.
    pub agent: bool,
    /// Whether the static ones of `ipconfigN` in the VM's config count.
    pub cloud_init: bool,
    /// Whose addresses are `ExternalIP`; all others are `InternalIP`.
    pub external: Vec<Cidr>,
    /// Whose addresses are taken. Empty means all.
    pub include: Vec<Cidr>,
    /// Whose addresses are left out, even if `include` names them.
    pub exclude: Vec<Cidr>,
    /// Whose addresses come first, in this order; all others follow in the order in which they were found.
    pub order: Vec<Cidr>,
    /// Whether IPv6 addresses are taken.
    pub ipv6: bool,
}

impl Default for AddressPolicy {
    fn default() -> Self {
        Self {
            agent: false,
            cloud_init: false,
            external: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            order: Vec::new(),
            ipv6: true,
        }
    }
}

/// Reads `nodes`.
pub(super) fn nodes(root: &Keys<'_>) -> Result<NodePolicy, String> {
    let Some(node) = root.find("nodes") else {
        return Ok(NodePolicy::default());
    };
    if node.is_list() {
        let why = "says what is written on Nodes: PVE nodes are listed at regions.<region>.nodes";
        return Err(node.refuse(why));
    }
    let keys = node.keys(&["zone", "ha", "addresses"])?;
    Ok(NodePolicy {
        zone: keys
            .find("zone")
            .map_or(Ok(ZonePolicy::default()), |z| zone(&z))?,
        ha: truth(&keys, "ha", false)?,
        addresses: keys
            .find("addresses")
            .map_or_else(|| Ok(AddressPolicy::default()), |a| addresses(&a))?,
    })
}

fn zone(node: &Node<'_>) -> Result<ZonePolicy, String> {
    match node.text()? {
        "follow" => Ok(ZonePolicy::Follow),
        "fixed" => Ok(ZonePolicy::Fixed),
        _ => Err(node.refuse("must be follow or fixed")),
    }
}

fn addresses(node: &Node<'_>) -> Result<AddressPolicy, String> {
    let keys = node.keys(&[
        "agent",
        "cloudInit",
        "external",
        "include",
        "exclude",
        "order",
        "ipv6",
    ])?;
    Ok(AddressPolicy {
        agent: truth(&keys, "agent", false)?,
        cloud_init: truth(&keys, "cloudInit", false)?,
        external: networks(&keys, "external")?,
        include: networks(&keys, "include")?,
        exclude: networks(&keys, "exclude")?,
        order: networks(&keys, "order")?,
        ipv6: truth(&keys, "ipv6", true)?,
    })
}

/// The truth of `key`, or what it is without one.
pub(super) fn truth(keys: &Keys<'_>, key: &str, absent: bool) -> Result<bool, String> {
    keys.find(key).map_or(Ok(absent), |node| node.truth())
}

fn networks(keys: &Keys<'_>, key: &str) -> Result<Vec<Cidr>, String> {
    let Some(list) = keys.find(key) else {
        return Ok(Vec::new());
    };
    let members = list.members()?;
    if members.len() > MOST_NETWORKS {
        return Err(list.refuse(format_args!("holds more than {MOST_NETWORKS}")));
    }
    members.iter().map(Node::parsed).collect()
}
