//! The guests of a region: one poll of `/cluster/resources` whoever asks, and which UUID was last read in which VM.
//!
//! The list is shared for [`FRESH`]; that a VM is missing in it counts only if it was asked for after the question came
//! up. The UUID index is a hint: the VM's config is read again by whoever acts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use pve_client::{ApiError, Client, GuestKind, StorageEntry, VmEntry};
use pve_model::{PoolId, PveNode, StorageId, Uuid, VmId};
use pve_runtime::config::RegionPolicy;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::error::Error;

/// How long a list is shared.
const FRESH: Duration = Duration::from_secs(2);

/// How new the list has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Up to [`FRESH`] old.
    Recent,
    /// Asked for at that instant or later.
    Since(Instant),
}

/// All guests that the token sees, at one instant.
#[derive(Debug)]
pub struct Census {
    /// When PVE was asked.
    pub asked: Instant,
    /// The guests.
    pub guests: BTreeMap<VmId, VmEntry>,
    /// Entries that could not be read: with any of them, nothing may be taken as absent.
    pub undecodable: usize,
    /// The storages that are seen, and whether all hosts share them.
    pub shared: BTreeMap<StorageId, bool>,
    /// The storages that are seen, once per host, with their free space of up to 10 s ago.
    pub storages: Vec<StorageEntry>,
    /// The hosts that PVE takes for dead: a hint.
    pub offline: BTreeSet<PveNode>,
}

/// The guests of one region.
pub struct Inventory {
    client: Client,
    pool: PoolId,
    last: Mutex<Option<Poll>>,
    index: StdMutex<UuidIndex>,
}

/// The last poll: whoever waited for it shares its outcome, a failure too.
struct Poll {
    ended: Instant,
    outcome: Result<Arc<Census>, ApiError>,
}

/// Which UUID was last read in which VM.
#[derive(Debug, Default)]
struct UuidIndex {
    known: BTreeMap<VmId, Known>,
}

#[derive(Debug, PartialEq, Eq)]
struct Known {
    name: Option<String>,
    host: PveNode,
    uuid: Option<Uuid>,
}

impl Census {
    /// The guest of that number.
    pub fn get(&self, vmid: VmId) -> Option<&VmEntry> {
        self.guests.get(&vmid)
    }

    /// The VMs of the pool that can run. A pool that can't be seen (no `Pool.Audit`) has none.
    pub fn workers(&self, pool: &PoolId) -> impl Iterator<Item = &VmEntry> {
        self.guests.values().filter(move |guest| {
            guest.pool.as_ref() == Some(pool) && guest.kind == GuestKind::Qemu && !guest.template
        })
    }
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl Inventory {
    /// Asks nothing yet.
    pub fn new(client: Client, policy: &RegionPolicy) -> Self {
        Self {
            client,
            pool: policy.pool.clone(),
            last: Mutex::new(None),
            index: StdMutex::default(),
        }
    }

    /// The guests. Those who ask at the same time share one request, and its failure.
    pub async fn vms(&self, freshness: Freshness) -> Result<Arc<Census>, Error> {
        let arrived = Instant::now();
        let mut last = self.last.lock().await;
        if let Some(poll) = last.as_ref()
            && let Some(outcome) = poll.answers(freshness, arrived)
        {
            return outcome.map_err(Error::pve(LISTING));
        }
        let asked = Instant::now();
        let outcome = self.client.resources().await.map(|seen| {
            let shared = seen.shared();
            let guests = seen.guests.entries.into_iter();
            let storages = seen.storages.entries;
            Arc::new(Census {
                asked,
                guests: guests.map(|guest| (guest.vmid, guest)).collect(),
                undecodable: seen.guests.undecodable,
                shared,
                storages,
                offline: seen.offline,
            })
        });
        if let Ok(census) = &outcome {
            self.index().forget_others(census);
        }
        *last = Some(Poll {
            ended: Instant::now(),
            outcome: outcome.clone(),
        });
        outcome.map_err(Error::pve(LISTING))
    }

    /// The pool that the tenant's VMs are in.
    pub fn pool(&self) -> &PoolId {
        &self.pool
    }

    /// Remembers the UUID that was read in a VM's config.
    pub fn note(&self, guest: &VmEntry, uuid: Option<Uuid>) {
        self.index().note(guest, uuid);
    }

    /// The VMs of the pool that have the UUID, as far as they were read.
    pub fn having(&self, uuid: &Uuid) -> BTreeSet<VmId> {
        self.index().having(uuid)
    }

    /// The guests whose UUID is not known: new ones, moved and renamed ones.
    pub fn unread<'a>(&self, guests: impl Iterator<Item = &'a VmEntry>) -> Vec<VmEntry> {
        let index = self.index();
        guests
            .filter(|guest| !index.knows(guest))
            .cloned()
            .collect()
    }

