//! ControllerPublish: observe the VM, its peers and QEMU; decide (in `slots`); write; look again until config, QEMU and
//! WWN agree.

use std::collections::BTreeSet;

use pve_client::{ConfigChange, Effect, ErrorKind, Presence};
use pve_model::{Bus, NodeId, PublishContext, Slot, VolumeId};
use tokio::time::{Duration, Instant};

use crate::change::{Applied, Way};
use crate::disk;
use crate::drive::{ReadOnly, Wish};
use crate::error::Error;
use crate::holders::{self, Holder, Term};
use crate::inventory::Freshness;
use crate::refusal::refused;
use crate::region::RegionContext;
use crate::rivals::{self, Course, Overlap};
use crate::slots::{self, Attach, Attached, Real, Refusal};
use crate::unpublish;
use crate::validate::PublishRequest;
use crate::vm::{self, Found, Pinned};
use crate::vm_work::{Doubt, STEPS, VmWork};

/// Within the 3 minutes after which the attacher gives up, with room for the last request.
pub const BUDGET: Duration = Duration::from_secs(130);
/// Slots that are tried in one RPC.
const PLUGS: u32 = 3;
/// How long it counts that no other VM was found to have the volume.
const PROOF: Duration = Duration::from_secs(5);

/// Attaches the volume to the VM of the Node and to no other. Requests: 4, one per other worker that could hold it, one per
/// host with such a worker, and one at the first look at the VM's QEMU.
pub async fn publish(
    region: &RegionContext,
    request: &PublishRequest,
) -> Result<PublishContext, Error> {
    let term = Term::of(BUDGET);
    let volume = &request.volume;
    let policy = region
        .policy
        .storages
        .get(&volume.storage)
        .cloned()
        .unwrap_or_default();
    let read_only = ReadOnly::of(request.readonly);
    let wish = Wish::new(volume, &request.parameters, read_only, &policy)?;
    let vm = target(region, &request.node, term).await?;
    reachable(region, volume, &vm)?;
    holders::unambiguous(region, volume, term).await?;
    let mut work = Work {
        of: VmWork::new(region, volume, &vm, term.deadline),
        term,
        alone: Instant::now(),
        open: false,
        plugs: 0,
        last_failure: String::new(),
    };
    alone(region, volume, &vm, term).await?;
    let attached = work.attach(&wish).await?;
    if attached.read_only != request.readonly {
        let mode = if attached.read_only {
            "read-only"
        } else {
            "writable"
        };
        return Err(Error::Exists(format!(
            "the volume is attached to the Node already, but {mode}"
        )));
    }
    Ok(PublishContext {
        wwn: attached.wwn,
        lun: (attached.slot.bus() == Bus::Scsi).then_some(attached.slot.index()),
        size: attached.size,
    })
}

async fn target(region: &RegionContext, node: &NodeId, term: Term) -> Result<Pinned, Error> {
    let Some(wanted) = vm::wanted(region, node).await else {
        return Err(Error::UnknownNode(format!(
            "{node}: an id of the former driver, and no tenant kubeconfig or no systemUUID on its Node"
        )));
    };
    match vm::pin(region, &wanted, term, Freshness::Recent).await? {
        Found::Vm(vm) => Ok(*vm),
        Found::Missing(_) => {
            let census = region.inventory.vms(Freshness::Recent).await?;
            holders::in_sight(region, &census).await?;
            Err(Error::UnknownNode(node.to_string()))
        }
    }
}

