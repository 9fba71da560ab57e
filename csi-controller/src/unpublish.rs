//! ControllerUnpublish: done when QEMU no longer has the disk and nothing is pending, or when the VM is proved gone.

use std::collections::BTreeSet;

use pve_client::{ErrorKind, Presence};
use pve_model::{KubeNode, NodeId, Slot, VmId, VolumeId};
use pve_region::gone::{Evidence, Listed, Verdict, judge};
use tokio::time::{Duration, sleep_until};

use crate::change::{Applied, Way};
use crate::disk;
use crate::error::Error;
use crate::gone;
use crate::holders::{self, Holder, Purpose, Term};
use crate::inventory::Freshness;
use crate::publish::BUDGET;
use crate::refusal::refused;
use crate::region::RegionContext;
use crate::rivals;
use crate::silent;
use crate::slots::{self, Detach, Real};
use crate::validate::UnpublishRequest;
use crate::vm::{self, Found, Missing, Pinned, Stranger, Wanted};
use crate::vm_work::{Doubt, STEPS, VmWork};

/// Deletions that are tried in one RPC: the second completes one of which QEMU has done its part.
const UNPLUGS: u32 = 2;
/// What PVE takes to unplug a disk with its controller (measured: 2.1 s).
const UNPLUG_TIME: Duration = Duration::from_millis(2150);

/// Takes the volume out of the VM of the Node, or out of every VM of the pool if no Node is named. Requests: 5. Where the
/// VM can't be asked, a volume that is proved not to exist is detached all the same.
pub async fn unpublish(region: &RegionContext, request: &UnpublishRequest) -> Result<(), Error> {
    match detach(region, request).await {
        Err(error) if hidden(&error) && no_volume(region, &request.volume).await => Ok(()),
        outcome => outcome,
    }
}

/// Whether the error says that a VM can't be asked.
fn hidden(error: &Error) -> bool {
    match error {
        Error::VmInvisible(_) | Error::HolderUnknown(_) => true,
        Error::Pve { source, .. } => matches!(
            source.kind,
            ErrorKind::HostUnreachable | ErrorKind::HostUnknown
        ),
        _ => false,
    }
}

async fn no_volume(region: &RegionContext, volume: &VolumeId) -> bool {
    matches!(
        disk::look_closely(region, volume).await,
        Ok(Presence::Absent)
    )
}

async fn detach(region: &RegionContext, request: &UnpublishRequest) -> Result<(), Error> {
    let term = Term::of(BUDGET);
    let volume = &request.volume;
    let Some(node) = &request.node else {
        let survey = holders::survey(region, volume, None, (term, Purpose::Use)).await?;
        for holder in survey.holders {
            from_holder(region, volume, &holder, term).await?;
        }
        return survey.unseen.map_or(Ok(()), Err);
    };
    match (vm::wanted(region, node).await, node) {
        (Some(wanted), _) => from_vm(region, volume, &wanted, term).await,
        (None, NodeId::Former { name, vmid }) => {
            from_named(region, volume, (name, *vmid), term).await
        }
        (None, NodeId::Vm { .. }) => Err(Error::UnknownNode(node.to_string())),
    }
}

