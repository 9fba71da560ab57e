//! What tells that a VM has a disk. PVE lets a disk sit in two VMs and has no "who uses it".

use std::collections::BTreeSet;

use pve_client::{ApiError, Client, VmPending, VmRef};

/// The keys of a VM's config, in force or pending, that name a disk (`<storage>:<disk>`) as a device: an `unusedN` entry is
/// a note.
pub fn keys(pending: &VmPending, volid: &str) -> BTreeSet<String> {
    let mut keys = pending.keys_of(volid);
    keys.retain(|key| !key.starts_with("unused"));
    keys
}

/// The first snapshot of a VM that still needs a disk: rolling back would bring it back. Requests: one, and one for each
/// snapshot.
pub async fn snapshot_with(
    client: &Client,
    at: &VmRef,
    volid: &str,
) -> Result<Option<String>, ApiError> {
    for snapshot in client.snapshots(at).await? {
        if client.snapshot_disks(at, &snapshot).await?.contains(volid) {
            return Ok(Some(snapshot));
        }
    }
    Ok(None)
}
