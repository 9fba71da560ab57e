//! Where a new volume may go. Pure: it knows what PVE listed, what policy allows and what was asked for.
//!
//! **Guarantees:** the order of candidates depends on the request alone, never on free space or time, so that a retry
//! meets the places of the first attempt in the same order; free space, quota and health only rule candidates out.

use std::collections::BTreeSet;

use pve_client::StorageEntry;
use pve_model::{Bytes, DiskFormat, DiskName, PveNode, StorageId, VmId, VolumeId};
use pve_runtime::config::{RegionPolicy, StoragePolicy};

use crate::error::{Error, Exhausted};
use crate::validate::{CreateRequest, Place};

/// One storage on one PVE node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// The host.
    pub pve_node: PveNode,
    /// What kind of storage.
    pub kind: StorageKind,
    /// Whether all hosts see the same content.
    pub shared: bool,
    /// Whether it is configured for disks of guests.
    pub images: bool,
    /// Whether the host reported it as usable in the last seconds.
    pub available: bool,
    /// Free space, as the host reported it.
    pub free: Bytes,
}

/// What PVE calls the plugin type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageKind {
    /// Image files in a directory.
    Dir,
    /// Thin volumes of LVM.
    LvmThin,
    /// One that this driver does not offer.
    Other(String),
}

/// Where the disk could be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The host in the handle; none on shared storage.
    pub zone: Option<PveNode>,
    /// Whom to ask, best first; never empty.
    pub hosts: Vec<PveNode>,
    /// Why not here.
    pub obstacle: Option<Exhausted>,
}

/// All that is to be known before the first write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Best first; never empty.
    pub candidates: Vec<Candidate>,
    /// Format of the disk's file, on file storages.
    pub format: Option<DiskFormat>,
    /// Shared storage that only some hosts of the region have: those hosts.
    pub only_on: Option<BTreeSet<PveNode>>,
}

