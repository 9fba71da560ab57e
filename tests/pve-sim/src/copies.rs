//! Full copies of disks, as moving a disk to another storage and cloning a VM make them.

use std::sync::Arc;

use crate::drive::Drive;
use crate::fail::Fail;
use crate::sim::Sim;
use crate::state::VmNumber;
use crate::tasks::TaskLog;
use crate::{units, volumes};

/// A disk to be copied: whose it becomes and where.
#[derive(Debug)]
pub(crate) struct Copy<'a> {
    pub(crate) node: &'a str,
    pub(crate) vmid: VmNumber,
    pub(crate) storage: &'a str,
    pub(crate) slot: &'a str,
}

/// Copies the drive's volume into a new one and returns the drive with it.
pub(crate) async fn full(
    sim: &Arc<Sim>,
    copy: &Copy<'_>,
    drive: &Drive,
    log: &TaskLog,
) -> Result<Drive, Fail> {
    log.line(format!(
        "create full clone of drive {} ({})",
        copy.slot, drive.file
    ));
    let (bytes, source) = {
        let state = sim.lock();
        let bytes = volumes::activate(&state, copy.node, &drive.file)?;
        (
            bytes,
            state.volume(copy.node, &drive.file).map(volumes::backing),
        )
    };
    let wanted = volumes::Wanted {
        node: copy.node,
        storage: copy.storage,
        vmid: copy.vmid,
        file: None,
        format: None,
        bytes,
    };
    let volid = volumes::allocate(sim, &wanted).await?;
    let state = sim.lock();
    let storage = state.enabled_storage(copy.storage, copy.node)?;
    let name = volid.split_once(':').map_or("", |(_, name)| name);
    if storage.kind.is_file() {
        log.line(format!(
            "Formatting '{}', fmt=raw size={bytes} preallocation=off",
            storage.path_of(name)
        ));
    } else if storage.kind.is_lvm() {
        log.line(format!("  Logical volume \"{name}\" created."));
    }
    log.line(format!("allocated target volume '{volid}'"));
    let target = state.volume(copy.node, &volid).map(volumes::backing);
    if let (Some(source), Some(target)) = (source, target) {
        sim.hardware.copy(&source, &target).map_err(Fail::die)?;
    }
    let size = units::human(bytes);
    log.line(format!("transferred 0.0 B of {size} (0.00%)"));
    for _ in 0..2 {
        log.line(format!("transferred {size} of {size} (100.00%)"));
    }
    let mut made = drive.clone();
    made.file = volid;
    made.options
        .insert("size".to_owned(), units::print_size(bytes));
    Ok(made)
}
