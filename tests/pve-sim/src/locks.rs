//! Locks as PVE takes them: files of one PVE node (`Tools.pm` `lock_file_full`) and directories of the cluster file system
//! (`Cluster.pm` `cfs_lock`). What waits says so in its task's log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::carried;
use crate::fail::Fail;
use crate::sim::Sim;
use crate::state::VmNumber;

/// PVE waits this long for a config or storage lock.
const WAIT: Duration = Duration::from_secs(10);
/// How often waiting for a lock of the cluster is tried and told.
const TRY_EVERY: Duration = Duration::from_secs(1);

type Guard = OwnedMutexGuard<()>;

/// All locks by their path.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Locks {
    fn of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key.to_owned()).or_default().clone()
    }
}

impl Sim {
    async fn lock_file(&self, node: &str, file: &str, wait: Duration) -> Result<Guard, Fail> {
        let lock = self.locks.of(&format!("{node}{file}"));
        let lost = carried::take_lock();
        if !lost && let Ok(guard) = lock.clone().try_lock_owned() {
            return Ok(guard);
        }
        carried::log_line("trying to acquire lock...");
        let refused = || Fail::die(format!("can't lock file '{file}' - got timeout"));
        if lost {
            self.clock.sleep(wait).await;
            return Err(refused());
        }
        tokio::select! {
            biased;
            guard = lock.lock_owned() => {
                carried::log_line(" OK");
                Ok(guard)
            }
            () = self.clock.sleep(wait) => Err(refused()),
        }
    }

    /// A directory below `/etc/pve/priv/lock`, which can be made only with quorum.
    pub(crate) async fn lock_cluster(&self, node: &str, id: &str) -> Result<Guard, Fail> {
        let lock = self.locks.of(&format!("/etc/pve/priv/lock/{id}"));
        let lost = carried::take_lock();
        let start = self.clock.now();
        let mut tried = 0;
        loop {
            let quorate = self.lock().quorate(node);
            if quorate
                && !lost
                && let Ok(guard) = lock.clone().try_lock_owned()
            {
                return Ok(guard);
            }
            tried += 1;
            if TRY_EVERY * tried < WAIT {
                carried::log_line(&format!("trying to acquire cfs lock '{id}' ..."));
            }
            let next = start + TRY_EVERY * tried;
            self.clock
                .sleep(next.saturating_sub(self.clock.now()))
                .await;
            if TRY_EVERY * tried >= WAIT {
                let why = if quorate {
                    "got lock request timeout"
                } else {
                    "no quorum!"
                };
                return Err(Fail::die(format!("cfs-lock '{id}' error: {why}")));
            }
        }
    }

    /// `/var/lock/qemu-server/lock-<vmid>.conf` of one PVE node.
    pub(crate) async fn lock_vm(&self, node: &str, vmid: VmNumber) -> Result<Guard, Fail> {
        self.lock_vm_within(node, vmid, WAIT).await
    }

    /// The same, for those that wait less.
    pub(crate) async fn lock_vm_within(
        &self,
        node: &str,
        vmid: VmNumber,
        wait: Duration,
    ) -> Result<Guard, Fail> {
        let file = format!("/var/lock/qemu-server/lock-{vmid}.conf");
        self.lock_file(node, &file, wait).await
    }

    /// The lock around allocation and freeing: a file of the PVE node, or of the cluster if the storage is shared.
    pub(crate) async fn lock_storage(&self, node: &str, storage: &str) -> Result<Guard, Fail> {
        let shared = self.lock().storages.get(storage).is_some_and(|s| s.shared);
        if shared {
            return self.lock_cluster(node, &format!("storage-{storage}")).await;
        }
        let file = format!("/var/lock/pve-manager/pve-storage-{storage}");
        self.lock_file(node, &file, WAIT).await
    }
}
