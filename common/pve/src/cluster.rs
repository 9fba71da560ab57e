//! What the whole PVE cluster says of itself: version, inventory, VMIDs.

use std::collections::BTreeSet;

use pve_model::{Bytes, PoolId, PveNode, StorageId, VmId};

use crate::Client;
use crate::error::{ApiError, Effect, ErrorKind};
use crate::privileges::{Object, Program, Right};
use crate::request::{ApiRequest, OpClass, Spec};
use crate::wire::{self, Fields, Listing};

pub(crate) static VERSION: Spec = Spec {
    name: "GET /version",
    class: OpClass::Read,
    rights: &[],
};
pub(crate) static RESOURCES: Spec = Spec {
    name: "GET /cluster/resources",
    class: OpClass::Read,
    rights: &[
        Right::on(Object::Vm, "VM.Audit", "find the VMs").or_left_out(),
        Right::on(Object::Pool, "Pool.Audit", "see which VMs are in the pool").or_left_out(),
        Right::on(
            Object::Storage,
            "Datastore.Audit",
            "see the storage and its free space",
        )
        .or_left_out()
        .only(Program::Csi),
    ],
};
pub(crate) static NEXTID: Spec = Spec {
    name: "GET /cluster/nextid",
    class: OpClass::Read,
    rights: &[],
};

pub(crate) static ENDPOINTS: [&Spec; 3] = [&VERSION, &RESOURCES, &NEXTID];

/// What a PVE installation says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// `9.2.11`.
    pub version: String,
    /// `9.2`.
    pub release: String,
}

/// What kind of guest a VMID is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestKind {
    /// A virtual machine.
    Qemu,
    /// A container.
    Lxc,
}

/// Whether a guest runs, as PVE last knew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// It runs.
    Running,
    /// It does not.
    Stopped,
    /// QEMU is there in another state (`paused`, `prelaunch`, `io-error`, …).
    Other(String),
    /// Not known: some seconds after a host starts, minutes after one died.
    Unknown,
}

impl RunState {
    pub(crate) fn read(text: Option<&str>) -> Self {
        match text {
            Some("running") => Self::Running,
            Some("stopped") => Self::Stopped,
            None | Some("unknown" | "") => Self::Unknown,
            Some(other) => Self::Other(other.to_owned()),
        }
    }
}

/// One guest of the inventory. Host and existence are exact; state and name may be 10 s old or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmEntry {
    /// Its number.
    pub vmid: VmId,
    /// The host that has its config.
    pub pve_node: PveNode,
    /// VM or container.
    pub kind: GuestKind,
    /// Whether it runs.
    pub state: RunState,
    /// Its name, if PVE knows it yet.
    pub name: Option<String>,
    /// Its pool, if it has one and the token holds `Pool.Audit` there.
    pub pool: Option<PoolId>,
    /// Whether it is a template; `false` too while PVE doesn't know yet.
    pub template: bool,
    /// `lock` of its config.
    pub lock: Option<String>,
    /// State of its HA resource.
    pub hastate: Option<String>,
    /// The CPUs that it may use at most, if PVE knows yet.
    pub max_cpu: Option<u64>,
    /// The memory that it may use at most, if PVE knows yet.
    pub max_memory: Option<Bytes>,
    /// For how many seconds it has been running, 0 if it isn't; none if PVE doesn't know yet.
    pub uptime: Option<u64>,
}

/// One storage on one host where it is enabled. Numbers are up to 10 s old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageEntry {
    /// Its id.
    pub storage: StorageId,
    /// The host.
    pub pve_node: PveNode,
    /// Plugin type: `dir`, `lvmthin`, ….
    pub plugin: String,
    /// Whether all hosts see the same content.
    pub shared: bool,
    /// Content types it is configured for.
    pub content: BTreeSet<String>,
    /// Whether the host reported it as usable.
    pub available: bool,
    /// Its size.
    pub total: Option<Bytes>,
    /// What is used of it.
    pub used: Option<Bytes>,
}

/// Whether a host is in the PVE cluster's quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostState {
    /// Yes.
    Online,
    /// No.
    Offline,
    /// Not known.
    Unknown,
}

/// One host. All of them are listed for any token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEntry {
    /// Its name.
    pub pve_node: PveNode,
    /// Whether it is up.
    pub state: HostState,
    /// Its HA state (`online`, `maintenance`, `fence`, `gone`), if HA is in use.
    pub hastate: Option<String>,
}

/// Whether any guest of the PVE cluster has a number, visible to the token or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmidState {
    /// None has.
    Free,
    /// One has.
    Taken,
}

/// What one endpoint says of a VMID that it does not list, beside what shows whether it knows its own cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    /// Whether any guest has the VMID.
    pub asked: VmidState,
    /// Whether any guest has that of a guest that is known to be there.
    pub control: VmidState,
    /// Whether it sees more than half of the hosts. One that is cut off goes on to tell what it knew.
    pub majority: bool,
}

impl Client {
    /// `GET /version`; no privilege.
    pub async fn version(&self) -> Result<Version, ApiError> {
        let request = ApiRequest::new(&VERSION, None, &[]);
        self.call(request, |data| {
            let fields = Fields::of(data)?;
            let text = |key| fields.text(key).ok_or(format!("no {key}"));
            Ok(Version {
                version: text("version")?,
                release: text("release")?,
            })
        })
        .await
    }

