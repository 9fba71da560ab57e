//! What of a PVE cluster is the tenant's: the policy of one region.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use pve_model::{Bytes, DiskFormat, PveNode, Region, StorageId, VmId, VolumeId};

use super::tree::{Keys, Node};
use super::{Allow, Limits, Mode, Owners, RegionPolicy, StoragePolicy};

/// The keys of a policy.
pub(super) const KEYS: [&str; 6] = ["pool", "storages", "nodes", "owners", "mode", "adopted"];

/// In whose name the former driver made disks when its config named none.
const FORMER_DEFAULT: u32 = 9999;

/// What a former driver's config says about the owner.
#[derive(Clone, Copy)]
pub(super) enum FormerOwner {
    /// There is no such config.
    Absent,
    /// There is one that leaves it at its default.
    Unnamed,
    /// `features.controllerVmID`.
    Named(VmId),
}

/// Reads a policy.
pub(super) fn policy(
    keys: &Keys<'_>,
    region: &Region,
    former: FormerOwner,
) -> Result<RegionPolicy, String> {
    let policy = RegionPolicy {
        pool: keys.get("pool")?.parsed()?,
        storages: storages(&keys.get("storages")?)?,
        pve_nodes: set(&keys.get("nodes")?)?,
        owners: owners(keys, former)?,
        mode: keys
            .find("mode")
            .map_or(Ok(Mode::default()), |m| mode(&m))?,
        adopted: keys
            .find("adopted")
            .map_or_else(|| Ok(BTreeSet::new()), |a| adopted(&a, region))?,
    };
    let listed = |name: &str| policy.pve_nodes.iter().any(|node| node.as_str() == name);
    let owners = keys.find("owners").map(|node| node.entries()).transpose()?;
    for (name, owner) in owners.unwrap_or_default() {
        if name != "default" && !listed(name) {
            return Err(owner.refuse("is a PVE node that nodes does not list"));
        }
    }
    Ok(policy)
}

fn storages(node: &Node<'_>) -> Result<BTreeMap<StorageId, StoragePolicy>, String> {
    if node.is_list() {
        let ids: BTreeSet<StorageId> = set(node)?;
        return Ok(ids
            .into_iter()
            .map(|id| (id, StoragePolicy::default()))
            .collect());
    }
    let mut storages = BTreeMap::new();
    for (id, node) in node.entries()? {
        let id = StorageId::from_str(id).map_err(|error| node.refuse(error))?;
        let policy = if node.is_null() {
            StoragePolicy::default()
        } else {
            storage(&node)?
        };
        storages.insert(id, policy);
    }
    Ok(storages)
}

fn storage(node: &Node<'_>) -> Result<StoragePolicy, String> {
    let keys = node.keys(&[
        "maxBytes",
        "maxVolumes",
        "maxVolumeBytes",
        "minFree",
        "limits",
        "allow",
    ])?;
    let size = |key| keys.find(key).map(|n| bytes(&n)).transpose();
    let allow_keys = keys.find("allow");
    Ok(StoragePolicy {
        max_bytes: size("maxBytes")?,
        max_volumes: number(&keys, "maxVolumes")?,
        max_volume_bytes: size("maxVolumeBytes")?,
        min_free: size("minFree")?,
        limits: keys
            .find("limits")
            .map_or_else(|| Ok(Limits::default()), |n| limits(&n))?,
        allow: allow_keys.map_or_else(|| Ok(Allow::default()), |n| allow(&n))?,
    })
}

fn limits(node: &Node<'_>) -> Result<Limits, String> {
    let keys = node.keys(&["iops", "mbps"])?;
    let limits = Limits {
        iops: number(&keys, "iops")?,
        mbps: number(&keys, "mbps")?,
    };
    // PVE takes 0 for "no limit", the opposite of what a ceiling of 0 says.
    for (key, value) in [("iops", limits.iops), ("mbps", limits.mbps)] {
        if value == Some(0) {
            return Err(keys.refuse(key, "must be at least 1"));
        }
    }
    Ok(limits)
}

fn allow(node: &Node<'_>) -> Result<Allow, String> {
    let keys = node.keys(&["cache", "aio", "backup", "formats"])?;
    Ok(Allow {
        cache: words(&keys, "cache", "a cache mode of PVE")?,
        aio: words(&keys, "aio", "io_uring, native or threads")?,
        backup: keys.find("backup").map_or(Ok(true), |n| n.truth())?,
        formats: formats(&keys)?,
    })
}

fn words<T: FromStr + Ord>(
    keys: &Keys<'_>,
    key: &str,
    wanted: &str,
) -> Result<Option<BTreeSet<T>>, String> {
    let Some(node) = keys.find(key) else {
        return Ok(None);
    };
    let word = |member: Node<'_>| {
        let wrong = |_| member.refuse(format_args!("must be {wanted}"));
        member.text()?.parse().map_err(wrong)
    };
    let words: Result<_, String> = node.members()?.into_iter().map(word).collect();
    words.map(Some)
}

