//! Volumes: allocation, freeing, sizes, where the bytes lie. Must not know endpoints or rights.

use std::sync::Arc;

use crate::fail::Fail;
use crate::hardware::Backing;
use crate::sim::Sim;
use crate::state::{State, VmNumber, Volume};
use crate::tasks::TaskLog;

/// A volume to be made.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) node: &'a str,
    pub(crate) storage: &'a str,
    pub(crate) vmid: VmNumber,
    /// `None`: `vm-<vmid>-disk-<n>`.
    pub(crate) file: Option<&'a str>,
    pub(crate) format: Option<&'a str>,
    pub(crate) bytes: u64,
}

/// Key of a volume's bytes for the hardware.
pub(crate) fn backing(volume: &Volume) -> Backing {
    Backing {
        storage: volume.storage.clone(),
        node: volume.node.clone(),
        name: volume.name.clone(),
    }
}

/// Allocates under the storage's lock and returns the volume id.
pub(crate) async fn allocate(sim: &Arc<Sim>, wanted: &Wanted<'_>) -> Result<String, Fail> {
    sim.lock().enabled_storage(wanted.storage, wanted.node)?;
    let _guard = sim.lock_storage(wanted.node, wanted.storage).await?;
    sim.clock.sleep(sim.timing.allocate).await;
    let mut state = sim.lock();
    let storage = state.enabled_storage(wanted.storage, wanted.node)?;
    let name = match wanted.file {
        Some(file) => storage.new_name(wanted.vmid, file, wanted.format)?,
        None => free_name(&state, wanted)?,
    };
    let bytes = storage.kind.round(wanted.bytes);
    let volume = Volume {
        storage: wanted.storage.to_owned(),
        node: (!storage.shared).then(|| wanted.node.to_owned()),
        format: wanted
            .format
            .or_else(|| crate::state::suffix_format(&name))
            .unwrap_or("raw")
            .to_owned(),
        name,
        size: bytes,
        ctime: sim.clock.epoch(),
    };
    let volid = volume.volid();
    if state.volume_at(wanted.node, &volid).is_some() {
        return Err(Fail::die(storage.exists_text(&volume.name)));
    }
    sim.hardware
        .create(&backing(&volume), bytes)
        .map_err(Fail::die)?;
    state.volumes.push(volume);
    Ok(volid)
}

/// `vm-<vmid>-disk-<n>` for the first free n.
pub(crate) fn free_name(state: &State, wanted: &Wanted<'_>) -> Result<String, Fail> {
    let storage = state.enabled_storage(wanted.storage, wanted.node)?;
    let suffix = match storage.kind {
        crate::state::StorageKind::Dir => format!(".{}", wanted.format.unwrap_or("raw")),
        crate::state::StorageKind::LvmThin => String::new(),
    };
    for number in 0..1024 {
        let name = storage.new_name(
            wanted.vmid,
            &format!("vm-{}-disk-{number}{suffix}", wanted.vmid),
            wanted.format,
        )?;
        if state
            .volume_at(wanted.node, &format!("{}:{name}", wanted.storage))
            .is_none()
        {
            return Ok(name);
        }
    }
    Err(Fail::die(format!(
        "unable to allocate an image name for VM {} in storage '{}'",
        wanted.vmid, wanted.storage
    )))
}

/// Frees a volume under the storage's lock, in use or not. An absent one is no error (dir, lvmthin).
pub(crate) async fn free(
    sim: &Arc<Sim>,
    node: &str,
    volid: &str,
    log: Option<&TaskLog>,
) -> Result<(), Fail> {
    let (id, name) = volid.split_once(':').unwrap_or((volid, ""));
    sim.lock().enabled_storage(id, node)?;
    let _guard = sim.lock_storage(node, id).await?;
    let mut state = sim.lock();
    let storage = state.enabled_storage(id, node)?.clone();
    let busy = sim.faults().take_busy(id);
    if busy {
        return Err(Fail::die(storage.busy_text(name)));
    }
    let Some(at) = state.volume_at(node, volid) else {
        return Ok(());
    };
    let volume = state.volumes.remove(at);
    sim.hardware.remove(&backing(&volume)).map_err(Fail::die)?;
    if let (Some(log), crate::state::StorageKind::LvmThin) = (log, storage.kind) {
        log.line(format!("  Logical volume \"{name}\" successfully removed."));
    }
    Ok(())
}

/// Size of a volume about to be used as a drive; PVE's text if it cannot be.
pub(crate) fn activate(state: &State, node: &str, volid: &str) -> Result<u64, Fail> {
    let (id, name) = volid.split_once(':').unwrap_or((volid, ""));
    let storage = state.enabled_storage(id, node)?;
    storage.parse_name(name)?;
    state
        .volume(node, volid)
        .map(|volume| volume.size)
        .ok_or_else(|| Fail::die(storage.absent_text(volid, name)))
}
