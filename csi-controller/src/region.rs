//! What the process knows about its regions: client, policy, inventory; and which volumes are ours.

use std::collections::BTreeMap;
use std::sync::Arc;

use pve_client::Client;
use pve_model::{Region, VmId, VolumeId, PveNode};
use pve_runtime::config::RegionPolicy;

use crate::error::{Error, Foreign};
use crate::inventory::Inventory;

/// One PVE cluster.
#[derive(Debug)]
pub struct RegionContext {
    /// The name in handles and labels.
    pub name: Region,
    /// Its API.
    pub client: Client,
    /// What the operator allows there.
    pub policy: RegionPolicy,
    /// Its guests.
    pub inventory: Inventory,
}

/// All regions of the config.
#[derive(Debug)]
pub struct Driver {
    regions: BTreeMap<Region, Arc<RegionContext>>,
}

impl RegionContext {
    /// The VMID in the names of our disks on that PVE node, or on shared storage.
    pub fn owner(&self, pve_node: Option<&PveNode>) -> Option<VmId> {
        pve_node
            .and_then(|pve_node| self.policy.owners.per_node.get(pve_node))
            .copied()
            .or(self.policy.owners.default)
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
        let owner = self.owner(volume.pve_node.as_ref());
        if owner != Some(volume.disk.owner()) && !self.policy.adopted.contains(volume) {
            return refuse(Foreign::Owner);
        }
        Ok(())
    }
}

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

    /// The region of that name.
    pub fn region(&self, name: &Region) -> Option<Arc<RegionContext>> {
        self.regions.get(name).map(Arc::clone)
    }

    /// All regions, by name.
    pub fn regions(&self) -> impl Iterator<Item = &Arc<RegionContext>> {
        self.regions.values()
    }
}
