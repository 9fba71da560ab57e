//! The config of the former drivers: `clusters[]` and `features`. It says how clusters are reached and
//! nothing of what is the tenant's, so that a policy file is always needed beside it.

use std::collections::BTreeMap;
use std::path::Path;

use pve_model::Region;

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

/// `features`, as far as it is known.
pub(super) struct Features<'a> {
    /// `provider`, as at the top of our own form.
    pub(super) provider: Option<Node<'a>>,
    owner: FormerOwner,
}

pub(super) fn features<'a>(root: &Keys<'a>) -> Result<Features<'a>, String> {
    let Some(node) = root.find("features") else {
        return Ok(Features {
            provider: None,
            owner: FormerOwner::Unnamed,
        });
    };
    let keys = node.keys(&["provider", "controllerVmID"])?;
    let owner = match keys.find("controllerVmID") {
        Some(node) => FormerOwner::Named(vmid(&node)?),
        None => FormerOwner::Unnamed,
    };
    Ok(Features {
        provider: keys.find("provider"),
        owner,
    })
}

pub(super) fn clusters(
    root: &Keys<'_>,
    features: &Features<'_>,
    policies: Policies<'_>,
    folder: &Path,
) -> Result<BTreeMap<Region, RegionConfig>, String> {
    let node = root.get("clusters")?;
    let Some(mut policies) = policies else {
        let why = "needs a policy.yaml beside it, with regions.<region>.{pool, storages, nodes}";
        return Err(node.refuse(why));
    };
    let mut regions = BTreeMap::new();
    for member in node.members()? {
        let (name, endpoint, token) = cluster(&member, folder)?;
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
    folder: &Path,
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
    let token = token_of(&keys, &TOKEN, folder)?;
    Ok((keys.get("region")?, EndpointConfig { url, trust }, token))
}
