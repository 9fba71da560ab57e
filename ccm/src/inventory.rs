//! The VMs of all PVE clusters at one instant each, and which of them a UUID means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pve_client::{GuestKind, Listing, VmEntry};
use pve_model::{PoolId, Region, Uuid, VmId};
use tokio::time::Instant;

use crate::facts::VmFacts;
use crate::ha::HaView;

/// What one PVE cluster showed.
#[derive(Debug)]
pub struct Snapshot {
    /// When PVE was asked.
    pub asked: Instant,
    /// All guests that the token sees, of whatever pool.
    pub guests: BTreeMap<VmId, VmEntry>,
    /// Entries that could not be read: with any of them nothing is absent.
    pub undecodable: usize,
    /// The workers whose config is known.
    facts: BTreeMap<VmId, Arc<VmFacts>>,
    having: BTreeMap<Uuid, Vec<VmId>>,
    unread: bool,
    /// Whether the configs of all workers were asked for; what is unread then could not be read.
    pub settled: bool,
    /// Rules or groups of HA, if they are wanted and were seen.
    pub ha: Option<Arc<HaView>>,
}

/// One PVE cluster as it is known now.
#[derive(Debug, Clone)]
pub struct RegionView {
    /// Its name.
    pub region: Region,
    /// The pool that the tenant's VMs are in.
    pub pool: PoolId,
    /// The last list that could be read.
    pub snapshot: Option<Arc<Snapshot>>,
    /// Whether the last attempt failed.
    pub failing: bool,
}

/// The VM that a UUID means.
#[derive(Debug, Clone, Copy)]
pub struct Vm<'a> {
    /// Where it is.
    pub region: &'a Region,
    /// How it is listed.
    pub entry: &'a VmEntry,
    /// What its config says.
    pub facts: &'a VmFacts,
    /// The list that shows it.
    pub snapshot: &'a Snapshot,
}

/// Why a UUID means no VM, or not surely one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doubt {
    /// Several VMs have it.
    Ambiguous,
    /// A PVE cluster has not answered yet.
    Silent,
    /// The config of some VM could not be read.
    Unread,
    /// No VM of the pools has it, as far as our tokens see.
    Unknown,
}

impl Snapshot {
    /// What a list of guests and the configs of the pool's workers say together.
    pub fn new(
        asked: Instant,
        listed: &Listing<VmEntry>,
        facts: BTreeMap<VmId, Arc<VmFacts>>,
        pool: &PoolId,
    ) -> Self {
        let mut having: BTreeMap<Uuid, Vec<VmId>> = BTreeMap::new();
        for (vmid, facts) in &facts {
            if let Some(uuid) = &facts.uuid {
                having.entry(uuid.clone()).or_default().push(*vmid);
            }
        }
        let mut workers = listed.entries.iter().filter(|guest| is_worker(guest, pool));
        Self {
            asked,
            unread: workers.any(|guest| !facts.contains_key(&guest.vmid)),
            guests: listed
                .entries
                .iter()
                .map(|guest| (guest.vmid, guest.clone()))
                .collect(),
            undecodable: listed.undecodable,
            facts,
            having,
            settled: false,
            ha: None,
        }
    }

    fn having<'a>(
        &'a self,
        uuid: &Uuid,
    ) -> impl Iterator<Item = (&'a VmEntry, &'a VmFacts)> + use<'a> {
        let vmids = self.having.get(uuid).into_iter().flatten();
        vmids.filter_map(|vmid| Some((self.guests.get(vmid)?, self.facts.get(vmid)?.as_ref())))
    }

    /// Whether a VM that is not found may hide behind what could not be read.
    fn hides(&self) -> bool {
        self.undecodable > 0 || self.unread
    }
}

impl RegionView {
    /// Whether nothing is being asked of the PVE cluster that would tell more.
    pub fn is_known(&self) -> bool {
        let snapshot = self.snapshot.as_ref();
        self.failing || snapshot.is_some_and(|snapshot| snapshot.settled)
    }

