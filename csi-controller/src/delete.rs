//! DeleteVolume: prove that nobody uses the disk, free it, prove that it is gone.
//!
//! **Guarantees:** nothing is freed while any VM of the pool has the volume in its config, now or pending, or while one
//! that could have it can't be read. Success means that PVE was seen not to have the disk.
//! **Assumptions:** no VM outside the pool uses the tenant's disks; PVE asks nobody before it frees one.
//! **Requests:** list of guests, one per worker, removal, look.

use pve_client::{ErrorKind, HostState};
use pve_model::{PveNode, VolumeId};

use crate::disk;
use crate::error::Error;
use crate::holders;
use crate::region::RegionContext;

/// Frees the disk of a volume that is ours. A volume that is not there is deleted already.
pub async fn delete(region: &RegionContext, volume: &VolumeId) -> Result<(), Error> {
    let holders = holders::find(region, volume, None).await?;
    if !holders.is_empty() {
        return Err(Error::InUse(format!("{volume} is held by {holders:?}")));
    }
    match (disk::remove(region, volume).await, &volume.pve_node) {
        (Err(error), Some(host)) if names_no_host(&error) && has_left(region, host).await? => {
            tracing::info!(pve.node = %host, "the host has left the PVE cluster, its disks with it");
            Ok(())
        }
        (outcome, _) => outcome,
    }
}

/// Answers that a host which is no member gets, among others.
fn names_no_host(error: &Error) -> bool {
    let Error::Pve { source, .. } = error else {
        return false;
    };
    matches!(
        source.kind,
        ErrorKind::HostUnreachable | ErrorKind::Absent | ErrorKind::Other { .. }
    )
}

/// Whether the PVE cluster has no such member, as opposed to one that is down.
async fn has_left(region: &RegionContext, host: &PveNode) -> Result<bool, Error> {
    let members = region
        .client
        .pve_nodes()
        .await
        .map_err(Error::pve("listing the hosts"))?;
    let online = |state: HostState| state == HostState::Online;
    let sure = members.undecodable == 0 && members.entries.iter().any(|entry| online(entry.state));
    Ok(sure && members.entries.iter().all(|entry| entry.pve_node != *host))
}
