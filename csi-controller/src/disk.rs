//! Disks on storages in the domain's words: where a storage is, whether a disk is there, make one, free one.

use std::sync::Arc;
use std::time::Duration;

use pve_client::{
    ApiError, DiskInfo, Effect, ErrorKind, Presence, Started, StorageRef, TaskOutcome,
};
use pve_model::{Bytes, PveNode, StorageId, VmId, VolumeId};
use pve_runtime::config::StoragePolicy;
use tokio::time::Instant;

use crate::error::Error;
use crate::placement::{self, Seat};
use crate::region::RegionContext;

/// How long the removal of a disk may take before the sidecar has to ask again. Its time-out is 3 min.
const REMOVAL: Duration = Duration::from_secs(100);

/// How long a list of storages is shared. The numbers in it are up to 10 s old when PVE gives them.
const SHARED_FOR: Duration = Duration::from_secs(2);

/// How new a list of storages has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// What others asked for within [`SHARED_FOR`] does.
    Shared,
    /// Asked for from now on.
    New,
}

/// Every storage of the policy on every allowed host that has it.
pub type Seats = Arc<Vec<(StorageId, Seat)>>;

/// The last list of storages: those who ask at the same time share one request, and its failure.
#[derive(Debug, Default)]
pub struct SeatList {
    last: tokio::sync::Mutex<Option<Poll>>,
}

#[derive(Debug)]
struct Poll {
    asked: Instant,
    ended: Instant,
    outcome: Result<Seats, ApiError>,
}

impl Poll {
    /// What it says to somebody who came at `arrived`, if anything.
    fn answers(&self, age: Age, arrived: Instant) -> Option<Result<Seats, ApiError>> {
        let oldest = match age {
            Age::Shared => arrived.checked_sub(SHARED_FOR).unwrap_or(arrived),
            Age::New => arrived,
        };
        let good = match &self.outcome {
            Ok(_) => self.asked >= oldest,
            Err(_) => self.ended >= arrived,
        };
        good.then(|| self.outcome.clone())
    }
}

/// Where a storage is: one seat per host. One request at most.
pub async fn seats(
    region: &RegionContext,
    storage: &StorageId,
    age: Age,
) -> Result<Vec<Seat>, ApiError> {
    let all = all_seats(region, age).await?;
    let mine = all.iter().filter(|(id, _)| id == storage);
    Ok(mine.map(|(_, seat)| seat.clone()).collect())
}

/// Every storage of the policy with its seats on allowed hosts. One request at most.
pub async fn all_seats(region: &RegionContext, age: Age) -> Result<Seats, ApiError> {
    let arrived = Instant::now();
    let mut last = region.seats.last.lock().await;
    if let Some(outcome) = last.as_ref().and_then(|poll| poll.answers(age, arrived)) {
        return outcome;
    }
    let asked = Instant::now();
    let outcome = list(region).await.map(Arc::new);
    let ended = Instant::now();
    *last = Some(Poll {
        asked,
        ended,
        outcome: outcome.clone(),
    });
    outcome
}

async fn list(region: &RegionContext) -> Result<Vec<(StorageId, Seat)>, ApiError> {
    let listing = region.client.storages().await?;
    if listing.undecodable > 0 {
        tracing::warn!(
            count = listing.undecodable,
            "storages that can't be read were left out"
        );
    }
    let policy = &region.policy;
    let ours = listing.entries.into_iter().filter(|entry| {
        policy.storages.contains_key(&entry.storage) && policy.pve_nodes.contains(&entry.pve_node)
    });
    let seats: Vec<(StorageId, Seat)> = ours
        .map(|entry| (entry.storage.clone(), Seat::of(entry)))
        .collect();
    for storage in policy.storages.keys() {
        let mut hosts: Vec<&Seat> = seats
            .iter()
            .filter(|(id, _)| id == storage)
            .map(|(_, seat)| seat)
            .collect();
        hosts.sort_by_key(|seat| !seat.available);
        let hosts = hosts.into_iter().map(|seat| seat.pve_node.clone());
        region.remember_hosts(storage, hosts.collect());
    }
    Ok(seats)
}

