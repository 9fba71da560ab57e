//! What attach and detach have in common: one locked VM, what was last read of it, and the three ways to deal with it:
//! ask QEMU, read the config again, write.
//!
//! Knows no order of steps: that is for `publish` and `unpublish`.

use std::collections::BTreeSet;

use pve_client::ConfigChange;
use pve_model::{PveNode, Slot, VolumeId};
use pve_runtime::keyed_lock::Guard;
use tokio::time::{Instant, sleep};

use crate::asking;
use crate::change::{self, Applied, Flight, jitter};
use crate::error::Error;
use crate::region::RegionContext;
use crate::slots::{Memory, Picture, Real, Row};
use crate::vm::{self, Pinned};

/// Steps of one RPC with one VM, whatever they are.
pub const STEPS: u32 = 32;
/// Writes that may find the config changed.
const STALE: u32 = 5;

/// What makes a disk of QEMU that the config does not name an orphan: another controller may have attached it since the
/// config was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// The config is read again.
    Reread,
    /// The next write carries the digest of the config that was read, or nothing is written.
    Digest,
    /// It is in one of these slots, which were deleted just now; the slots of others are not used any more.
    Freed(BTreeSet<Slot>),
}

/// One VM that a volume is being put into or taken out of.
#[derive(Debug)]
pub struct VmWork<'a> {
    /// Its region.
    pub region: &'a RegionContext,
    /// The volume.
    pub volume: &'a VolumeId,
    /// The VM, locked.
    pub vm: &'a Pinned,
    /// When the RPC has to end.
    pub deadline: Instant,
    /// Its config and half-done changes.
    pub picture: Picture,
    /// What QEMU has.
    pub real: Real,
    /// Of the config that the picture was read from; none if the picture is what was written since.
    digest: Option<String>,
    /// Orphans that rest on the digest.
    doubtful: BTreeSet<Slot>,
    stale: u32,
}

impl<'a> VmWork<'a> {
    /// Starts from what was read when the VM was proved.
    pub fn new(
        region: &'a RegionContext,
        volume: &'a VolumeId,
        vm: &'a Pinned,
        deadline: Instant,
    ) -> Self {
        let work = Self {
            region,
            volume,
            vm,
            deadline,
            picture: vm::picture(&vm.pending),
            real: Real::Unasked,
            digest: Some(vm.pending.digest.clone()),
            doubtful: BTreeSet::new(),
            stale: 0,
        };
        work.note_size();
        work
    }

    fn note_size(&self) {
        let volid = self.volume.volid();
        let seats = self.picture.rows.iter().filter_map(|row| row.now.as_ref());
        let mut sizes = seats.filter(|seat| seat.volid == volid);
        if let Some(size) = sizes.find_map(|seat| seat.size) {
            self.region.guests.sizes.saw(&volid, size);
        }
    }

    /// What is remembered about the VM's slots.
    pub fn memory(&self) -> Memory {
        self.region.guests.memory(self.vm.guest.vmid, &self.vm.uuid)
    }

    /// Slots that are not used before QEMU is started anew.
    pub fn poison(&self, slots: impl IntoIterator<Item = Slot>) {
        let (vmid, uuid) = (self.vm.guest.vmid, &self.vm.uuid);
        self.region.guests.poison(vmid, uuid, slots);
    }