    /// Whether the whole PVE cluster was seen at that instant or later.
    pub fn shows_since(&self, since: Instant) -> bool {
        self.snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.settled && snapshot.asked >= since)
    }
}

/// Whether the guest can be a worker of the tenant.
pub fn is_worker(guest: &VmEntry, pool: &PoolId) -> bool {
    guest.pool.as_ref() == Some(pool) && guest.kind == GuestKind::Qemu && !guest.template
}

/// The one VM that has the UUID. One PVE cluster that does not answer hides no VM of another.
pub fn find<'a>(regions: &'a [RegionView], uuid: &Uuid) -> Result<Vm<'a>, Doubt> {
    let mut found = None;
    let mut doubts = BTreeSet::new();
    for view in regions {
        let Some(snapshot) = view.snapshot.as_deref() else {
            doubts.insert(Doubt::Silent);
            continue;
        };
        for (entry, facts) in snapshot.having(uuid) {
            let vm = Vm {
                region: &view.region,
                entry,
                facts,
                snapshot,
            };
            if found.replace(vm).is_some() {
                return Err(Doubt::Ambiguous);
            }
        }
        if view.failing {
            doubts.insert(Doubt::Silent);
        }
        if snapshot.hides() {
            doubts.insert(Doubt::Unread);
        }
    }
    let none = doubts.into_iter().next().unwrap_or(Doubt::Unknown);
    found.ok_or(none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, facts, uuid, view};

    #[test]
    fn a_uuid_means_the_one_vm_of_the_pool_that_has_it() {
        let one = view("r1", &[(entry(101, "pve1"), Some(facts(101)))]);
        let two = view("r2", &[(entry(201, "pve1"), Some(facts(201)))]);
        let views = [one, two];
        assert_eq!(find(&views, &uuid(201)).unwrap().region.as_str(), "r2");
        assert_eq!(find(&views, &uuid(301)).unwrap_err(), Doubt::Unknown);
    }

    #[test]
    fn a_vm_that_is_not_found_is_unknown_only_if_all_was_read() {
        let known = (entry(101, "pve1"), Some(facts(101)));
        let whole = || view("r1", std::slice::from_ref(&known));
        let unread = view("r1", &[known.clone(), (entry(102, "pve2"), None)]);
        let mut silent = whole();
        silent.snapshot = None;
        let mut failing = whole();
        failing.failing = true;
        let doubt = |view| find(&[view], &uuid(102)).unwrap_err();
        assert_eq!(doubt(unread.clone()), Doubt::Unread);
        assert_eq!(doubt(silent), Doubt::Silent);
        assert_eq!(doubt(failing), Doubt::Silent);
        assert_eq!(doubt(whole()), Doubt::Unknown);
        let found = find(std::slice::from_ref(&unread), &uuid(101)).unwrap();
        assert_eq!(found.entry.vmid.get(), 101, "others don't hide it");
    }

    #[test]
    fn a_uuid_of_two_vms_means_none() {
        let clone = VmFacts {
            uuid: Some(uuid(101)),
            ..facts(102)
        };
        let both = [
            (entry(101, "pve1"), Some(facts(101))),
            (entry(102, "pve1"), Some(clone)),
        ];
        assert_eq!(
            find(&[view("r1", &both)], &uuid(101)).unwrap_err(),
            Doubt::Ambiguous
        );
    }

    #[test]
    fn templates_containers_and_vms_of_other_pools_are_no_workers() {
        let pool = "tenant-a".parse().unwrap();
        let changes: [fn(&mut VmEntry); 3] = [
            |e| e.template = true,
            |e| e.kind = GuestKind::Lxc,
            |e| e.pool = None,
        ];
        assert!(is_worker(&entry(101, "pve1"), &pool));
        for change in changes {
            let mut other = entry(101, "pve1");
            change(&mut other);
            assert!(!is_worker(&other, &pool), "{other:?}");
        }
    }
}
