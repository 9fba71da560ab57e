//! Which VMs hold a volume. PVE lets a disk sit in two VMs and has no "who uses it", so every VM in sight that could
//! reach the storage is read, whatever its pool; and "nobody" counts only if the workers can be seen.

use std::collections::BTreeSet;

use pve_client::{ApiError, ErrorKind, GuestKind, VmEntry, VmPending};
use pve_model::{DiskName, PoolId, PveNode, Uuid, VmId, VolumeId};
use tokio::time::{Duration, Instant};

use crate::asking::{self, Answer};
use crate::error::Error;
use crate::gone;
use crate::inventory::{Census, Freshness};
use crate::region::RegionContext;
use crate::silent;

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

/// What the holders are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The volume is attached or detached.
    Use,
    /// Its disk is freed: a VM on a host that is off has it still when the host is started again.
    Free,
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

/// The VMs that hold the volume, except one that is not read. A VM that could hold it and can't be read, unless what we
/// know excludes it, a worker that was seen earlier and is neither in sight nor proved gone, and a pool that can't be seen
/// are [`Error::HolderUnknown`]. Requests: one list (shared), one read per VM that could reach the storage; without any
/// worker in sight one about the token's rights.
pub async fn find(
    region: &RegionContext,
    volume: &VolumeId,
    except: Option<VmId>,
    term: Term,
) -> Result<Vec<Holder>, Error> {
    survey(region, volume, except, (term, Purpose::Use))
        .await
        .map(|survey| survey.holders)
}

/// As [`find`], and which of the VMs have snapshots.
pub async fn survey(
    region: &RegionContext,
    volume: &VolumeId,
    except: Option<VmId>,
    (term, purpose): (Term, Purpose),
) -> Result<Survey, Error> {
    let census = region.inventory.vms(Freshness::Since(term.begun)).await?;
    let mut look = Look {
        region,
        volume,
        deadline: term.deadline,
        survey: Survey::default(),
        moved: Vec::new(),
        silent: Vec::new(),
    };
    let suspects = suspects(&census, volume, except)?;
    let order = silent::order(region, &census, suspects, term);
    look.silent = order.silent;
    look.at(order.now).await?;
    let (later, silent) = order.later.into_iter().partition(|guest| {
        let silence = region.guests.witness.silence(&guest.pve_node);
        silence.is_none_or(|silence| silence.asked < term.begun)
    });
    look.silent.extend::<Vec<_>>(silent);
    look.at(later).await?;
    look.follow().await?;
    tell_of_doubles(region, term);
    let seen = match silent::judge(region, volume, &look.silent, purpose) {
        Ok(()) => all_seen(region, &census, home(&census, volume)).await,
        unseen => unseen,
    };
    let mut survey = look.survey;
    survey.unseen = seen.err();
    match survey.unseen {
        Some(unseen) if survey.holders.is_empty() => Err(unseen),
        _ => Ok(survey),
    }
}

/// A look at VMs for one volume.
struct Look<'a> {
    region: &'a RegionContext,
    volume: &'a VolumeId,
    deadline: Instant,
    survey: Survey,
    /// Their config was not where the list said.
    moved: Vec<VmEntry>,
    /// Their host does not answer.
    silent: Vec<VmEntry>,
}