/// Whether the disk is there. One request, more only where hosts of a shared storage don't answer. After a failure
/// nothing may be concluded from its absence: [`look_closely`].
pub async fn look(
    region: &RegionContext,
    volume: &VolumeId,
) -> Result<Presence<DiskInfo>, ApiError> {
    look_from(region, volume).await.map(|(_, found)| found)
}

/// As [`look`], where something follows from the disk's absence although no request of ours has just removed it: PVE
/// says of a directory that can't be read what it says of a missing file, so that the host must call the storage usable
/// in a list that was asked for since. One request more if the disk is not there.
pub async fn look_closely(
    region: &RegionContext,
    volume: &VolumeId,
) -> Result<Presence<DiskInfo>, ApiError> {
    let (host, found) = look_from(region, volume).await?;
    if found != Presence::Absent {
        return Ok(found);
    }
    let seats = seats(region, &volume.storage, Age::New).await?;
    if seats
        .iter()
        .any(|seat| seat.pve_node == host && seat.available)
    {
        return Ok(Presence::Absent);
    }
    Err(not_usable(format!(
        "{host} shows no disk and does not call the storage usable"
    )))
}

/// What the first host says that can speak for the storage, and which one that is.
async fn look_from(
    region: &RegionContext,
    volume: &VolumeId,
) -> Result<(PveNode, Presence<DiskInfo>), ApiError> {
    let mut hosts = Hosts::of(region.hosts_of(volume), volume);
    loop {
        let at = hosts.next()?;
        let answer = region.client.disk(&at, &volume.disk).await;
        if let Some(answer) = hosts.decisive(answer) {
            return answer.map(|found| (at.pve_node, found));
        }
    }
}

fn not_usable(detail: String) -> ApiError {
    ApiError {
        endpoint: "none",
        kind: ErrorKind::StorageUnavailable,
        effect: Effect::None,
        detail,
    }
}

