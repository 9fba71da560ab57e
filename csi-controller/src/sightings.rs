//! Which workers this process has seen. PVE leaves out of a list what a token may not see, so that a worker which is
//! missing in a newer list may still hold disks.
//!
//! A memory of the process: what was out of sight before it started is not known here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pve_client::VmEntry;
use pve_model::{PoolId, VmId};

use crate::inventory::Census;

/// Workers that are kept in mind. A pool has some hundred at most; those that are missing are proved gone one by one.
const MOST: usize = 4096;

/// The workers that were seen and not proved gone since, by VMID. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Sightings(Arc<Mutex<BTreeMap<VmId, VmEntry>>>);

impl Sightings {
    /// Notes the workers of a list whose entries could all be read, and tells those of the same pool that were seen
    /// earlier and have no entry in it, with the host that they were last on.
    pub fn missing(&self, census: &Census, pool: &PoolId) -> Vec<VmEntry> {
        let mut seen = self.seen();
        for guest in census.workers(pool) {
            seen.insert(guest.vmid, guest.clone());
        }
        while seen.len() > MOST {
            let lost = seen.keys().find(|vmid| census.get(**vmid).is_none());
            let Some(vmid) = lost.or(seen.keys().next()).copied() else {
                break;
            };
            tracing::warn!(%vmid, "too many workers to keep in mind; this one is forgotten");
            seen.remove(&vmid);
        }
        seen.values()
            .filter(|guest| guest.pool.as_ref() == Some(pool) && census.get(guest.vmid).is_none())
            .cloned()
            .collect()
    }

    /// The VM was proved gone.
    pub fn gone(&self, vmid: VmId) {
        self.seen().remove(&vmid);
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<VmId, VmEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pve_client::{GuestKind, RunState};
    use tokio::time::Instant;

    use super::*;

    fn census(vmids: impl IntoIterator<Item = u32>) -> Census {
        let guest = |vmid: u32| VmEntry {
            vmid: vmid.try_into().unwrap(),
            pve_node: "pve1".parse().unwrap(),
            kind: GuestKind::Qemu,
            state: RunState::Running,
            name: None,
            pool: Some("tenant-a".parse().unwrap()),
            template: false,
            lock: None,
            hastate: None,
            max_cpu: None,
            max_memory: None,
            uptime: None,
        };
        Census {
            asked: Instant::now(),
            guests: vmids.into_iter().map(guest).map(|g| (g.vmid, g)).collect(),
            undecodable: 0,
            shared: BTreeMap::default(),
            storages: Vec::new(),
            offline: BTreeSet::default(),
        }
    }

    fn missing(sightings: &Sightings, census: &Census) -> Vec<u32> {
        let pool = "tenant-a".parse().unwrap();
        let missing = sightings.missing(census, &pool);
        missing.iter().map(|guest| guest.vmid.get()).collect()
    }

    #[tokio::test]
    async fn a_worker_is_missed_until_it_is_seen_again_or_proved_gone() {
        let sightings = Sightings::default();
        assert!(missing(&sightings, &census([101, 102])).is_empty());
        assert_eq!(missing(&sightings, &census([102])), [101]);
        assert!(missing(&sightings, &census([101, 102])).is_empty());
        assert_eq!(missing(&sightings.clone(), &census([])), [101, 102]);
        sightings.gone(101.try_into().unwrap());
        assert_eq!(missing(&sightings, &census([])), [102]);
    }

    #[tokio::test]
    async fn what_is_kept_in_mind_has_a_bound() {
        let sightings = Sightings::default();
        missing(&sightings, &census(1000..5000));
        missing(&sightings, &census(5000..9000));
        assert!(sightings.seen().len() <= MOST);
    }
}