async fn from_vm(
    region: &RegionContext,
    volume: &VolumeId,
    wanted: &Wanted,
    term: Term,
) -> Result<(), Error> {
    match vm::pin(region, wanted, term, Freshness::Since(term.begun)).await {
        Ok(Found::Vm(vm)) => Work::on(region, volume, &vm, term).converge().await,
        Ok(Found::Missing(missing)) => ended(region, volume, wanted, &missing).await,
        Err(error) if silent::is_fenced(region, wanted, term, &error).await => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes the volume out of a VM that it was put into just now.
pub async fn withdraw(
    region: &RegionContext,
    volume: &VolumeId,
    vm: &Pinned,
    term: Term,
) -> Result<(), Error> {
    let mut work = Work::on(region, volume, vm, term);
    work.of.look_again().await?;
    work.converge().await
}

/// The VM is not among those that we see: detached only if it is proved gone.
async fn ended(
    region: &RegionContext,
    volume: &VolumeId,
    wanted: &Wanted,
    missing: &Missing,
) -> Result<(), Error> {
    let Some(stranger) = &missing.stranger else {
        let who = (wanted.vmid, Some(&wanted.uuid));
        return gone::prove(region, who, missing.visible).await;
    };
    // An operator may have given the VM another UUID, with the volume in it.
    if let Stranger::Vm(read) = stranger
        && let Some(holder) = holders::holder(&read.0, &read.1, volume)
    {
        return Err(Error::InUse(format!(
            "{}, and its SMBIOS UUID is not {}",
            holder.describe(),
            wanted.uuid
        )));
    }
    let verdict: Verdict = judge(Evidence {
        listed: Listed::Stranger,
        asked: None,
        control: None,
    });
    gone::conclude(verdict, wanted.vmid, Some(&wanted.uuid))
}

async fn from_holder(
    region: &RegionContext,
    volume: &VolumeId,
    holder: &Holder,
    term: Term,
) -> Result<(), Error> {
    let Some(uuid) = holder.uuid.clone() else {
        return Err(Error::InUse(format!(
            "{}, and has no SMBIOS UUID by which it could be proved",
            holder.describe()
        )));
    };
    let wanted = Wanted {
        uuid,
        vmid: Some(holder.guest.vmid),
    };
    from_vm(region, volume, &wanted, term).await
}

/// A node id of the former driver that leads to no UUID: the volume is looked for in every VM that could hold it, and
/// taken out of the one that the id names.
async fn from_named(
    region: &RegionContext,
    volume: &VolumeId,
    named: (&KubeNode, Option<VmId>),
    term: Term,
) -> Result<(), Error> {
    let survey = holders::survey(region, volume, None, (term, Purpose::Use)).await?;
    if let Some(vmid) = named.1 {
        let census = region.inventory.vms(Freshness::Since(term.begun)).await?;
        if census.get(vmid).is_none() {
            let visible = census.guests.keys().next().copied();
            gone::prove_unlisted(region, Some(vmid), visible).await?;
        }
    }
    let mut left = None;
    for holder in survey.holders {
        if is_named(&holder, named) {
            from_holder(region, volume, &holder, term).await?;
        } else {
            left = Some(holder);
        }
    }
    match left {
        None => survey.unseen.map_or(Ok(()), Err),
        // Its VM may have another name than its Node.
        Some(holder) => Err(Error::InUse(format!(
            "{}; whether that is the Node {} can't be told without a tenant kubeconfig",
            holder.describe(),
            named.0
        ))),
    }
}

fn is_named(holder: &Holder, (name, vmid): (&KubeNode, Option<VmId>)) -> bool {
    vmid.map_or_else(
        || holder.guest.name.as_deref() == Some(name.as_str()),
        |vmid| vmid == holder.guest.vmid,
    )
}

/// One VM being brought to where it does not have the volume.
struct Work<'a> {
    of: VmWork<'a>,
    freed: BTreeSet<Slot>,
    unplugs: u32,
}

impl<'a> Work<'a> {
    fn on(region: &'a RegionContext, volume: &'a VolumeId, vm: &'a Pinned, term: Term) -> Self {
        Self {
            of: VmWork::new(region, volume, vm, term.deadline),
            freed: BTreeSet::new(),
            unplugs: 0,
        }
    }

    /// Nothing has the disk. Where nothing had to be written, an attach may yet come that PVE did not answer, or that a
    /// controller before this one has asked for: it must not be called detached then.
    async fn done(&self, volid: &str) -> Result<(), Error> {
        let (vm, guests) = (self.of.vm, &self.of.region.guests);
        let vmid = vm.guest.vmid;
        if self.freed.is_empty() {
            rivals::none_at_work(self.of.region, vm).await?;
        }
        if guests.may_come(vmid, &vm.uuid, volid, self.of.digest()?) {
            return Err(Error::StillRunning(format!(
                "an attach of {volid} to VM {vmid} was not answered and may still take place"
            )));
        }
        guests.forgive(vmid, &vm.uuid);
        guests.witness.detached(volid, vmid);
        Ok(())
    }

    async fn converge(&mut self) -> Result<(), Error> {
        let volid = self.of.volume.volid();
        if !self.of.picture.holding(&volid).is_empty() {
            let (guests, vm) = (&self.of.region.guests, self.of.vm);
            guests.found(vm.guest.vmid, &vm.uuid, &volid);
        }
        for _ in 0..STEPS {
            self.of.in_time("detach from")?;
            let memory = self.of.memory();
            let before = (&memory, &self.freed);
            match slots::detach(&self.of.picture, &self.of.real, before, &volid) {
                Detach::Ask => self.of.ask(self.doubt()).await?,
                Detach::Wait => return Err(self.of.silent()),
                Detach::Done => return self.done(&volid).await,
                Detach::Revert(slots) => self.revert(&slots).await?,
                Detach::Unplug(slots) => self.unplug(&slots).await?,
                Detach::Refuse(refusal) => {
                    return Err(refused(self.of.vm, self.of.volume, &refusal));
                }
            }
        }
        Err(self.of.restless())
    }

    fn doubt(&self) -> Doubt {
        if self.freed.is_empty() {
            return Doubt::Reread;
        }
        Doubt::Freed(self.freed.clone())
    }

    /// Looks again unless the last look has shown the end.
    async fn look_again_unless_done(&mut self) -> Result<(), Error> {
        if self.of.picture.holding(&self.of.volume.volid()).is_empty() {
            self.of.real = Real::Unasked;
            return Ok(());
        }
        self.of.look_again().await
    }

    async fn revert(&mut self, slots: &[Slot]) -> Result<(), Error> {
        let vmid = self.of.vm.guest.vmid;
        tracing::info!(vm.id = %vmid, ?slots, "an attach that is pending is taken back");
        self.of.poison(slots.iter().copied());
        let host = self.of.host().await?;
        match self.of.write(Way::Revert.change(slots), host).await? {
            Applied::Done | Applied::Stale => self.of.look_again().await,
            Applied::Pending(text) => Err(Error::GuestBusy(format!("VM {vmid}: {text}"))),
        }
    }

    async fn unplug(&mut self, slots: &[Slot]) -> Result<(), Error> {
        let (vmid, uuid) = (self.of.vm.guest.vmid, &self.of.vm.uuid);
        if self.of.region.guests.paused(vmid, uuid) {
            return Err(Error::GuestBusy(format!(
                "VM {vmid} is left in peace for some seconds after it was busy"
            )));
        }
        if self.unplugs >= UNPLUGS {
            return Err(self.busy("the deletion stays pending"));
        }
        self.unplugs += 1;
        match self.delete(slots).await? {
            Applied::Stale => {
                self.unplugs -= 1;
                return self.of.look_again().await;
            }
            Applied::Done => {
                self.freed.extend(slots);
                return self.look_again_unless_done().await;
            }
            Applied::Pending(text) => {
                self.of.look_again().await?;
                self.of.ask(Doubt::Freed(BTreeSet::new())).await?;
                let gone = match &self.of.real {
                    Real::Running(devices) => slots.iter().all(|slot| !devices.contains(slot)),
                    Real::Stopped => true,
                    Real::Silent | Real::Unasked => false,
                };
                if !gone {
                    return Err(self.busy(&text));
                }
            }
        }
        // QEMU has let the disk go and keeps only its controller: once more completes it at once, as PVE finds no disk
        // any more (`vm_deviceunplug`). What is left of the slot spoils it.
        self.of.poison(slots.iter().copied());
        self.freed.extend(slots);
        Ok(())
    }

    fn busy(&self, text: &str) -> Error {
        let vmid = self.of.vm.guest.vmid;
        self.of.region.guests.strike(vmid, &self.of.vm.uuid);
        Error::GuestBusy(format!("VM {vmid}, {}: {text}", self.of.volume.volid()))
    }

    /// Deletes the slots. An unplug takes PVE some 2.1 s, longer than it may hold a worker for us: then the config is
    /// looked at once before the task is asked, since that look is due anyway.
    async fn delete(&mut self, slots: &[Slot]) -> Result<Applied, Error> {
        let flight = match self.of.begin(Way::Delete.change(slots)).await? {
            Ok(applied) => return Ok(applied),
            Err(flight) => flight,
        };
        sleep_until(flight.begun + UNPLUG_TIME).await;
        self.of.look_again().await?;
        if self.of.picture.holding(&self.of.volume.volid()).is_empty() {
            return Ok(Applied::Done);
        }
        flight.end(self.of.region, self.of.deadline).await
    }
}
