//! GetCapacity: what a volume could still take in a place. One request, one more per storage with a quota.

use std::sync::Arc;

use pve_client::ApiError;
use pve_model::{Bytes, PveNode, StorageId};
use pve_runtime::config::StoragePolicy;

use crate::error::Error;
use crate::placement::{self, Seat, StorageKind};
use crate::quota;
use crate::region::{Driver, RegionContext};
use crate::scope;
use crate::seats::{self, Age};
use crate::validate::CapacityRequest;

/// What is left, in the place and on the storages that were asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// min(free − `minFree`, quota left), summed over storages that don't share their space.
    pub available: Bytes,
    /// The largest single volume, where the operator set one.
    pub largest: Option<Bytes>,
}

/// Answers 0 where a storage is not; one that is on no host, and an unknown region, zone or storage is an error that names it.
pub async fn capacity(driver: &Driver, request: &CapacityRequest) -> Result<Capacity, Error> {
    let storage = request.parameters.as_ref().and_then(|p| p.storage.as_ref());
    let regions: Vec<Arc<RegionContext>> = match &request.place {
        Some(place) => vec![
            driver
                .region(&place.region)
                .ok_or_else(|| scope::unknown_region(&place.region))?,
        ],
        None => driver.regions().cloned().collect(),
    };
    let zone = request
        .place
        .as_ref()
        .and_then(|place| place.pve_node.as_ref());
    let known = |region: &Arc<RegionContext>| {
        storage.is_none_or(|storage| region.storage_policy(storage).is_some())
    };
    if let (Some(storage), false) = (storage, regions.iter().any(known)) {
        return Err(scope::unknown_storage(storage));
    }
    let mut sum = Capacity::default();
    for region in regions.iter().filter(|region| known(region)) {
        if let Some(zone) = zone
            && !region.policy.pve_nodes.contains(zone)
        {
            return Err(placement::unknown_zone(zone));
        }
        let part = in_region(region, storage, zone)
            .await
            .map_err(Error::pve("reading free space"))?;
        sum = sum.plus(part);
    }
    Ok(sum)
}

async fn in_region(
    region: &RegionContext,
    storage: Option<&StorageId>,
    zone: Option<&PveNode>,
) -> Result<Capacity, ApiError> {
    let listed = seats::list(region, Age::Shared).await?;
    let mut sum = Capacity::default();
    let mut unlisted = None;
    let mut any = false;
    for (id, limits) in &region.policy.storages {
        if storage.is_some_and(|storage| storage != id) {
            continue;
        }
        let mut mine = match listed.of(id) {
            Ok(seats) => seats,
            // The others are a lower bound.
            Err(error) if storage.is_none() => {
                tracing::warn!(%error, "left out of the capacity");
                unlisted = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        any = true;
        mine.retain(|seat| zone.is_none_or(|zone| seat.pve_node == *zone));
        if mine.is_empty() {
            listed.complete()?;
        }
        for (seat, room) in rooms(&mine, limits) {
            let left = quota_left(region, id, seat, limits).await?;
            sum = sum.plus(Capacity::of(room, left, limits));
        }
    }
    match unlisted {
        Some(error) if !any => Err(error),
        _ => Ok(sum),
    }
}

/// The seats that count, each with its room: shared storage once, and only storages that volumes can be made on.
pub fn rooms<'a>(seats: &[&'a Seat], limits: &StoragePolicy) -> Vec<(&'a Seat, Bytes)> {
    let usable = seats.iter().copied().filter(|seat| {
        seat.available
            && seat.images
            && matches!(seat.kind, StorageKind::Dir | StorageKind::LvmThin)
    });
    let (shared, mut local): (Vec<&Seat>, Vec<&Seat>) = usable.partition(|seat| seat.shared);
    // Hosts measure at different moments: the smallest number promises least.
    local.extend(shared.into_iter().min_by_key(|seat| seat.free));
    local
        .into_iter()
        .map(|seat| (seat, seat.room(limits)))
        .collect()
}

async fn quota_left(
    region: &RegionContext,
    storage: &StorageId,
    seat: &Seat,
    limits: &StoragePolicy,
) -> Result<Option<Bytes>, ApiError> {
    let zone = (!seat.shared).then(|| seat.pve_node.clone());
    let owner = region.policy.owner_on(zone.as_ref());
    if limits.max_bytes.is_none() && limits.max_volumes.is_none() {
        return Ok(None);
    }
    match owner {
        None => Ok(Some(Bytes::ZERO)),
        Some(owner) => quota::left(region, &seat.pve_node, storage, (owner, None), limits).await,
    }
}

impl Capacity {
    fn of(room: Bytes, quota: Option<Bytes>, limits: &StoragePolicy) -> Self {
        let available = quota.map_or(room, |quota| room.min(quota));
        Self {
            available,
            largest: limits.max_volume_bytes.map(|most| most.min(available)),
        }
    }

    fn plus(self, other: Self) -> Self {
        let sum = self.available.checked_add(other.available);
        Self {
            available: sum.unwrap_or(self.available),
            largest: self.largest.max(other.largest),
        }
    }
}

#[cfg(test)]
mod tests;
