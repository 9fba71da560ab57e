//! Which VMs hold a volume. PVE lets a disk sit in two VMs and has no "who uses it", so every VM in sight that could
//! reach the storage is read, whatever its pool; and "nobody" counts only if the workers can be seen.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use pve_client::{ApiError, ErrorKind, GuestKind, VmEntry, VmPending};
use pve_model::{PoolId, PveNode, Uuid, VmId, VolumeId};
use tokio::time::{Duration, Instant, timeout_at};

use crate::error::Error;
use crate::gone;
use crate::inventory::{Census, Freshness};
use crate::region::RegionContext;
use crate::vm;

/// Configs that are read at the same time: `GET …/pending` occupies no worker of PVE, but a connection.
const PARALLEL: usize = 8;
/// Without them on the pool an empty list says nothing.
const SIGHT: [&str; 2] = ["Pool.Audit", "VM.Audit"];

/// The time that an RPC has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Lists of guests have to be asked for since: a VM may have come or moved in between.
    pub begun: Instant,
    /// When it has to end.
    pub deadline: Instant,
}

impl Term {
    /// From now on.
    pub fn of(budget: Duration) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            deadline: begun + budget,
        }
    }

    /// To the same end, with lists that are asked for from now on.
    #[must_use]
    pub fn anew(self) -> Self {
        Self {
            begun: Instant::now(),
            ..self
        }
    }
}

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

    /// Whether it is one of the tenant's own, whose name may be told.
    pub fn is_in(&self, pool: &PoolId) -> bool {
        self.guest.pool.as_ref() == Some(pool)
    }
}

/// What reading the VMs showed.
#[derive(Debug, Default)]
pub struct Survey {
    /// Those that hold the volume.
    pub holders: Vec<Holder>,
    /// Those that have snapshots, which may need the volume's disk still.
    pub snapshotted: Vec<VmEntry>,
    /// Why there may be more of them than can be seen; with no holder at all [`survey`] fails with it.
    pub unseen: Option<Error>,
}

/// The VMs that hold the volume, except one that is not read. A VM that could hold it and can't be read, a worker that
/// was seen earlier and is neither in sight nor proved gone, and a pool that can't be seen are
/// [`Error::HolderUnknown`]. Requests: one list (shared), one read per VM that could reach the storage; without any
/// worker in sight one about the token's rights.
pub async fn find(
    region: &RegionContext,
    volume: &VolumeId,
    except: Option<VmId>,
    term: Term,
) -> Result<Vec<Holder>, Error> {
    survey(region, volume, except, term)
        .await
        .map(|survey| survey.holders)
}

/// As [`find`], and which of the VMs have snapshots.
pub async fn survey(
    region: &RegionContext,
    volume: &VolumeId,
    except: Option<VmId>,
    term: Term,
) -> Result<Survey, Error> {
    let census = region.inventory.vms(Freshness::Since(term.begun)).await?;
    let mut survey = Survey::default();
    let mut moved = Vec::new();
    let suspects = suspects(&census, volume, except)?;
    read(region, suspects, term.deadline, |guest, read| match read {
        Ok(pending) => {
            survey.add(guest, pending, volume);
            Ok(())
        }
        // It moved, ended, or was taken from our sight since the list was made.
        Err(error)
            if matches!(
                error.kind,
                ErrorKind::Absent | ErrorKind::PermissionDenied { .. }
            ) =>
        {
            moved.push(guest.clone());
            Ok(())
        }
        Err(error) => Err(unknown(guest, error)),
    })
    .await?;
    if !moved.is_empty() {
        follow(region, volume, &moved, (&mut survey, term.deadline)).await?;
    }
    survey.unseen = all_seen(region, &census, home(&census, volume)).await.err();
    match survey.unseen {
        Some(unseen) if survey.holders.is_empty() => Err(unseen),
        _ => Ok(survey),
    }
}

