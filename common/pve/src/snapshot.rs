//! Snapshots of a VM, as far as they still need disks that the VM itself has no more.

use std::collections::BTreeSet;

use pve_model::Slot;
use serde_json::Value;

use crate::Client;
use crate::drive::Drive;
use crate::error::ApiError;
use crate::privileges::{Object, Right};
use crate::qemu::{CONFIG, VmRef};
use crate::request::{ApiRequest, OpClass, Spec};
use crate::wire::{self, Fields};

pub(crate) static SNAPSHOTS: Spec = Spec {
    name: "GET /nodes/{node}/qemu/{vmid}/snapshot",
    class: OpClass::Read,
    rights: &[Right::on(Object::Vm, "VM.Audit", "list its snapshots")],
};

pub(crate) static ENDPOINTS: [&Spec; 1] = [&SNAPSHOTS];

/// The list's last entry, which stands for the VM as it is.
const CURRENT: &str = "current";

impl Client {
    /// `GET /nodes/{node}/qemu/{vmid}/snapshot`; `VM.Audit` on `/vms/{vmid}`. Names of all snapshots.
    pub async fn snapshots(&self, at: &VmRef) -> Result<BTreeSet<String>, ApiError> {
        let vmid = at.vmid.to_string();
        let segments = [at.pve_node.as_str(), vmid.as_str()];
        let request = ApiRequest::new(&SNAPSHOTS, Some(&at.pve_node), &segments);
        self.call(request, names).await
    }

    /// `GET /nodes/{node}/qemu/{vmid}/config?snapshot=`; `VM.Audit` on `/vms/{vmid}`. The disks that the VM had when
    /// the snapshot was taken, by volume id. A configuration of now never shows them.
    pub async fn snapshot_disks(
        &self,
        at: &VmRef,
        snapshot: &str,
    ) -> Result<BTreeSet<String>, ApiError> {
        let vmid = at.vmid.to_string();
        let segments = [at.pve_node.as_str(), vmid.as_str()];
        let request =
            ApiRequest::new(&CONFIG, Some(&at.pve_node), &segments).with("snapshot", snapshot);
        self.call(request, disks).await
    }
}

pub(crate) fn names(data: &Value) -> Result<BTreeSet<String>, String> {
    let listing = wire::listing(data, |fields| fields.text("name"))?;
    if listing.undecodable > 0 {
        return Err("a snapshot without name".to_owned());
    }
    let all = listing.entries.into_iter();
    Ok(all.filter(|name| name != CURRENT).collect())
}

pub(crate) fn disks(data: &Value) -> Result<BTreeSet<String>, String> {
    let mut disks = BTreeSet::new();
    for (key, value) in Fields::of(data)?.0 {
        if key.parse::<Slot>().is_err() {
            continue;
        }
        let text = wire::scalar(value).ok_or_else(|| format!("option {key} is not a scalar"))?;
        let drive: Drive = text.parse().map_err(|error| format!("{key}: {error}"))?;
        disks.insert(drive.volid().to_owned());
    }
    Ok(disks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_vm_as_it_is_counts_as_no_snapshot() {
        let list = json!([{ "name": "before" }, { "name": "current", "parent": "before" }]);
        assert_eq!(names(&list), Ok(BTreeSet::from(["before".to_owned()])));
        assert!(
            names(&json!([{ "snaptime": 1 }])).is_err(),
            "what can't be read is no absence"
        );
    }

    #[test]
    fn the_disks_of_a_snapshot_are_those_of_its_drives() {
        let section = json!({
            "scsi0": "local-lvm:vm-104-disk-0,size=4G",
            "scsi1": "local-lvm:vm-9999-pvc-1,wwn=0x5c42a611aadbf50e",
            "memory": "2048",
            "snaptime": 1,
        });
        let expected = ["local-lvm:vm-104-disk-0", "local-lvm:vm-9999-pvc-1"];
        assert_eq!(disks(&section), Ok(expected.map(str::to_owned).into()));
    }
}
