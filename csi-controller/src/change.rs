//! One write to a VM's config, from the request to the end of its task. Every write carries the digest of what was
//! read, so that it acts on that or not at all.

use pve_client::{
    ApiError, ConfigChange, ErrorKind, RunState, Started, TaskOutcome, Upid, VmRef, VmStatus,
};
use pve_model::{PveNode, Slot};
use pve_runtime::keyed_lock::Guard;
use tokio::time::{Duration, Instant, sleep};

use crate::error::Error;
use crate::region::RegionContext;
use crate::slots::Real;

/// How often a silent QEMU is asked again. PVE gives QMP 2 s to answer before it leaves `blockstat` out.
const ASKS: u32 = 4;
const FIRST_ASK: Duration = Duration::from_millis(250);

/// What came of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// PVE says that it is done, which for a hotplug proves nothing yet.
    Done,
    /// The config had changed since it was read: nothing was done.
    Stale,
    /// The hotplug failed and the change is pending now. PVE's words.
    Pending(String),
}

/// How a slot is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A change that waits is dropped.
    Revert,
    /// The drive is unplugged and leaves the config.
    Delete,
}

impl Way {
    /// The write, which still lacks the digest.
    pub fn change(self, slots: &[Slot]) -> ConfigChange {
        let slots = slots.iter().map(Slot::to_string).collect();
        let (revert, delete) = match self {
            Self::Revert => (slots, Vec::new()),
            Self::Delete => (Vec::new(), slots),
        };
        ConfigChange {
            revert,
            delete,
            ..ConfigChange::default()
        }
    }
}

/// Up to some 100 ms per failed try, different for each config that was read.
pub fn jitter(tries: u32, digest: &str) -> Duration {
    let spread = digest.bytes().fold(0_u64, |sum, byte| {
        (sum.wrapping_mul(31) + u64::from(byte)) % 80
    });
    Duration::from_millis(20 + spread).saturating_mul(tries)
}

/// A task that changes a VM. Its host is kept from other hotplugs until this is dropped.
#[derive(Debug)]
pub struct Flight {
    upid: Upid,
    /// When it was begun.
    pub begun: Instant,
    _host: Guard<PveNode>,
}

/// Sets, deletes or reverts slots of a VM on that host, and waits for the end of it.
pub async fn apply(
    region: &RegionContext,
    at: &VmRef,
    change: &ConfigChange,
    host: Guard<PveNode>,
    deadline: Instant,
) -> Result<Applied, Error> {
    match begin(region, at, change, host).await? {
        Ok(applied) => Ok(applied),
        Err(flight) => flight.end(region, deadline).await,
    }
}

/// The same without waiting longer than PVE does: what came of it, or the task that still runs.
pub async fn begin(
    region: &RegionContext,
    at: &VmRef,
    change: &ConfigChange,
    host: Guard<PveNode>,
) -> Result<Result<Applied, Flight>, Error> {
    let begun = Instant::now();
    match region.client.update_vm(at, change).await {
        Ok(Started::Done) => Ok(Ok(Applied::Done)),
        Ok(Started::Running(upid)) => Ok(Err(Flight {
            upid,
            begun,
            _host: host,
        })),
        Err(error) => failed(error).map(Ok),
    }
}

impl Flight {
    /// Waits for the task.
    pub async fn end(self, region: &RegionContext, deadline: Instant) -> Result<Applied, Error> {
        let outcome = region.client.wait_task(&self.upid, deadline).await;
        match outcome.map_err(|source| Error::Unsettled {
            doing: DOING,
            source,
        })? {
            TaskOutcome::Ok | TaskOutcome::Warnings(_) => Ok(Applied::Done),
            TaskOutcome::Failed(exit) => failed(ApiError::of_task(&exit)),
            TaskOutcome::Unknown => Err(Error::Contradiction(format!(
                "nobody knows how {} ended",
                self.upid
            ))),
            TaskOutcome::StillRunning => Err(Error::StillRunning(self.upid.to_string())),
        }
    }
}

const DOING: &str = "changing the disks of the VM";

fn failed(source: ApiError) -> Result<Applied, Error> {
    match &source.kind {
        ErrorKind::DigestMismatch => Ok(Applied::Stale),
        ErrorKind::HotplugFailed { text, .. } => Ok(Applied::Pending(text.clone())),
        ErrorKind::OutcomeUnknown => Err(Error::Unsettled {
            doing: DOING,
            source,
        }),
        _ => Err(Error::Pve {
            doing: DOING,
            source,
        }),
    }
}

/// What QEMU has, and which process it is. A QEMU that is silent is asked again for some seconds.
pub async fn real(
    region: &RegionContext,
    at: &VmRef,
    deadline: Instant,
) -> Result<(Real, Option<u32>), Error> {
    let mut pause = FIRST_ASK;
    for _ in 0..ASKS {
        let status = region
            .client
            .vm_status(at)
            .await
            .map_err(Error::pve("reading the real state of the VM"))?;
        let real = read(&status);
        let silent = real == Real::Silent;
        if !silent || Instant::now() + pause > deadline {
            return Ok((real, status.pid));
        }
        sleep(pause).await;
        pause = pause.saturating_mul(2);
    }
    Ok((Real::Silent, None))
}

/// Drive keys that are no slot (`efidisk0`, `tpmstate0`) are nobody's concern here.
fn read(status: &VmStatus) -> Real {
    match (&status.state, &status.blockstat) {
        (RunState::Stopped, _) => Real::Stopped,
        (RunState::Running | RunState::Other(_), Some(devices)) => Real::Running(
            devices
                .iter()
                .filter_map(|key| key.parse::<Slot>().ok())
                .collect(),
        ),
        (RunState::Running | RunState::Other(_), None) | (RunState::Unknown, _) => Real::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_blockstat_is_unknown_unless_the_vm_is_stopped() {
        let status = |state: RunState, devices: Option<&[&str]>| VmStatus {
            state,
            qmpstatus: None,
            lock: None,
            pid: None,
            blockstat: devices.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect()),
        };
        let one = Real::Running(["scsi1".parse().unwrap()].into());
        for (sentence, status, real) in [
            (
                "a running VM shows its disks",
                status(RunState::Running, Some(&["scsi1", "efidisk0"])),
                one,
            ),
            (
                "a running VM without disks",
                status(RunState::Running, Some(&[])),
                Real::Running([].into()),
            ),
            (
                "a running VM whose QEMU is busy",
                status(RunState::Running, None),
                Real::Silent,
            ),
            (
                "a stopped VM",
                status(RunState::Stopped, None),
                Real::Stopped,
            ),
            (
                "a VM of which PVE knows nothing yet",
                status(RunState::Unknown, None),
                Real::Silent,
            ),
        ] {
            assert_eq!(read(&status), real, "{sentence}");
        }
    }
}