    /// `GET /cluster/resources?type=vm`; shows guests with `VM.Audit` on `/vms/{vmid}`, their pool with `Pool.Audit`.
    pub async fn vms(&self) -> Result<Listing<VmEntry>, ApiError> {
        let request = ApiRequest::new(&RESOURCES, None, &[]).with("type", "vm");
        self.call(request, |data| wire::listing(data, vm_entry))
            .await
    }

    /// `GET /cluster/resources?type=storage`; shows storages with `Datastore.Audit` on `/storage/{storage}`.
    pub async fn storages(&self) -> Result<Listing<StorageEntry>, ApiError> {
        let request = ApiRequest::new(&RESOURCES, None, &[]).with("type", "storage");
        self.call(request, |data| wire::listing(data, storage_entry))
            .await
    }

    /// `GET /cluster/resources?type=node`; no privilege.
    pub async fn pve_nodes(&self) -> Result<Listing<NodeEntry>, ApiError> {
        let request = ApiRequest::new(&RESOURCES, None, &[]).with("type", "node");
        self.call(request, |data| wire::listing(data, node_entry))
            .await
    }

    /// `GET /cluster/nextid?vmid=`; no privilege: it tells of guests that the token can't see.
    pub async fn vmid_state(&self, id: VmId) -> Result<VmidState, ApiError> {
        let request = ApiRequest::new(&NEXTID, None, &[]).with("vmid", id.to_string());
        let wanted = id.to_string();
        let free = self.call(request, |data| match wire::scalar(data) {
            Some(text) if text == wanted => Ok(()),
            _ => Err("another vmid than asked for".to_owned()),
        });
        match free.await {
            Ok(()) => Ok(VmidState::Free),
            Err(error) if error.kind == ErrorKind::AlreadyExists => Ok(VmidState::Taken),
            Err(error) => Err(error),
        }
    }

    /// As [`Client::vmid_state`], and if `id` is free, what the same endpoint says of `control`: one that has an
    /// incomplete list of guests calls everything free.
    pub async fn vmid_states(
        &self,
        id: VmId,
        control: Option<VmId>,
    ) -> Result<(VmidState, Option<VmidState>), ApiError> {
        for _ in 0..2 {
            let before = self.moves();
            let state = self.vmid_state(id).await?;
            let (VmidState::Free, Some(control)) = (state, control) else {
                return Ok((state, None));
            };
            let said = self.vmid_state(control).await?;
            if self.moves() == before {
                return Ok((state, Some(said)));
            }
        }
        Err(moved())
    }
}

impl Client {
    /// Asks one and the same endpoint `GET /cluster/nextid?vmid=` for `id` and for `control`, and
    /// `GET /cluster/resources?type=node` for the hosts; no privilege.
    pub async fn absence(&self, id: VmId, control: VmId) -> Result<Absence, ApiError> {
        for _ in 0..2 {
            let before = self.moves();
            let hosts = self.pve_nodes().await?;
            let online = hosts
                .entries
                .iter()
                .filter(|host| host.state == HostState::Online);
            let all = hosts.entries.len() + hosts.undecodable;
            let absence = Absence {
                majority: 2 * online.count() > all,
                asked: self.vmid_state(id).await?,
                control: self.vmid_state(control).await?,
            };
            if self.moves() == before {
                return Ok(absence);
            }
        }
        Err(moved())
    }
}

/// Answers of two endpoints prove nothing together.
fn moved() -> ApiError {
    let text = "the endpoint changed between two questions";
    ApiError::new(&NEXTID, ErrorKind::Unreachable, Effect::None, text)
}

pub(crate) fn vm_entry(fields: Fields<'_>) -> Option<VmEntry> {
    Some(VmEntry {
        vmid: fields.id("vmid")?,
        pve_node: fields.id("node")?,
        kind: match fields.text("type")?.as_str() {
            "qemu" => GuestKind::Qemu,
            "lxc" => GuestKind::Lxc,
            _ => return None,
        },
        state: RunState::read(fields.text("status").as_deref()),
        name: fields.text("name"),
        pool: fields.optional_id("pool")?,
        template: fields.optional_flag("template")?.unwrap_or(false),
        lock: fields.text("lock"),
        hastate: fields.text("hastate"),
        max_cpu: fields.number("maxcpu"),
        max_memory: fields.number("maxmem").map(Bytes::new),
        uptime: fields.number("uptime"),
    })
}

pub(crate) fn storage_entry(fields: Fields<'_>) -> Option<StorageEntry> {
    Some(StorageEntry {
        storage: fields.id("storage")?,
        pve_node: fields.id("node")?,
        plugin: fields.text("plugintype").unwrap_or_default(),
        shared: fields.optional_flag("shared")?.unwrap_or(false),
        content: fields
            .text("content")
            .unwrap_or_default()
            .split(',')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect(),
        available: fields.text("status").as_deref() == Some("available"),
        total: fields.number("maxdisk").map(Bytes::new),
        used: fields.number("disk").map(Bytes::new),
    })
}

pub(crate) fn node_entry(fields: Fields<'_>) -> Option<NodeEntry> {
    Some(NodeEntry {
        pve_node: fields.id("node")?,
        state: match fields.text("status").as_deref() {
            Some("online") => HostState::Online,
            Some("offline") => HostState::Offline,
            _ => HostState::Unknown,
        },
        hastate: fields.text("hastate"),
    })
}

#[cfg(test)]
mod tests;
