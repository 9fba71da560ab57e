//! The config of the former drivers: `clusters[]` and `features`. It says how clusters are reached and
//! nothing of what is the tenant's, so that a policy file is always needed beside it.

use std::collections::BTreeMap;

use pve_model::{Cidr, Region};

use super::beside::Beside;
use super::nodes::{AddressPolicy, MOST_NETWORKS, NodePolicy, ZonePolicy, truth};
use super::policy::{FormerOwner, vmid};
use super::regions::{Policies, TokenKeys, refuse_left_over, take_policy, token_of, url};
use super::tree::{Keys, Node};
use super::{EndpointConfig, RegionConfig, Trust};
use crate::credentials::TokenConfig;

const TOKEN: TokenKeys = [
    "token_id",
    "token_id_file",
    "token_secret",
    "token_secret_file",
];

/// Keys of `features.network`. The former CCM's documents show them directly below `features`, where it never read them.
const NETWORK: [&str; 4] = [
    "mode",
    "external_ip_cidrs",
    "ip_sort_order",
    "ipv6_support_disabled",
];

/// `features` of the former CSI driver and the former CCM.
pub(super) struct Features<'a> {
    /// `provider`, as at the top of our own form.
    pub(super) provider: Option<Node<'a>>,
    /// What the former CCM is told about Nodes.
    pub(super) nodes: NodePolicy,
    owner: FormerOwner,
}

pub(super) fn features<'a>(root: &Keys<'a>) -> Result<Features<'a>, String> {
    let Some(node) = root.find("features") else {
        let nodes = NodePolicy {
            zone: ZonePolicy::Fixed,
            ..NodePolicy::default()
        };
        return Ok(Features {
            provider: None,
            nodes,
            owner: FormerOwner::Unnamed,
        });
    };
    let misplaced = |(key, _): &(&str, Node<'_>)| NETWORK.contains(key);
    if let Some((_, node)) = node.entries()?.into_iter().find(misplaced) {
        return Err(node.refuse("belongs to features.network, and has no effect here"));
    }
    let keys = node.keys(&[
        "provider",
        "controllerVmID",
        "ha_group",
        "force_update_labels",
        "network",
    ])?;
    let owner = match keys.find("controllerVmID") {
        Some(node) => FormerOwner::Named(vmid(&node)?),
        None => FormerOwner::Unnamed,
    };
    let zone = if truth(&keys, "force_update_labels", false)? {
        ZonePolicy::Follow
    } else {
        ZonePolicy::Fixed
    };
    let nodes = NodePolicy {
        zone,
        ha: truth(&keys, "ha_group", false)?,
        addresses: keys
            .find("network")
            .map_or_else(|| Ok(AddressPolicy::default()), |n| network(&n))?,
    };
    Ok(Features {
        provider: keys.find("provider"),
        nodes,
        owner,
    })
}

/// `features.network`. What is marked with `!` is left out, as its documents say: its code has it the other way round in
/// one of the lists, and drops it from the other.
fn network(node: &Node<'_>) -> Result<AddressPolicy, String> {
    if node.value().is_string() {
        return Err(node.refuse("must be a mapping: the mode belongs to features.network.mode"));
    }
    let keys = node.keys(&NETWORK)?;
    let mut exclude = Vec::new();
    let external = networks(&keys, "external_ip_cidrs", &mut exclude)?;
    let order = networks(&keys, "ip_sort_order", &mut exclude)?;
    Ok(AddressPolicy {
        agent: keys.find("mode").map_or(Ok(false), |mode| agent(&mode))?,
        external,
        exclude,
        order,
        ipv6: !truth(&keys, "ipv6_support_disabled", false)?,
        ..AddressPolicy::default()
    })
}

/// Whether a mode asks the guest agent. `auto` promises more and does the same as `qemu`.
fn agent(mode: &Node<'_>) -> Result<bool, String> {
    match mode.value().as_str() {
        Some("" | "default") => Ok(false),
        Some("qemu" | "auto") => Ok(true),
        _ => Err(mode.refuse("must be default, qemu or auto")),
    }
}

/// A list in one text, divided by commas and spaces. Members that begin with `!` go to `exclude`.
fn networks(keys: &Keys<'_>, key: &str, exclude: &mut Vec<Cidr>) -> Result<Vec<Cidr>, String> {
    let Some(node) = keys.find(key) else {
        return Ok(Vec::new());
    };
    let text = node.value().as_str();
    let text =
        text.ok_or_else(|| node.refuse("must be a string, its members divided by commas"))?;
    let divides = |c: char| c == ',' || c.is_whitespace();
    let members = text.split(divides).filter(|member| !member.is_empty());
    let mut taken = Vec::new();
    for (index, member) in members.enumerate() {
        let (list, network) = match member.strip_prefix('!') {
            Some(network) => (&mut *exclude, network),
            None => (&mut taken, member),
        };
        let network = network
            .parse::<Cidr>()
            .map_err(|error| node.refuse(format_args!("its member {}: {error}", index + 1)))?;
        if list.len() == MOST_NETWORKS {
            return Err(node.refuse(format_args!("holds more than {MOST_NETWORKS}")));
        }
        list.push(network);
    }
    Ok(taken)
}

pub(super) fn clusters(
    root: &Keys<'_>,
    features: &Features<'_>,
    policies: Policies<'_>,
    beside: Beside<'_>,
) -> Result<BTreeMap<Region, RegionConfig>, String> {
    let node = root.get("clusters")?;
    let Some(mut policies) = policies else {
        let why = "needs a policy.yaml beside it, with regions.<region>.{pool, storages, nodes}";
        return Err(node.refuse(why));
    };
    let mut regions = BTreeMap::new();
    for member in node.members()? {
        let (name, endpoint, token) = cluster(&member, beside)?;
        let region: Region = name.parsed()?;
        if regions.contains_key(&region) {
            return Err(name.refuse("is the region of a cluster before it"));
        }
        let policy = take_policy(&mut policies, &region, features.owner, &name)?;
        let config = RegionConfig {
            endpoints: vec![endpoint],
            token,
            policy,
        };
        regions.insert(region, config);
    }
    refuse_left_over(Some(policies))?;
    Ok(regions)
}

/// One member of `clusters`: the part that names its region, how it is reached, and its token.
fn cluster<'a>(
    node: &Node<'a>,
    beside: Beside<'_>,
) -> Result<(Node<'a>, EndpointConfig, TokenConfig), String> {
    let known = [
        ["url", "insecure", "region", "username", "password"].as_slice(),
        &TOKEN,
    ]
    .concat();
    let keys = node.keys(&known)?;
    if let Some(key) = keys.any(&["username", "password"]) {
        let why = "is not taken: make an API token and give token_id and token_secret";
        return Err(keys.refuse(key, why));
    }
    let insecure = keys.find("insecure").map_or(Ok(false), |n| n.truth())?;
    let trust = if insecure {
        Trust::Insecure
    } else {
        Trust::SystemRoots
    };
    let url = url(&keys.get("url")?)?;
    let token = token_of(&keys, &TOKEN, beside)?;
    Ok((keys.get("region")?, EndpointConfig { url, trust }, token))
}
