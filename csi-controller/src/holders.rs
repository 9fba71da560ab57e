//! Which VMs hold a volume. PVE lets a disk sit in two VMs and has no "who uses it", so every worker that could reach
//! the storage is read.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use pve_client::{ApiError, ErrorKind, VmEntry, VmPending};
use pve_model::{Uuid, VmId, VolumeId};
use tokio::time::Instant;

use crate::error::Error;
use crate::gone;
use crate::inventory::{Census, Freshness};
use crate::region::RegionContext;
use crate::vm;

/// Configs that are read at the same time: `GET …/pending` occupies no worker of PVE, but a connection.
const PARALLEL: usize = 8;

/// A VM that holds a volume, now or by a pending change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The VM.
    pub guest: VmEntry,
    /// Its identity.
    pub uuid: Option<Uuid>,
    /// The keys that name the disk: `scsi1`, ….
    pub keys: BTreeSet<String>,
}

impl Holder {
    /// For the operator.
    pub fn describe(&self) -> String {
        let keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        format!(
            "VM {} on {} holds it in {}",
            self.guest.vmid,
            self.guest.pve_node,
            keys.join(", ")
        )
    }
}

/// What reading the workers showed.
#[derive(Debug, Default)]
pub struct Survey {
    /// Those that hold the volume.
    pub holders: Vec<Holder>,
    /// Those that have snapshots, which may need the volume's disk still.
    pub snapshotted: Vec<VmEntry>,
}

/// The workers of the pool that hold the volume. `except` is not read. A worker that can't be read and could hold the
/// volume is an error, [`Error::HolderUnknown`]. Requests: one list (shared), one read per worker that could reach the
/// storage.
pub async fn find(
    region: &RegionContext,
    volume: &VolumeId,
    except: Option<VmId>,
) -> Result<Vec<Holder>, Error> {
    survey(region, volume, except)
        .await
        .map(|survey| survey.holders)
}

/// As [`find`], and which of the workers have snapshots.
pub async fn survey(
    region: &RegionContext,
    volume: &VolumeId,
    except: Option<VmId>,
) -> Result<Survey, Error> {
    let census = region.inventory.vms(Freshness::Recent).await?;
    let mut survey = Survey::default();
    let mut moved = Vec::new();
    for (guest, read) in read(region, suspects(region, &census, volume, except)?).await {
        match read {
            Ok(pending) => survey.add(&guest, &pending, volume),
            // It moved, ended, or was taken from our sight since the list was made.
            Err(error)
                if matches!(
                    error.kind,
                    ErrorKind::Absent | ErrorKind::PermissionDenied { .. }
                ) =>
            {
                moved.push(guest);
            }
            Err(error) => return Err(unknown(&guest, &error)),
        }
    }
    if !moved.is_empty() {
        follow(region, volume, &moved, &mut survey).await?;
    }
    Ok(survey)
}

impl Survey {
    fn add(&mut self, guest: &VmEntry, pending: &VmPending, volume: &VolumeId) {
        self.holders.extend(holder(guest, pending, volume));
        // `parent` names the snapshot that the VM's state is based on (`AbstractConfig.pm`, snapshot_create).
        if pending.current("parent").is_some() {
            self.snapshotted.push(guest.clone());
        }
    }
}

/// Reads the configs of guests, several at a time, and remembers their UUIDs.
pub async fn read(
    region: &RegionContext,
    guests: Vec<VmEntry>,
) -> Vec<(VmEntry, Result<VmPending, ApiError>)> {
    let client = region.client.clone();
    let read = move |guest: VmEntry| {
        let client = client.clone();
        async move {
            let read = client.vm_pending(&vm::at(&guest)).await;
            (guest, read)
        }
    };
    let all: Vec<_> = stream::iter(guests)
        .map(read)
        .buffer_unordered(PARALLEL)
        .collect()
        .await;
    for (guest, read) in &all {
        if let Ok(pending) = read {
            region.inventory.note(guest, pending.smbios_uuid());
        }
    }
    all
}

/// The workers that could hold the volume: those of the host that has it, of all hosts if it is shared.
fn suspects(
    region: &RegionContext,
    census: &Census,
    volume: &VolumeId,
    except: Option<VmId>,
) -> Result<Vec<VmEntry>, Error> {
    if census.undecodable > 0 {
        return Err(Error::HolderUnknown(format!(
            "{} entries of the list of guests can't be read",
            census.undecodable
        )));
    }
    let reaches = |guest: &&VmEntry| {
        volume
            .pve_node
            .as_ref()
            .is_none_or(|host| *host == guest.pve_node)
    };
    let others = census
        .workers(region.inventory.pool())
        .filter(|guest| Some(guest.vmid) != except);
    Ok(others.filter(reaches).cloned().collect())
}

/// Reads workers again whose config was not where the list said.
async fn follow(
    region: &RegionContext,
    volume: &VolumeId,
    moved: &[VmEntry],
    survey: &mut Survey,
) -> Result<(), Error> {
    let census = region
        .inventory
        .vms(Freshness::Since(Instant::now()))
        .await?;
    let mut there = Vec::new();
    for guest in moved {
        if let Some(guest) = census.get(guest.vmid) {
            there.push(guest.clone());
        } else {
            let visible = census.guests.keys().next().copied();
            gone::prove_unlisted(region, Some(guest.vmid), visible).await?;
        }
    }
    for (guest, read) in read(region, there).await {
        match read {
            Ok(pending) => survey.add(&guest, &pending, volume),
            Err(error) => return Err(unknown(&guest, &error)),
        }
    }
    Ok(())
}

fn holder(guest: &VmEntry, pending: &VmPending, volume: &VolumeId) -> Option<Holder> {
    let mut keys = pending.keys_of(&volume.volid());
    // An `unusedN` entry is a note, not a device.
    keys.retain(|key| !key.starts_with("unused"));
    (!keys.is_empty()).then(|| Holder {
        guest: guest.clone(),
        uuid: pending.smbios_uuid(),
        keys,
    })
}

fn unknown(guest: &VmEntry, error: &ApiError) -> Error {
    Error::HolderUnknown(format!("VM {} on {}: {error}", guest.vmid, guest.pve_node))
}
