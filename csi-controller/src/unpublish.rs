//! ControllerUnpublish: done when QEMU no longer has the disk and nothing is pending, or when the VM is proved gone.

use std::collections::BTreeSet;

use pve_client::{ErrorKind, Presence};
use pve_model::{KubeNode, NodeId, Slot, VmId, VolumeId};
use tokio::time::{Duration, Instant, sleep, sleep_until};

use crate::change::{self, Applied, Begun, Way, jitter};
use crate::disk;
use crate::error::Error;
use crate::gone::{self, Evidence, Listed, Verdict};
use crate::holders::{self, Holder, Term};
use crate::inventory::Freshness;
use crate::publish::BUDGET;
use crate::refusal::refused;
use crate::region::RegionContext;
use crate::slots::{self, Detach, Picture, Real};
use crate::validate::UnpublishRequest;
use crate::vm::{self, Found, Missing, Pinned, Stranger, Wanted};

/// Deletions that are tried in one RPC: the second completes one of which QEMU has done its part.
const UNPLUGS: u32 = 2;
/// Writes that may find the config changed.
const STALE: u32 = 5;
/// What PVE takes to unplug a disk with its controller (measured: 2.1 s).
const UNPLUG_TIME: Duration = Duration::from_millis(2150);
/// Steps per VM, whatever they are.
const STEPS: u32 = 32;

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
        let survey = holders::survey(region, volume, None, term).await?;
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
    match vm::pin(region, wanted, term, Freshness::Since(term.begun)).await? {
        Found::Vm(vm) => {
            Work::new(region, volume, &vm, term.deadline)
                .converge()
                .await
        }
        Found::Missing(missing) => ended(region, volume, wanted, &missing).await,
    }
}

/// The VM is not among those that we see: detached only if it is proved gone.
async fn ended(
    region: &RegionContext,
    volume: &VolumeId,
    wanted: &Wanted,
    missing: &Missing,
) -> Result<(), Error> {
    let Some(stranger) = &missing.stranger else {
        return gone::prove_unlisted(region, wanted.vmid, missing.visible).await;
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
    let verdict: Verdict = gone::judge(Evidence {
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
    let survey = holders::survey(region, volume, None, term).await?;
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
    region: &'a RegionContext,
    volume: &'a VolumeId,
    vm: &'a Pinned,
    deadline: Instant,
    picture: Picture,
    digest: String,
    real: Real,
    freed: BTreeSet<Slot>,
    unplugs: u32,
    stale: u32,
}

impl<'a> Work<'a> {
    fn new(
        region: &'a RegionContext,
        volume: &'a VolumeId,
        vm: &'a Pinned,
        deadline: Instant,
    ) -> Self {
        Self {
            region,
            volume,
            vm,
            deadline,
            picture: vm::picture(&vm.pending),
            digest: vm.pending.digest.clone(),
            real: Real::Unasked,
            freed: BTreeSet::new(),
            unplugs: 0,
            stale: 0,
        }
    }

    async fn converge(&mut self) -> Result<(), Error> {
        let volid = self.volume.volid();
        for _ in 0..STEPS {
            if Instant::now() >= self.deadline {
                return Err(Error::StillRunning(format!(
                    "detach from VM {} did not end in time",
                    self.vm.guest.vmid
                )));
            }
            match slots::detach(&self.picture, &self.real, &self.freed, &volid) {
                Detach::Ask => self.ask().await?,
                Detach::Wait => {
                    return Err(Error::RealUnknown(format!("VM {}", self.vm.guest.vmid)));
                }
                Detach::Done => {
                    self.region
                        .guests
                        .forgive(self.vm.guest.vmid, &self.vm.uuid);
                    return Ok(());
                }
                Detach::Revert(slots) => self.revert(&slots).await?,
                Detach::Unplug(slots) => self.unplug(&slots).await?,
                Detach::Refuse(refusal) => return Err(refused(self.vm, self.volume, &refusal)),
            }
        }
        Err(Error::Changed(format!(
            "VM {} does not settle",
            self.vm.guest.vmid
        )))
    }

    async fn ask(&mut self) -> Result<(), Error> {
        let (real, process) = change::real(self.region, &self.vm.at(), self.deadline).await?;
        if real != Real::Silent {
            self.region
                .guests
                .saw(self.vm.guest.vmid, &self.vm.uuid, process);
        }
        self.real = real;
        Ok(())
    }

    /// Looks again unless the last look has shown the end.
    async fn look_again_unless_done(&mut self) -> Result<(), Error> {
        if self.picture.holding(&self.volume.volid()).is_empty() {
            self.real = Real::Unasked;
            return Ok(());
        }
        self.look_again().await
    }

    async fn look_again(&mut self) -> Result<(), Error> {
        let pending = self.region.client.vm_pending(&self.vm.at()).await;
        let pending = pending.map_err(Error::pve("reading the VM's config after a change"))?;
        self.picture = vm::picture(&pending);
        self.digest = pending.digest;
        self.real = Real::Unasked;
        Ok(())
    }

    async fn revert(&mut self, slots: &[Slot]) -> Result<(), Error> {
        self.region
            .guests
            .poison(self.vm.guest.vmid, &self.vm.uuid, slots.iter().copied());
        let change = Way::Revert.change(&self.digest, slots);
        match change::apply(self.region, &self.vm.at(), &change, self.deadline).await? {
            Applied::Done => self.look_again().await,
            Applied::Stale => self.stale().await,
            Applied::Pending(text) => Err(Error::GuestBusy(format!(
                "VM {}: {text}",
                self.vm.guest.vmid
            ))),
        }
    }

    async fn unplug(&mut self, slots: &[Slot]) -> Result<(), Error> {
        let (vmid, uuid) = (self.vm.guest.vmid, &self.vm.uuid);
        if self.region.guests.paused(vmid, uuid) {
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
                return self.stale().await;
            }
            Applied::Done => {
                self.freed.extend(slots);
                return self.look_again_unless_done().await;
            }
            Applied::Pending(text) => {
                self.look_again().await?;
                self.ask().await?;
                let gone = match &self.real {
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
        self.region.guests.poison(vmid, uuid, slots.iter().copied());
        self.freed.extend(slots);
        Ok(())
    }

    fn busy(&self, text: &str) -> Error {
        let vmid = self.vm.guest.vmid;
        self.region.guests.strike(vmid, &self.vm.uuid);
        Error::GuestBusy(format!("VM {vmid}, {}: {text}", self.volume.volid()))
    }

    /// Deletes the slots. An unplug takes PVE some 2.1 s, longer than it may hold a worker for us: then the config is
    /// looked at once before the task is asked, since that look is due anyway.
    async fn delete(&mut self, slots: &[Slot]) -> Result<Applied, Error> {
        let change = Way::Delete.change(&self.digest, slots);
        let flight = match change::begin(self.region, &self.vm.at(), &change, self.deadline).await?
        {
            Begun::Ended(applied) => return Ok(applied),
            Begun::Running(flight) => flight,
        };
        sleep_until(flight.begun + UNPLUG_TIME).await;
        self.look_again().await?;
        if self.picture.holding(&self.volume.volid()).is_empty() {
            return Ok(Applied::Done);
        }
        flight.end(self.region, self.deadline).await
    }

    /// The config changed since it was read.
    async fn stale(&mut self) -> Result<(), Error> {
        self.stale += 1;
        if self.stale > STALE {
            return Err(Error::Changed(format!("VM {}", self.vm.guest.vmid)));
        }
        sleep(jitter(self.stale, &self.digest)).await;
        self.look_again().await
    }
}
