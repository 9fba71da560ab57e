//! A backup as it gets into the way of others: the VM bears `lock: backup` while it runs (`VZDump/QemuServer.pm`, api.md 10.5).

use std::sync::Arc;
use std::time::Duration;

use crate::acl::Who;
use crate::fail::Fail;
use crate::sim::{Sim, no_config};
use crate::state::VmNumber;
use crate::tasks::{self, TaskKind};
use crate::update;

/// Starts one that takes this long; the VM is locked when this returns its UPID, and refused if it was before.
pub(crate) fn start(sim: &Arc<Sim>, vmid: VmNumber, time: Duration) -> Result<String, Fail> {
    let node = sim.lock().vms.get(&vmid).map(|vm| vm.node.clone());
    let node = node.ok_or_else(|| no_config("", vmid))?;
    sim.with_vm(&node, vmid, |vm| {
        update::check_state(vm, None)?;
        vm.config.insert("lock".to_owned(), "backup".to_owned());
        Ok::<(), Fail>(())
    })??;
    let what = TaskKind {
        node: node.clone(),
        kind: "vzdump",
        id: vmid.to_string(),
    };
    let who = Who {
        user: "root@pam".to_owned(),
        token: None,
    };
    let inner = Arc::clone(sim);
    Ok(tasks::fork(sim, &who, &what, move |log| async move {
        log.line(format!("INFO: Starting Backup of VM {vmid} (qemu)"));
        inner.clock.sleep(time).await;
        inner.with_vm(&node, vmid, |vm| vm.config.remove("lock"))?;
        log.line(format!("INFO: Finished Backup of VM {vmid}"));
        Ok(())
    }))
}