fn formats(keys: &Keys<'_>) -> Result<Option<BTreeSet<DiskFormat>>, String> {
    let Some(node) = keys.find("formats") else {
        return Ok(None);
    };
    let format = |member: Node<'_>| match member.text()? {
        "raw" => Ok(DiskFormat::Raw),
        "qcow2" => Ok(DiskFormat::Qcow2),
        _ => Err(member.refuse("must be raw or qcow2")),
    };
    let formats: Result<_, String> = node.members()?.into_iter().map(format).collect();
    formats.map(Some)
}

fn number(keys: &Keys<'_>, key: &str) -> Result<Option<u32>, String> {
    keys.find(key)
        .map(|node| node.number("a whole number up to 4294967295"))
        .transpose()
}

/// Bytes as a number, or with a binary unit as Kubernetes writes it.
fn bytes(node: &Node<'_>) -> Result<Bytes, String> {
    const UNITS: [(&str, u32); 5] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50)];
    if node.value().is_number() {
        return node.number("a whole number of bytes").map(Bytes::new);
    }
    let wrong = || node.refuse("must be a number of bytes, or one with Ki, Mi, Gi, Ti or Pi");
    let text = node.value().as_str().ok_or_else(wrong)?;
    let (digits, shift) = UNITS
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
        .unwrap_or((text, 0));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(wrong)?;
    Ok(Bytes::new(bytes))
}

fn owners(keys: &Keys<'_>, former: FormerOwner) -> Result<Owners, String> {
    let mut owners = Owners::default();
    if let Some(node) = keys.find("owners") {
        for (name, node) in node.entries()? {
            let owner = vmid(&node)?;
            if name == "default" {
                owners.default = Some(owner);
            } else {
                let pve_node: PveNode = name.parse().map_err(|error| node.refuse(error))?;
                owners.per_node.insert(pve_node, owner);
            }
        }
    }
    let none = owners.default.is_none() && owners.per_node.is_empty();
    match former {
        FormerOwner::Named(former) if owners.default.is_some_and(|ours| ours != former) => {
            let why = "default differs from features.controllerVmID: say it once";
            Err(keys.refuse("owners", why))
        }
        FormerOwner::Named(former) => {
            owners.default = Some(former);
            Ok(owners)
        }
        FormerOwner::Unnamed if none => {
            owners.default = VmId::try_from(FORMER_DEFAULT).ok();
            Ok(owners)
        }
        FormerOwner::Absent if none => Err(keys.refuse("owners", "at least one owner is required")),
        FormerOwner::Absent | FormerOwner::Unnamed => Ok(owners),
    }
}

pub(super) fn vmid(node: &Node<'_>) -> Result<VmId, String> {
    let number: u32 = node.number("a VMID: 100 to 999999999")?;
    VmId::try_from(number).map_err(|_| node.refuse("must be a VMID: 100 to 999999999"))
}

fn mode(node: &Node<'_>) -> Result<Mode, String> {
    match node.text()? {
        "reserved" => Ok(Mode::Reserved),
        "ownerVM" => Err(node.refuse(
            "ownerVM is not offered yet: use reserved, with storages that no one else uses",
        )),
        _ => Err(node.refuse("must be reserved")),
    }
}

fn adopted(node: &Node<'_>, region: &Region) -> Result<BTreeSet<VolumeId>, String> {
    let mut adopted = BTreeSet::new();
    for member in node.members()? {
        let volume: VolumeId = member.parsed()?;
        if volume.region != *region {
            return Err(member.refuse("is a volume of another region"));
        }
        adopted.insert(volume);
    }
    Ok(adopted)
}

fn set<T: FromStr<Err: std::fmt::Display> + Ord>(node: &Node<'_>) -> Result<BTreeSet<T>, String> {
    node.members()?.iter().map(Node::parsed).collect()
}

/// The policies of a policy file: `regions.<region>.{pool, storages, …}`.
pub(super) fn policies<'a>(document: &Node<'a>) -> Result<BTreeMap<Region, Node<'a>>, String> {
    regions_of(&document.keys(&["regions"])?)
}

/// The parts behind `regions`, by region.
pub(super) fn regions_of<'a>(root: &Keys<'a>) -> Result<BTreeMap<Region, Node<'a>>, String> {
    let mut regions = BTreeMap::new();
    for (name, node) in root.get("regions")?.entries()? {
        let region = name.parse().map_err(|error| node.refuse(error))?;
        regions.insert(region, node);
    }
    Ok(regions)
}
