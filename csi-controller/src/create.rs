//! CreateVolume: observe, decide, act, verify.
//!
//! **Guarantees:** the same name and request always mean the same disk. While a disk may exist without having been
//! seen, the answer is one at which the provisioner keeps calling, and the next call goes to the same place. A refusal
//! for want of room is given only after a look whether the disk is there already.
//! **Assumptions:** the provisioner repeats the same request after an unknown outcome, and may choose another place
//! only after a final answer. What is not held: when this process dies between the request to PVE and its answer, and
//! before the retry the storage of that place stops answering, or a place that comes before it and was full has room
//! again, the disk may be made a second time elsewhere; the first is then an orphan that nothing refers to.
//! **Requests:** list of storages, allocation, look; one more with a quota, more only after a failure: then a disk that
//! is not shown counts as not there only while its host calls the storage usable.

mod closed;
mod regions;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pve_client::{ApiError, DiskInfo, Effect, ErrorKind, Presence};
use pve_model::{Bytes, PveNode, Region, StorageId, VolumeId};
use pve_runtime::KeyedLock;
use pve_runtime::config::StoragePolicy;
use pve_runtime::keyed_lock::Guard;
use tokio::time::Instant;

use crate::disk;
use crate::error::{Error, Exhausted};
use crate::pins::Pins;
use crate::placement::{self, Candidate, Plan, Seat};
use crate::quota;
use crate::region::{Driver, RegionContext};
use crate::scope;
use crate::seats::{self, Age};
use crate::validate::{CreateRequest, Place};

/// How long an allocation may wait for another one that counts against the same quota.
const QUOTA_WAIT: Duration = Duration::from_mins(1);

const STILL_AT_WORK: &str = "Proxmox VE may still be at work on this volume";

/// What creation remembers between calls. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    pins: Arc<Pins>,
    quotas: KeyedLock<(Region, StorageId, Option<PveNode>)>,
}

/// A turn at the quota of a storage: while it lives, nobody else's disk is counted against it.
pub type QuotaTurn = Guard<(Region, StorageId, Option<PveNode>)>;

impl Memory {
    /// Waits for the turn at the quota that a volume counts against.
    pub async fn turn(&self, volume: &VolumeId, deadline: Instant) -> Result<QuotaTurn, Error> {
        let (region, storage) = (volume.region.clone(), volume.storage.clone());
        let key = (region, storage, volume.pve_node.clone());
        let busy = |_| Error::Busy("other volumes on this storage are being made or grown");
        self.quotas.lock_until(key, deadline).await.map_err(busy)
    }
}

/// A volume that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Its handle.
    pub volume: VolumeId,
    /// Its real size.
    pub size: Bytes,
    /// From where it can be reached.
    pub places: Vec<Place>,
}

struct Creation<'a> {
    region: &'a RegionContext,
    limits: &'a StoragePolicy,
    storage: &'a StorageId,
    request: &'a CreateRequest,
    memory: &'a Memory,
    closed: bool,
}

/// How an attempt at one place ended, if it did not end all of it.
enum Attempt {
    Made(VolumeId, DiskInfo),
    Refused(Exhausted),
}

/// Makes the volume in the first region that has room, or finds it there. While `closed`, none is made.
pub async fn create(
    driver: &Driver,
    memory: &Memory,
    request: &CreateRequest,
    closed: bool,
) -> Result<Created, Error> {
    let storage = request
        .parameters
        .storage
        .as_ref()
        .ok_or_else(|| Error::Invalid("parameter \"storage\" is required".to_owned()))?;
    let mut refusal = None;
    for (region, wanted) in regions::pinned_first(driver, memory, storage, request).await? {
        let limits = scope::allowed(&region, storage, request)?;
        let creation = Creation {
            region: &region,
            limits,
            storage,
            request,
            memory,
            closed,
        };
        match creation.run(&wanted).await {
            Err(error @ (Error::Exhausted { .. } | Error::Closed)) => refusal = Some(error),
            outcome => return outcome,
        }
    }
    Err(refusal.unwrap_or_else(|| no_room(Exhausted::Storage, "in no region".to_owned())))
}

