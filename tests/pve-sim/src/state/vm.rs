//! A VM: its config file with the pending section, and what its QEMU really has.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use super::{Guest, VmNumber};
use crate::units;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Vm {
    pub node: String,
    /// The config file's first section.
    pub config: BTreeMap<String, String>,
    /// The `[PENDING]` section: values to set.
    pub pending: BTreeMap<String, String>,
    /// The `[PENDING]` section: keys to delete; the value says whether by force (volume destroyed).
    pub pending_delete: BTreeMap<String, bool>,
    /// Snapshot sections.
    pub snapshots: BTreeMap<String, BTreeMap<String, String>>,
    /// QEMU runs; scenario files only need this, devices follow from the config at start.
    pub running: bool,
    /// QEMU runs with stopped vCPUs: the guest acknowledges nothing.
    pub paused: bool,
    /// Disks that QEMU has, by slot. Empty and `running` in a scenario: filled from the config.
    pub devices: BTreeMap<String, Device>,
    /// Slots whose throttle group was left behind in QEMU: the next plug fails until QEMU restarts.
    pub leaked: BTreeSet<String>,
    /// Controllers whose PCI eject the guest has not acknowledged.
    pub ejecting: BTreeSet<String>,
    /// Seconds since 1970.
    pub started: u64,
    /// What its guest agent says.
    #[serde(skip_serializing_if = "untold")]
    pub guest: Guest,
    /// QEMU's process: another one after each start.
    pub pid: u32,
    /// Faults of this VM's QEMU and guest.
    pub faults: VmFaults,
}

fn untold(guest: &Guest) -> bool {
    *guest == Guest::default()
}

/// A disk as QEMU has it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    pub volid: String,
    /// Bytes that the guest sees.
    pub size: u64,
    pub serial: Option<String>,
    pub wwn: Option<String>,
    pub readonly: bool,
    /// `ssd=1`: the guest sees no rotation.
    pub ssd: bool,
    /// The guest knows it; a disk plugged into a paused guest is seen at resume.
    pub visible: bool,
}

/// What can go wrong inside one VM; counts are used up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VmFaults {
    /// `device_add` refused without a word: 200, config changed, no disk, slot poisoned.
    pub hotplug_fail_silent: u32,
    /// `blockdev-add` refused: 400, change left pending.
    pub hotplug_fail: u32,
    /// The guest does not let go of the controller: the disk is gone from QEMU, 400 after 18 s, delete left pending.
    pub unplug_busy: u32,
    /// QEMU does not let go of the disk: 400 after 6 s, disk still there, delete left pending.
    pub unplug_stuck: u32,
    /// Number of `status/current` answers without `blockstat` (QMP does not answer in time).
    pub qmp_busy: u32,
}

impl Vm {
    /// SHA1 over the config file, snapshots and pending section included.
    pub(crate) fn digest(&self) -> String {
        units::hex(&Sha1::digest(self.file().as_bytes()))
    }

    fn file(&self) -> String {
        let section = |map: &BTreeMap<String, String>| -> String {
            map.iter()
                .flat_map(|(key, value)| [key.as_str(), ": ", value, "\n"])
                .collect()
        };
        let mut text = section(&self.config);
        if !self.pending.is_empty() || !self.pending_delete.is_empty() {
            text.push_str("\n[PENDING]\n");
            text.push_str(&section(&self.pending));
            let mark = |(key, force): (&String, &bool)| {
                if *force {
                    format!("!{key}")
                } else {
                    key.clone()
                }
            };
            let keys: Vec<String> = self.pending_delete.iter().map(mark).collect();
            if !keys.is_empty() {
                text.extend(["delete: ", &keys.join(","), "\n"]);
            }
        }
        for (name, snapshot) in &self.snapshots {
            text.extend(["\n[", name, "]\n", &section(snapshot)]);
        }
        text
    }

    pub(crate) fn protected(&self) -> bool {
        self.config.get("protection").is_some_and(|v| v == "1")
    }

    pub(crate) fn name(&self, vmid: VmNumber) -> String {
        self.config
            .get("name")
            .cloned()
            .unwrap_or_else(|| format!("VM {vmid}"))
    }

    /// Whether `hotplug` allows this class (`parse_hotplug_features`: default network,disk,usb; `1` all of them, `0` none).
    pub(crate) fn hotplugs(&self, class: &str) -> bool {
        match self.config.get("hotplug").map(String::as_str) {
            None | Some("1") => ["network", "disk", "usb"].contains(&class),
            Some("0") => false,
            Some(list) => list.split([',', ';', ' ']).any(|item| item == class),
        }
    }

    pub(crate) fn scsihw(&self) -> &str {
        self.config.get("scsihw").map_or("lsi", String::as_str)
    }

    /// The machine's SMBIOS uuid.
    pub(crate) fn uuid(&self) -> &str {
        let text = self
            .config
            .get("smbios1")
            .map(String::as_str)
            .unwrap_or_default();
        text.split(',')
            .find_map(|part| part.strip_prefix("uuid="))
            .unwrap_or_default()
    }

    /// `unusedN` for the first free N; nothing if the volume is in the config already.
    pub(crate) fn add_unused(&mut self, volid: &str) {
        let used = |key: &str, value: &str| key.starts_with("unused") && value == volid;
        if self.config.iter().any(|(key, value)| used(key, value)) {
            return;
        }
        if let Some(free) = (0..256)
            .map(|n| format!("unused{n}"))
            .find(|key| !self.config.contains_key(key))
        {
            self.config.insert(free, volid.to_owned());
        }
    }
}
