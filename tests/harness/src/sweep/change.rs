//! What somebody or something else does to PVE in the middle of an RPC.

use std::time::Duration;

use anyhow::Result;
use pve_sim::{Health, SimHandle};

use super::Rpc;
use super::lane::{HOST, OTHER_HOST, VM};
use crate::world::SHARED;

/// What happens on PVE from when the request arrives until the RPC has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// An administrator changes the VM's notes: another digest. Stays.
    Digest,
    /// The VM is locked by a backup.
    VmLock,
    /// Something holds the file lock of the VM's config for longer than PVE waits for it.
    VmFileLock,
    /// Something holds the lock of the storage for longer than PVE waits for it.
    StorageLock,
    /// The VM's host loses its power.
    HostOff,
    /// The daemons of the VM's host stop answering.
    HostHung,
    /// The VM is stopped, and started after the answer.
    VmStopped,
    /// The VM is stopped and started at once: another QEMU.
    VmRestarted,
    /// The VM migrates to the other host, and back after the case.
    VmMigrated,
    /// QEMU answers nothing for a while: no `blockstat`.
    QmpBusy,
}

/// Longer than PVE waits for a lock (10 s).
const LONG: Duration = Duration::from_secs(14);

impl Change {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Digest,
        Self::VmLock,
        Self::VmFileLock,
        Self::StorageLock,
        Self::HostOff,
        Self::HostHung,
        Self::VmStopped,
        Self::VmRestarted,
        Self::VmMigrated,
        Self::QmpBusy,
    ];

    /// Whether PVE waits meanwhile, so that the simulator's clock has to run fast.
    pub fn takes_time(self) -> bool {
        matches!(
            self,
            Self::VmFileLock | Self::StorageLock | Self::HostOff | Self::HostHung
        )
    }

    /// Whether the RPC can meet it at all.
    pub fn concerns(self, rpc: Rpc) -> bool {
        let storage = matches!(rpc, Rpc::Create | Rpc::Delete | Rpc::Expand);
        match self {
            Self::HostOff | Self::HostHung => true,
            Self::StorageLock => storage,
            Self::VmMigrated | Self::VmRestarted => rpc != Rpc::Create,
            Self::Digest | Self::VmLock | Self::VmFileLock | Self::VmStopped | Self::QmpBusy => {
                !matches!(rpc, Rpc::Create | Rpc::Delete)
            }
        }
    }

    /// Does it.
    pub async fn begin(self, sim: &SimHandle, vmid: u32) -> Result<()> {
        let done = match self {
            Self::Digest => config(sim, vmid, ("description", Some("a note"))),
            Self::VmLock => config(sim, vmid, ("lock", Some("backup"))),
            Self::VmFileLock => sim.hold_vm_lock(vmid, LONG).await,
            Self::StorageLock => sim.hold_storage_lock(home(vmid), SHARED, LONG).await,
            Self::HostOff => health(sim, vmid, Health::Offline),
            Self::HostHung => health(sim, vmid, Health::Hung),
            Self::VmStopped => sim.stop_vm(vmid),
            Self::VmRestarted => sim.stop_vm(vmid).and_then(|()| sim.start_vm(vmid)),
            Self::VmMigrated => moved(sim, vmid, away(vmid)),
            Self::QmpBusy => {
                sim.vm_faults(vmid, |faults| faults.qmp_busy = 2);
                Ok(())
            }
        };
        done.map_err(anyhow::Error::msg)
    }

    /// What the administrator does once the RPC has answered.
    pub fn end(self, sim: &SimHandle, vmid: u32) -> Result<()> {
        let done = match self {
            Self::VmLock => config(sim, vmid, ("lock", None)),
            Self::HostOff | Self::HostHung => health(sim, vmid, Health::Online),
            Self::VmStopped => sim.start_vm(vmid),
            Self::Digest
            | Self::VmFileLock
            | Self::StorageLock
            | Self::VmRestarted
            | Self::VmMigrated
            | Self::QmpBusy => Ok(()),
        };
        done.map_err(anyhow::Error::msg)
    }

    /// Makes the world what it was before, once an RPC has said OK.
    pub fn tidy(self, sim: &SimHandle, vmid: u32) -> Result<()> {
        let done = match self {
            Self::Digest => config(sim, vmid, ("description", None)),
            Self::VmMigrated => moved(sim, vmid, home(vmid)),
            // A host tells the others every 10 s what its storages are like (`pvestatd.pm`).
            Self::VmFileLock | Self::StorageLock | Self::HostOff | Self::HostHung => {
                sim.advance(LONG);
                Ok(())
            }
            Self::QmpBusy => {
                sim.vm_faults(vmid, |faults| faults.qmp_busy = 0);
                Ok(())
            }
            Self::VmLock | Self::VmStopped | Self::VmRestarted => Ok(()),
        };
        done.map_err(anyhow::Error::msg)
    }
}

/// The host of a worker when nothing is wrong.
fn home(vmid: u32) -> &'static str {
    if vmid == VM { HOST } else { OTHER_HOST }
}

fn away(vmid: u32) -> &'static str {
    if vmid == VM { OTHER_HOST } else { HOST }
}

fn config(sim: &SimHandle, vmid: u32, (key, value): (&str, Option<&str>)) -> Result<(), String> {
    sim.with_vm(vmid, |vm| match value {
        Some(value) => vm.config.insert(key.to_owned(), value.to_owned()),
        None => vm.config.remove(key),
    })
    .map(drop)
    .ok_or_else(|| format!("no VM {vmid}"))
}

fn moved(sim: &SimHandle, vmid: u32, host: &str) -> Result<(), String> {
    sim.with_vm(vmid, |vm| host.clone_into(&mut vm.node))
        .ok_or_else(|| format!("no VM {vmid}"))
}

#[expect(clippy::unnecessary_wraps, reason = "as its neighbours")]
fn health(sim: &SimHandle, vmid: u32, health: Health) -> Result<(), String> {
    sim.node_health(home(vmid), health);
    Ok(())
}