/// Whether the list shows all workers that there are.
async fn all_seen(
    region: &RegionContext,
    census: &Census,
    host: Option<&PveNode>,
) -> Result<(), Error> {
    let pool = region.inventory.pool();
    let visible = census.guests.keys().next().copied();
    for guest in region.guests.sightings.missing(census, pool) {
        if !reaches(host, &guest) {
            continue;
        }
        match gone::prove_unlisted(region, Some(guest.vmid), visible).await {
            Ok(()) => region.guests.sightings.gone(guest.vmid),
            Err(error) => {
                return Err(Error::HolderUnknown(format!(
                    "VM {} on {} was a worker and is not in sight any more ({error}): put it back into the pool {pool}, \
                     or see to it that it has none of the tenant's disks and restart the controller",
                    guest.vmid, guest.pve_node
                )));
            }
        }
    }
    if census
        .guests
        .values()
        .any(|guest| guest.pool.as_ref() == Some(pool))
    {
        return Ok(());
    }
    let path = format!("/pool/{pool}");
    let granted = region.client.permissions(&path).await;
    let granted = granted.map_err(|error| Error::HolderUnknown(format!("{path}: {error}")))?;
    match SIGHT.iter().find(|wanted| !granted.contains(**wanted)) {
        None => Ok(()),
        Some(lacking) => Err(Error::HolderUnknown(format!(
            "no worker is in sight, and the token lacks {lacking} on {path}"
        ))),
    }
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

/// Reads the configs of guests, several at a time, remembers their UUIDs and gives each to `judge`, at whose first error
/// the rest is dropped: a host that hangs answers after 30 s, for every VM on it.
pub async fn read(
    region: &RegionContext,
    guests: Vec<VmEntry>,
    deadline: Instant,
    mut judge: impl FnMut(&VmEntry, &Result<VmPending, ApiError>) -> Result<(), Error>,
) -> Result<(), Error> {
    let client = region.client.clone();
    let read = move |guest: VmEntry| {
        let client = client.clone();
        async move {
            let read = client.vm_pending(&vm::at(&guest)).await;
            (guest, read)
        }
    };
    let mut answers = stream::iter(guests).map(read).buffer_unordered(PARALLEL);
    let late = |_| Error::HolderUnknown("not all VMs could be read in time".to_owned());
    while let Some((guest, read)) = timeout_at(deadline, answers.next()).await.map_err(late)? {
        if let Ok(pending) = &read {
            region.inventory.note(&guest, pending.smbios_uuid());
        }
        judge(&guest, &read)?;
    }
    Ok(())
}

/// The one host whose VMs can have the disk: none if other hosts may reach it too. What the handle says is not enough, its
/// storage may be shared by now, or the handle may be the tenant's own.
fn home<'a>(census: &Census, volume: &'a VolumeId) -> Option<&'a PveNode> {
    let local = census.shared.get(&volume.storage) == Some(&false);
    volume.pve_node.as_ref().filter(|_| local)
}

/// Refuses a handle that names no host on a storage where each host has disks of its own: it could mean any of them.
pub async fn unambiguous(
    region: &RegionContext,
    volume: &VolumeId,
    term: Term,
) -> Result<(), Error> {
    let census = region.inventory.vms(Freshness::Since(term.begun)).await?;
    if volume.pve_node.is_some() || census.shared.get(&volume.storage) != Some(&false) {
        return Ok(());
    }
    Err(Error::Unsupported {
        tenant: "the volume's handle names no host, but its storage is not shared between hosts",
        detail: format!("{volume}: {} is not a shared storage", volume.storage),
    })
}

/// The VMs that could hold the volume, by the list that this RPC has read; no config is read.
pub async fn candidates(
    region: &RegionContext,
    volume: &VolumeId,
    except: Option<VmId>,
    term: Term,
) -> Result<Vec<VmEntry>, Error> {
    let census = region.inventory.vms(Freshness::Since(term.begun)).await?;
    suspects(&census, volume, except)
}

/// The VMs that could hold the volume: those of the host that has it, of all hosts if it is shared. Their pool and
/// whether they are templates does not matter: an operator can move or convert a VM with its disks.
fn suspects(
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
    let others = census
        .guests
        .values()
        .filter(|guest| guest.kind == GuestKind::Qemu && Some(guest.vmid) != except);
    let host = home(census, volume);
    Ok(others
        .filter(|guest| reaches(host, guest))
        .cloned()
        .collect())
}

/// Whether a VM could have a disk of that host in it; none is a disk that all hosts share.
fn reaches(host: Option<&PveNode>, guest: &VmEntry) -> bool {
    host.is_none_or(|host| *host == guest.pve_node)
}

/// Reads workers again whose config was not where the list said.
async fn follow(
    region: &RegionContext,
    volume: &VolumeId,
    moved: &[VmEntry],
    (survey, deadline): (&mut Survey, Instant),
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
    read(region, there, deadline, |guest, read| {
        let pending = read.as_ref().map_err(|error| unknown(guest, error))?;
        survey.add(guest, pending, volume);
        Ok(())
    })
    .await
}

/// What a VM that was read has of the volume.
pub fn holder(guest: &VmEntry, pending: &VmPending, volume: &VolumeId) -> Option<Holder> {
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
