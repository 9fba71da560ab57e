//! Where the policy's storages are, as PVE lists them.
//!
//! **Guarantees:** those who ask at the same time share one request. A storage that the list does not have is never
//! called absent while entries of it can't be read, nor if no host has it.

use std::sync::Arc;
use std::time::Duration;

use pve_client::{ApiError, Effect, ErrorKind};
use pve_model::StorageId;
use tokio::time::Instant;

use crate::placement::Seat;
use crate::region::RegionContext;

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

/// What PVE listed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Every storage of the policy on every allowed host that has it.
    seats: Vec<(StorageId, Seat)>,
    /// Entries that could not be read and may be any storage's.
    undecodable: usize,
}

/// The last list of storages: those who ask at the same time share one request, and its failure.
#[derive(Debug, Default)]
pub struct SeatList {
    last: tokio::sync::Mutex<Option<Poll>>,
}

#[derive(Debug)]
struct Poll {
    asked: Instant,
    ended: Instant,
    outcome: Result<Arc<Listed>, ApiError>,
}

impl Poll {
    /// What it says to somebody who came at `arrived`, if anything.
    fn answers(&self, age: Age, arrived: Instant) -> Option<Result<Arc<Listed>, ApiError>> {
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

impl Listed {
    /// The storage's seats, one per host. That there is none on any host is an error: PVE leaves out what the token may
    /// not see.
    pub fn of(&self, storage: &StorageId) -> Result<Vec<&Seat>, ApiError> {
        let mine: Vec<&Seat> = self
            .seats
            .iter()
            .filter(|(id, _)| id == storage)
            .map(|(_, seat)| seat)
            .collect();
        if mine.is_empty() {
            self.complete()?;
            return Err(not_listed(storage));
        }
        Ok(mine)
    }

    /// Whether what is missing in the list may be taken as absent.
    pub fn complete(&self) -> Result<(), ApiError> {
        if self.undecodable == 0 {
            return Ok(());
        }
        let detail = format!("{} storages can't be read", self.undecodable);
        Err(unlisted(ErrorKind::Decode, detail))
    }
}

/// Of a storage that no host lists, which may be for want of a right.
pub(crate) fn not_listed(storage: &StorageId) -> ApiError {
    let detail = format!(
        "no host of the policy lists {storage}: it does not exist, is disabled, or the token lacks Datastore.Audit on \
         /storage/{storage}"
    );
    unlisted(ErrorKind::StorageUnavailable, detail)
}

fn unlisted(kind: ErrorKind, detail: String) -> ApiError {
    ApiError {
        endpoint: "GET /cluster/resources",
        kind,
        effect: Effect::None,
        detail,
    }
}

/// Every storage of the policy with its seats on allowed hosts. One request at most.
pub async fn list(region: &RegionContext, age: Age) -> Result<Arc<Listed>, ApiError> {
    let arrived = Instant::now();
    let mut last = region.seats.last.lock().await;
    if let Some(outcome) = last.as_ref().and_then(|poll| poll.answers(age, arrived)) {
        return outcome;
    }
    let asked = Instant::now();
    let outcome = ask(region).await.map(Arc::new);
    let ended = Instant::now();
    *last = Some(Poll {
        asked,
        ended,
        outcome: outcome.clone(),
    });
    outcome
}

async fn ask(region: &RegionContext) -> Result<Listed, ApiError> {
    let listing = region.client.storages().await?;
    if listing.undecodable > 0 {
        tracing::warn!(
            count = listing.undecodable,
            "storages in PVE's list can't be read"
        );
    }
    let undecodable = listing.undecodable;
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
    Ok(Listed { seats, undecodable })
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
