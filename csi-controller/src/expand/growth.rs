//! A volume being grown through the VM that has it, until its storage and its drive say the same size.

use pve_client::{ApiError, ErrorKind, Presence, TaskOutcome, Upid};
use pve_model::{Bytes, Slot, VolumeId};
use tokio::time::{Duration, Instant, sleep};

use super::room;
use super::step::{self, Sizes, Step, Unfit};
use crate::change::{self, jitter};
use crate::create;
use crate::disk;
use crate::error::Error;
use crate::holders::Term;
use crate::refusal::refused;
use crate::region::RegionContext;
use crate::slots::{Picture, Real};
use crate::validate::SizeRange;
use crate::vm::{self, Pinned};

/// Requests for a size in one RPC; storages whose unit has to be found out need up to four.
const GROWTHS: u32 = 4;
/// Looks and growths of one RPC.
const STEPS: u32 = 16;
/// Writes that may find the config changed.
const STALE: u32 = 5;
/// What a resize takes at least on PVE: before, its end is not looked for.
const RESIZE_TIME: Duration = Duration::from_millis(150);

const DOING: &str = "growing the disk through the VM that has it";
const READING: &str = "reading the VM's config after a change";

/// One volume in one VM.
#[derive(Debug)]
pub(super) struct Growth<'a> {
    region: &'a RegionContext,
    quotas: &'a create::Memory,
    volume: &'a VolumeId,
    vm: &'a Pinned,
    term: Term,
    wanted: SizeRange,
    picture: Picture,
    digest: String,
    storage: Option<Bytes>,
    unit: Bytes,
    /// An earlier growth may have been left half-way: QEMU has to be seen to have the disk before it grows once more.
    doubtful: bool,
    /// Whether PVE was asked to change something.
    asked: bool,
    growths: u32,
    stale: u32,
}

/// What came of a request for a size.
enum Asked {
    /// `size=` says so now, which PVE writes last.
    Written,
    /// PVE did it, or found the storage to have that size already.
    Ended,
    /// The config had changed; nothing was done.
    Stale,
    /// It failed in words that say nothing about the reason.
    Failed(ApiError),
}

