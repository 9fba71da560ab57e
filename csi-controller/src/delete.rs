//! DeleteVolume: prove that nobody uses the disk, free it, prove that it is gone.
//!
//! **Guarantees:** nothing is freed while any VM in sight has the volume in its config, now, pending or in a
//! snapshot, or while one that could have it can't be read. Success means that PVE was seen not to have the disk.
//! **Assumptions:** no VM has the tenant's disks that the token can't see and that this process has never seen in the pool;
//! PVE asks nobody before it frees one. Whether a VM has snapshots is told by `parent` in its config, which PVE drops when the
//! VM is set back to a snapshot and that one is deleted, while later ones stay (`AbstractConfig.pm`, `snapshot_delete`).
//! **Requests:** list of guests, one per worker, removal, look; two and more per worker that has snapshots.

use pve_client::{ErrorKind, HostState, VmEntry};
use pve_model::{PveNode, VolumeId};
use pve_region::holders::snapshot_with;
use tokio::time::Duration;

use crate::disk;
use crate::error::Error;
use crate::holders::{self, Purpose, Term};
use crate::region::RegionContext;
use crate::vm;

/// For reading the VMs; the removal of the disk has its own time, and the provisioner gives up after 3 minutes.
const SURVEY: Duration = Duration::from_mins(1);

/// Frees the disk of a volume that is ours. A volume that is not there is deleted already.
pub async fn delete(region: &RegionContext, volume: &VolumeId) -> Result<(), Error> {
    let term = Term::of(SURVEY);
    holders::unambiguous(region, volume, term).await?;
    let survey = holders::survey(region, volume, None, (term, Purpose::Free)).await?;
    if let Some(holder) = survey.holders.first() {
        return Err(Error::InUse(format!("{volume}: {}", holder.describe())));
    }
    for guest in &survey.snapshotted {
        not_in_snapshots(region, volume, guest).await?;
    }
    region.guests.sizes.forget(&volume.volid());
    region.guests.witness.removed(&volume.volid());
    match (disk::remove(region, volume).await, &volume.pve_node) {
        (Err(error), Some(host)) if names_no_host(&error) && has_left(region, host).await? => {
            tracing::info!(pve.node = %host, "the host has left the PVE cluster, its disks with it");
            Ok(())
        }
        (outcome, _) => outcome,
    }
}

/// A snapshot of a VM still needs the disk that the VM had when it was taken: rolling back would bring it back.
async fn not_in_snapshots(
    region: &RegionContext,
    volume: &VolumeId,
    guest: &VmEntry,
) -> Result<(), Error> {
    let at = vm::at(guest);
    let unknown = |error| Error::HolderUnknown(format!("snapshots of VM {}: {error}", guest.vmid));
    let found = snapshot_with(&region.client, &at, &volume.volid()).await;
    match found.map_err(unknown)? {
        None => Ok(()),
        Some(snapshot) => Err(Error::Unsupported {
            tenant: "the volume is part of a snapshot of a Node's virtual machine; ask the operator of Proxmox VE",
            detail: format!("{volume}: snapshot {snapshot} of VM {}", guest.vmid),
        }),
    }
}

/// PVE's word for a host that is no member, and of an endpoint that knows no other member for any host.
fn names_no_host(error: &Error) -> bool {
    matches!(error, Error::Pve { source, .. } if source.kind == ErrorKind::HostUnknown)
}

/// Whether the PVE cluster has no such member, as opposed to one that is down. An endpoint that has not joined its
/// cluster lists itself alone, as online (`Cluster.pm` `get_nodelist`, `API2Tools.pm` `extract_node_stats`), so that two
/// have to be: of a cluster that shrank to one host, the operator takes the other out of the policy.
async fn has_left(region: &RegionContext, host: &PveNode) -> Result<bool, Error> {
    let members = region
        .client
        .pve_nodes()
        .await
        .map_err(Error::pve("listing the hosts"))?;
    let online = members
        .entries
        .iter()
        .filter(|entry| entry.state == HostState::Online);
    let sure = members.undecodable == 0 && online.count() >= 2;
    Ok(sure && members.entries.iter().all(|entry| entry.pve_node != *host))
}
