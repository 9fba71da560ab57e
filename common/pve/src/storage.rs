//! Disks on a storage of one PVE node: allocate, look, list, delete.

use pve_model::{Bytes, DiskFormat, DiskName, PveNode, StorageId, VmId};
use serde_json::Value;
use tokio::time::Instant;

use crate::Client;
use crate::classify;
use crate::error::{ApiError, ErrorKind};
use crate::privileges::{Object, Right};
use crate::request::{ApiRequest, OpClass, Spec};
use crate::task::Started;
use crate::wire::{self, Fields, Listing};

pub(crate) static ALLOCATE: Spec = Spec {
    name: "POST /nodes/{node}/storage/{storage}/content",
    class: OpClass::Once,
    rights: &[Right::on(
        Object::Storage,
        "Datastore.AllocateSpace",
        "make a disk",
    )],
};
pub(crate) static DISK: Spec = Spec {
    name: "GET /nodes/{node}/storage/{storage}/content/{volume}",
    class: OpClass::Read,
    rights: &[Right::on(
        Object::Storage,
        "Datastore.Allocate",
        "look at a disk",
    )],
};
pub(crate) static CONTENT: Spec = Spec {
    name: "GET /nodes/{node}/storage/{storage}/content",
    class: OpClass::Read,
    rights: &[Right::on(
        Object::Storage,
        "Datastore.Allocate",
        "count disks against a quota",
    )
    .or_left_out()],
};
pub(crate) static DELETE: Spec = Spec {
    name: "DELETE /nodes/{node}/storage/{storage}/content/{volume}",
    class: OpClass::Converge,
    rights: &[Right::on(
        Object::Storage,
        "Datastore.Allocate",
        "free a disk",
    )],
};

pub(crate) static ENDPOINTS: [&Spec; 4] = [&ALLOCATE, &DISK, &CONTENT, &DELETE];

/// A storage as one PVE node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageRef {
    /// The host that is asked. For a node-local storage it decides which data is meant.
    pub pve_node: PveNode,
    /// The storage.
    pub storage: StorageId,
}

impl StorageRef {
    fn volid(&self, disk: &DiskName) -> String {
        format!("{}:{disk}", self.storage)
    }
}

/// Whether something is there. *Not known* is the `Err` beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence<T> {
    /// It is, and this is it.
    Present(T),
    /// PVE looked and it is not.
    Absent,
}

/// One disk, as its storage sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskInfo {
    /// Size that a guest would see.
    pub size: Bytes,
    /// Space taken on the storage.
    pub used: Option<Bytes>,
    /// `raw`, `qcow2`, ….
    pub format: Option<String>,
    /// File or device on the host.
    pub path: Option<String>,
}

/// One disk of a storage's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentEntry {
    /// `<storage>:<disk>`.
    pub volid: String,
    /// The VMID that PVE takes as owner.
    pub owner: Option<VmId>,
    /// Size that a guest would see; missing for some formats.
    pub size: Option<Bytes>,
    /// `raw`, `qcow2`, ….
    pub format: Option<String>,
    /// Base volume of a linked clone.
    pub parent: Option<String>,
    /// When it was made, or changed by more than its content, in seconds since 1970; not all storages know.
    pub made: Option<u64>,
}

impl Client {
    /// `POST /nodes/{node}/storage/{storage}/content`; `Datastore.AllocateSpace` on the storage. `size` is rounded up
    /// to MiB: a bare number would be KiB. Synchronous; answers the volume id. `format` is always sent, as lvm with
    /// snapshot chains would choose qcow2 by itself.
    pub async fn allocate_disk(
        &self,
        at: &StorageRef,
        disk: &DiskName,
        size: Bytes,
    ) -> Result<String, ApiError> {
        let segments = [at.pve_node.as_str(), at.storage.as_str()];
        let request = ApiRequest::new(&ALLOCATE, Some(&at.pve_node), &segments)
            .with("vmid", disk.owner().to_string())
            .with("filename", disk.file_name())
            .with("size", format!("{}M", size.units(Bytes::MIB)))
            .with("format", disk.format().map_or("raw", DiskFormat::as_str));
        self.call(request, |data| {
            wire::scalar(data).ok_or("no volume id".to_owned())
        })
        .await
    }