    fn index(&self) -> MutexGuard<'_, UuidIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const LISTING: &str = "listing the guests";

impl Poll {
    fn answers(
        &self,
        freshness: Freshness,
        arrived: Instant,
    ) -> Option<Result<Arc<Census>, ApiError>> {
        match &self.outcome {
            Ok(census) => {
                let since = match freshness {
                    Freshness::Recent => arrived.checked_sub(FRESH).unwrap_or(census.asked),
                    Freshness::Since(instant) => instant,
                };
                (census.asked >= since).then(|| Ok(Arc::clone(census)))
            }
            Err(error) => (self.ended >= arrived).then(|| Err(error.clone())),
        }
    }
}

impl UuidIndex {
    fn knows(&self, guest: &VmEntry) -> bool {
        self.known.get(&guest.vmid).is_some_and(|known| {
            // The name is missing for some seconds after a VM was made and after a host's services start: without it
            // an entry may be another VM of the same VMID.
            known.host == guest.pve_node && known.name == guest.name
        })
    }

    fn note(&mut self, guest: &VmEntry, uuid: Option<Uuid>) {
        let known = Known {
            name: guest.name.clone(),
            host: guest.pve_node.clone(),
            uuid,
        };
        self.known.insert(guest.vmid, known);
    }

    fn having(&self, uuid: &Uuid) -> BTreeSet<VmId> {
        self.known
            .iter()
            .filter(|(_, known)| known.uuid.as_ref() == Some(uuid))
            .map(|(vmid, _)| *vmid)
            .collect()
    }

    fn forget_others(&mut self, census: &Census) {
        self.known
            .retain(|vmid, _| census.guests.contains_key(vmid));
    }
}

#[cfg(test)]
mod tests {
    use pve_client::RunState;

    use super::*;

    fn guest(vmid: u32, host: &str, name: Option<&str>) -> VmEntry {
        VmEntry {
            vmid: vmid.try_into().unwrap(),
            pve_node: host.parse().unwrap(),
            kind: GuestKind::Qemu,
            state: RunState::Running,
            name: name.map(str::to_owned),
            pool: Some("tenant-a".parse().unwrap()),
            template: false,
            lock: None,
            hastate: None,
            max_cpu: None,
            max_memory: None,
            uptime: None,
        }
    }

    fn census(guests: &[VmEntry]) -> Census {
        Census {
            asked: Instant::now(),
            guests: guests
                .iter()
                .map(|guest| (guest.vmid, guest.clone()))
                .collect(),
            undecodable: 0,
            shared: BTreeMap::new(),
            storages: Vec::new(),
            offline: BTreeSet::new(),
        }
    }

    #[test]
    fn only_vms_that_are_new_moved_or_renamed_are_read_again() {
        let uuid: Uuid = "abcdef00-1111-2222-3333-444455556666".parse().unwrap();
        let mut index = UuidIndex::default();
        index.note(&guest(100, "pve1", Some("worker-a")), Some(uuid.clone()));
        index.note(&guest(101, "pve1", Some("worker-b")), None);
        for (sentence, asked, known) in [
            (
                "a VM that was read",
                guest(100, "pve1", Some("worker-a")),
                true,
            ),
            (
                "a VM without UUID is known as such",
                guest(101, "pve1", Some("worker-b")),
                true,
            ),
            (
                "a VM whose name PVE does not know yet",
                guest(100, "pve1", None),
                false,
            ),
            (
                "a VM that moved",
                guest(100, "pve2", Some("worker-a")),
                false,
            ),
            (
                "a VMID that was given to another VM",
                guest(100, "pve1", Some("worker-c")),
                false,
            ),
            ("a new VM", guest(102, "pve1", Some("worker-d")), false),
        ] {
            assert_eq!(index.knows(&asked), known, "{sentence}");
        }
        index.forget_others(&census(&[guest(101, "pve1", Some("worker-b"))]));
        assert!(
            index.having(&uuid).is_empty(),
            "a VM that left the list is forgotten"
        );
    }

    #[test]
    fn two_vms_of_one_uuid_are_both_found() {
        let uuid: Uuid = "abcdef00-1111-2222-3333-444455556666".parse().unwrap();
        let mut index = UuidIndex::default();
        index.note(&guest(100, "pve1", None), Some(uuid.clone()));
        index.note(&guest(101, "pve2", None), Some(uuid.clone()));
        assert_eq!(index.having(&uuid).len(), 2);
    }

    #[test]
    fn workers_are_the_vms_of_the_pool_that_can_run() {
        let pool: PoolId = "tenant-a".parse().unwrap();
        let mut others = [
            guest(100, "pve1", None),
            guest(101, "pve1", None),
            guest(102, "pve1", None),
            guest(103, "pve1", None),
        ];
        others[1].template = true;
        others[2].kind = GuestKind::Lxc;
        others[3].pool = None;
        let census = census(&others);
        let seen: Vec<u32> = census
            .workers(&pool)
            .map(|guest| guest.vmid.get())
            .collect();
        assert_eq!(seen, [100]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_counts_as_long_as_it_is_fresh_and_a_failure_only_for_those_who_waited() {
        let asked = Instant::now();
        let ok = Poll {
            ended: asked,
            outcome: Ok(Arc::new(census(&[]))),
        };
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert!(ok.answers(Freshness::Recent, Instant::now()).is_some());
        assert!(
            ok.answers(Freshness::Since(asked), Instant::now())
                .is_some()
        );
        assert!(
            ok.answers(Freshness::Since(Instant::now()), Instant::now())
                .is_none(),
            "absence needs a newer list"
        );
        tokio::time::advance(Duration::from_millis(600)).await;
        assert!(ok.answers(Freshness::Recent, Instant::now()).is_none());
    }
}
