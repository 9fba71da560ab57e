//! What the operator and the storage leave for a volume to grow: the same bounds as for a new one.

use std::time::Duration;

use pve_client::ApiError;
use pve_model::{Bytes, VolumeId};
use pve_runtime::config::StoragePolicy;
use tokio::time::Instant;

use crate::create::{self, QuotaTurn};
use crate::error::{Error, Exhausted};
use crate::inventory::{Census, Freshness};
use crate::placement::Seat;
use crate::quota;
use crate::region::RegionContext;
use crate::seats;
use crate::vm::Pinned;

/// How long the turn at a quota is waited for.
const QUOTA_WAIT: Duration = Duration::from_mins(1);

/// Leave to grow. While it lives, nothing else is counted against the same quota.
#[derive(Debug)]
pub(super) struct Room {
    _turn: Option<QuotaTurn>,
}

/// Lets a volume grow from one size to another, or says what stands in the way. Free space is what the inventory's list says;
/// a quota costs one request, up to two more if the owner has no disks.
pub(super) async fn find(
    region: &RegionContext,
    quotas: &create::Memory,
    (volume, vm): (&VolumeId, &Pinned),
    (from, to): (Bytes, Bytes),
) -> Result<Room, Error> {
    let limits = region
        .storage_policy(&volume.storage)
        .cloned()
        .unwrap_or_default();
    let refuse = |why| {
        Err(Error::Exhausted {
            why,
            detail: format!("{volume} from {from} to {to}"),
        })
    };
    if limits.max_volume_bytes.is_some_and(|most| to > most) {
        return refuse(Exhausted::VolumeSize);
    }
    let census = region.inventory.vms(Freshness::Recent).await?;
    let mut storages = census.storages.iter();
    if !storages.any(|entry| entry.storage == volume.storage) {
        return Err(Error::Pve {
            doing: "looking for the storage",
            source: seats::not_listed(&volume.storage),
        });
    }
    if let Some(why) = obstacle(&census, volume, vm, to.saturating_sub(from), &limits) {
        return refuse(why);
    }
    if limits.max_bytes.is_none() {
        return Ok(Room { _turn: None });
    }
    let deadline = Instant::now() + QUOTA_WAIT;
    let turn = quotas.turn(volume, deadline).await?;
    match quota_left(region, volume, vm, &limits).await {
        Ok(Some(left)) if to > left => refuse(Exhausted::Quota),
        Ok(_) => Ok(Room { _turn: Some(turn) }),
        Err(source) => Err(Error::Pve {
            doing: "listing our disks",
            source,
        }),
    }
}

/// Why the storage can't take so much more, as the host of the VM knows it.
fn obstacle(
    census: &Census,
    volume: &VolumeId,
    vm: &Pinned,
    more: Bytes,
    limits: &StoragePolicy,
) -> Option<Exhausted> {
    let mut entries = census.storages.iter();
    let here = entries
        .find(|entry| entry.storage == volume.storage && entry.pve_node == vm.guest.pve_node);
    match here {
        Some(entry) => Seat::of(entry.clone()).obstacle(more, limits),
        None => Some(Exhausted::Storage),
    }
}

/// What the quota leaves for this volume as a whole. The number of volumes does not change.
async fn quota_left(
    region: &RegionContext,
    volume: &VolumeId,
    vm: &Pinned,
    limits: &StoragePolicy,
) -> Result<Option<Bytes>, ApiError> {
    let bytes_only = StoragePolicy {
        max_volumes: None,
        ..limits.clone()
    };
    let own = volume.volid();
    let of = (volume.disk.owner(), Some(own.as_str()));
    let host = &vm.guest.pve_node;
    quota::left(region, host, &volume.storage, of, &bytes_only).await
}
