//! All disks of the tenant's owners, on all storages of its config and all hosts of the PVE cluster.

use std::collections::{BTreeMap, BTreeSet};

use pve_client::{Client, HostState, Presence};
use pve_model::{PveNode, Region, StorageId, VolumeId};
use pve_runtime::config::RegionPolicy;

use super::compare::{Disk, Part};
use crate::disks::{Found, Place, Search, owners};

/// What a storage has to be for so that it lists disks of VMs.
const IMAGES: &str = "images";

/// One region of the config and how it is asked.
#[derive(Debug)]
pub(super) struct Asked {
    /// Which.
    pub(super) region: Region,
    /// What of it is the tenant's.
    pub(super) policy: RegionPolicy,
    /// Asks it.
    pub(super) client: Client,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The disks.
    pub(super) disks: BTreeSet<Disk>,
    /// The storages that were read completely.
    pub(super) seen: BTreeSet<Part>,
    /// What could not be read: there may be more.
    pub(super) unseen: Vec<String>,
}

impl Scan {
    /// Looks everywhere.
    pub(super) async fn of(regions: &[Asked]) -> Self {
        let mut scan = Self::default();
        for asked in regions {
            if let Err(why) = scan.region(asked).await {
                scan.unseen.push(format!("region {}: {why}", asked.region));
            }
        }
        scan
    }

    async fn region(&mut self, asked: &Asked) -> Result<(), String> {
        let places = places(asked).await?;
        let owners = owners(&asked.policy);
        for storage in asked.policy.storages.keys() {
            let mut search = Search::default();
            match places.get(storage) {
                None => search
                    .unseen
                    .push(format!("the storage {storage} is not to be seen")),
                Some(place) => {
                    if let Err(why) = may_list(asked, storage).await {
                        search.unseen.push(why);
                    }
                    search.look(&asked.client, place, &owners).await;
                }
            }
            self.take(asked, storage, search);
        }
        for volume in &asked.policy.adopted {
            match adopted(asked, volume, &places).await {
                Ok(found) => self.disks.extend(found.map(|found| Disk {
                    region: asked.region.clone(),
                    found,
                })),
                Err(why) => self
                    .unseen
                    .push(format!("the adopted volume {volume}: {why}")),
            }
        }
        Ok(())
    }

    fn take(&mut self, asked: &Asked, storage: &StorageId, search: Search) {
        if search.unseen.is_empty() {
            self.seen.insert((asked.region.clone(), storage.clone()));
        }
        let in_region = |why: String| format!("region {}: {why}", asked.region);
        self.unseen.extend(search.unseen.into_iter().map(in_region));
        self.disks
            .extend(search.found.into_iter().map(|found| Disk {
                region: asked.region.clone(),
                found,
            }));
    }
}

/// Without it, lists leave out disks without a word.
async fn may_list(asked: &Asked, storage: &StorageId) -> Result<(), String> {
    let path = format!("/storage/{storage}");
    let held = asked
        .client
        .permissions(&path)
        .await
        .map_err(|error| format!("{path}: {error}"))?;
    if held.contains("Datastore.Allocate") {
        return Ok(());
    }
    Err(format!(
        "Datastore.Allocate on {path} is missing: not all disks are shown"
    ))
}

/// Where the storages are that can be seen.
async fn places(asked: &Asked) -> Result<BTreeMap<StorageId, Place>, String> {
    let text = |error: pve_client::ApiError| error.to_string();
    let hosts = asked.client.pve_nodes().await.map_err(text)?;
    let storages = asked.client.storages().await.map_err(text)?;
    if hosts.undecodable + storages.undecodable > 0 {
        return Err("a list of hosts or storages can't be read completely".to_owned());
    }
    let up = |host: &PveNode| {
        let found = hosts.entries.iter().find(|entry| entry.pve_node == *host);
        found.is_some_and(|entry| entry.state == HostState::Online)
    };
    let mut places: BTreeMap<StorageId, Place> = BTreeMap::new();
    for entry in storages.entries {
        if !entry.content.contains(IMAGES) {
            // It lists no disk, whatever it holds: as if it were not to be seen.
            continue;
        }
        let place = places
            .entry(entry.storage.clone())
            .or_insert_with(|| Place {
                storage: entry.storage.clone(),
                shared: entry.shared,
                hosts: Vec::new(),
            });
        let is_up = up(&entry.pve_node);
        place.hosts.push((entry.pve_node, is_up));
    }
    Ok(places)
}

async fn adopted(
    asked: &Asked,
    volume: &VolumeId,
    places: &BTreeMap<StorageId, Place>,
) -> Result<Option<Found>, String> {
    let place = places
        .get(&volume.storage)
        .ok_or("its storage is not to be seen")?;
    let at = place.of_volume(volume)?;
    let looked = asked
        .client
        .disk(&at, &volume.disk)
        .await
        .map_err(|error| error.to_string())?;
    Ok(match looked {
        Presence::Absent => None,
        Presence::Present(info) => Some(Found {
            pve_node: volume.pve_node.clone(),
            storage: volume.storage.clone(),
            disk: Some(volume.disk.clone()),
            volid: volume.volid(),
            size: Some(info.size.get()),
            made: None,
        }),
    })
}
