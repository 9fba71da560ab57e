//! Volumes: allocation, freeing, sizes, where the bytes lie. Must not know endpoints or rights.

use std::sync::Arc;
use std::time::Duration;

use crate::carried;
use crate::fail::Fail;
use crate::hardware::Backing;
use crate::sim::Sim;
use crate::state::{Quirk, State, Storage, StorageKind, Vm, VmNumber, Volume};
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
    sim.lock().active_storage(wanted.storage, wanted.node)?;
    let _guard = sim.lock_storage(wanted.node, wanted.storage).await?;
    sim.clock.sleep(sim.timing.allocate).await;
    let mut state = sim.lock();
    let storage = state.active_storage(wanted.storage, wanted.node)?;
    let name = match wanted.file {
        Some(file) => storage.new_name(wanted.vmid, file, wanted.format)?,
        None => free_name(&state, wanted)?,
    };
    let bytes = storage.round(wanted.bytes);
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
    let taken = storage.used + state.allocated(wanted.storage, storage, wanted.node);
    let free = storage.total.saturating_sub(taken);
    if let Some(text) = storage.no_room(&volume.name, bytes, free) {
        return Err(Fail::die(text));
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
    let suffix = if storage.kind.is_file() {
        format!(".{}", wanted.format.unwrap_or("raw"))
    } else {
        String::new()
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

/// ZFS is asked again this often, each second, while a volume is busy.
const ZFS_TRIES: u32 = 6;

/// Whether a QEMU that the storage's tools can see has the volume open: of this PVE node, of any one for `rbd`.
fn is_open(state: &State, node: &str, volid: &str, storage: &Storage) -> bool {
    let seen = |vm: &Vm| match storage.kind {
        StorageKind::Rbd | StorageKind::Drbd => true,
        StorageKind::Lvm | StorageKind::LvmThin | StorageKind::ZfsPool => vm.node == node,
        StorageKind::Dir | StorageKind::Nfs => false,
    };
    let mut vms = state.vms.values().filter(|vm| seen(vm));
    vms.any(|vm| vm.devices.values().any(|device| device.volid == volid))
}

/// A linked clone's name begins with its base's; LVM-thin does not keep the tie.
pub(crate) fn has_clones(state: &State, volid: &str) -> bool {
    let prefix = format!("{volid}/");
    let mut all = state.volumes.iter();
    all.any(|volume| volume.volid().starts_with(&prefix))
}

/// Frees a volume under the storage's lock. Files go in use or not; the others refuse where they can see it.
pub(crate) async fn free(
    sim: &Arc<Sim>,
    node: &str,
    volid: &str,
    log: Option<&TaskLog>,
) -> Result<(), Fail> {
    let (id, name) = volid.split_once(':').unwrap_or((volid, ""));
    sim.lock().active_storage(id, node)?;
    let _guard = sim.lock_storage(node, id).await?;
    let storage = sim.lock().active_storage(id, node)?.clone();
    let mut tries = 0;
    loop {
        let busy = {
            let state = sim.lock();
            if has_clones(&state, volid) {
                return Err(Fail::die(format!(
                    "base volume '{name}' is still in use by linked clones"
                )));
            }
            sim.faults().take_busy(id) || is_open(&state, node, volid, &storage)
        };
        if !busy {
            break;
        }
        tries += 1;
        if storage.kind != StorageKind::ZfsPool || tries >= ZFS_TRIES {
            return Err(Fail::die(storage.busy_text(name)));
        }
        sim.clock.sleep(Duration::from_secs(1)).await;
    }
    let mut state = sim.lock();
    let Some(at) = state.volume_at(node, volid) else {
        if storage.kind.is_file() {
            carried::log_line(&format!(
                "disk image '{}' does not exist",
                storage.path_of(name)
            ));
        }
        return storage
            .absent_free_text(name)
            .map_or(Ok(()), |text| Err(Fail::die(text)));
    };
    let volume = state.volumes.remove(at);
    let gone = backing(&volume);
    let done = if storage.kind == StorageKind::Lvm && !storage.is(Quirk::Saferemove) {
        sim.hardware.recycle(&gone)
    } else {
        sim.hardware.remove(&gone)
    };
    done.map_err(Fail::die)?;
    if let (Some(log), true) = (log, storage.kind.is_lvm()) {
        log.line(format!("  Logical volume \"{name}\" successfully removed."));
    }
    Ok(())
}

/// Using a zvol waits for its device link, for 10 s in a request and for 5 min in a worker (`zfs_wait_for_zvol_link`).
pub(crate) async fn await_link(sim: &Sim, node: &str, volid: &str) {
    let id = volid.split_once(':').map_or(volid, |(id, _)| id);
    let wait = if carried::in_worker() {
        Duration::from_mins(5)
    } else {
        Duration::from_secs(10)
    };
    let until = sim.clock.now() + wait;
    loop {
        let missing = {
            let state = sim.lock();
            let storage = state.storages.get(id);
            storage.is_some_and(|storage| storage.kind == StorageKind::ZfsPool)
                && state.volume(node, volid).is_none()
        };
        if !missing || sim.clock.now() >= until {
            return;
        }
        let left = until.saturating_sub(sim.clock.now());
        sim.clock.sleep(left.min(Duration::from_secs(1))).await;
    }
}

/// Size of a volume about to be used as a drive; PVE's text if it cannot be.
pub(crate) fn activate(state: &State, node: &str, volid: &str) -> Result<u64, Fail> {
    let (id, name) = volid.split_once(':').unwrap_or((volid, ""));
    let storage = state.active_storage(id, node)?;
    storage.parse_name(name)?;
    state
        .volume(node, volid)
        .map(|volume| volume.size)
        .ok_or_else(|| Fail::die(storage.absent_text(volid, name)))
}
