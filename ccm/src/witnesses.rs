//! What shows that a PVE cluster is the one that is meant: VMs that are certainly the tenant's.

use std::collections::BTreeMap;

use pve_model::{Region, Uuid, VmId};

use crate::inventory::{RegionView, find};

/// For each region a VM that is certainly the tenant's: a Node or a machine says its UUID. A PVE cluster without one may be
/// another one than was meant.
pub type Witnesses = BTreeMap<Region, VmId>;

/// For each region one VM of these UUIDs, of the first that is found.
pub fn witnesses(uuids: impl Iterator<Item = Uuid>, views: &[RegionView]) -> Witnesses {
    let mut witnesses = Witnesses::new();
    for uuid in uuids {
        if witnesses.len() == views.len() {
            break;
        }
        if let Ok(vm) = find(views, &uuid) {
            let region = vm.region.clone();
            witnesses.entry(region).or_insert(vm.entry.vmid);
        }
    }
    witnesses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, facts, uuid, view};

    #[test]
    fn only_vms_that_nodes_or_machines_of_ours_say_they_are_bear_witness() {
        let views = [
            view("r1", &[(entry(101, "pve1"), Some(facts(101)))]),
            view("r2", &[(entry(201, "pve1"), Some(facts(201)))]),
        ];
        let of = |vmids: &[u32]| {
            let found = witnesses(vmids.iter().map(|vmid| uuid(*vmid)), &views);
            let found = found.iter();
            found
                .map(|(region, vmid)| format!("{region}/{vmid}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[101, 201]), ["r1/101", "r2/201"]);
        assert_eq!(of(&[201, 301]), ["r2/201"], "none in r1");
        assert!(
            of(&[301]).is_empty(),
            "another PVE cluster has none of ours"
        );
    }
}
