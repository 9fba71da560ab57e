//! Disks on a storage of one PVE node: allocate, look, list, delete.

use pve_model::{Bytes, DiskFormat, DiskName, PveNode, StorageId, VmId};
use serde_json::Value;

use crate::Client;
use crate::error::{ApiError, ErrorKind};
use crate::request::{ApiRequest, OpClass, Spec};
use crate::task::Started;
use crate::wire::{self, Fields, Listing};

pub(crate) static ALLOCATE: Spec = Spec {
    name: "POST /nodes/{node}/storage/{storage}/content",
    class: OpClass::Once,
    privileges: "/storage/{storage}: Datastore.AllocateSpace",
};
pub(crate) static DISK: Spec = Spec {
    name: "GET /nodes/{node}/storage/{storage}/content/{volume}",
    class: OpClass::Read,
    privileges: "/storage/{storage}: Datastore.Allocate, or Datastore.Audit with /vms/{owner}: VM.Config.Disk",
};
pub(crate) static CONTENT: Spec = Spec {
    name: "GET /nodes/{node}/storage/{storage}/content",
    class: OpClass::Read,
    privileges: "/storage/{storage}: Datastore.Allocate, or Datastore.Audit with /vms/{owner}: VM.Config.Disk",
};
pub(crate) static DELETE: Spec = Spec {
    name: "DELETE /nodes/{node}/storage/{storage}/content/{volume}",
    class: OpClass::Converge,
    privileges: "/storage/{storage}: Datastore.Allocate",
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
    /// `Datastore.Audit` there and `VM.Config.Disk` on the owner.
    pub async fn disk(
        &self,
        at: &StorageRef,
        disk: &DiskName,
    ) -> Result<Presence<DiskInfo>, ApiError> {
        let volid = at.volid(disk);
        let segments = [at.pve_node.as_str(), at.storage.as_str(), volid.as_str()];
        let request = ApiRequest::new(&DISK, Some(&at.pve_node), &segments);
        match self.call(request, disk_info).await {
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

fn disk_info(data: &Value) -> Result<DiskInfo, String> {
    let fields = Fields::of(data)?;
    Ok(DiskInfo {
        size: fields.number("size").map(Bytes::new).ok_or("no size")?,
        used: fields.number("used").map(Bytes::new),
        format: fields.text("format"),
        path: fields.text("path"),
    })
}

fn content_entry(fields: Fields<'_>) -> Option<ContentEntry> {
    Some(ContentEntry {
        volid: fields.text("volid")?,
        owner: fields.optional_id("vmid")?,
        size: fields.number("size").map(Bytes::new),
        format: fields.text("format"),
        parent: fields.text("parent"),
    })
}
