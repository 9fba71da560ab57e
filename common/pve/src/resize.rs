//! Growing a disk through the VM that has it: PVE has no other way.

use pve_model::{Bytes, Slot};
use serde_json::Value;

use crate::Client;
use crate::error::ApiError;
use crate::privileges::{Object, Right};
use crate::qemu::VmRef;
use crate::request::{ApiRequest, OpClass, Spec};
use crate::task::Upid;

pub(crate) static RESIZE: Spec = Spec {
    name: "PUT /nodes/{node}/qemu/{vmid}/resize",
    class: OpClass::Converge,
    rights: &[
        Right::on(Object::Vm, "VM.Config.Disk", "grow its disks"),
        Right::on(Object::Storage, "Datastore.AllocateSpace", "grow disks"),
    ],
};

pub(crate) static ENDPOINTS: [&Spec; 1] = [&RESIZE];

impl Client {
    /// `PUT /nodes/{node}/qemu/{vmid}/resize`; `VM.Config.Disk` on the VM, and in the task `Datastore.AllocateSpace` on the
    /// storage. `size` is absolute and rounded up to MiB: a bare number would be bytes here. The task does three things in this
    /// order: the storage grows, QEMU is told, `size=` is written (`Qemu.pm`, `resize_vm`); of a size that the storage has
    /// already it does none and ends well. All that can be wrong, the digest too, shows in the task's end only.
    pub async fn resize_disk(
        &self,
        at: &VmRef,
        slot: Slot,
        size: Bytes,
        digest: &str,
    ) -> Result<Upid, ApiError> {
        let vmid = at.vmid.to_string();
        let segments = [at.pve_node.as_str(), vmid.as_str()];
        let request = ApiRequest::new(&RESIZE, Some(&at.pve_node), &segments)
            .with("disk", slot.to_string())
            .with("size", format!("{}M", size.units(Bytes::MIB)))
            .with("digest", digest);
        self.call(request, upid).await
    }
}

fn upid(data: &Value) -> Result<Upid, String> {
    let text = data.as_str().ok_or("no task id")?;
    text.parse()
        .map_err(|error: crate::ParseUpidError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{client, reply};
    use crate::{Effect, ErrorKind};

    const UPID: &str = "UPID:pve1:00000292:00033780:6B0DFC43:resize:100:root@pam!full:";

    fn at() -> VmRef {
        VmRef {
            pve_node: "pve1".parse().unwrap(),
            vmid: "100".parse().unwrap(),
        }
    }

    #[tokio::test]
    async fn a_size_is_absolute_in_whole_mebibytes_and_carries_the_digest() {
        let client = client(|request| {
            assert_eq!(request.method(), "PUT");
            assert_eq!(
                request.uri().path(),
                "/api2/json/nodes/pve1/qemu/100/resize"
            );
            assert_eq!(
                String::from_utf8(request.body().to_vec()).unwrap(),
                "disk=scsi1&size=1025M&digest=82f5"
            );
            Ok(reply(200, "OK", &format!(r#"{{"data":"{UPID}"}}"#)))
        });
        let size = Bytes::new((1 << 30) + 1);
        let slot = "scsi1".parse().unwrap();
        let task = client.resize_disk(&at(), slot, size, "82f5").await.unwrap();
        assert_eq!((task.to_string().as_str(), task.kind()), (UPID, "resize"));
    }

    #[tokio::test]
    async fn an_answer_without_a_task_may_have_begun_one() {
        for data in ["null", "7", r#""ok""#] {
            let body = format!(r#"{{"data":{data}}}"#);
            let client = client(move |_| Ok(reply(200, "OK", &body)));
            let slot = "scsi1".parse().unwrap();
            let error = client
                .resize_disk(&at(), slot, Bytes::GIB, "82f5")
                .await
                .unwrap_err();
            assert_eq!(
                (error.kind, error.effect),
                (ErrorKind::Decode, Effect::Possible),
                "{data}"
            );
        }
    }

    #[test]
    fn the_ends_of_a_resize_are_read() {
        for (exit, kind, effect) in [
            ("VM is locked (migrate)", ErrorKind::Locked, Effect::None),
            (
                "checksum mismatch (file change by other user?)",
                ErrorKind::DigestMismatch,
                Effect::None,
            ),
            (
                "Configuration file 'nodes/pve1/qemu-server/101.conf' does not exist",
                ErrorKind::Absent,
                Effect::None,
            ),
            (
                "unable to open file '/etc/pve/nodes/pve1/qemu-server/103.conf.tmp.814' - Permission denied",
                ErrorKind::NoQuorum,
                Effect::Possible,
            ),
            (
                "shrinking disks is not supported",
                ErrorKind::TaskFailed,
                Effect::Possible,
            ),
            (
                "disk 'scsi9' does not exist",
                ErrorKind::TaskFailed,
                Effect::Possible,
            ),
            (
                "volume 'local:9999/vm-9999-pvc-a.raw' does not exist",
                ErrorKind::DiskAbsent,
                Effect::Possible,
            ),
        ] {
            let error = ApiError::of_task(exit);
            assert_eq!((error.kind, error.effect), (kind, effect), "{exit}");
        }
    }
}
