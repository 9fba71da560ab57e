//! What the process knows about its regions: client, policy, inventory; and which volumes are ours.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pve_client::Client;
use pve_model::{PveNode, Region, StorageId, VolumeId};
use pve_region::{Connection, Fences};
use pve_runtime::config::{RegionPolicy, StoragePolicy};

use crate::error::{Error, Foreign};
use crate::guests::Guests;
use crate::inventory::Inventory;
use crate::quota::Rights;
use crate::seats::SeatList;

/// One PVE cluster.
#[derive(Debug)]
pub struct RegionContext {
    /// The name in handles and labels.
    pub name: Region,
    /// Its API.
    pub client: Client,
    /// What the client was made of, if by the config.
    pub(crate) connection: Option<Connection>,
    /// What the operator allows there.
    pub policy: RegionPolicy,
    /// Its guests.
    pub inventory: Inventory,
    /// Locks and memory of its VMs.
    pub guests: Guests,
    /// What the operator states of its hosts and VMs.
    pub fences: Fences,
    /// Its storages, as PVE last listed them.
    pub(crate) seats: SeatList,
    /// What the token was seen to have the right to list.
    pub(crate) rights: Rights,
    /// Hosts that had a storage when PVE was last asked, the usable ones first. A hint for whom to ask about shared
    /// storage; nothing is concluded from it.
    storage_hosts: Mutex<BTreeMap<StorageId, Vec<PveNode>>>,
}

/// All regions of the config.
#[derive(Debug)]
pub struct Driver {
    regions: BTreeMap<Region, Arc<RegionContext>>,
}

// === impl RegionContext ===

impl RegionContext {
    /// A region whose guests are not known yet.
    pub fn new(name: Region, client: Client, policy: RegionPolicy, inventory: Inventory) -> Self {
        Self {
            name,
            client,
            connection: None,
            policy,
            inventory,
            guests: Guests::default(),
            fences: Fences::default(),
            seats: SeatList::default(),
            rights: Rights::default(),
            storage_hosts: Mutex::default(),
        }
    }

    /// The same with what the tenant's API server may say about its Nodes.
    #[must_use]
    pub fn with_guests(mut self, guests: Guests) -> Self {
        self.guests = guests;
        self
    }

    /// The same with what the operator states of its hosts and VMs.
    #[must_use]
    pub fn with_fences(mut self, fences: Fences) -> Self {
        self.fences = fences;
        self
    }

    /// Refuses a volume that the policy does not give us. `service` calls it before any verb.
    pub fn check_ours(&self, volume: &VolumeId) -> Result<(), Error> {
        let refuse = |why| {
            Err(Error::Foreign {
                volume: volume.to_string(),
                why,
            })
        };
        if volume.region != self.name {
            return refuse(Foreign::Region);
        }
        if !self.policy.storages.contains_key(&volume.storage) {
            return refuse(Foreign::Storage);
        }
        if let Some(pve_node) = &volume.pve_node
            && !self.policy.pve_nodes.contains(pve_node)
        {
            return refuse(Foreign::PveNode);
        }
        if !self.policy.is_owner(volume.disk.owner()) && !self.policy.adopted.contains(volume) {
            return refuse(Foreign::Owner);
        }
        Ok(())
    }

    /// The bounds of a storage that the policy names.
    pub fn storage_policy(&self, storage: &StorageId) -> Option<&StoragePolicy> {
        self.policy.storages.get(storage)
    }

    /// Whom to ask about a disk: the host in the handle, or for shared storage every allowed host, the one that is
    /// likeliest to answer first.
    pub fn hosts_of(&self, volume: &VolumeId) -> Vec<PveNode> {
        if let Some(pve_node) = &volume.pve_node {
            return vec![pve_node.clone()];
        }
        let hints = self
            .storage_hosts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut hosts = hints.get(&volume.storage).cloned().unwrap_or_default();
        hosts.retain(|host| self.policy.pve_nodes.contains(host));
        for host in &self.policy.pve_nodes {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        hosts
    }

    /// Remembers which hosts have a storage.
    pub(crate) fn remember_hosts(&self, storage: &StorageId, hosts: Vec<PveNode>) {
        self.storage_hosts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(storage.clone(), hosts);
    }
}

// === impl Driver ===

impl Driver {
    /// The regions of a config.
    pub fn new(regions: impl IntoIterator<Item = RegionContext>) -> Self {
        Self {
            regions: regions
                .into_iter()
                .map(|region| (region.name.clone(), Arc::new(region)))
                .collect(),
        }
    }

    /// The same of regions that are shared.
    pub(crate) fn of(regions: impl IntoIterator<Item = Arc<RegionContext>>) -> Self {
        let named = |region: Arc<RegionContext>| (region.name.clone(), region);
        Self {
            regions: regions.into_iter().map(named).collect(),
        }
    }

    /// Whether the regions are the very ones that `other` has.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let pairs = self.regions.values().zip(other.regions.values());
        self.regions.len() == other.regions.len()
            && pairs
                .into_iter()
                .all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// The region of that name.
    pub fn region(&self, name: &Region) -> Option<Arc<RegionContext>> {
        self.regions.get(name).map(Arc::clone)
    }

    /// All regions, by name.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<RegionContext>> {
        self.regions.values()
    }

    /// The region of a volume that is ours by policy.
    pub fn region_of(&self, volume: &VolumeId) -> Result<Arc<RegionContext>, Error> {
        let region = self.region(&volume.region).ok_or_else(|| Error::Foreign {
            volume: volume.to_string(),
            why: Foreign::Region,
        })?;
        region.check_ours(volume)?;
        Ok(region)
    }
}