/// What the quota of a storage leaves beside the owner's disks, except the one (`<storage>:<disk>`) that is asked
/// about; `None` is no bound. One request; a node-local storage is counted host by host.
pub async fn quota_left(
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

/// Makes the disk: PVE rounds up to its own unit, so its real size has to be read afterwards. One request.
pub async fn allocate(
    region: &RegionContext,
    volume: &VolumeId,
    size: Bytes,
    hosts: &[PveNode],
) -> Result<String, ApiError> {
    let mut hosts = Hosts::of(hosts.to_vec(), volume);
    loop {
        let at = hosts.next()?;
        let answer = region.client.allocate_disk(&at, &volume.disk, size).await;
        if let Some(answer) = hosts.decisive(answer) {
            return answer;
        }
    }
}

/// Frees the disk and proves that it is gone: PVE answers "removed" on the wrong host too, and asks nobody whether
/// it is in use, which is for the caller to know. Two requests and the polls of a task.
pub async fn remove(region: &RegionContext, volume: &VolumeId) -> Result<(), Error> {
    let outcome = match free(region, volume).await {
        Ok(Started::Done) => Ok(()),
        Ok(Started::Running(upid)) => finished(region, &upid).await,
        Err(error) => Err(removal_error(error)),
    };
    match outcome {
        Ok(()) => match look(region, volume).await {
            Ok(Presence::Absent) => Ok(()),
            Ok(Presence::Present(_)) => Err(Error::Contradiction(format!(
                "{volume} was removed and is still there"
            ))),
            Err(source) => Err(Error::Unsettled {
                doing: "looking whether the disk is gone",
                source,
            }),
        },
        // A removal that failed because an earlier one had just succeeded is no failure.
        Err(error @ Error::StorageBusy(_)) => match look_closely(region, volume).await {
            Ok(Presence::Absent) => Ok(()),
            Ok(Presence::Present(_)) | Err(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

async fn free(region: &RegionContext, volume: &VolumeId) -> Result<Started, ApiError> {
    let mut hosts = Hosts::of(region.hosts_of(volume), volume);
    loop {
        let at = hosts.next()?;
        let answer = region.client.delete_disk(&at, &volume.disk).await;
        if let Some(answer) = hosts.decisive(answer) {
            return answer;
        }
    }
}

async fn finished(region: &RegionContext, upid: &pve_client::Upid) -> Result<(), Error> {
    let deadline = Instant::now() + REMOVAL;
    let outcome = region
        .client
        .wait_task(upid, deadline)
        .await
        .map_err(Error::pve("waiting for the removal of a disk"))?;
    match outcome {
        TaskOutcome::Ok | TaskOutcome::Warnings(_) => Ok(()),
        TaskOutcome::Failed(text) => Err(Error::StorageBusy(text)),
        TaskOutcome::Unknown => Err(Error::StillRunning("removal, outcome unknown".to_owned())),
        TaskOutcome::StillRunning => Err(Error::StillRunning("removal".to_owned())),
    }
}

fn removal_error(source: ApiError) -> Error {
    match source.kind {
        ErrorKind::Busy | ErrorKind::TaskFailed => Error::StorageBusy(source.to_string()),
        _ => Error::Pve {
            doing: "removing a disk",
            source,
        },
    }
}

/// The hosts that may speak for a storage, in order, until one can.
struct Hosts<'a> {
    left: std::vec::IntoIter<PveNode>,
    storage: &'a StorageId,
    last: Option<ApiError>,
}

impl<'a> Hosts<'a> {
    fn of(hosts: Vec<PveNode>, volume: &'a VolumeId) -> Self {
        Self {
            left: hosts.into_iter(),
            storage: &volume.storage,
            last: None,
        }
    }

    /// Whom to ask now; what the last one said if there is nobody left.
    fn next(&mut self) -> Result<StorageRef, ApiError> {
        match self.left.next() {
            Some(pve_node) => Ok(StorageRef {
                pve_node,
                storage: self.storage.clone(),
            }),
            None => Err(self
                .last
                .take()
                .unwrap_or_else(|| not_usable("no host to ask".to_owned()))),
        }
    }

    /// The answer, unless it only says that this host could not be asked, which changed nothing.
    fn decisive<T>(&mut self, answer: Result<T, ApiError>) -> Option<Result<T, ApiError>> {
        match answer {
            Err(error) if error.effect == Effect::None && could_not_be_asked(&error.kind) => {
                self.last = Some(error);
                None
            }
            answer => Some(answer),
        }
    }
}

/// Whether the answer only says that this host can't speak for the storage.
pub fn could_not_be_asked(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::HostUnreachable | ErrorKind::HostUnknown | ErrorKind::StorageUnavailable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_is_shared_while_it_is_new_and_a_failure_with_those_who_waited_only() {
        let asked = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        let ended = Instant::now();
        let failure = ApiError {
            endpoint: "GET /cluster/resources",
            kind: ErrorKind::Unreachable,
            effect: Effect::None,
            detail: String::new(),
        };
        let list = Poll {
            asked,
            ended,
            outcome: Ok(Arc::default()),
        };
        let failed = Poll {
            asked,
            ended,
            outcome: Err(failure),
        };
        for (sentence, poll, age, seconds, answers) in [
            ("one who came before", &list, Age::Shared, 0, true),
            ("one who came a little later", &list, Age::Shared, 2, true),
            ("one who came too late", &list, Age::Shared, 3, false),
            (
                "one who came before and wants it new",
                &list,
                Age::New,
                0,
                true,
            ),
            (
                "one who came later and wants it new",
                &list,
                Age::New,
                1,
                false,
            ),
            (
                "one who waited for a failure",
                &failed,
                Age::Shared,
                1,
                true,
            ),
            (
                "one who came after a failure",
                &failed,
                Age::Shared,
                2,
                false,
            ),
        ] {
            let arrived = asked + Duration::from_secs(seconds);
            assert_eq!(poll.answers(age, arrived).is_some(), answers, "{sentence}");
        }
    }
}
