//! Disks of an owner on storages, and what of them could not be seen. An empty list means something only if nothing is
//! unseen.

use std::collections::BTreeSet;

use pve_client::{Client, StorageRef};
use pve_model::{DiskName, PveNode, StorageId, VmId, VolumeId};
use pve_runtime::config::RegionPolicy;

/// A storage and the hosts that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its id.
    pub(crate) storage: StorageId,
    /// Whether all hosts see the same disks there.
    pub(crate) shared: bool,
    /// The hosts that have it, each with whether it is up.
    pub(crate) hosts: Vec<(PveNode, bool)>,
}

impl Place {
    /// Where a volume on it is to be asked for; an error if nobody who is up can be asked.
    pub(crate) fn of_volume(&self, volume: &VolumeId) -> Result<StorageRef, &'static str> {
        let mut up = self
            .hosts
            .iter()
            .filter(|(_, up)| *up)
            .map(|(host, _)| host);
        let host = match &volume.pve_node {
            Some(host) => up.find(|up| *up == host),
            None => up.next(),
        };
        Ok(StorageRef {
            pve_node: host.ok_or("no host that has its storage is up")?.clone(),
            storage: volume.storage.clone(),
        })
    }
}

/// The owners in whose name disks may have been made.
pub(crate) fn owners(policy: &RegionPolicy) -> BTreeSet<VmId> {
    let all = policy
        .owners
        .default
        .iter()
        .chain(policy.owners.per_node.values());
    all.copied().collect()
}

/// A disk that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    /// The host whose it is; none of what all hosts share.
    pub(crate) pve_node: Option<PveNode>,
    /// Its storage.
    pub(crate) storage: StorageId,
    /// Its name there, if it is one of ours.
    pub(crate) disk: Option<DiskName>,
    /// `<storage>:<disk>`.
    pub(crate) volid: String,
    /// Its size in bytes.
    pub(crate) size: Option<u64>,
    /// When it was made, in seconds since 1970, if its storage knows.
    pub(crate) made: Option<u64>,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// The disks.
    pub(crate) found: BTreeSet<Found>,
    /// What could not be read: there may be more.
    pub(crate) unseen: Vec<String>,
}

impl Search {
    /// Looks for disks of these owners on a storage: on each host that has it, or on the first that answers if they
    /// share it.
    pub(crate) async fn look(&mut self, client: &Client, place: &Place, owners: &BTreeSet<VmId>) {
        let storage = &place.storage;
        if place.hosts.is_empty() {
            self.unseen
                .push(format!("no host has the storage {storage}"));
        }
        let mut failed = Vec::new();
        for (host, up) in &place.hosts {
            if !up {
                failed.push(format!("{host} is not up, which has the storage {storage}"));
                continue;
            }
            match self.on_host(client, (host, place), owners).await {
                // The others would say the same.
                Ok(()) if place.shared => return,
                Ok(()) => {}
                Err(why) => failed.push(why),
            }
        }
        self.unseen.extend(failed);
    }

    async fn on_host(
        &mut self,
        client: &Client,
        (host, place): (&PveNode, &Place),
        owners: &BTreeSet<VmId>,
    ) -> Result<(), String> {
        let at = StorageRef {
            pve_node: host.clone(),
            storage: place.storage.clone(),
        };
        let mut found = BTreeSet::new();
        for owner in owners {
            let listing = client.disks_of(&at, *owner).await;
            let listing =
                listing.map_err(|error| format!("{} on {host}: {error}", place.storage))?;
            if listing.undecodable > 0 {
                let some = listing.undecodable;
                return Err(format!(
                    "{some} disks on {} of {host} can't be read",
                    place.storage
                ));
            }
            found.extend(listing.entries.into_iter().map(|entry| Found {
                pve_node: (!place.shared).then(|| host.clone()),
                storage: place.storage.clone(),
                disk: disk(&place.storage, &entry.volid),
                volid: entry.volid,
                size: entry.size.map(pve_model::Bytes::get),
                made: entry.made,
            }));
        }
        self.found.extend(found);
        Ok(())
    }
}

fn disk(storage: &StorageId, volid: &str) -> Option<DiskName> {
    let (on, name) = volid.split_once(':')?;
    (on == storage.as_str())
        .then(|| name.parse().ok())
        .flatten()
}

impl Found {
    /// For the operator.
    pub(crate) fn describe(&self) -> String {
        match &self.pve_node {
            Some(host) => format!("{} on {host}", self.volid),
            None => self.volid.clone(),
        }
    }
}
