//! From a node id to a VM that is proved: its SMBIOS UUID was read from its config in this RPC, no other VM has it, and
//! the operator's policy lets us touch it.
//!
//! Everything a caller says (VMID, Node name) is a hint. Knows nothing of volumes.

use std::collections::BTreeSet;

use pve_client::{ApiError, ErrorKind, GuestKind, VmEntry, VmPending, VmRef};
use pve_model::{NodeId, Slot, Uuid, VmId};
use pve_runtime::config::RegionPolicy;
use pve_runtime::keyed_lock::Guard;
use tokio::time::Instant;

use crate::error::{Error, VmRefusal};
use crate::holders;
use crate::inventory::{Census, Freshness};
use crate::region::RegionContext;
use crate::slots::{Controller, Picture, Row, Seat};

/// How often a VM is looked for when it moves or its VMID turns out to be another's.
const TRIES: u32 = 5;
const READING: &str = "reading the VM's config";

/// Which VM is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The identity.
    pub uuid: Uuid,
    /// Where to look first.
    pub vmid: Option<VmId>,
}

/// A proved VM, locked against our own other work on it.
#[derive(Debug)]
pub struct Pinned {
    /// Its entry in the inventory.
    pub guest: VmEntry,
    /// Its identity, read just now.
    pub uuid: Uuid,
    /// Its config and half-done changes, read just now.
    pub pending: VmPending,
    _lock: Guard<VmId>,
}

/// A VM that is not among those that we see, which proves nothing by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Whether its VMID was read and belongs to another UUID.
    pub stranger: bool,
    /// A VM that we see, for the control question.
    pub visible: Option<VmId>,
}

/// What came of the search.
#[derive(Debug)]
pub enum Found {
    /// Here it is.
    Vm(Box<Pinned>),
    /// Nowhere among the guests that we see, all of which were read.
    Missing(Missing),
}

impl Pinned {
    /// Where requests about it go.
    pub fn at(&self) -> VmRef {
        at(&self.guest)
    }
}

/// Where requests about a guest go.
pub fn at(guest: &VmEntry) -> VmRef {
    VmRef {
        pve_node: guest.pve_node.clone(),
        vmid: guest.vmid,
    }
}

/// What a node id says; none for a Node name that leads nowhere.
pub async fn wanted(region: &RegionContext, node: &NodeId) -> Option<Wanted> {
    match node {
        NodeId::Vm { uuid, vmid } => Some(Wanted {
            uuid: uuid.clone(),
            vmid: *vmid,
        }),
        NodeId::Former { name, vmid } => Some(Wanted {
            uuid: region.guests.hint(name).await?,
            vmid: *vmid,
        }),
    }
}

/// Finds the VM, locks it, reads it and proves it.
pub async fn pin(
    region: &RegionContext,
    wanted: &Wanted,
    deadline: Instant,
) -> Result<Found, Error> {
    let mut search = Search {
        region,
        uuid: &wanted.uuid,
        hint: wanted.vmid,
        stranger: false,
        freshness: Freshness::Recent,
        begun: Instant::now(),
    };
    for _ in 0..TRIES {
        if Instant::now() >= deadline {
            return Err(Error::StillRunning(format!(
                "the search for the VM of {}",
                wanted.uuid
            )));
        }
        let census = region.inventory.vms(search.freshness).await?;
        let Some(guest) = search.candidate(&census).await? else {
            if search.freshness == Freshness::Recent {
                search.freshness = Freshness::Since(search.begun);
                continue;
            }
            return search.missing(&census);
        };
        if let Some(pinned) = search.prove(&census, guest, deadline).await? {
            return Ok(Found::Vm(Box::new(pinned)));
        }
    }
    Err(Error::Changed(format!(
        "the VM of {} moves or is being replaced",
        wanted.uuid
    )))
}

struct Search<'a> {
    region: &'a RegionContext,
    uuid: &'a Uuid,
    hint: Option<VmId>,
    stranger: bool,
    freshness: Freshness,
    begun: Instant,
}