    /// `GET /nodes/{node}/storage/{storage}/content/{volume}`; `Datastore.Allocate` on the storage, or
    /// `Datastore.Audit` there and `VM.Config.Disk` on the owner. Of a file, *absent* may also mean that the host could
    /// not read it; an answer that took long is [`ErrorKind::StorageUnavailable`] instead.
    pub async fn disk(
        &self,
        at: &StorageRef,
        disk: &DiskName,
    ) -> Result<Presence<DiskInfo>, ApiError> {
        let volid = at.volid(disk);
        let segments = [at.pve_node.as_str(), at.storage.as_str(), volid.as_str()];
        let request = ApiRequest::new(&DISK, Some(&at.pve_node), &segments);
        let begin = Instant::now();
        let answer = self.call(request, disk_info).await;
        match answer.map_err(|error| classify::unless_slow(error, begin.elapsed())) {
            Ok(info) => Ok(Presence::Present(info)),
            Err(error) if error.kind == ErrorKind::DiskAbsent => Ok(Presence::Absent),
            Err(error) => Err(error),
        }
    }

    /// `GET /nodes/{node}/storage/{storage}/content?content=images&vmid=`; as [`Client::disk`], disks without the
    /// right are left out. A storage without content type `images` lists none, whatever it holds.
    pub async fn disks_of(
        &self,
        at: &StorageRef,
        owner: VmId,
    ) -> Result<Listing<ContentEntry>, ApiError> {
        let segments = [at.pve_node.as_str(), at.storage.as_str()];
        let request = ApiRequest::new(&CONTENT, Some(&at.pve_node), &segments)
            .with("content", "images")
            .with("vmid", owner.to_string());
        self.call(request, |data| wire::listing(data, content_entry))
            .await
    }

    /// `DELETE /nodes/{node}/storage/{storage}/content/{volume}?delay=`; `Datastore.Allocate` on the storage. PVE asks
    /// nobody whether the disk is in use, and a missing one counts as deleted, on the wrong host too.
    pub async fn delete_disk(&self, at: &StorageRef, disk: &DiskName) -> Result<Started, ApiError> {
        let volid = at.volid(disk);
        let segments = [at.pve_node.as_str(), at.storage.as_str(), volid.as_str()];
        let request = ApiRequest::new(&DELETE, Some(&at.pve_node), &segments)
            .with("delay", self.background_delay());
        self.call(request, Started::read).await
    }
}

pub(crate) fn disk_info(data: &Value) -> Result<DiskInfo, String> {
    let fields = Fields::of(data)?;
    Ok(DiskInfo {
        size: fields.number("size").map(Bytes::new).ok_or("no size")?,
        used: fields.number("used").map(Bytes::new),
        format: fields.text("format"),
        path: fields.text("path"),
    })
}

