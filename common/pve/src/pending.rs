//! `GET …/pending`: what a VM's config holds now, what it will hold after its pending changes, and the digest of both.

use std::collections::{BTreeMap, BTreeSet};

use pve_model::{DiskName, Slot, StorageId, Uuid};
use serde_json::Value;

use crate::drive::Drive;
use crate::wire::{self, Fields};

/// One option: its value in force and the change that waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PendingRow {
    /// The value in force.
    pub value: Option<String>,
    /// The value that waits to take its place.
    pub pending: Option<String>,
    /// Whether the option waits to be deleted.
    pub delete: bool,
}

impl PendingRow {
    fn after(&self) -> Option<&str> {
        match (&self.pending, self.delete) {
            (Some(pending), _) => Some(pending),
            (None, true) => None,
            (None, false) => self.value.as_deref(),
        }
    }

    fn has_change(&self) -> bool {
        self.pending.is_some() || self.delete
    }
}

/// A VM's config, both as it is in force and as it will be at the next start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmPending {
    /// What the next write must carry.
    pub digest: String,
    rows: BTreeMap<String, PendingRow>,
    drives_current: BTreeMap<Slot, Drive>,
    drives_after: BTreeMap<Slot, Drive>,
}

impl VmPending {
    pub(crate) fn read(data: &Value) -> Result<Self, String> {
        let list = wire::listing(data, row)?;
        if list.undecodable > 0 {
            return Err(format!("{} rows can't be read", list.undecodable));
        }
        let listed = list.entries.len();
        let mut rows: BTreeMap<String, PendingRow> = list.entries.into_iter().collect();
        if rows.len() < listed {
            return Err("a key stands twice".to_owned());
        }
        let digest = rows
            .remove("digest")
            .and_then(|row| row.value)
            .ok_or("no digest")?;
        let drives_current = drives(&rows, |row| row.value.as_deref())?;
        let drives_after = drives(&rows, PendingRow::after)?;
        Ok(Self {
            digest,
            rows,
            drives_current,
            drives_after,
        })
    }

    /// An option's value in force.
    pub fn current(&self, key: &str) -> Option<&str> {
        self.rows.get(key)?.value.as_deref()
    }

    /// The drives in force, CD-ROMs included.
    pub fn drives_current(&self) -> &BTreeMap<Slot, Drive> {
        &self.drives_current
    }

    /// The drives once nothing is pending any more.
    pub fn drives_after(&self) -> &BTreeMap<Slot, Drive> {
        &self.drives_after
    }

    /// Whether a change waits for this option.
    pub fn has_change(&self, key: &str) -> bool {
        self.rows.get(key).is_some_and(PendingRow::has_change)
    }

