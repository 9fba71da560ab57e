//! What a quota leaves of a storage.

use pve_client::{ApiError, StorageRef};
use pve_model::{Bytes, PveNode, StorageId, VmId};
use pve_runtime::config::StoragePolicy;

use crate::placement;
use crate::region::RegionContext;

/// What the quota of a storage leaves beside the owner's disks, except the one (`<storage>:<disk>`) that is asked
/// about; `None` is no bound. One request; a node-local storage is counted host by host.
pub async fn left(
    region: &RegionContext,
    host: &PveNode,
    storage: &StorageId,
    (owner, but): (VmId, Option<&str>),
    limits: &StoragePolicy,
) -> Result<Option<Bytes>, ApiError> {
    let at = StorageRef {
        pve_node: host.clone(),
        storage: storage.clone(),
    };
    let disks = region.client.disks_of(&at, owner).await?;
    let others: Vec<Bytes> = disks
        .entries
        .iter()
        .filter(|entry| but != Some(entry.volid.as_str()))
        .map(|entry| entry.size.unwrap_or(Bytes::ZERO))
        .collect();
    let used = others.iter().fold(Bytes::ZERO, |sum, size| {
        sum.checked_add(*size).unwrap_or(sum)
    });
    Ok(placement::quota_left(
        limits,
        used,
        others.len() + disks.undecodable,
    ))
}