impl<'a> Growth<'a> {
    /// Starts from what was read when the VM was proved.
    pub(super) fn new(
        region: &'a RegionContext,
        quotas: &'a create::Memory,
        (volume, wanted): (&'a VolumeId, SizeRange),
        vm: &'a Pinned,
        term: Term,
    ) -> Self {
        Self {
            region,
            quotas,
            volume,
            vm,
            term,
            wanted,
            picture: vm::picture(&vm.pending),
            digest: vm.pending.digest.clone(),
            storage: None,
            unit: step::unit(&volume.disk),
            doubtful: false,
            asked: false,
            growths: 0,
            stale: 0,
        }
    }

    /// The same after an RPC that may have stopped half-way: the storage is looked at first.
    #[must_use]
    pub(super) fn doubting(mut self, doubtful: bool) -> Self {
        self.doubtful = doubtful;
        self
    }

    /// Whether PVE was asked to change something.
    pub(super) fn has_asked(&self) -> bool {
        self.asked
    }

    /// Grows the volume until both sizes agree. The real size.
    pub(super) async fn converge(&mut self) -> Result<Bytes, Error> {
        if self.doubtful {
            self.look().await?;
        }
        for _ in 0..STEPS {
            if Instant::now() >= self.term.deadline {
                return Err(Error::StillRunning(format!("growing {}", self.volume)));
            }
            let (slot, sizes) = self.sizes()?;
            match step::step(&self.wanted, self.unit, sizes) {
                Step::Look => self.look().await?,
                Step::Done(size) => return Ok(size),
                Step::Never => return Err(self.never(sizes)),
                Step::Grow(target) => self.grow(slot, sizes, target).await?,
            }
        }
        Err(self.restless())
    }

    /// The drive and what is known of its size; refuses a drive that can't be resized.
    fn sizes(&self) -> Result<(Slot, Sizes), Error> {
        match step::drive(&self.picture, &self.volume.volid()) {
            Ok((slot, seat)) => {
                let sizes = Sizes {
                    drive: seat.size,
                    storage: self.storage,
                };
                Ok((slot, sizes))
            }
            Err(Unfit::NotThere | Unfit::Half) => Err(self.half("is being attached or detached")),
            Err(Unfit::Refused(refusal)) => Err(refused(self.vm, self.volume, &refusal)),
        }
    }

    fn half(&self, what: &str) -> Error {
        Error::HalfAttached(format!(
            "{} {what} in VM {}",
            self.volume, self.vm.guest.vmid
        ))
    }

    fn never(&self, sizes: Sizes) -> Error {
        tracing::info!(volume.id = %self.volume, ?sizes, wanted = ?self.wanted, "no size fits");
        Error::OutOfRange(
            "no size that the storage makes lies between the volume's present size and the limit"
                .to_owned(),
        )
    }

    fn restless(&self) -> Error {
        let vmid = self.vm.guest.vmid;
        Error::Changed(format!(
            "the sizes of {} in VM {vmid} do not settle",
            self.volume
        ))
    }

    /// Reads what the storage has. That it has nothing is believed only of a storage that is usable.
    async fn look(&mut self) -> Result<(), Error> {
        let looked = disk::look_closely(self.region, self.volume).await;
        match looked.map_err(|source| self.unsettled("looking at the disk", source))? {
            Presence::Present(info) => {
                self.storage = Some(info.size);
                Ok(())
            }
            Presence::Absent => Err(Error::UnknownVolume),
        }
    }

    /// What could not be seen after a change is not known; before, nothing has happened yet.
    fn unsettled(&self, doing: &'static str, source: ApiError) -> Error {
        if self.asked {
            Error::Unsettled { doing, source }
        } else {
            Error::Pve { doing, source }
        }
    }

    async fn look_again(&mut self) -> Result<(), Error> {
        let pending = self.region.client.vm_pending(&self.vm.at()).await;
        let pending = pending.map_err(|source| self.unsettled(READING, source))?;
        if pending.smbios_uuid().as_ref() != Some(&self.vm.uuid) {
            return Err(self.moved());
        }
        self.picture = vm::picture(&pending);
        self.digest = pending.digest;
        Ok(())
    }

    fn moved(&self) -> Error {
        Error::Changed(format!(
            "VM {} moves or is being replaced",
            self.vm.guest.vmid
        ))
    }

    async fn grow(&mut self, slot: Slot, sizes: Sizes, target: Bytes) -> Result<(), Error> {
        let vmid = self.vm.guest.vmid;
        if let Some(lock) = &self.picture.lock {
            return Err(Error::VmLocked(format!("VM {vmid} ({lock})")));
        }
        if self.growths >= GROWTHS {
            return Err(self.restless());
        }
        if self.doubtful {
            self.plugged(slot).await?;
        }
        let from = sizes.storage.or(sizes.drive).unwrap_or_default();
        let place = (self.volume, self.vm);
        let _room = room::find(self.region, self.quotas, place, (from, target)).await?;
        self.growths += 1;
        tracing::info!(vm.id = %vmid, %slot, %from, %target, "the disk is grown");
        match self.ask(slot, sizes.drive, target).await? {
            Asked::Written => {
                let exact = step::is_exact(&self.volume.disk, target);
                self.storage = exact.then_some(target);
                if !exact {
                    self.look().await?;
                    let made = self.storage.unwrap_or_default();
                    self.unit = step::larger_unit(self.unit, target, made);
                }
                Ok(())
            }
            // It ended well and wrote nothing: the storage had that size, to the byte.
            Asked::Ended if self.drive_size(slot) != Some(target) => {
                self.storage = Some(target);
                Ok(())
            }
            Asked::Ended => self.look().await,
            Asked::Stale => self.again().await,
            Asked::Failed(source) => self.judge(source, target).await,
        }
    }

    /// Config changes are counted, and waited for a little.
    async fn again(&mut self) -> Result<(), Error> {
        self.growths -= 1;
        self.stale += 1;
        if self.stale > STALE {
            return Err(self.restless());
        }
        sleep(jitter(self.stale, &self.digest)).await;
        self.storage = None;
        self.look_again().await
    }

    /// PVE refuses a size that is smaller than what the storage has; any other failure is one.
    async fn judge(&mut self, source: ApiError, target: Bytes) -> Result<(), Error> {
        self.look().await?;
        if self.storage.is_some_and(|storage| storage > target) {
            // Unless this very request has grown it, by more than it was asked for.
            self.doubtful |= !step::is_exact(&self.volume.disk, target);
            return Ok(());
        }
        Err(Error::Pve {
            doing: DOING,
            source,
        })
    }

    fn drive_size(&self, slot: Slot) -> Option<Bytes> {
        let row = self.picture.rows.iter().find(|row| row.slot == slot);
        row.and_then(|row| row.now.as_ref()?.size)
    }

    /// PVE grows the storage before it finds that QEMU lacks the disk, again and again.
    async fn plugged(&self, slot: Slot) -> Result<(), Error> {
        let (real, _) = change::real(self.region, &self.vm.at(), self.term.deadline).await?;
        match real {
            Real::Stopped => Ok(()),
            Real::Running(devices) if devices.contains(&slot) => Ok(()),
            Real::Running(_) => Err(self.half("is in the config and not in QEMU")),
            Real::Silent | Real::Unasked => {
                Err(Error::RealUnknown(format!("VM {}", self.vm.guest.vmid)))
            }
        }
    }

    /// Asks for a size and waits for the end. The config is looked at before the task, as it shows all three steps at once.
    async fn ask(
        &mut self,
        slot: Slot,
        before: Option<Bytes>,
        target: Bytes,
    ) -> Result<Asked, Error> {
        let host = &self.vm.guest.pve_node;
        let _host = self
            .region
            .guests
            .lock_host(host, self.term.deadline)
            .await?;
        self.asked = true;
        let client = &self.region.client;
        let begun = client
            .resize_disk(&self.vm.at(), slot, target, &self.digest)
            .await;
        let upid = begun.map_err(failed)?;
        if before != Some(target) {
            sleep(RESIZE_TIME).await;
            self.look_again().await?;
            if self.drive_size(slot) == Some(target) {
                return Ok(Asked::Written);
            }
        }
        let asked = self.ended(&upid).await?;
        if matches!(asked, Asked::Ended) {
            self.look_again().await?;
            if before != Some(target) && self.drive_size(slot) == Some(target) {
                return Ok(Asked::Written);
            }
        }
        Ok(asked)
    }

    async fn ended(&self, upid: &Upid) -> Result<Asked, Error> {
        let outcome = self.region.client.wait_task(upid, self.term.deadline).await;
        let outcome = outcome.map_err(|source| Error::Unsettled {
            doing: DOING,
            source,
        })?;
        match outcome {
            TaskOutcome::Ok | TaskOutcome::Warnings(_) => Ok(Asked::Ended),
            TaskOutcome::Unknown => Err(Error::Contradiction(format!(
                "nobody knows how {upid} ended"
            ))),
            TaskOutcome::StillRunning => Err(Error::StillRunning(upid.to_string())),
            TaskOutcome::Failed(exit) => {
                let source = ApiError::of_task(&exit);
                match &source.kind {
                    ErrorKind::DigestMismatch => Ok(Asked::Stale),
                    ErrorKind::TaskFailed | ErrorKind::DiskAbsent => Ok(Asked::Failed(source)),
                    ErrorKind::Absent => Err(self.moved()),
                    _ => Err(failed(source)),
                }
            }
        }
    }
}

fn failed(source: ApiError) -> Error {
    match source.kind {
        ErrorKind::OutcomeUnknown => Error::Unsettled {
            doing: DOING,
            source,
        },
        _ => Error::Pve {
            doing: DOING,
            source,
        },
    }
}