impl Search<'_> {
    /// Where to look next: the hint, else the index, else every guest whose UUID is not known yet.
    async fn candidate(&mut self, census: &Census) -> Result<Option<VmEntry>, Error> {
        if let Some(guest) = self.hint.and_then(|vmid| census.get(vmid)) {
            if guest.kind == GuestKind::Qemu {
                return Ok(Some(guest.clone()));
            }
            // A container has no SMBIOS UUID.
            self.stranger = true;
            self.hint = None;
        }
        let listed =
            |vmids: BTreeSet<VmId>| vmids.into_iter().find_map(|vmid| census.get(vmid).cloned());
        if let Some(guest) = listed(self.region.inventory.having(self.uuid)) {
            return Ok(Some(guest));
        }
        let virtual_machines = census
            .guests
            .values()
            .filter(|guest| guest.kind == GuestKind::Qemu);
        let unread = self.region.inventory.unread(virtual_machines);
        let mut unreadable = None;
        for (guest, read) in holders::read(self.region, unread).await {
            match read {
                Ok(_) => {}
                // It moved or ended since; a newer list will tell.
                Err(error) if self.freshness == Freshness::Recent && self.outdated(&error) => {}
                Err(error) => unreadable = Some((guest, error)),
            }
        }
        match (listed(self.region.inventory.having(self.uuid)), unreadable) {
            (Some(guest), _) => Ok(Some(guest)),
            (None, None) => Ok(None),
            (None, Some((_, source))) => Err(Error::Pve {
                doing: "searching the Node's VM among those that can't be read",
                source,
            }),
        }
    }

    /// Reads the candidate under its lock. None: it is not the one, or no longer there.
    async fn prove(
        &mut self,
        census: &Census,
        guest: VmEntry,
        deadline: Instant,
    ) -> Result<Option<Pinned>, Error> {
        let lock = self.region.guests.lock_vm(guest.vmid, deadline).await?;
        let pending = match self.region.client.vm_pending(&at(&guest)).await {
            Ok(pending) => pending,
            Err(error) if self.outdated(&error) => {
                self.freshness = Freshness::Since(Instant::now());
                return Ok(None);
            }
            Err(source) => {
                return Err(Error::Pve {
                    doing: READING,
                    source,
                });
            }
        };
        let uuid = pending.smbios_uuid();
        self.region.inventory.note(&guest, uuid.clone());
        let Some(uuid) = uuid.filter(|uuid| uuid == self.uuid) else {
            self.stranger |= self.hint == Some(guest.vmid);
            self.hint = None;
            return Ok(None);
        };
        admit(&self.region.policy, &guest, &pending)?;
        self.alone(census, &guest).await?;
        let span = tracing::Span::current();
        span.record("vm.id", guest.vmid.get());
        span.record("pve.node", guest.pve_node.as_str());
        Ok(Some(Pinned {
            guest,
            uuid,
            pending,
            _lock: lock,
        }))
    }

    /// Whether the list may be older than what the VM went through: it moved or ended, or was taken from our sight.
    fn outdated(&self, error: &ApiError) -> bool {
        let recent = self.freshness == Freshness::Recent;
        error.kind == ErrorKind::Absent
            || (recent && matches!(error.kind, ErrorKind::PermissionDenied { .. }))
    }

    /// No other VM has the UUID, as far as they were read; those that had it are read again.
    async fn alone(&self, census: &Census, guest: &VmEntry) -> Result<(), Error> {
        let others = self.region.inventory.having(self.uuid).into_iter();
        let others = others
            .filter(|vmid| *vmid != guest.vmid)
            .filter_map(|vmid| census.get(vmid).cloned());
        for (_, read) in holders::read(self.region, others.collect()).await {
            read.map_err(Error::pve("reading a VM that had the same UUID"))?;
        }
        unique(self.region, guest, self.uuid)
    }

    fn missing(&self, census: &Census) -> Result<Found, Error> {
        if census.undecodable > 0 {
            return Err(Error::VmInvisible(format!(
                "{} not among the guests that can be read, {} entries of the list can't",
                self.uuid, census.undecodable
            )));
        }
        Ok(Found::Missing(Missing {
            stranger: self.stranger,
            visible: census.guests.keys().next().copied(),
        }))
    }
}

/// Refuses a UUID that was read in two VMs: which of them is the Node can't be told.
pub fn unique(region: &RegionContext, guest: &VmEntry, uuid: &Uuid) -> Result<(), Error> {
    let having = region.inventory.having(uuid);
    match having.iter().find(|vmid| **vmid != guest.vmid) {
        None => Ok(()),
        Some(other) => Err(Error::VmRefused {
            why: VmRefusal::Duplicate,
            detail: format!("VM {} and VM {other} both have the UUID {uuid}", guest.vmid),
        }),
    }
}

/// Whether the operator's policy lets us touch the VM.
fn admit(policy: &RegionPolicy, guest: &VmEntry, pending: &VmPending) -> Result<(), Error> {
    let refuse = |why, detail: String| Err(Error::VmRefused { why, detail });
    let vmid = guest.vmid;
    match &guest.pool {
        Some(pool) if *pool == policy.pool => {}
        Some(pool) => {
            return refuse(
                VmRefusal::Pool,
                format!("VM {vmid} is in pool {pool}, not in {}", policy.pool),
            );
        }
        None => {
            return refuse(
                VmRefusal::Pool,
                format!(
                    "VM {vmid} is in no pool, or the token lacks Pool.Audit on /pool/{}",
                    policy.pool
                ),
            );
        }
    }
    if guest.template || pending.template() {
        return refuse(VmRefusal::Template, format!("VM {vmid} is a template"));
    }
    if policy.is_owner(vmid) {
        return refuse(
            VmRefusal::Owner,
            format!("VM {vmid} has the number that disks are owned by"),
        );
    }
    Ok(())
}

/// What decisions need of a VM's config.
pub fn picture(pending: &VmPending) -> Picture {
    let seat = |drive: &pve_client::Drive| Seat {
        volid: drive.volid().to_owned(),
        wwn: drive.wwn(),
        size: drive.size(),
        read_only: matches!(drive.get("ro"), Some("1" | "on" | "yes" | "true")),
    };
    let rows = pending.occupied_slots().into_iter().map(|slot| Row {
        slot,
        now: pending.drives_current().get(&slot).map(seat),
        next: pending.drives_after().get(&slot).map(seat),
        changing: pending.has_change(&slot.to_string()),
    });
    Picture {
        rows: rows.collect(),
        boot: boot_disks(pending),
        controller: match pending.scsihw() {
            "virtio-scsi-pci" => Controller::Shared,
            "virtio-scsi-single" => Controller::PerDisk,
            other => Controller::Other(other.to_owned()),
        },
        hotplug: pending.hotplug_disk(),
        lock: pending.lock().map(str::to_owned),
        template: pending.template(),
    }
}

/// `boot: order=scsi0;net0`, and `bootdisk: scsi0` of older configs (`QemuServer.pm` `bootorder_from_legacy`).
fn boot_disks(pending: &VmPending) -> BTreeSet<Slot> {
    let order = pending.current("boot").unwrap_or_default();
    let order = order
        .split(',')
        .filter_map(|part| part.strip_prefix("order="));
    order
        .flat_map(|devices| devices.split(';'))
        .chain(pending.current("bootdisk"))
        .filter_map(|device| device.trim().parse().ok())
        .collect()
}
