//! Growing a volume: find the VM that has the volume, grow it there, and look until storage and drive agree.
//!
//! **Guarantees:** the answer is the size that both the storage and the drive have, seen in this RPC; nothing shrinks; a
//! growth that stopped between PVE's three steps (storage, QEMU, config) is completed by the next call.
//! **Assumptions:** PVE writes a drive's new `size=` last and only if the rest went well.
//! **Requests:** 4 with a VM that is known to have the volume: the list of guests, its config, the growth, its config. One
//! more for each other VM that could have it if none is known, for a size that LVM may round, for a quota.
//! **Limit:** PVE can grow a disk through a VM only: a volume that no VM has stays as it is.

mod growth;
mod memory;
mod room;
mod step;

use pve_client::{Presence, VmEntry, VmPending};
use pve_model::{Bytes, VolumeId};
use tokio::time::Duration;

pub use memory::Memory;

use crate::create;
use crate::disk;
use crate::error::Error;
use crate::holders::{self, Term};
use crate::inventory::Freshness;
use crate::region::RegionContext;
use crate::validate::ExpandRequest;
use crate::vm::{self, Found, Pinned, Wanted};
use growth::Growth;

/// Within the 3 minutes after which the resizer gives up, with room for the last request.
const BUDGET: Duration = Duration::from_secs(130);

/// What is remembered between calls.
#[derive(Debug, Clone, Default)]
pub struct Memories {
    /// Which VMs have volumes.
    pub volumes: Memory,
    /// Turns at quotas.
    pub quotas: create::Memory,
}

/// Grows the volume through the VM that has it, and answers its real size.
pub async fn expand(
    region: &RegionContext,
    memories: &Memories,
    request: &ExpandRequest,
) -> Result<Bytes, Error> {
    let term = Term::of(BUDGET);
    let volume = &request.volume;
    let note = memories.volumes.of(volume);
    let known = match &note {
        Some(note) => remembered(region, volume, &note.holder, term).await?,
        None => None,
    };
    let vm = match known {
        Some(vm) => vm,
        None => match search(region, volume, term).await? {
            Some(vm) => vm,
            None => return detached(region, request).await,
        },
    };
    vm::allowed_host(region, &vm)?;
    let holder = Wanted {
        uuid: vm.uuid.clone(),
        vmid: Some(vm.guest.vmid),
    };
    memories.volumes.held(volume, holder);
    let doubtful = note.is_some_and(|note| note.doubtful);
    let wanted = (volume, request.size);
    let mut growth = Growth::new(region, &memories.quotas, wanted, &vm, term).doubting(doubtful);
    let outcome = growth.converge().await;
    if let Ok(size) = &outcome {
        memories.volumes.doubt(volume, false);
        region.guests.sizes.saw(&volume.volid(), *size);
    } else if growth.has_asked() {
        memories.volumes.doubt(volume, true);
    }
    outcome
}

/// The VM that had the volume last, if its config shows that it has it still.
async fn remembered(
    region: &RegionContext,
    volume: &VolumeId,
    wanted: &Wanted,
    term: Term,
) -> Result<Option<Pinned>, Error> {
    let vm = match vm::pin(region, wanted, term, Freshness::Recent).await {
        Ok(Found::Vm(vm)) => vm,
        Ok(Found::Missing(_)) => return Ok(None),
        Err(error @ Error::Busy(_)) => return Err(error),
        // Another VM may have the volume by now, and can be asked.
        Err(error) => {
            tracing::info!(volume.id = %volume, %error, "the VM that had the volume is not taken for its holder");
            return Ok(None);
        }
    };
    let home = volume.pve_node.as_ref();
    let there = home.is_none_or(|home| *home == vm.guest.pve_node)
        && holders::holder(&vm.guest, &vm.pending, volume).is_some();
    Ok(there.then_some(*vm))
}

/// Reads every VM that could have the volume. That one of them can't be read matters only if no other one has it.
async fn search(
    region: &RegionContext,
    volume: &VolumeId,
    term: Term,
) -> Result<Option<Pinned>, Error> {
    holders::unambiguous(region, volume, term).await?;
    let candidates = holders::candidates(region, volume, None, term).await?;
    let mut having: Vec<(VmEntry, VmPending)> = Vec::new();
    holders::read(region, candidates, term.deadline, |guest, read| {
        if let Ok(pending) = read
            && holders::holder(guest, pending, volume).is_some()
        {
            having.push((guest.clone(), pending.clone()));
        }
        Ok(())
    })
    .await?;
    match (having.pop(), having.pop()) {
        (Some(one), Some(other)) => Err(Error::Unsupported {
            tenant: "the volume is attached to two Nodes; ask the operator of Proxmox VE",
            detail: format!("{volume} is in VM {} and VM {}", one.0.vmid, other.0.vmid),
        }),
        (Some(one), None) => vm::pin_read(region, one, term).await.map(Some),
        // "Nobody" counts only if all that could have it can be seen.
        (None, _) => match holders::find(region, volume, None, term).await?.first() {
            None => Ok(None),
            Some(holder) => Err(Error::HalfAttached(holder.describe())),
        },
    }
}

/// No VM has the volume, so that its storage alone says how large it is.
async fn detached(region: &RegionContext, request: &ExpandRequest) -> Result<Bytes, Error> {
    let (volume, size) = (&request.volume, request.size);
    let looked = disk::look_closely(region, volume).await;
    match looked.map_err(Error::pve("looking at the disk"))? {
        Presence::Absent => Err(Error::UnknownVolume),
        Presence::Present(info) if info.size < size.least => Err(Error::Unsupported {
            tenant: "Proxmox VE can grow a volume only while it is attached: start a Pod that uses it, and it will be tried again",
            detail: format!("no VM has {volume}, of {}", info.size),
        }),
        Presence::Present(info) if size.most.is_some_and(|most| info.size > most) => Err(
            Error::OutOfRange("the volume is larger than the limit already".to_owned()),
        ),
        Presence::Present(info) => Ok(info.size),
    }
}