pub(crate) fn content_entry(fields: Fields<'_>) -> Option<ContentEntry> {
    Some(ContentEntry {
        volid: fields.text("volid")?,
        owner: fields.optional_id("vmid")?,
        size: fields.number("size").map(Bytes::new),
        format: fields.text("format"),
        parent: fields.text("parent"),
        made: fields.number("ctime").filter(|time| *time > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{client, client_taking, reply};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    fn at() -> StorageRef {
        StorageRef {
            pve_node: "pve1".parse().unwrap(),
            storage: "local".parse().unwrap(),
        }
    }

    fn disk() -> DiskName {
        "9999/vm-9999-pvc-a.raw".parse().unwrap()
    }

    type Seen = Arc<Mutex<Vec<String>>>;

    fn answering(status: u16, reason: &'static str, data: &'static str) -> (Client, Seen) {
        let seen = Seen::default();
        let log = Arc::clone(&seen);
        let client = client(move |request| {
            let target = request
                .uri()
                .path_and_query()
                .unwrap()
                .as_str()
                .replace("/api2/json", "");
            let form = String::from_utf8(request.body().to_vec()).unwrap();
            log.lock()
                .unwrap()
                .push(format!("{} {target} {form}", request.method()));
            Ok(reply(status, reason, &format!(r#"{{"data":{data}}}"#)))
        });
        (client, seen)
    }

    fn only(seen: &Seen) -> String {
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 1);
        seen.first().unwrap().trim_end().to_owned()
    }

    #[tokio::test]
    async fn a_size_is_sent_in_whole_mebibytes_and_never_bare() {
        let (client, seen) = answering(200, "OK", r#""local:9999/vm-9999-pvc-a.raw""#);
        let size = Bytes::new((1 << 30) + 1);
        let volid = client.allocate_disk(&at(), &disk(), size).await.unwrap();
        assert_eq!(volid, "local:9999/vm-9999-pvc-a.raw");
        assert_eq!(
            only(&seen),
            "POST /nodes/pve1/storage/local/content vmid=9999&filename=vm-9999-pvc-a.raw&size=1025M&format=raw"
        );
    }

    #[tokio::test]
    async fn an_allocation_whose_answer_makes_no_sense_may_have_happened() {
        let (client, _) = answering(200, "OK", "null");
        let error = client
            .allocate_disk(&at(), &disk(), Bytes::GIB)
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Decode, crate::Effect::Possible)
        );
    }

    #[tokio::test]
    async fn a_disk_is_asked_for_by_its_whole_id() {
        let (client, seen) = answering(
            200,
            "OK",
            r#"{"size":"1073741824","used":0,"format":"raw","path":"/x"}"#,
        );
        let found = client.disk(&at(), &disk()).await.unwrap();
        assert!(matches!(found, Presence::Present(info) if info.size == Bytes::GIB));
        assert_eq!(
            only(&seen),
            "GET /nodes/pve1/storage/local/content/local%3A9999%2Fvm-9999-pvc-a.raw"
        );
    }

    #[tokio::test]
    async fn only_pves_word_makes_a_disk_absent() {
        let words = "volume_size_info on 'local:9999/vm-9999-pvc-a.raw' failed - no format";
        let (client, _) = answering(500, words, "null");
        assert_eq!(client.disk(&at(), &disk()).await, Ok(Presence::Absent));
        for (status, words) in [
            (500, "got timeout"),
            (404, "Not Found"),
            (403, "Permission check failed"),
        ] {
            let (client, _) = answering(status, words, "null");
            assert!(client.disk(&at(), &disk()).await.is_err(), "{words}");
        }
        let (client, _) = answering(200, "OK", "null");
        assert_eq!(
            client.disk(&at(), &disk()).await.unwrap_err().kind,
            ErrorKind::Decode
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_without_words_says_nothing_about_a_disk() {
        let no_format = "volume_size_info on 'local:9999/vm-9999-pvc-a.raw' failed - no format";
        let no_volume = "can't get size of '/dev/vg/x':   Failed to find logical volume \"vg/x\"";
        for (words, millis, absent) in [
            (no_format, 1900, true),
            (no_format, 2000, false),
            (no_volume, 9000, true),
        ] {
            let client = client_taking(Duration::from_millis(millis), reply(500, words, ""));
            let found = client.disk(&at(), &disk()).await;
            let expected = if absent {
                Ok(Presence::Absent)
            } else {
                Err(ErrorKind::StorageUnavailable)
            };
            assert_eq!(
                found.map_err(|error| error.kind),
                expected,
                "{words} {millis}"
            );
        }
    }

    #[tokio::test]
    async fn a_deletion_waits_a_little_and_then_names_its_task() {
        let (client, seen) = answering(200, "OK", "null");
        assert_eq!(client.delete_disk(&at(), &disk()).await, Ok(Started::Done));
        assert_eq!(
            only(&seen),
            "DELETE /nodes/pve1/storage/local/content/local%3A9999%2Fvm-9999-pvc-a.raw?delay=2"
        );
        let task = "\"UPID:pve1:000000CE:0006F6CC:6B0E05DA:imgdel:9999@local:root@pam!full:\"";
        let (client, _) = answering(200, "OK", task);
        assert!(matches!(
            client.delete_disk(&at(), &disk()).await,
            Ok(Started::Running(_))
        ));
    }

    #[tokio::test]
    async fn disks_that_can_not_be_read_are_counted() {
        let (client, seen) = answering(
            200,
            "OK",
            r#"[{"volid":"local:9999/a.raw","size":4194304,"vmid":"9999","ctime":"1","parent":null},{"size":1}]"#,
        );
        let list = client
            .disks_of(&at(), "9999".parse().unwrap())
            .await
            .unwrap();
        assert_eq!((list.entries.len(), list.undecodable), (1, 1));
        assert_eq!(
            only(&seen),
            "GET /nodes/pve1/storage/local/content?content=images&vmid=9999"
        );
        let (client, _) = answering(200, "OK", "null");
        assert!(
            client
                .disks_of(&at(), "9999".parse().unwrap())
                .await
                .is_err()
        );
    }
}
