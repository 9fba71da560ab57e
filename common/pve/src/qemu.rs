//! One VM: its config, its pending changes, its real state, and changing it.

use std::collections::{BTreeMap, BTreeSet};

use pve_model::{PveNode, Slot, Uuid, VmId};
use serde_json::Value;

use crate::Client;
use crate::cluster::RunState;
use crate::drive::Drive;
use crate::error::ApiError;
use crate::pending::{VmPending, smbios_uuid};
use crate::privileges::{Object, Program, Right};
use crate::request::{ApiRequest, OpClass, Spec};
use crate::task::Started;
use crate::wire::{self, Fields};

pub(crate) static CONFIG: Spec = Spec {
    name: "GET /nodes/{node}/qemu/{vmid}/config",
    class: OpClass::Read,
    rights: &[Right::on(Object::Vm, "VM.Audit", "read a VM's config")],
};
pub(crate) static PENDING: Spec = Spec {
    name: "GET /nodes/{node}/qemu/{vmid}/pending",
    class: OpClass::Read,
    rights: &[Right::on(
        Object::Vm,
        "VM.Audit",
        "read its pending changes",
    )],
};
pub(crate) static STATUS: Spec = Spec {
    name: "GET /nodes/{node}/qemu/{vmid}/status/current",
    class: OpClass::Read,
    rights: &[
        Right::on(Object::Vm, "VM.Audit", "see which disks QEMU has").only(Program::Csi),
        Right::on(Object::Vm, "VM.Audit", "see whether a VM runs").only(Program::Ccm),
    ],
};
pub(crate) static UPDATE: Spec = Spec {
    name: "POST /nodes/{node}/qemu/{vmid}/config",
    class: OpClass::Converge,
    rights: &[
        Right::on(Object::Vm, "VM.Config.Disk", "attach and detach"),
        Right::on(Object::Storage, "Datastore.Allocate", "attach"),
    ],
};

/// What more than one program calls.
pub(crate) static SHARED: [&Spec; 2] = [&CONFIG, &STATUS];
pub(crate) static ONLY_CSI: [&Spec; 2] = [&PENDING, &UPDATE];

/// A VM where it is now. It moves: resolve it anew for each piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VmRef {
    /// The host that has its config.
    pub pve_node: PveNode,
    /// Its number.
    pub vmid: VmId,
}

/// A VM's config as it is in force, without pending changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmConfig {
    /// What the next write must carry.
    pub digest: String,
    options: BTreeMap<String, String>,
    drives: BTreeMap<Slot, Drive>,
}

impl VmConfig {
    /// An option's value.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// All drives, CD-ROMs included.
    pub fn drives(&self) -> &BTreeMap<Slot, Drive> {
        &self.drives
    }

    /// The identity of the VM.
    pub fn smbios_uuid(&self) -> Option<Uuid> {
        smbios_uuid(self.get("smbios1")?)
    }

    /// The config as `GET /nodes/{node}/qemu/{vmid}/config` answers it. Refused without a digest, or with an option
    /// that can't be read.
    pub fn read(data: &Value) -> Result<Self, String> {
        let fields = Fields::of(data)?;
        let mut options = BTreeMap::new();
        let mut drives = BTreeMap::new();
        for (key, value) in fields.0 {
            let value =
                wire::scalar(value).ok_or_else(|| format!("option {key} is not a scalar"))?;
            if let Ok(slot) = key.parse() {
                drives.insert(
                    slot,
                    value.parse().map_err(|error| format!("{key}: {error}"))?,
                );
            }
            options.insert(key.clone(), value);
        }
        Ok(Self {
            digest: options.remove("digest").ok_or("no digest")?,
            options,
            drives,
        })
    }
}

/// What QEMU and the host say about a VM right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmStatus {
    /// Whether a QEMU process is there: `Running` even while the guest is paused.
    pub state: RunState,
    /// QEMU's own state: `running`, `paused`, `io-error`, `prelaunch`, ….
    pub qmpstatus: Option<String>,
    /// `lock` of the config.
    pub lock: Option<String>,
    /// Process id of QEMU on the host: another one after each start.
    pub pid: Option<u32>,
    /// The drive keys that QEMU really has (`scsi1`). `None` is *unknown*: QMP was busy for more than 2 s, or the VM
    /// is stopped; it is never *no disk*.
    pub blockstat: Option<BTreeSet<String>>,
}

impl VmStatus {
    pub(crate) fn read(data: &Value) -> Result<Self, String> {
        let fields = Fields::of(data)?;
        let state = fields.text("status").ok_or("no status")?;
        Ok(Self {
            state: RunState::read(Some(&state)),
            qmpstatus: fields.text("qmpstatus"),
            lock: fields.text("lock"),
            pid: fields.number("pid").and_then(|pid| u32::try_from(pid).ok()),
            blockstat: fields
                .object("blockstat")
                .map(|stat| stat.0.keys().cloned().collect()),
        })
    }
}

/// A change of a VM's config. PVE applies all `delete`, then all `set`; it is no transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigChange {
    /// Digest of the config that was read; PVE refuses the change if it is another by now.
    pub digest: Option<String>,
    /// Options to set.
    pub set: Vec<(String, String)>,
    /// Options to delete; one that is not set is no error.
    pub delete: Vec<String>,
    /// Pending changes to drop.
    pub revert: Vec<String>,
}

