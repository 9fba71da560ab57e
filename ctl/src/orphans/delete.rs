//! Deleting disks that no PV names: each is typed by the operator, old enough, and in no VM. PVE asks nobody before it frees
//! one.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use pve_client::{Client, GuestKind, Presence, Started, StorageRef, TaskOutcome, VmEntry, VmRef};
use pve_model::VolumeId;
use tokio::time::Instant;

use super::compare::{Disk, may_name, stem};
use super::pvs::Pv;
use super::scan::Asked;
use crate::output::Failure;

/// Configs that are read at the same time: it occupies no worker of PVE, but a connection.
const PARALLEL: usize = 8;
/// Below `/vms`, the highest number that a guest can have: rights there are those that hold for all guests.
const NOBODY: &str = "/vms/999999999";
/// How long the removal of one disk may take.
const REMOVAL: Duration = Duration::from_mins(3);

/// A disk that may be deleted as far as lists can tell.
#[derive(Debug)]
pub(super) struct Doomed<'a> {
    /// Its handle.
    pub(super) volume: VolumeId,
    /// Its region.
    pub(super) asked: &'a Asked,
}

/// Finds what the operator typed among the disks without PV; refuses all if one is not there, too young, or may be
/// meant by a PV. `now`: seconds
/// since 1970.
pub(super) fn choose<'a>(
    typed: &[VolumeId],
    (lone, pvs): (&[Disk], &[Pv]),
    regions: &'a [Asked],
    (now, min_age): (u64, Duration),
) -> Result<Vec<Doomed<'a>>, Failure> {
    let mut doomed = Vec::new();
    for volume in typed {
        let Some(disk) = lone
            .iter()
            .find(|disk| disk.handle().as_ref() == Some(volume))
        else {
            return Failure::refused(format!(
                "{volume} is not among the disks without PersistentVolume"
            ));
        };
        if let Some(pv) = pvs.iter().find(|pv| may_name(pv, volume)) {
            return Failure::refused(format!(
                "{volume}: the PersistentVolume {} ({}) may mean it by another region, storage or host",
                pv.name, pv.handle
            ));
        }
        let Some(age) = disk.found.made.and_then(|made| now.checked_sub(made)) else {
            return Failure::refused(format!("{volume}: its storage does not tell how old it is"));
        };
        if age < min_age.as_secs() {
            return Failure::refused(format!(
                "{volume} is {age} s old, not {} s",
                min_age.as_secs()
            ));
        }
        let asked = regions.iter().find(|asked| asked.region == volume.region);
        doomed.push(Doomed {
            volume: volume.clone(),
            asked: asked.ok_or_else(|| Failure::Failed(format!("no region {}", volume.region)))?,
        });
    }
    Ok(doomed)
}

/// Deletes it if no VM has it, and looks whether it is gone.
pub(super) async fn delete(doomed: &Doomed<'_>) -> Result<(), Failure> {
    let Doomed { volume, asked } = doomed;
    unheld(doomed).await?;
    let at = place(volume, asked).await?;
    let client = &asked.client;
    let failed = |why: String| Failure::Failed(format!("{volume}: {why}"));
    if let Started::Running(upid) = client.delete_disk(&at, &volume.disk).await? {
        let outcome = client.wait_task(&upid, Instant::now() + REMOVAL).await?;
        if !matches!(outcome, TaskOutcome::Ok | TaskOutcome::Warnings(_)) {
            return Err(failed(format!("its removal ended with {outcome:?}")));
        }
    }
    match client.disk(&at, &volume.disk).await? {
        Presence::Absent => Ok(()),
        Presence::Present(_) => Err(failed("it is there still".to_owned())),
    }
}

async fn place(volume: &VolumeId, asked: &Asked) -> Result<StorageRef, Failure> {
    let pve_node = if let Some(host) = &volume.pve_node {
        host.clone()
    } else {
        let storages = asked.client.storages().await?.entries;
        let mut on = storages
            .into_iter()
            .filter(|entry| entry.storage == volume.storage && entry.available);
        let entry = on.next();
        let lost = || Failure::Failed(format!("{volume}: no host has its storage"));
        entry.ok_or_else(lost)?.pve_node
    };
    Ok(StorageRef {
        pve_node,
        storage: volume.storage.clone(),
    })
}

/// Refuses unless every guest of the PVE cluster is in sight: PVE leaves out the others without a word, and frees the disk of a
/// running one.
async fn sight(client: &Client) -> Result<Vec<VmEntry>, Failure> {
    for path in ["/vms", NOBODY] {
        if !client.permissions(path).await?.contains("VM.Audit") {
            return Failure::refused(
                "VM.Audit on /vms, and all below it, is missing: a guest that has the disk may be out of sight; use the operator's rights \
                 (--admin-token-file)",
            );
        }
    }
    let seen = client.resources().await?.guests;
    if seen.undecodable > 0 {
        return Failure::refused("the list of guests can't be read completely");
    }
    if let Some(container) = seen
        .entries
        .iter()
        .find(|guest| guest.kind != GuestKind::Qemu)
    {
        return Failure::refused(format!(
            "guest {} is no VM, and what such a guest has is not read: it may have the disk",
            container.vmid
        ));
    }
    Ok(seen.entries)
}

/// Refuses while a VM has it, or could have it and can't be read, whatever its pool or host.
pub(super) async fn unheld(doomed: &Doomed<'_>) -> Result<(), Failure> {
    let Doomed { volume, asked } = doomed;
    let vms = sight(&asked.client).await?;
    let looks = stream::iter(vms.into_iter().map(|vm| look(&asked.client, vm, volume)));
    let mut looks = looks.buffer_unordered(PARALLEL);
    while let Some(looked) = looks.next().await {
        looked?;
    }
    Ok(())
}

/// A storage can have several ids, so that only the file's name tells.
async fn look(client: &Client, guest: VmEntry, volume: &VolumeId) -> Result<(), Failure> {
    let (vmid, name) = (guest.vmid, volume.disk.to_string());
    let at = VmRef {
        pve_node: guest.pve_node,
        vmid,
    };
    let is_it = |volid: &&String| stem(volid) == stem(&name);
    let unknown = |error| Failure::Refused(format!("what VM {vmid} has can't be read: {error}"));
    let pending = client.vm_pending(&at).await.map_err(unknown)?;
    if let Some(volid) = pending.disks().iter().find(is_it) {
        let keys: Vec<String> = pending.keys_of(volid).into_iter().collect();
        return Failure::refused(format!(
            "{volume}: VM {vmid} has {volid} in {}",
            keys.join(", ")
        ));
    }
    for snapshot in client.snapshots(&at).await.map_err(unknown)? {
        let disks = client.snapshot_disks(&at, &snapshot).await;
        if let Some(volid) = disks.map_err(unknown)?.iter().find(is_it) {
            return Failure::refused(format!(
                "{volume}: snapshot {snapshot} of VM {vmid} needs {volid}"
            ));
        }
    }
    Ok(())
}