    /// Fails once the deadline is over.
    pub fn in_time(&self, verb: &str) -> Result<(), Error> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        Err(Error::StillRunning(format!(
            "{verb} VM {} did not end in time",
            self.vm.guest.vmid
        )))
    }

    /// The VM's host, kept from other hotplugs.
    pub async fn host(&self) -> Result<Guard<PveNode>, Error> {
        let host = &self.vm.guest.pve_node;
        self.region.guests.lock_host(host, self.deadline).await
    }

    /// Asks QEMU. A disk there that the config does not explain spoils its slot for as long as it is there: PVE would
    /// take it for the new one (`vm_deviceplug` returns success if the device is there).
    pub async fn ask(&mut self, doubt: Doubt) -> Result<(), Error> {
        let (real, process) = change::real(self.region, &self.vm.at(), self.deadline).await?;
        let (vmid, uuid) = (self.vm.guest.vmid, &self.vm.uuid);
        if real != Real::Silent {
            let devices = real.devices();
            self.region.guests.saw(vmid, uuid, process, &devices);
            let mut orphans = self.unexplained(&devices);
            match &doubt {
                Doubt::Reread if !orphans.is_subset(&self.memory().orphans) => {
                    self.look_again().await?;
                    orphans = self.unexplained(&devices);
                }
                Doubt::Digest => self.doubtful.extend(&orphans),
                Doubt::Freed(freed) => {
                    let known = self.memory().orphans;
                    let others = orphans.difference(freed).filter(|s| !known.contains(s));
                    self.poison(others.copied());
                    orphans.retain(|slot| freed.contains(slot));
                }
                Doubt::Reread => {}
            }
            self.region.guests.orphaned(vmid, uuid, orphans);
        }
        self.real = real;
        Ok(())
    }

    fn unexplained(&self, devices: &BTreeSet<Slot>) -> BTreeSet<Slot> {
        let known: BTreeSet<Slot> = self.picture.rows.iter().map(|row| row.slot).collect();
        devices.difference(&known).copied().collect()
    }

    /// Reads the config again.
    pub async fn look_again(&mut self) -> Result<(), Error> {
        let pending = asking::one(self.region, &self.vm.guest).await;
        let pending = pending.map_err(Error::pve("reading the VM's config after a change"))?;
        // A VMID is reused within minutes.
        if pending.smbios_uuid().as_ref() != Some(&self.vm.uuid) {
            return Err(Error::Changed(format!(
                "VM {} is another VM by now",
                self.vm.guest.vmid
            )));
        }
        self.picture = vm::picture(&pending);
        self.digest = Some(pending.digest);
        self.real = Real::Unasked;
        self.note_size();
        let doubtful = std::mem::take(&mut self.doubtful);
        let explained = self.picture.rows.iter().map(|row| row.slot);
        let explained = explained.filter(|slot| doubtful.contains(slot));
        let (vmid, uuid) = (self.vm.guest.vmid, &self.vm.uuid);
        self.region.guests.explained(vmid, uuid, explained);
        Ok(())
    }

    /// Whether the picture was read from PVE, so that a write can carry its digest.
    pub fn is_read(&self) -> bool {
        self.digest.is_some()
    }

    /// Takes a row for what PVE says that it has written, on top of the config that the digest named.
    pub fn take_as_written(&mut self, row: Row) {
        self.picture.rows.push(row);
        self.digest = None;
        self.real = Real::Unasked;
    }

    /// Writes, for the config that was read, and waits for the end of it. [`Applied::Stale`] is for reading it again.
    pub async fn write(
        &mut self,
        mut change: ConfigChange,
        host: Guard<PveNode>,
    ) -> Result<Applied, Error> {
        change.digest = Some(self.digest()?.to_owned());
        let at = self.vm.at();
        let applied = change::apply(self.region, &at, &change, host, self.deadline).await?;
        self.not_too_often(&applied).await?;
        Ok(applied)
    }

    /// Begins a write whose task may take longer than PVE waits.
    pub async fn begin(
        &mut self,
        mut change: ConfigChange,
    ) -> Result<Result<Applied, Flight>, Error> {
        let host = self.host().await?;
        change.digest = Some(self.digest()?.to_owned());
        let begun = change::begin(self.region, &self.vm.at(), &change, host).await?;
        if let Ok(applied) = &begun {
            self.not_too_often(applied).await?;
        }
        Ok(begun)
    }

    /// Of the config that was read last, which every write carries.
    pub fn digest(&self) -> Result<&str, Error> {
        let unread = || Error::Internal("a write without a digest".to_owned());
        self.digest.as_deref().ok_or_else(unread)
    }

    async fn not_too_often(&mut self, applied: &Applied) -> Result<(), Error> {
        if *applied != Applied::Stale {
            return Ok(());
        }
        self.stale += 1;
        if self.stale > STALE {
            return Err(Error::Changed(format!("VM {}", self.vm.guest.vmid)));
        }
        sleep(jitter(self.stale, self.digest()?)).await;
        Ok(())
    }

    /// After [`STEPS`] steps.
    pub fn restless(&self) -> Error {
        Error::Changed(format!("VM {} does not settle", self.vm.guest.vmid))
    }

    /// QEMU does not say what it has.
    pub fn silent(&self) -> Error {
        Error::RealUnknown(format!("VM {}", self.vm.guest.vmid))
    }
}
