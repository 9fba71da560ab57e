//! ControllerPublish: observe the VM, its peers and QEMU; decide (in `slots`); write; look again until config, QEMU and
//! WWN agree.

use std::collections::BTreeSet;

use pve_client::{ConfigChange, Effect, ErrorKind, Presence};
use pve_model::{Bus, NodeId, PublishContext, Slot, VolumeId};
use tokio::time::{Duration, Instant, sleep};

use crate::change::{self, Applied, Way, jitter};
use crate::disk;
use crate::drive::{ReadOnly, Wish};
use crate::error::{Error, VmRefusal};
use crate::holders::{self, Holder, Term};
use crate::inventory::Freshness;
use crate::refusal::refused;
use crate::region::RegionContext;
use crate::slots::{self, Attach, Attached, Picture, Real};
use crate::validate::PublishRequest;
use crate::vm::{self, Found, Pinned};

/// Within the 3 minutes after which the attacher gives up, with room for the last request.
pub const BUDGET: Duration = Duration::from_secs(130);
/// Slots that are tried in one RPC.
const PLUGS: u32 = 3;
/// Writes that may find the config changed.
const STALE: u32 = 5;
/// Steps of one RPC, whatever they are.
const STEPS: u32 = 32;

/// Attaches the volume to the VM of the Node and to no other. Requests: 5 + one per other worker that could hold it.
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
    let others = holders::find(region, volume, Some(vm.guest.vmid), term).await?;
    vm::unique(region, &vm.guest, &vm.uuid)?;
    if let Some(holder) = others.first() {
        return Err(held(region, volume, holder));
    }
    let mut work = Work::new(region, volume, &vm, term.deadline);
    let attached = work.converge(&wish).await?;
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
        Found::Missing(_) => Err(Error::UnknownNode(node.to_string())),
    }
}