/// Refuses a VM that can't reach the disk, before anything is written. That its config was read there proves the host.
fn reachable(region: &RegionContext, volume: &VolumeId, vm: &Pinned) -> Result<(), Error> {
    let host = &vm.guest.pve_node;
    vm::allowed_host(region, vm)?;
    match &volume.pve_node {
        Some(home) if home != host => Err(Error::WrongHost(format!(
            "{} lies on {home}, VM {} is on {host}",
            volume.volid(),
            vm.guest.vmid
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Refuses if any other VM has the volume, or the VM's UUID.
async fn alone(
    region: &RegionContext,
    volume: &VolumeId,
    vm: &Pinned,
    term: Term,
) -> Result<(), Error> {
    let others = holders::find(region, volume, Some(vm.guest.vmid), term).await?;
    vm::unique(region, &vm.guest, &vm.uuid)?;
    match others.first() {
        // A final error would say that this VM does not have it.
        Some(holder) if holders::holder(&vm.guest, &vm.pending, volume).is_some() => {
            Err(Error::HolderUnknown(format!(
                "{} is in VM {} and another one too: {}",
                volume.volid(),
                vm.guest.vmid,
                holder.describe()
            )))
        }
        Some(holder) => Err(held(region, volume, holder)),
        None => Ok(()),
    }
}

fn held(region: &RegionContext, volume: &VolumeId, holder: &Holder) -> Error {
    if !holder.is_in(region.inventory.pool()) {
        return Error::InUse(format!("{}: {}", volume.volid(), holder.describe()));
    }
    let tenant = match &holder.guest.name {
        Some(name) => format!("the volume is still attached to the Node {name}"),
        None => "the volume is still attached to another Node".to_owned(),
    };
    Error::HeldBy {
        tenant,
        detail: format!("{}: {}", volume.volid(), holder.describe()),
    }
}

/// One VM being brought to where the volume is attached.
struct Work<'a> {
    of: VmWork<'a>,
    term: Term,
    /// When it was last known that no other VM has the volume.
    alone: Instant,
    /// Whether the volume may be attached by a write of this RPC.
    open: bool,
    plugs: u32,
    last_failure: String,
}

impl Work<'_> {
    /// After a write that may have attached the volume, a look that fails is no end: the attacher would take it for detached.
    async fn attach(&mut self, wish: &Wish) -> Result<Attached, Error> {
        let outcome = match self.converge(wish).await {
            Ok(attached) => self.undisturbed().await.map(|()| attached),
            Err(error) => Err(error),
        };
        match outcome {
            Err(Error::Pve { doing, source }) if self.open => {
                Err(Error::Unsettled { doing, source })
            }
            outcome => outcome,
        }
    }

    async fn converge(&mut self, wish: &Wish) -> Result<Attached, Error> {
        for _ in 0..STEPS {
            self.of.in_time("attach to")?;
            let disk = (wish.volid(), wish.wwn());
            let memory = self.of.memory();
            match slots::attach(&self.of.picture, &self.of.real, &memory, disk) {
                Attach::Ask => self.of.ask(self.doubt(wish.volid())).await?,
                Attach::Wait => return Err(self.of.silent()),
                Attach::Done(attached) => {
                    let (guests, vm) = (&self.of.region.guests, self.of.vm);
                    if self.plugs == 0 {
                        guests.found(vm.guest.vmid, &vm.uuid, wish.volid());
                    } else {
                        guests.repeated(vm.guest.vmid, &vm.uuid, wish.volid());
                    }
                    return Ok(attached);
                }
                // What was taken as written did not come true.
                Attach::Plug(_) | Attach::Revert(_) | Attach::Unplug(_) if !self.of.is_read() => {
                    self.of.look_again().await?;
                }
                Attach::Plug(slot) => self.plug(slot, wish).await?,
                Attach::Revert(slot) => self.take_back(slot, Way::Revert).await?,
                Attach::Unplug(slot) => self.take_back(slot, Way::Delete).await?,
                Attach::Refuse(refusal) => {
                    if let (Refusal::Locked(lock), Some(slot)) = (&refusal, self.planned()) {
                        self.tell_of_pending(slot, lock);
                    }
                    return Err(refused(self.of.vm, self.of.volume, &refusal));
                }
            }
        }
        Err(self.of.restless())
    }

    /// What the digest of this VM does not exclude: that the volume came into another VM meanwhile, that it was freed, or,
    /// where nothing had to be written, that PVE is about to take it out of this one.
    async fn undisturbed(&self) -> Result<(), Error> {
        let (region, volume, vm) = (self.of.region, self.of.volume, self.of.vm);
        let course = if self.plugs == 0 {
            Course::Found
        } else {
            Course::Wrote
        };
        let read = (self.alone, self.term);
        let error = match rivals::overlap(region, volume, (vm, course), read).await? {
            Overlap::None => return Ok(()),
            Overlap::Holder(holder) => held(region, volume, &holder),
            Overlap::Freeing => match disk::look_closely(region, volume).await {
                Ok(Presence::Present(_)) => return Ok(()),
                Ok(Presence::Absent) => Error::UnknownVolume,
                Err(source) => return Err(Error::pve("looking for the disk")(source)),
            },
        };
        tracing::warn!(vm.id = %vm.guest.vmid, %error, "an attach is taken back");
        unpublish::withdraw(region, volume, vm, self.term).await?;
        Err(error)
    }

    fn doubt(&self, volid: &str) -> Doubt {
        match (self.plugs, self.of.picture.holding(volid).is_empty()) {
            (0, true) => Doubt::Digest,
            (0, false) => Doubt::Reread,
            (_, _) => Doubt::Freed(BTreeSet::new()),
        }
    }

    async fn plug(&mut self, slot: Slot, wish: &Wish) -> Result<(), Error> {
        let vmid = self.of.vm.guest.vmid;
        if self.plugs >= PLUGS {
            return Err(Error::HotplugFailed(format!(
                "VM {vmid}: {PLUGS} slots did not take {}: {}",
                self.of.volume.volid(),
                self.last_failure
            )));
        }
        let host = self.of.host().await?;
        if self.alone.elapsed() > PROOF {
            self.alone = Instant::now();
            alone(self.of.region, self.of.volume, self.of.vm, self.term.anew()).await?;
        }
        self.plugs += 1;
        let guests = &self.of.region.guests;
        guests.gave(vmid, &self.of.vm.uuid, slot);
        guests.witness.attaching(self.of.volume.volid(), vmid);
        let change = ConfigChange {
            set: vec![(slot.to_string(), wish.on(&self.of.picture.controller)?)],
            ..ConfigChange::default()
        };
        let asked = self.of.real != Real::Unasked;
        let size = self.of.region.guests.sizes.least(wish.volid());
        let applied = self.of.write(change, host).await;
        self.open = match &applied {
            Ok(Applied::Stale) => self.open,
            Ok(Applied::Done | Applied::Pending(_)) => true,
            Err(error) => self.open || error.effect() == Effect::Possible,
        };
        match applied {
            // That QEMU shows the disk is all that is left to see; a new look at the config would tell the size.
            Ok(Applied::Done) if asked || size.is_some() => {
                self.of.take_as_written(wish.row(slot, size));
                return Ok(());
            }
            Ok(Applied::Done) => {}
            Ok(Applied::Stale) => self.plugs -= 1,
            Ok(Applied::Pending(text)) => {
                self.last_failure = text;
                self.of.poison([slot]);
            }
            Err(error) => return Err(self.explain(error, slot).await),
        }
        self.of.look_again().await
    }

    /// Takes a slot back that does not hold what it should; it is not used again before QEMU is started anew.
    async fn take_back(&mut self, slot: Slot, way: Way) -> Result<(), Error> {
        let vmid = self.of.vm.guest.vmid;
        tracing::info!(vm.id = %vmid, %slot, ?way, "a change that did not take is taken back");
        self.of.poison([slot]);
        let host = self.of.host().await?;
        if let Applied::Pending(text) = self.of.write(way.change(&[slot]), host).await? {
            self.of.look_again().await?;
            return Err(Error::GuestBusy(format!(
                "VM {vmid}: {slot} can't be freed: {text}"
            )));
        }
        self.last_failure = format!("{slot} was {way:?}ed: the disk did not appear in QEMU");
        self.of.look_again().await
    }

    /// What a failed write means: the disk may not exist, and a change that PVE kept for the next start is dropped.
    async fn explain(&mut self, error: Error, slot: Slot) -> Error {
        if error.may_still_come() {
            let (vm, volid) = (self.of.vm, self.of.volume.volid());
            let guests = &self.of.region.guests;
            if let Ok(digest) = self.of.digest() {
                guests.unanswered(vm.guest.vmid, &vm.uuid, volid, digest);
            }
        }
        if error.effect() == Effect::Possible {
            match self.drop_pending().await {
                Ok(()) => self.open = !self.of.picture.holding(&self.of.volume.volid()).is_empty(),
                Err(failed) => self.tell_of_pending(slot, &failed.to_string()),
            }
        }
        if !self.open
            && may_concern_the_disk(&error)
            && matches!(
                disk::look_closely(self.of.region, self.of.volume).await,
                Ok(Presence::Absent)
            )
        {
            return Error::UnknownVolume;
        }
        error
    }

    async fn drop_pending(&mut self) -> Result<(), Error> {
        self.of.in_time("attach to")?;
        self.of.look_again().await?;
        for _ in 0..STEPS {
            let Some(slot) = self.planned() else {
                return Ok(());
            };
            if let Some(lock) = &self.of.picture.lock {
                return Err(Error::VmLocked(lock.clone()));
            }
            self.of.in_time("attach to")?;
            self.take_back(slot, Way::Revert).await?;
        }
        Err(self.of.restless())
    }

    /// The slot that would take the volume at the next start of the VM.
    fn planned(&self) -> Option<Slot> {
        let volid = self.of.volume.volid();
        let rows = &mut self.of.picture.rows.iter();
        rows.find(|row| row.is_planned(&volid)).map(|row| row.slot)
    }

    fn tell_of_pending(&self, slot: Slot, why: &str) {
        tracing::warn!(
            vm.id = %self.of.vm.guest.vmid,
            %slot,
            why,
            "an attach may still be pending; it would take place when the VM is started"
        );
    }
}

/// Whether a refused write may be the disk's fault.
fn may_concern_the_disk(error: &Error) -> bool {
    let Error::Pve { source, .. } = error else {
        return false;
    };
    match &source.kind {
        ErrorKind::DiskAbsent
        | ErrorKind::Absent
        | ErrorKind::Invalid(_)
        | ErrorKind::TaskFailed
        | ErrorKind::StorageUnavailable
        | ErrorKind::NoAgent
        | ErrorKind::NotImplemented
        | ErrorKind::MigratedToRules
        | ErrorKind::Other { .. } => true,
        ErrorKind::AlreadyExists
        | ErrorKind::Locked
        | ErrorKind::DigestMismatch
        | ErrorKind::PermissionDenied { .. }
        | ErrorKind::Unauthenticated
        | ErrorKind::HostUnreachable
        | ErrorKind::HostUnknown
        | ErrorKind::OutcomeUnknown
        | ErrorKind::Unreachable
        | ErrorKind::NoSpace
        | ErrorKind::Busy
        | ErrorKind::NoQuorum
        | ErrorKind::HotplugFailed { .. }
        | ErrorKind::Decode
        | ErrorKind::Throttled => false,
    }
}