impl Creation<'_> {
    async fn run(&self, wanted: &[Option<PveNode>]) -> Result<Created, Error> {
        let name = &self.request.name;
        let planned = self.plan(wanted).await?;
        let pin = self
            .memory
            .pins
            .get(name)
            .filter(|pin| pin.volume.region == self.region.name);
        let Some(pin) = pin else {
            return self.at_candidates(&planned?).await;
        };
        let only_on = planned.as_ref().ok().and_then(|plan| plan.only_on.clone());
        match disk::look_closely(self.region, &pin.volume).await {
            Ok(Presence::Present(info)) => return self.found(pin.volume, &info, only_on),
            Ok(Presence::Absent) => {}
            Err(source) => {
                return Err(unseen("looking for the disk of an earlier request")(source));
            }
        }
        let outcome = match planned {
            Ok(mut plan) => {
                if pin.may_still_come() {
                    plan.candidates.retain(|at| at.zone == pin.volume.pve_node);
                }
                self.at_candidates(&plan).await
            }
            Err(error) => Err(error),
        };
        match outcome {
            Err(error) if error.effect() == Effect::None && pin.may_still_come() => {
                tracing::info!(volume.id = %pin.volume, %error, "an earlier request may be at work");
                self.memory.pins.restore(name, pin);
                Err(Error::Busy(STILL_AT_WORK))
            }
            outcome => outcome,
        }
    }

    /// Nothing is refused because of a list that others asked for earlier.
    async fn plan(&self, wanted: &[Option<PveNode>]) -> Result<Result<Plan, Error>, Error> {
        let shared = self.plan_on(wanted, Age::Shared).await?;
        let hopeless = match &shared {
            Ok(plan) => plan.candidates.iter().all(|at| at.obstacle.is_some()),
            Err(error) => matches!(error, Error::Exhausted { .. }),
        };
        if hopeless {
            self.plan_on(wanted, Age::New).await
        } else {
            Ok(shared)
        }
    }

    async fn plan_on(
        &self,
        wanted: &[Option<PveNode>],
        age: Age,
    ) -> Result<Result<Plan, Error>, Error> {
        let listing = || unseen("listing storages");
        let listed = seats::list(self.region, age).await.map_err(listing())?;
        let seats = listed.of(self.storage).map_err(listing())?;
        let seats: Vec<Seat> = seats.into_iter().cloned().collect();
        let policy = &self.region.policy;
        let planned = placement::plan(self.request, wanted, &seats, policy, self.limits);
        if let Err(Error::Exhausted {
            why: Exhausted::Storage,
            ..
        }) = planned
        {
            listed.complete().map_err(listing())?;
        }
        Ok(planned)
    }

    async fn at_candidates(&self, plan: &Plan) -> Result<Created, Error> {
        if self.closed {
            return self.only_if_there(plan).await;
        }
        let mut why = Exhausted::Storage;
        for candidate in &plan.candidates {
            match self.at(candidate, plan).await? {
                Attempt::Made(volume, info) => {
                    return self.found(volume, &info, plan.only_on.clone());
                }
                Attempt::Refused(refused) => why = refused,
            }
        }
        let size = self.request.size.wanted;
        Err(no_room(
            why,
            format!("{size} on {} in {}", self.storage, self.region.name),
        ))
    }

    async fn at(&self, candidate: &Candidate, plan: &Plan) -> Result<Attempt, Error> {
        let volume = self.volume(candidate, plan)?;
        match candidate.obstacle {
            Some(Exhausted::Storage) => return Ok(Attempt::Refused(Exhausted::Storage)),
            Some(why) => return self.unless_there(volume, why).await,
            None => {}
        }
        let bounded = self.limits.max_bytes.is_some() || self.limits.max_volumes.is_some();
        if !bounded {
            return self.allocate(volume, candidate).await;
        }
        let deadline = Instant::now() + QUOTA_WAIT;
        let _turn = self.memory.turn(&volume, deadline).await?;
        match self.over_quota(&volume, candidate).await? {
            Some(why) => self.unless_there(volume, why).await,
            None => self.allocate(volume, candidate).await,
        }
    }

    fn volume(&self, candidate: &Candidate, plan: &Plan) -> Result<VolumeId, Error> {
        let zone = candidate.zone.as_ref();
        let owner = self
            .region
            .policy
            .owner_on(zone)
            .ok_or(Error::Unsupported {
                tenant: "no owner is configured for volumes there; ask the operator of Proxmox VE",
                detail: format!("owners has no entry for {zone:?}"),
            })?;
        let place = Place {
            region: self.region.name.clone(),
            pve_node: candidate.zone.clone(),
        };
        let disk = placement::disk_name(owner, plan, self.request);
        Ok(placement::volume_id(&place, self.storage, disk))
    }

    /// Refuses, unless an earlier call has made the disk: its room is then its own.
    async fn unless_there(&self, volume: VolumeId, why: Exhausted) -> Result<Attempt, Error> {
        match disk::look_closely(self.region, &volume).await {
            Ok(Presence::Present(info)) => Ok(Attempt::Made(volume, info)),
            Ok(Presence::Absent) => Ok(Attempt::Refused(why)),
            Err(source) => Err(unseen("looking for a disk of an earlier request")(source)),
        }
    }

    async fn over_quota(
        &self,
        volume: &VolumeId,
        candidate: &Candidate,
    ) -> Result<Option<Exhausted>, Error> {
        let Some(host) = candidate.hosts.first() else {
            return Ok(Some(Exhausted::Storage));
        };
        let own = volume.volid();
        let except = (volume.disk.owner(), Some(own.as_str()));
        let left = quota::left(self.region, host, self.storage, except, self.limits)
            .await
            .map_err(unseen("listing our disks"))?;
        let wanted = self.request.size.wanted;
        Ok(left.filter(|left| wanted > *left).map(|_| Exhausted::Quota))
    }

    async fn allocate(&self, volume: VolumeId, candidate: &Candidate) -> Result<Attempt, Error> {
        let (pins, name) = (&self.memory.pins, &self.request.name);
        pins.set(name, volume.clone());
        let size = self.request.size.wanted;
        let made = disk::allocate(self.region, &volume, size, &candidate.hosts).await;
        let (made_at, doing) = match made {
            Ok((host, volid)) if volid == volume.volid() => (Some(host), "looking at the new disk"),
            Ok((_, volid)) => return Err(Error::Contradiction(format!("{volume} became {volid}"))),
            Err(error) if error.kind == ErrorKind::AlreadyExists => {
                (None, "looking at the disk of an earlier request")
            }
            Err(error) if error.effect == Effect::None => {
                return self.refused(volume, error).await;
            }
            Err(error) => return Err(Error::pve("making a disk")(error)),
        };
        match disk::look_again(self.region, &volume, made_at.as_ref()).await {
            Ok(Presence::Present(info)) if made_at.is_some() => {
                self.region.guests.witness.made(volume.volid());
                self.fitting(volume, info).await
            }
            Ok(Presence::Present(info)) => Ok(Attempt::Made(volume, info)),
            Ok(Presence::Absent) => Err(Error::Contradiction(format!("{volume} is not there"))),
            Err(source) => Err(Error::Unsettled { doing, source }),
        }
    }

    /// PVE made nothing now; whether an earlier call did is looked at, unless nobody can be asked there.
    async fn refused(&self, volume: VolumeId, error: ApiError) -> Result<Attempt, Error> {
        if !disk::could_not_be_asked(&error.kind) {
            match disk::look_closely(self.region, &volume).await {
                Ok(Presence::Present(info)) => return Ok(Attempt::Made(volume, info)),
                Ok(Presence::Absent) => {}
                Err(source) => {
                    return Err(unseen("looking for a disk of an earlier request")(source));
                }
            }
        }
        self.memory.pins.clear(&self.request.name);
        refusal(error)
    }

    /// A disk that this very call has made and that PVE rounded above the limit is taken back.
    async fn fitting(&self, volume: VolumeId, info: DiskInfo) -> Result<Attempt, Error> {
        let size = self.request.size;
        if info.size < size.wanted {
            return Err(Error::Contradiction(format!(
                "{volume} has {} only",
                info.size
            )));
        }
        if size.most.is_none_or(|most| info.size <= most) {
            return Ok(Attempt::Made(volume, info));
        }
        disk::remove(self.region, &volume).await.map_err(|error| {
            Error::Contradiction(format!(
                "{volume} is too large and could not be removed: {error}"
            ))
        })?;
        self.memory.pins.clear(&self.request.name);
        Err(Error::OutOfRange(format!(
            "the storage makes volumes of {} out of this size, which is above the limit",
            info.size
        )))
    }

    /// The answer for a disk that is there, if it is what was asked for.
    fn found(
        &self,
        volume: VolumeId,
        info: &DiskInfo,
        only_on: Option<BTreeSet<PveNode>>,
    ) -> Result<Created, Error> {
        self.memory.pins.clear(&self.request.name);
        let size = self.request.size;
        if info.size < size.least || size.most.is_some_and(|most| info.size > most) {
            return Err(Error::Exists(format!(
                "a volume of this name exists with a size of {}",
                info.size
            )));
        }
        self.region.guests.sizes.saw(&volume.volid(), info.size);
        let place = |pve_node| Place {
            region: self.region.name.clone(),
            pve_node,
        };
        let places = match (&volume.pve_node, only_on) {
            (Some(host), _) => vec![place(Some(host.clone()))],
            (None, Some(hosts)) => hosts.into_iter().map(|host| place(Some(host))).collect(),
            (None, None) => vec![place(None)],
        };
        Ok(Created {
            volume,
            size: info.size,
            places,
        })
    }
}

/// What could not be observed may be there: an earlier call may have made it.
fn unseen(doing: &'static str) -> impl FnOnce(ApiError) -> Error {
    move |source| Error::Unsettled { doing, source }
}

/// PVE made nothing: the next place may do.
fn refusal(error: ApiError) -> Result<Attempt, Error> {
    match &error.kind {
        ErrorKind::NoSpace => Ok(Attempt::Refused(Exhausted::Space)),
        kind if disk::could_not_be_asked(kind) => Ok(Attempt::Refused(Exhausted::Storage)),
        _ => Err(Error::pve("making a disk")(error)),
    }
}

fn no_room(why: Exhausted, detail: String) -> Error {
    Error::Exhausted { why, detail }
}