/// Refuses a VM that can't reach the disk, before anything is written. That its config was read there proves the host.
fn reachable(region: &RegionContext, volume: &VolumeId, vm: &Pinned) -> Result<(), Error> {
    let host = &vm.guest.pve_node;
    if !region.policy.pve_nodes.contains(host) {
        return Err(Error::VmRefused {
            why: VmRefusal::Pool,
            detail: format!(
                "VM {} is on {host}, which the policy does not name",
                vm.guest.vmid
            ),
        });
    }
    match &volume.pve_node {
        Some(home) if home != host => Err(Error::WrongHost(format!(
            "{} lies on {home}, VM {} is on {host}",
            volume.volid(),
            vm.guest.vmid
        ))),
        Some(_) | None => Ok(()),
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
    region: &'a RegionContext,
    volume: &'a VolumeId,
    vm: &'a Pinned,
    deadline: Instant,
    picture: Picture,
    digest: String,
    real: Real,
    plugs: u32,
    stale: u32,
    last_failure: String,
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
            plugs: 0,
            stale: 0,
            last_failure: String::new(),
        }
    }

    async fn converge(&mut self, wish: &Wish) -> Result<Attached, Error> {
        for _ in 0..STEPS {
            self.in_time()?;
            let memory = self.region.guests.memory(self.vm.guest.vmid, &self.vm.uuid);
            match slots::attach(&self.picture, &self.real, &memory, wish.volid()) {
                Attach::Ask => self.ask().await?,
                Attach::Wait => {
                    return Err(Error::RealUnknown(format!("VM {}", self.vm.guest.vmid)));
                }
                Attach::Done(attached) => return Ok(attached),
                Attach::Plug(slot) => self.plug(slot, wish).await?,
                Attach::Revert(slot) => self.take_back(slot, Way::Revert).await?,
                Attach::Unplug(slot) => self.take_back(slot, Way::Delete).await?,
                Attach::Refuse(refusal) => return Err(refused(self.vm, self.volume, &refusal)),
            }
        }
        Err(Error::Changed(format!(
            "VM {} does not settle",
            self.vm.guest.vmid
        )))
    }

    fn in_time(&self) -> Result<(), Error> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        Err(Error::StillRunning(format!(
            "attach to VM {} did not end in time",
            self.vm.guest.vmid
        )))
    }

    /// Asks QEMU. A disk there that the config does not explain spoils its slot: PVE would take it for the new one
    /// (`vm_deviceplug` returns success if the device is there).
    async fn ask(&mut self) -> Result<(), Error> {
        let (real, process) = change::real(self.region, &self.vm.at(), self.deadline).await?;
        let (vmid, uuid) = (self.vm.guest.vmid, &self.vm.uuid);
        if real != Real::Silent {
            self.region.guests.saw(vmid, uuid, process);
        }
        if let Real::Running(devices) = &real {
            let known: BTreeSet<Slot> = self.picture.rows.iter().map(|row| row.slot).collect();
            self.region
                .guests
                .poison(vmid, uuid, devices.difference(&known).copied());
        }
        self.real = real;
        Ok(())
    }

    async fn look_again(&mut self) -> Result<(), Error> {
        let pending = self.region.client.vm_pending(&self.vm.at()).await;
        let pending = pending.map_err(Error::pve("reading the VM's config after a change"))?;
        self.picture = vm::picture(&pending);
        self.digest = pending.digest;
        self.real = Real::Unasked;
        Ok(())
    }

    async fn plug(&mut self, slot: Slot, wish: &Wish) -> Result<(), Error> {
        if self.plugs >= PLUGS {
            return Err(Error::HotplugFailed(format!(
                "VM {}: {PLUGS} slots did not take {}: {}",
                self.vm.guest.vmid,
                self.volume.volid(),
                self.last_failure
            )));
        }
        self.plugs += 1;
        let (vmid, uuid) = (self.vm.guest.vmid, &self.vm.uuid);
        self.region.guests.gave(vmid, uuid, slot);
        let change = ConfigChange {
            digest: Some(self.digest.clone()),
            set: vec![(slot.to_string(), wish.on(&self.picture.controller)?)],
            ..ConfigChange::default()
        };
        match self.write(&change).await {
            Ok(Applied::Done) => {}
            Ok(Applied::Stale) => self.plugs -= 1,
            Ok(Applied::Pending(text)) => {
                self.last_failure = text;
                self.region.guests.poison(vmid, uuid, [slot]);
            }
            Err(error) => return Err(self.explain(error).await),
        }
        self.look_again().await
    }

    /// Takes a slot back that does not hold what it should; it is not used again before QEMU is started anew.
    async fn take_back(&mut self, slot: Slot, way: Way) -> Result<(), Error> {
        self.region
            .guests
            .poison(self.vm.guest.vmid, &self.vm.uuid, [slot]);
        if let Applied::Pending(text) = self.write(&way.change(&self.digest, &[slot])).await? {
            self.look_again().await?;
            return Err(Error::HotplugFailed(format!(
                "VM {}: {slot} can't be freed: {text}",
                self.vm.guest.vmid
            )));
        }
        self.last_failure = format!("{slot} was {way:?}ed: the disk did not appear in QEMU");
        self.look_again().await
    }

    async fn write(&mut self, change: &ConfigChange) -> Result<Applied, Error> {
        let applied = change::apply(self.region, &self.vm.at(), change, self.deadline).await?;
        if applied == Applied::Stale {
            self.stale += 1;
            if self.stale > STALE {
                return Err(Error::Changed(format!("VM {}", self.vm.guest.vmid)));
            }
            sleep(jitter(self.stale, &self.digest)).await;
        }
        Ok(applied)
    }

    /// What a refused write means: the disk may not exist, and a change that PVE kept for the next start is dropped.
    async fn explain(&mut self, error: Error) -> Error {
        let Error::Pve { source, .. } = &error else {
            return error;
        };
        let may_concern_the_disk = match &source.kind {
            ErrorKind::DiskAbsent
            | ErrorKind::Absent
            | ErrorKind::Invalid(_)
            | ErrorKind::TaskFailed
            | ErrorKind::StorageUnavailable
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
        };
        if source.effect == Effect::Possible
            && let Err(failed) = self.drop_pending().await
        {
            tracing::warn!(vmid = %self.vm.guest.vmid, error = %failed, "a change may still be pending");
        }
        if may_concern_the_disk
            && matches!(
                disk::look_closely(self.region, self.volume).await,
                Ok(Presence::Absent)
            )
        {
            return Error::UnknownVolume;
        }
        error
    }

    async fn drop_pending(&mut self) -> Result<(), Error> {
        self.look_again().await?;
        let volid = self.volume.volid();
        let memory = slots::Memory::default();
        if let Attach::Revert(slot) = slots::attach(&self.picture, &self.real, &memory, &volid) {
            self.take_back(slot, Way::Revert).await?;
        }
        Ok(())
    }
}