impl Look<'_> {
    async fn at(&mut self, guests: Vec<VmEntry>) -> Result<(), Error> {
        let (region, deadline) = (self.region, self.deadline);
        asking::read(region, guests, deadline, |answer| self.take(answer)).await
    }

    fn take(&mut self, answer: Answer) -> Result<(), Error> {
        let Answer {
            guest,
            read,
            silent,
        } = answer;
        match read {
            Ok(pending) => self.survey.add(&guest, &pending, self.volume),
            Err(_) if silent => self.silent.push(guest),
            // It moved, ended, or was taken from our sight since the list was made.
            Err(error)
                if matches!(
                    error.kind,
                    ErrorKind::Absent | ErrorKind::PermissionDenied { .. }
                ) =>
            {
                self.moved.push(guest);
            }
            Err(error) => return Err(unknown(&guest, &error)),
        }
        Ok(())
    }

    /// Reads VMs again whose config was not where the list said.
    async fn follow(&mut self) -> Result<(), Error> {
        let moved = std::mem::take(&mut self.moved);
        if moved.is_empty() {
            return Ok(());
        }
        let region = self.region;
        let newer = Freshness::Since(Instant::now());
        let census = region.inventory.vms(newer).await?;
        let mut there = Vec::new();
        for guest in &moved {
            if let Some(guest) = census.get(guest.vmid) {
                there.push(guest.clone());
            } else {
                let visible = census.guests.keys().next().copied();
                gone::prove_unlisted(region, Some(guest.vmid), visible).await?;
            }
        }
        self.at(there).await?;
        match self.moved.first() {
            None => Ok(()),
            Some(guest) => Err(Error::HolderUnknown(format!(
                "VM {} on {} is listed there and can't be read: it moves, or the token lacks VM.Audit",
                guest.vmid, guest.pve_node
            ))),
        }
    }
}

/// A host that comes back brings back what its VMs had, which may have been attached elsewhere meanwhile.
fn tell_of_doubles(region: &RegionContext, term: Term) {
    for (volid, vms) in region.guests.witness.in_two(term.begun) {
        let disk = volid
            .split_once(':')
            .and_then(|(_, disk)| disk.parse::<DiskName>().ok());
        if disk.is_some_and(|disk| region.policy.is_owner(disk.owner())) {
            tracing::error!(
                region = %region.name,
                volid,
                ?vms,
                "the disk is in more than one VM: nothing is done about it; stop its use in all but one of them and take it out \
                 of their configs"
            );
        }
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
        let uuid = region.guests.witness.uuid(guest.vmid);
        match gone::prove(region, (Some(guest.vmid), uuid.as_ref()), visible).await {
            Ok(()) => region.guests.sightings.gone(guest.vmid),
            Err(error) => {
                return Err(Error::HolderUnknown(format!(
                    "VM {} on {} was a worker and is not in sight any more ({error}): put it back into the pool {pool}, \
                     or see to it that it has none of the tenant's disks before it counts as gone",
                    guest.vmid, guest.pve_node
                )));
            }
        }
    }
    in_sight(region, census).await
}

/// Fails where the list shows no VM of the pool because the token may not see it. Requests: none, or one if it shows none.
pub async fn in_sight(region: &RegionContext, census: &Census) -> Result<(), Error> {
    let pool = region.inventory.pool();
    let ours = |guest: &VmEntry| guest.pool.as_ref() == Some(pool);
    if census.guests.values().any(ours) {
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

/// Reads the configs of guests, several at a time, and gives each to `judge`, at whose first error the rest is dropped.
pub async fn read(
    region: &RegionContext,
    guests: Vec<VmEntry>,
    deadline: Instant,
    mut judge: impl FnMut(&VmEntry, &Result<VmPending, ApiError>) -> Result<(), Error>,
) -> Result<(), Error> {
    asking::read(region, guests, deadline, |answer| {
        judge(&answer.guest, &answer.read)
    })
    .await
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

/// The VMs that could hold the volume and can be asked, by the list that this RPC has read; no config is read.
pub async fn candidates(
    region: &RegionContext,
    volume: &VolumeId,
    except: Option<VmId>,
    term: Term,
) -> Result<Vec<VmEntry>, Error> {
    let census = region.inventory.vms(Freshness::Since(term.begun)).await?;
    let mut suspects = suspects(&census, volume, except)?;
    suspects.retain(|guest| !silent::known(region, &census, &guest.pve_node, term));
    Ok(suspects)
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

/// What a VM that was read has of the volume.
pub fn holder(guest: &VmEntry, pending: &VmPending, volume: &VolumeId) -> Option<Holder> {
    let keys = pve_region::holders::keys(pending, &volume.volid());
    (!keys.is_empty()).then(|| Holder {
        guest: guest.clone(),
        uuid: pending.smbios_uuid(),
        keys,
    })
}

/// A VM whose config can't be read may hold anything.
pub fn unknown(guest: &VmEntry, error: &ApiError) -> Error {
    Error::HolderUnknown(format!("VM {} on {}: {error}", guest.vmid, guest.pve_node))
}