impl StorageKind {
    /// Reads `plugintype`.
    pub fn read(plugin: &str) -> Self {
        match plugin {
            "dir" => Self::Dir,
            "lvmthin" => Self::LvmThin,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The format of a disk there, `None` if disks have no suffix.
    fn format(&self, wanted: Option<DiskFormat>) -> Result<Option<DiskFormat>, Error> {
        match (self, wanted) {
            (Self::Dir, wanted) => Ok(Some(wanted.unwrap_or(DiskFormat::Raw))),
            (Self::LvmThin, None | Some(DiskFormat::Raw)) => Ok(None),
            (Self::LvmThin, Some(DiskFormat::Qcow2)) => Err(Error::Invalid(
                "storageFormat must be raw on this storage".to_owned(),
            )),
            (Self::Other(plugin), _) => Err(Error::Unsupported {
                tenant: "volumes can't be made on this type of storage: only dir and lvmthin are supported",
                detail: format!("storage of type {plugin}"),
            }),
        }
    }
}

impl Seat {
    /// What PVE listed.
    pub fn of(entry: StorageEntry) -> Self {
        let total = entry.total.unwrap_or(Bytes::ZERO);
        Self {
            pve_node: entry.pve_node,
            kind: StorageKind::read(&entry.plugin),
            shared: entry.shared,
            images: entry.content.contains("images"),
            available: entry.available,
            free: total.saturating_sub(entry.used.unwrap_or(Bytes::ZERO)),
        }
    }

    /// Why a disk of `size` can't be made here, as far as one host knows.
    pub fn obstacle(&self, size: Bytes, policy: &StoragePolicy) -> Option<Exhausted> {
        if !self.available || !self.images {
            Some(Exhausted::Storage)
        } else if size > self.room(policy) {
            Some(Exhausted::Space)
        } else {
            None
        }
    }

    /// What may still be used here: free − `minFree`. Thin storages check nothing by themselves.
    pub fn room(&self, policy: &StoragePolicy) -> Bytes {
        self.free
            .saturating_sub(policy.min_free.unwrap_or(Bytes::ZERO))
    }
}

/// Decides where `request` may go among the `seats` of its storage in one region. `wanted` are the terms of that
/// region, best first: `None` is any host; no terms at all mean any host too.
pub fn plan(
    request: &CreateRequest,
    wanted: &[Option<PveNode>],
    seats: &[Seat],
    policy: &RegionPolicy,
    limits: &StoragePolicy,
) -> Result<Plan, Error> {
    if limits
        .max_volume_bytes
        .is_some_and(|most| request.size.wanted > most)
    {
        return Err(exhausted(Exhausted::VolumeSize, "maxVolumeBytes"));
    }
    let allowed: Vec<&Seat> = seats
        .iter()
        .filter(|seat| policy.pve_nodes.contains(&seat.pve_node))
        .collect();
    let order = hosts(&request.name, wanted, &policy.pve_nodes)?;
    let reachable: Vec<&Seat> = order
        .iter()
        .filter_map(|host| allowed.iter().copied().find(|seat| seat.pve_node == *host))
        .collect();
    let Some(first) = reachable.first() else {
        return Err(exhausted(Exhausted::Storage, "not on the hosts asked for"));
    };
    let format = first.kind.format(request.parameters.format)?;
    if let Some(format) = format
        && !limits.allow.format(format)
    {
        return Err(Error::Invalid(format!(
            "storageFormat {format} is not allowed on this storage"
        )));
    }
    let size = request.size.wanted;
    let shared = reachable.iter().any(|seat| seat.shared);
    let (candidates, only_on) = if shared {
        (
            vec![shared_candidate(&reachable, size, limits)],
            partial(&allowed, policy),
        )
    } else {
        let local = |seat: &&Seat| Candidate {
            zone: Some(seat.pve_node.clone()),
            hosts: vec![seat.pve_node.clone()],
            obstacle: seat.obstacle(size, limits),
        };
        (reachable.iter().map(local).collect(), None)
    };
    Ok(Plan {
        candidates,
        format,
        only_on,
    })
}

fn shared_candidate(reachable: &[&Seat], size: Bytes, limits: &StoragePolicy) -> Candidate {
    let obstacle_of = |seat: &&&Seat| seat.obstacle(size, limits);
    let fit = reachable.iter().any(|seat| obstacle_of(&seat).is_none());
    let mut hosts: Vec<&Seat> = reachable.to_vec();
    hosts.sort_by_key(|seat| !seat.available);
    Candidate {
        zone: None,
        obstacle: if fit {
            None
        } else {
            hosts.first().and_then(|seat| obstacle_of(&seat))
        },
        hosts: hosts
            .into_iter()
            .map(|seat| seat.pve_node.clone())
            .collect(),
    }
}

/// The hosts that have the storage, unless all allowed ones do.
fn partial(allowed: &[&Seat], policy: &RegionPolicy) -> Option<BTreeSet<PveNode>> {
    let having: BTreeSet<PveNode> = allowed.iter().map(|seat| seat.pve_node.clone()).collect();
    (having != policy.pve_nodes).then_some(having)
}

/// The allowed hosts in the order in which they are tried. Hosts that no term tells apart come in an order that
/// depends on the volume's name, so that volumes spread and retries don't.
pub fn hosts(
    name: &str,
    wanted: &[Option<PveNode>],
    allowed: &BTreeSet<PveNode>,
) -> Result<Vec<PveNode>, Error> {
    let mut any: Vec<&PveNode> = allowed.iter().collect();
    any.sort_by_key(|host| spread(name, host));
    let mut hosts: Vec<PveNode> = Vec::new();
    let mut add = |host: &PveNode| {
        if allowed.contains(host) && !hosts.contains(host) {
            hosts.push(host.clone());
        }
    };
    for term in wanted {
        match term {
            Some(host) => add(host),
            None => any.iter().copied().for_each(&mut add),
        }
    }
    if wanted.is_empty() {
        any.iter().copied().for_each(&mut add);
    }
    match (hosts.is_empty(), wanted.first()) {
        (true, Some(Some(host))) => Err(unknown_zone(host)),
        (true, _) => Err(exhausted(Exhausted::Storage, "policy allows no host")),
        (false, _) => Ok(hosts),
    }
}

/// The refusal of a zone that is no PVE node of ours.
pub fn unknown_zone(host: &PveNode) -> Error {
    let label = pve_model::topology::ZONE;
    Error::Invalid(format!(
        "{label}={host} is not a host that this cluster may use"
    ))
}

/// The handle of the volume at a candidate.
pub fn volume_id(place: &Place, storage: &StorageId, disk: DiskName) -> VolumeId {
    VolumeId {
        region: place.region.clone(),
        pve_node: place.pve_node.clone(),
        storage: storage.clone(),
        disk,
    }
}

/// FNV-1a with the last step of splitmix64: names and hosts differ in their last characters mostly, which FNV alone
/// hardly mixes.
fn spread(name: &str, host: &PveNode) -> u64 {
    let bytes = name.bytes().chain([0]).chain(host.as_str().bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

fn exhausted(why: Exhausted, detail: &str) -> Error {
    Error::Exhausted {
        why,
        detail: detail.to_owned(),
    }
}

/// What a quota leaves after the disks that are there: `None` is no bound, zero bytes also when the number is used up.
pub fn quota_left(limits: &StoragePolicy, used: Bytes, count: usize) -> Option<Bytes> {
    let full = limits
        .max_volumes
        .is_some_and(|most| u32::try_from(count).map_or(true, |count| count >= most));
    if full {
        return Some(Bytes::ZERO);
    }
    limits.max_bytes.map(|most| most.saturating_sub(used))
}

/// The disk of a volume at a candidate.
pub fn disk_name(owner: VmId, plan: &Plan, request: &CreateRequest) -> DiskName {
    DiskName::for_volume(owner, &request.name, plan.format)
}

#[cfg(test)]
mod tests;
