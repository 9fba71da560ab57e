//! Disks on storages in the domain's words: whether a disk is there, make one, free one.

use std::time::Duration;

use pve_client::{
    ApiError, DiskInfo, Effect, ErrorKind, Presence, Started, StorageRef, TaskOutcome,
};
use pve_model::{Bytes, PveNode, StorageId, VolumeId};
use tokio::time::Instant;

use crate::error::Error;
use crate::region::RegionContext;
use crate::seats::{self, Age};

/// How long the removal of a disk may take before the sidecar has to ask again. Its time-out is 3 min.
const REMOVAL: Duration = Duration::from_secs(100);

/// Whether the disk is there. One request, more only where hosts of a shared storage don't answer. After a failure
/// nothing may be concluded from its absence: [`look_closely`].
pub async fn look(
    region: &RegionContext,
    volume: &VolumeId,
) -> Result<Presence<DiskInfo>, ApiError> {
    look_from(region, volume, None)
        .await
        .map(|(_, found)| found)
}

/// As [`look`]; `first` has just answered for the storage and is asked before the others.
pub async fn look_again(
    region: &RegionContext,
    volume: &VolumeId,
    first: Option<&PveNode>,
) -> Result<Presence<DiskInfo>, ApiError> {
    look_from(region, volume, first)
        .await
        .map(|(_, found)| found)
}

/// As [`look`], where something follows from the disk's absence although no request of ours has just removed it: PVE
/// says of a directory that can't be read what it says of a missing file, so that the host must call the storage usable
/// in a list that was asked for since. One request more if the disk is not there.
pub async fn look_closely(
    region: &RegionContext,
    volume: &VolumeId,
) -> Result<Presence<DiskInfo>, ApiError> {
    let (host, found) = look_from(region, volume, None).await?;
    if found != Presence::Absent {
        return Ok(found);
    }
    let listed = seats::list(region, Age::New).await?;
    if listed
        .of(&volume.storage)?
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
    first: Option<&PveNode>,
) -> Result<(PveNode, Presence<DiskInfo>), ApiError> {
    let mut all = region.hosts_of(volume);
    all.sort_by_key(|host| Some(host) != first);
    let mut hosts = Hosts::of(all, volume);
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

/// Makes the disk, and says which host did it and how PVE calls it: PVE rounds up to its own unit, so its real size has
/// to be read afterwards. One request.
pub async fn allocate(
    region: &RegionContext,
    volume: &VolumeId,
    size: Bytes,
    hosts: &[PveNode],
) -> Result<(PveNode, String), ApiError> {
    let mut hosts = Hosts::of(hosts.to_vec(), volume);
    loop {
        let at = hosts.next()?;
        let answer = region.client.allocate_disk(&at, &volume.disk, size).await;
        if let Some(answer) = hosts.decisive(answer) {
            return answer.map(|volid| (at.pve_node, volid));
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
        Err(error) if of_the_work(&error) => match look_closely(region, volume).await {
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
        TaskOutcome::Failed(text) => Err(removal_error(ApiError::of_task(&text))),
        TaskOutcome::Unknown => Err(Error::StillRunning("removal, outcome unknown".to_owned())),
        TaskOutcome::StillRunning => Err(Error::StillRunning("removal".to_owned())),
    }
}

/// Whether the removal was begun and failed, so that the disk decides.
fn of_the_work(error: &Error) -> bool {
    match error {
        Error::StorageBusy(_) => true,
        Error::Pve { source, .. } => source.kind == ErrorKind::TaskFailed,
        _ => false,
    }
}

fn removal_error(source: ApiError) -> Error {
    match source.kind {
        ErrorKind::Busy => Error::StorageBusy(source.to_string()),
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