    /// Every key that names exactly this volume, in force or pending: drives, `unusedN`, `efidisk0`, ….
    pub fn keys_of(&self, volid: &str) -> BTreeSet<String> {
        let names = |text: &str| text.parse::<Drive>().is_ok_and(|drive| drive.is_of(volid));
        self.rows
            .iter()
            .filter(|(_, row)| {
                [&row.value, &row.pending]
                    .into_iter()
                    .flatten()
                    .any(|t| names(t))
            })
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Every disk that a key but `unusedN` names, in force or pending, by PVE's name: all that [`VmPending::keys_of`]
    /// would find. What can't be a disk of ours, as CD-ROMs, is left out.
    pub fn disks(&self) -> BTreeSet<String> {
        let rows = self
            .rows
            .iter()
            .filter(|(key, _)| !key.starts_with("unused"));
        let values = rows.flat_map(|(_, row)| [&row.value, &row.pending].into_iter().flatten());
        let volids = values.filter_map(|text| Some(text.parse::<Drive>().ok()?.volid().to_owned()));
        volids.filter(|volid| may_be_ours(volid)).collect()
    }

    /// Slots that are taken, in force or pending; a write to one of them would evict a disk.
    pub fn occupied_slots(&self) -> BTreeSet<Slot> {
        self.drives_current
            .keys()
            .chain(self.drives_after.keys())
            .copied()
            .collect()
    }

    /// The identity of the VM.
    pub fn smbios_uuid(&self) -> Option<Uuid> {
        smbios_uuid(self.current("smbios1")?)
    }

    /// The lock of a longer work (backup, migrate, …).
    pub fn lock(&self) -> Option<&str> {
        self.current("lock")
    }

    /// Whether the VM is a template, or says of it what can't be read.
    pub fn template(&self) -> bool {
        self.current("template")
            .is_some_and(|text| wire::parse_flag(text) != Some(false))
    }

    /// The SCSI controller; PVE's default is `lsi`.
    pub fn scsihw(&self) -> &str {
        self.current("scsihw").unwrap_or("lsi")
    }

    /// Whether disks are hotplugged at all. Without it a change waits for the next start without a word
    /// (`QemuServer.pm` 1136: default `network,disk,usb`, `1` is the default, `0` is none).
    pub fn hotplug_disk(&self) -> bool {
        match self.current("hotplug") {
            None | Some("1") => true,
            Some(list) => list
                .split([',', ';', ' '])
                .any(|part| part.trim() == "disk"),
        }
    }
}

/// Whether a handle could name it.
fn may_be_ours(volid: &str) -> bool {
    volid.split_once(':').is_some_and(|(storage, disk)| {
        storage.parse::<StorageId>().is_ok() && disk.parse::<DiskName>().is_ok()
    })
}

fn row(fields: Fields<'_>) -> Option<(String, PendingRow)> {
    let known = |key: &str| match fields.0.get(key) {
        None | Some(Value::Null) => Some(None),
        Some(value) => wire::scalar(value).map(Some),
    };
    let delete = match fields.0.get("delete") {
        None | Some(Value::Null) => false,
        Some(_) => fields
            .number("delete")
            .map(|kind| kind > 0)
            .or_else(|| fields.flag("delete"))?,
    };
    let row = PendingRow {
        value: known("value")?,
        pending: known("pending")?,
        delete,
    };
    Some((fields.text("key")?, row))
}

fn drives(
    rows: &BTreeMap<String, PendingRow>,
    view: impl Fn(&PendingRow) -> Option<&str>,
) -> Result<BTreeMap<Slot, Drive>, String> {
    rows.iter()
        .filter_map(|(key, row)| Some((key, key.parse::<Slot>().ok()?, view(row)?)))
        .map(|(key, slot, text)| match text.parse() {
            Ok(drive) => Ok((slot, drive)),
            Err(error) => Err(format!("{key}: {error}")),
        })
        .collect()
}

/// `uuid=` of an `smbios1` value.
pub(crate) fn smbios_uuid(text: &str) -> Option<Uuid> {
    text.split(',')
        .find_map(|part| part.strip_prefix("uuid="))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pending() -> VmPending {
        VmPending::read(&json!([
            {"key": "digest", "value": "6e3111870cee0c94c1ac359666ee8ec60deb119b"},
            {"key": "smbios1", "value": "base64=1,uuid=84e85006-7a82-44f1-a017-67c1e7d7d52e"},
            {"key": "scsi0", "value": "local:100/vm-100-disk-0.raw,size=2G"},
            {"key": "scsi1", "value": "local:9999/vm-9999-a.raw,size=1G", "delete": 1},
            {"key": "scsi2", "pending": "local:9999/vm-9999-b.raw"},
            {"key": "scsi3", "value": "local:9999/vm-9999-c.raw", "pending": "local:9999/vm-9999-d.raw"},
            {"key": "unused0", "value": "local:9999/vm-9999-e.raw"},
            {"key": "lock", "value": "backup"}, {"key": "template", "value": 1}, {"key": "kvm", "value": 0},
        ]))
        .unwrap()
    }

    #[test]
    fn all_disks_of_handles_are_named_in_force_or_pending_and_nothing_else() {
        let read = VmPending::read(&json!([
            {"key": "digest", "value": "6e31"},
            {"key": "name", "value": "worker-a"},
            {"key": "ide2", "value": "local:iso/debian.iso,media=cdrom"},
            {"key": "scsi0", "value": "local:100/vm-100-disk-0.raw,size=2G"},
            {"key": "efidisk0", "value": "thin:vm-100-disk-1,efitype=4m"},
            {"key": "scsi3", "value": "local:9999/vm-9999-c.raw", "pending": "file=thin:vm-9999-d,size=1G"},
            {"key": "scsi4", "value": "none,media=cdrom"},
            {"key": "unused0", "value": "local:9999/vm-9999-e.raw"},
        ]));
        let disks = read.unwrap().disks();
        let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
        assert_eq!(
            disks,
            [
                "local:100/vm-100-disk-0.raw",
                "local:9999/vm-9999-c.raw",
                "thin:vm-100-disk-1",
                "thin:vm-9999-d"
            ]
        );
    }

    #[test]
    fn force_and_intent_are_kept_apart() {
        let read = pending();
        assert_eq!(
            read.current("scsi1"),
            Some("local:9999/vm-9999-a.raw,size=1G")
        );
        let after = |key: &str| read.rows.get(key).and_then(PendingRow::after);
        assert_eq!(after("scsi1"), None);
        assert_eq!(read.current("scsi2"), None);
        assert_eq!(after("scsi2"), Some("local:9999/vm-9999-b.raw"));
        assert_eq!(after("scsi3"), Some("local:9999/vm-9999-d.raw"));
        assert_eq!(
            ["scsi0", "scsi1", "scsi2", "scsi3", "scsi4"].map(|k| read.has_change(k)),
            [false, true, true, true, false]
        );
        assert_eq!(read.drives_current().len(), 3);
        assert_eq!(read.drives_after().len(), 3);
        assert_eq!(read.occupied_slots().len(), 4);
        assert_eq!((read.lock(), read.template()), (Some("backup"), true));
        assert_eq!(
            read.smbios_uuid().unwrap().as_str(),
            "84e85006-7a82-44f1-a017-67c1e7d7d52e"
        );
    }

    #[test]
    fn a_volume_is_found_wherever_it_is_named() {
        let read = pending();
        for (volid, key) in [
            ("a", "scsi1"),
            ("b", "scsi2"),
            ("c", "scsi3"),
            ("d", "scsi3"),
            ("e", "unused0"),
        ] {
            let keys = read.keys_of(&format!("local:9999/vm-9999-{volid}.raw"));
            assert_eq!(keys, [key.to_owned()].into(), "{volid}");
        }
        assert!(read.keys_of("local:9999/vm-9999-a").is_empty());
    }

    #[test]
    fn hotplug_of_disks_is_known_from_every_spelling() {
        let with = |rows: Value| VmPending::read(&rows).unwrap().hotplug_disk();
        let digest = json!({"key": "digest", "value": "1"});
        assert!(with(json!([digest])));
        for (text, on) in [
            ("1", true),
            ("0", false),
            ("network,usb", false),
            ("network,disk", true),
        ] {
            assert_eq!(
                with(json!([digest, {"key": "hotplug", "value": text}])),
                on,
                "{text}"
            );
        }
    }

    #[test]
    fn a_row_that_can_not_be_read_is_no_absence() {
        let digest = json!({"key": "digest", "value": "1"});
        for row in [
            json!({"key": "scsi1", "value": "size=1G"}),
            json!({"key": "scsi1", "value": ["x"]}),
            json!({"value": "x"}),
            json!({"key": "scsi1", "value": "a:b", "delete": {}}),
            json!(7),
        ] {
            assert!(VmPending::read(&json!([digest, row])).is_err(), "{row}");
        }
        assert!(VmPending::read(&json!([])).is_err());
        assert!(VmPending::read(&Value::Null).is_err());
    }

    proptest! {
        #[test]
        fn no_row_makes_the_reader_panic(key in "\\PC{0,8}", value in "\\PC{0,30}", kind in any::<i64>()) {
            let rows = json!([{"key": "digest", "value": "1"}, {"key": key, "value": value, "delete": kind}]);
            if let Ok(read) = VmPending::read(&rows) {
                prop_assert!(read.occupied_slots().len() <= 1);
            }
        }
    }
}
