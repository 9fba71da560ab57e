//! What a snapshot section of a VM's config names, and putting it into force or forgetting it (`AbstractConfig.pm`).

use std::collections::BTreeMap;

use crate::drive::{self, Drive};
use crate::state::{State, StorageKind, Vm};
use crate::units;

/// Disks of a config or of a snapshot's section, CD drives left out.
pub(super) fn disks(section: &BTreeMap<String, String>) -> Vec<String> {
    let slots = section
        .iter()
        .filter(|(key, value)| drive::slot(key).is_some() && !value.contains("media=cdrom"));
    slots
        .filter_map(|(_, value)| value.split(',').next())
        .filter(|volid| volid.contains(':'))
        .map(str::to_owned)
        .collect()
}

pub(super) fn sizes(section: &BTreeMap<String, String>) -> BTreeMap<String, u64> {
    let parsed = section
        .iter()
        .filter(|(key, _)| drive::slot(key).is_some())
        .filter_map(|(key, value)| Drive::parse(key, value).ok());
    parsed
        .filter_map(|drive| {
            let size = units::drive_size(drive.option("size")?)?;
            Some((drive.file.clone(), size))
        })
        .collect()
}

/// ZFS goes back to the most recent snapshot only.
pub(super) fn blocked_by_newer(state: &State, vm: &Vm, name: &str) -> Option<String> {
    let section = vm.snapshots.get(name)?;
    let time = |section: &BTreeMap<String, String>| section.get("snaptime").cloned();
    let on_zfs = |volid: &&String| {
        let id = volid.split(':').next().unwrap_or_default();
        let storage = state.storages.get(id);
        storage.is_some_and(|storage| storage.kind == StorageKind::ZfsPool)
    };
    let volids = disks(section);
    let volid = volids.iter().find(on_zfs)?;
    let others = vm.snapshots.iter().filter(|(other, _)| *other != name);
    let mut newer = others.filter(|(_, other)| {
        disks(other).contains(volid)
            && (time(other) > time(section) || other.get("parent").is_some_and(|p| p == name))
    });
    newer.next()?;
    Some(format!(
        "can't rollback, '{name}' is not most recent snapshot on '{volid}'"
    ))
}

/// Volumes that only the snapshot knew become unused, whoever owns them.
pub(super) fn forget(vm: &mut Vm, name: &str, volids: &[String]) {
    let section = vm.snapshots.remove(name).unwrap_or_default();
    let parent = section.get("parent").cloned();
    let children = std::iter::once(&mut vm.config).chain(vm.snapshots.values_mut());
    for child in children.filter(|child| child.get("parent").is_some_and(|p| p == name)) {
        match &parent {
            Some(parent) => child.insert("parent".into(), parent.clone()),
            None => child.remove("parent"),
        };
    }
    vm.config.remove("lock");
    let attached = disks(&vm.config);
    for volid in volids.iter().filter(|volid| !attached.contains(volid)) {
        vm.add_unused(volid);
    }
}

/// The snapshot's config, with the description and the unused disks of now; disks that came later become unused.
pub(super) fn restore(vm: &mut Vm, name: &str, section: &BTreeMap<String, String>) {
    let kept = disks(section);
    let later: Vec<String> = disks(&vm.config)
        .into_iter()
        .filter(|volid| !kept.contains(volid))
        .collect();
    let mut config = section.clone();
    for key in ["snaptime", "snapstate", "vmstate", "description"] {
        config.remove(key);
    }
    for (key, value) in &vm.config {
        if drive::is_unused(key) || key == "description" {
            config.insert(key.clone(), value.clone());
        }
    }
    config.insert("parent".into(), name.to_owned());
    vm.config = config;
    vm.pending.clear();
    vm.pending_delete.clear();
    for volid in &later {
        vm.add_unused(volid);
    }
}
