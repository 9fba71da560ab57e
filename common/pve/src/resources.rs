//! The whole inventory in one request: guests, and which storages are shared.

use std::collections::{BTreeMap, BTreeSet};

use pve_model::{PveNode, StorageId};
use serde_json::Value;

use crate::Client;
use crate::cluster::{RESOURCES, StorageEntry, VmEntry, storage_entry, vm_entry};
use crate::error::ApiError;
use crate::request::ApiRequest;
use crate::wire::{self, Fields, Listing};

/// What the token sees, at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// The guests. Entries of an unknown type count as unreadable guests.
    pub guests: Listing<VmEntry>,
    /// The storages, once per host that has them.
    pub storages: Listing<StorageEntry>,
    /// The hosts that the answering one takes for dead. A hint: it may be that one which is cut off, and a host that
    /// hangs is not among them.
    pub offline: BTreeSet<PveNode>,
}

enum Resource {
    Guest(Option<VmEntry>),
    Storage(Option<StorageEntry>),
    Offline(PveNode),
    Other,
}

impl Client {
    /// `GET /cluster/resources`; guests with `VM.Audit` on `/vms/{vmid}`, their pool with `Pool.Audit`, storages with
    /// `Datastore.Audit` on `/storage/{storage}`.
    pub async fn resources(&self) -> Result<Resources, ApiError> {
        let request = ApiRequest::new(&RESOURCES, None, &[]);
        self.call(request, Resources::read).await
    }
}

impl Resources {
    /// Whether all hosts reach the same disks there, as PVE's definition of the storage says; none if the storage is not
    /// seen, or not all of the list could be read.
    pub fn shared(&self) -> BTreeMap<StorageId, bool> {
        let mut shared = BTreeMap::new();
        if self.storages.undecodable == 0 {
            for entry in &self.storages.entries {
                *shared.entry(entry.storage.clone()).or_default() |= entry.shared;
            }
        }
        shared
    }

    pub(crate) fn read(data: &Value) -> Result<Self, String> {
        wire::listing(data, resource).map(Self::of)
    }

    fn of(all: Listing<Resource>) -> Self {
        let mut guests = Listing {
            entries: Vec::new(),
            undecodable: all.undecodable,
        };
        let mut storages = Listing {
            entries: Vec::new(),
            undecodable: all.undecodable,
        };
        let mut offline = BTreeSet::new();
        for entry in all.entries {
            match entry {
                Resource::Guest(Some(guest)) => guests.entries.push(guest),
                Resource::Guest(None) => guests.undecodable += 1,
                Resource::Storage(Some(storage)) => storages.entries.push(storage),
                Resource::Storage(None) => storages.undecodable += 1,
                Resource::Offline(pve_node) => drop(offline.insert(pve_node)),
                Resource::Other => {}
            }
        }
        Self {
            guests,
            storages,
            offline,
        }
    }
}

/// PVE lists hosts, pools and networks here too; none of them is a guest.
fn resource(fields: Fields<'_>) -> Option<Resource> {
    Some(match fields.text("type")?.as_str() {
        "node" if fields.text("status").as_deref() == Some("offline") => {
            fields.id("node").map_or(Resource::Other, Resource::Offline)
        }
        "node" | "pool" | "sdn" | "network" => Resource::Other,
        "storage" => Resource::Storage(storage_entry(fields)),
        _ => Resource::Guest(vm_entry(fields)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_list_tells_guests_and_shared_storages_and_hides_nothing_unreadable() {
        let data = json!([
            {"type": "node", "node": "pve1", "status": "online"},
            {"type": "node", "node": "pve2", "status": "offline"},
            {"type": "node", "node": "pve3", "status": "unknown"},
            {"type": "pool", "pool": "tenant-a", "id": "/pool/tenant-a"},
            {"type": "sdn", "id": "sdn/pve1/localnetwork", "node": "pve1", "status": "ok"},
            {"type": "qemu", "vmid": 101, "node": "pve1", "status": "running", "pool": "tenant-a"},
            {"type": "storage", "storage": "nfs", "node": "pve1", "shared": 1, "status": "available"},
            {"type": "storage", "storage": "files", "node": "pve1", "shared": 0, "status": "available"},
        ]);
        let seen = Resources::read(&data).unwrap();
        assert_eq!((seen.guests.entries.len(), seen.guests.undecodable), (1, 0));
        let expected = [("files", false), ("nfs", true)];
        let expected = expected.map(|(id, shared)| (id.parse().unwrap(), shared));
        assert_eq!(seen.shared(), BTreeMap::from(expected));
        assert_eq!(seen.offline, ["pve2".parse().unwrap()].into());
    }

    #[test]
    fn what_cannot_be_read_is_no_absence() {
        for (broken, guests, storages) in [
            (json!({"type": "qemu", "vmid": "x", "node": "pve1"}), 1, 0),
            (json!({"type": "newkind", "vmid": 7}), 1, 0),
            (
                json!({"type": "storage", "storage": "../x", "node": "pve1"}),
                0,
                1,
            ),
            (json!({"vmid": 101}), 1, 1),
        ] {
            let whole = json!({"type": "storage", "storage": "nfs", "node": "pve1", "shared": 1});
            let data = json!([whole, broken]);
            let seen = Resources::read(&data).unwrap();
            assert_eq!(seen.guests.undecodable, guests, "{broken}");
            assert_eq!(seen.storages.undecodable, storages, "{broken}");
            assert_eq!(seen.shared().is_empty(), storages > 0, "{broken}");
        }
    }
}
