//! From a node id to a VM that is proved: its SMBIOS UUID was read from its config in this RPC, no other VM has it, and
//! the operator's policy lets us touch it.
//!
//! Everything a caller says (VMID, Node name) is a hint. Knows nothing of volumes.

mod reading;

use std::collections::BTreeSet;

use pve_client::{ApiError, ErrorKind, GuestKind, VmEntry, VmPending, VmRef};
use pve_model::{NodeId, Slot, Uuid, VmId};
use pve_runtime::config::RegionPolicy;
use pve_runtime::keyed_lock::Guard;
use tokio::time::Instant;

use crate::asking;
use crate::error::{Error, VmRefusal};
use crate::holders::{self, Term};
use crate::inventory::{Census, Freshness};
use crate::region::RegionContext;
use crate::slots::{Controller, Picture, Row, Seat};
pub use reading::pin_read;

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
    /// Who has its VMID under another UUID.
    pub stranger: Option<Stranger>,
    /// A VM that we see, for the control question.
    pub visible: Option<VmId>,
}

/// A guest that has the VMID of the one that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stranger {
    /// A container, which has no SMBIOS UUID.
    Container,
    /// A VM of another UUID or none, and its config, read just now.
    Vm(Box<(VmEntry, VmPending)>),
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

/// Refuses a VM on a host that the policy does not name.
pub fn allowed_host(region: &RegionContext, vm: &Pinned) -> Result<(), Error> {
    let host = &vm.guest.pve_node;
    if region.policy.pve_nodes.contains(host) {
        return Ok(());
    }
    Err(Error::VmRefused {
        why: VmRefusal::PveNode,
        detail: format!(
            "VM {} is on {host}, which the policy does not name",
            vm.guest.vmid
        ),
    })
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

/// Finds the VM, locks it, reads it and proves it. `freshness` is of the list that shows its pool, once it is locked;
/// that the VM is nowhere is concluded only from a second one.
pub async fn pin(
    region: &RegionContext,
    wanted: &Wanted,
    term: Term,
    freshness: Freshness,
) -> Result<Found, Error> {
    let mut search = Search {
        region,
        uuid: &wanted.uuid,
        hint: wanted.vmid,
        stranger: None,
        freshness,
        tries: 0,
        term,
    };
    for tries in 0..TRIES {
        search.tries = tries;
        if Instant::now() >= term.deadline {
            return Err(Error::StillRunning(format!(
                "the search for the VM of {}",
                wanted.uuid
            )));
        }
        let lock = match search.hint {
            Some(vmid) => Some((vmid, region.guests.lock_vm(vmid, term.deadline).await?)),
            None => None,
        };
        let census = region.inventory.vms(search.freshness).await?;
        let Some(guest) = search.candidate(&census).await? else {
            if tries == 0 {
                search.freshness = Freshness::Since(Instant::now());
                continue;
            }
            return search.missing(&census);
        };
        if let Some(pinned) = search.prove(guest, lock).await? {
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
    stranger: Option<Stranger>,
    freshness: Freshness,
    tries: u32,
    term: Term,
}

impl Search<'_> {
    /// Where to look next: the hint, else the index, else every guest whose UUID is not known yet.
    async fn candidate(&mut self, census: &Census) -> Result<Option<VmEntry>, Error> {
        if let Some(guest) = self.hint.and_then(|vmid| census.get(vmid)) {
            if guest.kind == GuestKind::Qemu {
                return Ok(Some(guest.clone()));
            }
            self.stranger = Some(Stranger::Container);
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
        holders::read(self.region, unread, self.term.deadline, |_, read| {
            match read {
                // It moved or ended since; a newer list will tell.
                Err(error) if self.tries == 0 && self.outdated(error) => {}
                Err(error) => unreadable = Some(error.clone()),
                Ok(_) => {}
            }
            Ok(())
        })
        .await?;
        match (listed(self.region.inventory.having(self.uuid)), unreadable) {
            (Some(guest), _) => Ok(Some(guest)),
            (None, None) => Ok(None),
            (None, Some(source)) => Err(Error::Pve {
                doing: "searching the Node's VM among those that can't be read",
                source,
            }),
        }
    }

    /// Reads the candidate under its lock. None: it is not the one, or no longer there.
    async fn prove(
        &mut self,
        guest: VmEntry,
        lock: Option<(VmId, Guard<VmId>)>,
    ) -> Result<Option<Pinned>, Error> {
        let lock = match lock {
            Some((vmid, lock)) if vmid == guest.vmid => lock,
            other => {
                drop(other);
                let deadline = self.term.deadline;
                self.region.guests.lock_vm(guest.vmid, deadline).await?
            }
        };
        // The lock may have been waited for: what shows the pool is a list of now, mostly the one at hand.
        let census = self.region.inventory.vms(self.freshness).await?;
        let Some(guest) = census.get(guest.vmid).cloned() else {
            self.freshness = Freshness::Since(Instant::now());
            return Ok(None);
        };
        let pending = match asking::one(self.region, &guest).await {
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
        let Some(uuid) = uuid.filter(|uuid| uuid == self.uuid) else {
            if self.hint.take() == Some(guest.vmid) {
                self.stranger = Some(Stranger::Vm(Box::new((guest, pending))));
            }
            return Ok(None);
        };
        admit(&self.region.policy, &guest, &pending)?;
        self.alone(&census, &guest).await?;
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
        error.kind == ErrorKind::Absent
            || (self.tries == 0 && matches!(error.kind, ErrorKind::PermissionDenied { .. }))
    }

    /// No other VM has the UUID, as far as they were read; those that had it are read again.
    async fn alone(&self, census: &Census, guest: &VmEntry) -> Result<(), Error> {
        let others = self.region.inventory.having(self.uuid).into_iter();
        let others = others
            .filter(|vmid| *vmid != guest.vmid)
            .filter_map(|vmid| census.get(vmid).cloned());
        let others = others.collect();
        holders::read(
            self.region,
            others,
            self.term.deadline,
            |_, read| match read {
                Ok(_) => Ok(()),
                Err(error) => Err(Error::Pve {
                    doing: "reading a VM that had the same UUID",
                    source: error.clone(),
                }),
            },
        )
        .await?;
        unique(self.region, guest, self.uuid)
    }

    fn missing(self, census: &Census) -> Result<Found, Error> {
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