impl Client {
    /// `GET /nodes/{node}/qemu/{vmid}/config?current=1`; `VM.Audit`. Without `current` PVE would show pending changes
    /// as done.
    pub async fn vm_config(&self, at: &VmRef) -> Result<VmConfig, ApiError> {
        let request = on_vm(&CONFIG, at).with("current", "1");
        self.call(request, VmConfig::read).await
    }

    /// `GET /nodes/{node}/qemu/{vmid}/pending`; `VM.Audit`. Config, pending changes and digest in one.
    pub async fn vm_pending(&self, at: &VmRef) -> Result<VmPending, ApiError> {
        self.call(on_vm(&PENDING, at), VmPending::read).await
    }

    /// `GET /nodes/{node}/qemu/{vmid}/status/current`; `VM.Audit`.
    pub async fn vm_status(&self, at: &VmRef) -> Result<VmStatus, ApiError> {
        self.call(on_vm(&STATUS, at), VmStatus::read).await
    }

    /// `POST /nodes/{node}/qemu/{vmid}/config` with `background_delay`; any of `VM.Config.*` on the VM, for drives
    /// `VM.Config.Disk` and access to the volume. A hotplug that did not take may still answer success.
    pub async fn update_vm(&self, at: &VmRef, change: &ConfigChange) -> Result<Started, ApiError> {
        let mut request = on_vm(&UPDATE, at).with("background_delay", self.background_delay());
        if let Some(digest) = &change.digest {
            request = request.with("digest", digest);
        }
        for (key, list) in [("delete", &change.delete), ("revert", &change.revert)] {
            if !list.is_empty() {
                request = request.with(key, list.join(","));
            }
        }
        for (key, value) in &change.set {
            request = request.with(key, value);
        }
        self.call(request, Started::read).await
    }
}

pub(crate) fn on_vm(spec: &'static Spec, at: &VmRef) -> ApiRequest {
    let vmid = at.vmid.to_string();
    ApiRequest::new(spec, Some(&at.pve_node), &[at.pve_node.as_str(), &vmid])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{client, reply};
    use serde_json::json;

    #[test]
    fn a_missing_blockstat_is_unknown_and_an_empty_one_is_no_disk() {
        let status = |blockstat: Value| {
            VmStatus::read(&json!({"status": "running", "blockstat": blockstat})).unwrap()
        };
        assert_eq!(status(Value::Null).blockstat, None);
        assert_eq!(status(json!("busy")).blockstat, None);
        assert_eq!(status(json!({})).blockstat, Some(BTreeSet::new()));
        let one = status(json!({"scsi1": {"rd_bytes": 1}}));
        assert_eq!(one.blockstat, Some(["scsi1".to_owned()].into()));
        assert!(VmStatus::read(&json!({})).is_err());
    }

    #[test]
    fn a_config_without_digest_or_with_a_drive_that_can_not_be_read_is_an_error() {
        let config = json!({"digest": "82f5", "scsi1": "thin:vm-9999-a,size=1G", "scsihw": "virtio-scsi-single",
            "memory": 128, "smbios1": "uuid=3319c1f0-2716-4d58-a899-85d3acddb844", "unused1": "second:100/x.raw"});
        let read = VmConfig::read(&config).unwrap();
        assert_eq!(read.get("memory"), Some("128"));
        assert_eq!(read.drives().len(), 1);
        assert_eq!(
            read.smbios_uuid().unwrap().as_str(),
            "3319c1f0-2716-4d58-a899-85d3acddb844"
        );
        assert!(VmConfig::read(&json!({"scsi1": "a:b"})).is_err());
        assert!(VmConfig::read(&json!({"digest": "1", "scsi1": "size=1G"})).is_err());
        assert!(VmConfig::read(&json!({"digest": "1", "scsi1": ["a"]})).is_err());
    }

    #[tokio::test]
    async fn a_change_carries_its_digest_and_waits_two_seconds_at_most() {
        let client = client(|request| {
            assert_eq!(request.method(), "POST");
            assert_eq!(
                request.uri().path(),
                "/api2/json/nodes/pve1/qemu/100/config"
            );
            assert_eq!(
                String::from_utf8(request.body().to_vec()).unwrap(),
                "background_delay=2&digest=82f5&delete=scsi2%2Cscsi3&scsi1=thin%3Avm-9999-a%2Cssd%3D1"
            );
            Ok(reply(200, "OK", r#"{"data":null}"#))
        });
        let at = VmRef {
            pve_node: "pve1".parse().unwrap(),
            vmid: "100".parse().unwrap(),
        };
        let change = ConfigChange {
            digest: Some("82f5".to_owned()),
            set: vec![("scsi1".to_owned(), "thin:vm-9999-a,ssd=1".to_owned())],
            delete: vec!["scsi2".to_owned(), "scsi3".to_owned()],
            revert: Vec::new(),
        };
        assert_eq!(client.update_vm(&at, &change).await, Ok(Started::Done));
    }

    #[tokio::test]
    async fn a_config_is_read_as_it_is_in_force() {
        let client = client(|request| {
            assert_eq!(
                request.uri().path(),
                "/api2/json/nodes/pve1/qemu/100/config"
            );
            assert_eq!(request.uri().query(), Some("current=1"));
            Ok(reply(200, "OK", r#"{"data":{"digest":"82f5"}}"#))
        });
        let at = VmRef {
            pve_node: "pve1".parse().unwrap(),
            vmid: "100".parse().unwrap(),
        };
        assert_eq!(client.vm_config(&at).await.unwrap().digest, "82f5");
    }
}
