//! The whole inventory in one request: guests, and which storages are shared.

use std::collections::BTreeMap;

use pve_model::StorageId;

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
}

enum Resource {
    Guest(Option<VmEntry>),
    Storage(Option<StorageEntry>),
    Other,
}

impl Client {
    /// `GET /cluster/resources`; guests with `VM.Audit` on `/vms/{vmid}`, their pool with `Pool.Audit`, storages with
    /// `Datastore.Audit` on `/storage/{storage}`.
    pub async fn resources(&self) -> Result<Resources, ApiError> {
        let request = ApiRequest::new(&RESOURCES, None, &[]);
        let all = self
            .call(request, |data| wire::listing(data, resource))
            .await?;
        Ok(Resources::of(all))
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

    fn of(all: Listing<Resource>) -> Self {
        let mut guests = Listing {
            entries: Vec::new(),
            undecodable: all.undecodable,
        };
        let mut storages = Listing {
            entries: Vec::new(),
            undecodable: all.undecodable,
        };
        for entry in all.entries {
            match entry {
                Resource::Guest(Some(guest)) => guests.entries.push(guest),
                Resource::Guest(None) => guests.undecodable += 1,
                Resource::Storage(Some(storage)) => storages.entries.push(storage),
                Resource::Storage(None) => storages.undecodable += 1,
                Resource::Other => {}
            }
        }
        Self { guests, storages }
    }
}

/// PVE lists hosts, pools and networks here too; none of them is a guest.
fn resource(fields: Fields<'_>) -> Option<Resource> {
    Some(match fields.text("type")?.as_str() {
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
            {"type": "pool", "pool": "tenant-a", "id": "/pool/tenant-a"},
            {"type": "sdn", "id": "sdn/pve1/localnetwork", "node": "pve1", "status": "ok"},
            {"type": "qemu", "vmid": 101, "node": "pve1", "status": "running", "pool": "tenant-a"},
            {"type": "storage", "storage": "nfs", "node": "pve1", "shared": 1, "status": "available"},
            {"type": "storage", "storage": "files", "node": "pve1", "shared": 0, "status": "available"},
        ]);
        let seen = Resources::of(wire::listing(&data, resource).unwrap());
        assert_eq!((seen.guests.entries.len(), seen.guests.undecodable), (1, 0));
        let expected = [("files", false), ("nfs", true)];
        let expected = expected.map(|(id, shared)| (id.parse().unwrap(), shared));
        assert_eq!(seen.shared(), BTreeMap::from(expected));
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
            let seen = Resources::of(wire::listing(&data, resource).unwrap());
            assert_eq!(seen.guests.undecodable, guests, "{broken}");
            assert_eq!(seen.storages.undecodable, storages, "{broken}");
            assert_eq!(seen.shared().is_empty(), storages > 0, "{broken}");
        }
    }
}
