//! Disks and `PersistentVolumes` side by side.

use std::collections::BTreeSet;

use pve_model::{PveNode, Region, StorageId, VolumeId};

use super::pvs::Pv;
use crate::disks::Found;

/// How PVE ends the names of files that are disks.
const FORMATS: [&str; 4] = [".raw", ".qcow2", ".vmdk", ".subvol"];

/// A disk of ours, by its region.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Disk {
    /// Where.
    pub(super) region: Region,
    /// What was found.
    pub(super) found: Found,
}

impl Disk {
    /// What a volume of it is called; none if its name is none that this driver gives.
    pub(super) fn handle(&self) -> Option<VolumeId> {
        Some(VolumeId {
            region: self.region.clone(),
            pve_node: self.found.pve_node.clone(),
            storage: self.found.storage.clone(),
            disk: self.found.disk.clone()?,
        })
    }
}

/// A part of what can be seen, or not: a storage of a region.
pub(super) type Part = (Region, StorageId);

/// What has no counterpart.
#[derive(Debug, Default)]
pub(super) struct Lone {
    /// Disks without a PV.
    pub(super) disks: Vec<Disk>,
    /// PVs whose disk was looked for and is not there.
    pub(super) pvs: Vec<Pv>,
    /// PVs whose disk could not be looked for, and why.
    pub(super) unclear: Vec<(Pv, &'static str)>,
}

/// Compares. `seen`: what was read completely. A handle that names a host and one that names none mean the same disk if all
/// else is equal: that a disk has a PV is the safe mistake.
pub(super) fn compare(disks: &BTreeSet<Disk>, pvs: &[Pv], seen: &BTreeSet<Part>) -> Lone {
    let parsed: Vec<(&Pv, Option<VolumeId>)> =
        pvs.iter().map(|pv| (pv, pv.handle.parse().ok())).collect();
    let means = |disk: &Disk| {
        let handle = disk.handle();
        parsed
            .iter()
            .any(|(_, id)| matches!((id, &handle), (Some(id), Some(handle)) if same(id, handle)))
    };
    let mut lone = Lone {
        disks: disks.iter().filter(|disk| !means(disk)).cloned().collect(),
        ..Lone::default()
    };
    for (pv, id) in parsed {
        let Some(id) = id else {
            lone.unclear
                .push((pv.clone(), "its handle is none of this driver's"));
            continue;
        };
        let there = disks
            .iter()
            .any(|disk| disk.handle().is_some_and(|handle| same(&id, &handle)));
        match (
            there,
            seen.contains(&(id.region.clone(), id.storage.clone())),
        ) {
            (true, _) => {}
            (false, true) => lone.pvs.push(pv.clone()),
            (false, false) => lone.unclear.push((
                pv.clone(),
                "its storage is not of the config, or was not read",
            )),
        }
    }
    lone
}

/// Whether a PV may mean that disk. Regions, storages and hosts are renamed, and one place can have several ids: only the file's
/// name counts, and that it stands somewhere in a handle that can't be read.
pub(super) fn may_name(pv: &Pv, volume: &VolumeId) -> bool {
    match pv.handle.parse::<VolumeId>() {
        Ok(id) => stem(&id.disk.to_string()) == stem(&volume.disk.to_string()),
        Err(_) => pv.handle.contains(stem(&volume.disk.to_string())),
    }
}

/// The name of a disk's file without folder and format, of a name with or without storage before it.
pub(super) fn stem(disk: &str) -> &str {
    let file = disk.rsplit(['/', ':']).next().unwrap_or(disk);
    FORMATS
        .iter()
        .find_map(|format| file.strip_suffix(format))
        .unwrap_or(file)
}

fn same(one: &VolumeId, other: &VolumeId) -> bool {
    let hosts = |one: &Option<PveNode>, other: &Option<PveNode>| match (one, other) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    one.region == other.region
        && one.storage == other.storage
        && one.disk == other.disk
        && hosts(&one.pve_node, &other.pve_node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(handle: &str) -> Disk {
        let id: VolumeId = handle.parse().unwrap();
        Disk {
            region: id.region.clone(),
            found: Found {
                volid: id.volid(),
                pve_node: id.pve_node,
                storage: id.storage,
                disk: Some(id.disk),
                size: Some(1),
                made: None,
            },
        }
    }

    fn pv(name: &str, handle: &str) -> Pv {
        Pv {
            name: name.to_owned(),
            handle: handle.to_owned(),
        }
    }

    #[test]
    fn a_disk_and_a_pv_that_mean_each_other_are_no_orphans_and_what_was_not_read_is_unclear() {
        let disks = [
            "r1/pve1/thin/vm-100-a",
            "r1/pve2/thin/vm-100-a",
            "r1//nfs/100/vm-100-b.raw",
            "r2/pve1/thin/vm-100-a",
        ];
        let disks = disks.map(disk).into();
        let pvs = [
            pv("has", "r1/pve1/thin/vm-100-a"),
            pv("host-named", "r1/pve1/nfs/100/vm-100-b.raw"),
            pv("gone", "r1/pve1/thin/vm-100-c"),
            pv("unread", "r1/pve1/other/vm-100-a"),
            pv("odd", "r1/pve1/thin/nothing"),
        ];
        let seen = [("r1", "thin"), ("r1", "nfs"), ("r2", "thin")];
        let seen = seen
            .map(|(r, s)| (r.parse().unwrap(), s.parse().unwrap()))
            .into();
        let lone = compare(&disks, &pvs, &seen);
        let handles: Vec<String> = lone
            .disks
            .iter()
            .map(|d| d.handle().unwrap().to_string())
            .collect();
        assert_eq!(handles, ["r1/pve2/thin/vm-100-a", "r2/pve1/thin/vm-100-a"]);
        assert_eq!(
            lone.pvs
                .iter()
                .map(|pv| pv.name.as_str())
                .collect::<Vec<_>>(),
            ["gone"]
        );
        let unclear: Vec<&str> = lone
            .unclear
            .iter()
            .map(|(pv, _)| pv.name.as_str())
            .collect();
        assert_eq!(unclear, ["unread", "odd"]);
    }

    #[test]
    fn a_disk_whose_name_is_none_of_ours_has_no_pv_and_no_handle() {
        let mut odd = disk("r1/pve1/thin/vm-100-a");
        odd.found.disk = None;
        let lone = compare(
            &[odd.clone()].into(),
            &[pv("x", "r1/pve1/thin/vm-100-a")],
            &BTreeSet::new(),
        );
        assert_eq!(lone.disks, [odd]);
        assert_eq!(lone.disks[0].handle(), None);
    }

    #[test]
    fn a_pv_may_mean_a_disk_of_the_same_file_name_wherever_it_says_that_it_is() {
        let volume: VolumeId = "r1/pve1/thin/vm-9999-pvc-a".parse().unwrap();
        for handle in [
            "r1/pve1/thin/vm-9999-pvc-a",
            "Region-1/pve1/thin/vm-9999-pvc-a",
            "r1/pve2/old/vm-9999-pvc-a",
            "r1//files/9999/vm-9999-pvc-a.raw",
            "old:vm-9999-pvc-a@pve1",
        ] {
            assert!(may_name(&pv("x", handle), &volume), "{handle}");
        }
        for handle in ["r1/pve1/thin/vm-9999-pvc-ab", "something", ""] {
            assert!(!may_name(&pv("x", handle), &volume), "{handle}");
        }
    }
}
