//! The probe's disk on Proxmox VE, by the controller's config.

use std::path::Path;

use pve_client::Writes;
use pve_client::metrics::Metrics;
use pve_client::storage::{Presence, StorageRef};
use pve_model::{PveNode, VolumeId};
use pve_region::Connection;
use pve_runtime::Config;
use pve_runtime::config::ConfigError;

/// The PVE clusters of a config.
#[derive(Debug)]
pub(super) struct Pve(Config);

impl Pve {
    pub(super) fn load(path: &Path, policy: Option<&Path>) -> Result<Self, ConfigError> {
        Config::load(path, policy).map(Self)
    }

    /// The disk of a handle is there, in the name of the owner that the policy names; what is told of it.
    pub(super) async fn is_there(&self, handle: &str) -> Result<String, String> {
        let (connection, at, id) = self.place(handle)?;
        let owner = id.disk.owner();
        let listed = connection.client.disks_of(&at, owner).await;
        let listed = listed.map_err(|error| format!("Proxmox VE can't tell: {error}"))?;
        let volid = id.volid();
        let entry = listed.entries.iter().find(|entry| entry.volid == volid);
        let entry = entry.ok_or_else(|| {
            format!(
                "{volid} is not among the disks of {owner} that the token sees on {}",
                at.pve_node
            )
        })?;
        match entry.owner {
            Some(is) if is == owner => Ok(format!("{volid}, owner {owner}")),
            Some(is) => Err(format!("{volid} belongs to {is} instead of {owner}")),
            None => Err(format!("Proxmox VE names no owner of {volid}")),
        }
    }

    /// Whether the disk of a handle is gone; a look that fails tells nothing.
    pub(super) async fn is_gone(&self, handle: &str) -> Result<bool, String> {
        let (connection, at, id) = self.place(handle)?;
        match connection.client.disk(&at, &id.disk).await {
            Ok(Presence::Absent) => Ok(true),
            Ok(Presence::Present(_)) => Ok(false),
            Err(error) => Err(format!("Proxmox VE can't tell: {error}")),
        }
    }

    /// Where the disk of a handle is looked for. The tenant wrote the handle: one that is not of this config is not asked about.
    fn place(&self, handle: &str) -> Result<(Connection, StorageRef, VolumeId), String> {
        let id: VolumeId = handle
            .parse()
            .map_err(|error| format!("the volume's handle: {error}"))?;
        let region = self.0.regions.get(&id.region);
        let region = region.ok_or_else(|| format!("the config has no region {}", id.region))?;
        let policy = &region.policy;
        if !policy.storages.contains_key(&id.storage) {
            return Err(format!(
                "the policy does not list the storage {}",
                id.storage
            ));
        }
        let owner = policy.owner_on(id.pve_node.as_ref());
        if owner != Some(id.disk.owner()) {
            return Err(format!(
                "the owner {} of the disk is not that of the policy",
                id.disk.owner()
            ));
        }
        let listed = |name: &PveNode| policy.pve_nodes.contains(name);
        let pve_node = match &id.pve_node {
            Some(name) => Some(name).filter(|name| listed(name)),
            None => policy.pve_nodes.first(),
        };
        let pve_node = pve_node.ok_or("the policy does not list the PVE node of the disk")?;
        let at = StorageRef {
            pve_node: pve_node.clone(),
            storage: id.storage.clone(),
        };
        // A look must not change anything, whatever the token may.
        let reads = Writes::only_while(|| false);
        let connection = Connection::new(region, None, &Metrics::default(), &reads);
        let connection = connection.map_err(|error| error.to_string())?;
        Ok((connection, at, id))
    }
}
