//! Changing a VM's config: what is written under the VM's lock and in which order (`Qemu.pm` `update_vm`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::acl::{self, Who};
use crate::carried;
use crate::drive::{self, Drive};
use crate::fail::Fail;
use crate::sim::{Sim, no_config};
use crate::state::{Vm, VmNumber, volume_owner};
use crate::{hotplug, units, volumes};

/// A change, checked as far as PVE does before it forks.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) who: Who,
    pub(crate) node: String,
    pub(crate) vmid: VmNumber,
    pub(crate) digest: Option<String>,
    pub(crate) delete: Vec<String>,
    pub(crate) force: bool,
    pub(crate) revert: Vec<String>,
    pub(crate) set: BTreeMap<String, String>,
}

/// Digest and `lock:`; checked before the fork and again under the lock.
pub(crate) fn check_state(vm: &Vm, digest: Option<&str>) -> Result<(), Fail> {
    if digest.is_some_and(|given| given != vm.digest()) {
        return Err(Fail::die("checksum mismatch (file change by other user?)"));
    }
    match vm.config.get("lock") {
        Some(lock) => Err(Fail::die(format!("VM is locked ({lock})"))),
        None => Ok(()),
    }
}

/// Does the change under the VM's file lock, hot-plugging where the VM runs, and tells the worker's log.
pub(crate) async fn run(sim: &Arc<Sim>, change: Change) -> Result<(), Fail> {
    let _guard = sim.lock_vm(&change.node, change.vmid).await?;
    sim.with_vm(&change.node, change.vmid, |vm| {
        check_state(vm, change.digest.as_deref())
    })??;
    carried::log_line(&change.told());
    locked(sim, change).await
}

/// The same for a VM in the making.
pub(crate) async fn apply(sim: &Arc<Sim>, change: Change) -> Result<(), Fail> {
    let _guard = sim.lock_vm(&change.node, change.vmid).await?;
    locked(sim, change).await
}

impl Change {
    /// The request's parameters in the order of their names.
    fn told(&self) -> String {
        let mut shown: BTreeMap<&str, String> = BTreeMap::new();
        for (flag, list) in [("delete", &self.delete), ("revert", &self.revert)] {
            if !list.is_empty() {
                shown.insert(flag, list.join(","));
            }
        }
        if self.force {
            shown.insert("force", "1".to_owned());
        }
        shown.extend(self.set.iter().map(|(k, v)| (k.as_str(), v.clone())));
        let mut text = format!("update VM {}:", self.vmid);
        for (key, value) in shown {
            text.extend([" -", key, " ", &value]);
        }
        text
    }
}

async fn locked(sim: &Arc<Sim>, change: Change) -> Result<(), Fail> {
    let mut work = Update {
        sim,
        modified: BTreeSet::new(),
        change,
    };
    let checked = work.vm(|vm, change| check_state(vm, change.digest.as_deref()))?;
    checked?;
    work.resolve_reverts()?;
    for key in work.change.delete.clone() {
        let before = work.file()?;
        let done = work.delete(&key).await;
        work.written(done, before)?;
    }
    for (key, value) in work.change.set.clone() {
        let before = work.file()?;
        let done = work.set(&key, &value).await;
        work.written(done, before)?;
    }
    work.vm(|vm, _| tidy(vm))?;
    let (change, modified) = (work.change, work.modified);
    hotplug::apply_pending(sim, &change, &modified).await
}

/// What a config's file holds of a VM as it is.
type File = (
    BTreeMap<String, String>,
    BTreeMap<String, String>,
    BTreeMap<String, bool>,
);

struct Update<'a> {
    sim: &'a Arc<Sim>,
    change: Change,
    /// Keys that this request touches: only these are hot-applied.
    modified: BTreeSet<String>,
}

/// Drops pending entries that change nothing.
fn tidy(vm: &mut Vm) {
    let config = &vm.config;
    vm.pending_delete.retain(|key, _| config.contains_key(key));
    vm.pending
        .retain(|key, value| config.get(key) != Some(value));
}

impl Update<'_> {
    fn vm<T>(&self, code: impl FnOnce(&mut Vm, &Change) -> T) -> Result<T, Fail> {
        self.sim.with_vm(&self.change.node, self.change.vmid, |vm| {
            code(vm, &self.change)
        })
    }

    fn file(&self) -> Result<File, Fail> {
        self.vm(|vm, _| {
            (
                vm.config.clone(),
                vm.pending.clone(),
                vm.pending_delete.clone(),
            )
        })
    }

    /// Each step is written to the file by itself; one that fails, or cannot be written, leaves the file as it was.
    fn written(&self, done: Result<(), Fail>, before: File) -> Result<(), Fail> {
        let unchanged = self.file()? == before;
        let wrote = done.and_then(|()| {
            if unchanged {
                return Ok(());
            }
            self.sim.may_write(&self.change.node, self.change.vmid)
        });
        if wrote.is_err() {
            self.vm(|vm, _| (vm.config, vm.pending, vm.pending_delete) = before)?;
        }
        wrote
    }

    fn need_disk(&self) -> Result<(), Fail> {
        let path = format!("/vms/{}", self.change.vmid);
        acl::need_all(
            &self.sim.lock(),
            &self.change.who,
            &path,
            &["VM.Config.Disk"],
        )
    }

    /// A reverted key is set to what the config holds, or its pending value is deleted.
    fn resolve_reverts(&mut self) -> Result<(), Fail> {
        let (config, pending) = self.vm(|vm, _| (vm.config.clone(), vm.pending.clone()))?;
        for key in std::mem::take(&mut self.change.revert) {
            match config.get(&key) {
                Some(value) => {
                    self.change.set.insert(key, value.clone());
                }
                None if pending.contains_key(&key) => self.change.delete.push(key),
                None => {}
            }
        }
        Ok(())
    }

    async fn delete(&mut self, key: &str) -> Result<(), Fail> {
        let (current, pending, protected) = self.vm(|vm, _| {
            (
                vm.config.get(key).cloned(),
                vm.pending.remove(key),
                vm.protected(),
            )
        })?;
        let Some(value) = current.as_ref().or(pending.as_ref()) else {
            return Ok(());
        };
        self.modified.insert(key.to_owned());
        if self.vm(|vm, _| unboot(vm, key))? {
            self.modified.insert("boot".to_owned());
        }
        if drive::is_unused(key) {
            self.need_disk()?;
            if protected {
                return Err(Fail::die(format!(
                    "can't remove unused disk '{value}' - protection mode enabled"
                )));
            }
            destroy_owned(self.sim, &self.change, key, value).await?;
            self.vm(|vm, _| vm.config.remove(key))?;
        } else if drive::slot(key).is_some() {
            self.need_disk()?;
            if protected {
                return Err(Fail::die(format!(
                    "can't remove drive '{key}' - protection mode enabled"
                )));
            }
            if let Some(pending) = &pending {
                keep_owned(self.sim, &self.change, pending)?;
            }
            self.vm(|vm, change| vm.pending_delete.insert(key.to_owned(), change.force))?;
        } else {
            self.vm(|vm, _| vm.pending_delete.insert(key.to_owned(), false))?;
        }
        Ok(())
    }

    async fn set(&mut self, key: &str, value: &str) -> Result<(), Fail> {
        let known = self.vm(|vm, _| vm.pending.get(key).cloned())?;
        if known.as_deref() == Some(value) {
            self.modified.insert(key.to_owned());
            return Ok(());
        }
        self.modified.insert(key.to_owned());
        let mut value = value.to_owned();
        if drive::slot(key).is_some() {
            self.need_disk()?;
            if let Some(old) = &known {
                keep_owned(self.sim, &self.change, old)?;
            }
            let mut parsed = Drive::parse(key, &value)
                .map_err(|text| Fail::param(key, format!("invalid format - {text}")))?;
            self.materialise(&mut parsed).await?;
            let boots = parsed.is_cdrom() && self.vm(|vm, _| boot_too(vm, key))?;
            if boots {
                self.modified.insert("boot".to_owned());
            }
            value = parsed.print();
            let volid = parsed.file.clone();
            self.vm(|vm, _| {
                vm.config
                    .retain(|k, v| !(drive::is_unused(k) && *v == volid));
            })?;
        }
        self.vm(|vm, _| {
            vm.pending_delete.remove(key);
            vm.pending.insert(key.to_owned(), value);
        })
    }

    /// `create_disks`: allocates `storage:size`, or looks the volume up and fills in its real size.
    async fn materialise(&self, drive: &mut Drive) -> Result<(), Fail> {
        let (node, vmid) = (self.change.node.as_str(), self.change.vmid);
        if let Some((storage, gib)) = drive.allocation() {
            let bytes = units::drive_size(&format!("{gib}G")).unwrap_or_default();
            let format = drive.option("format").map(str::to_owned);
            let wanted = volumes::Wanted {
                node,
                storage,
                vmid,
                file: None,
                format: format.as_deref(),
                bytes,
            };
            let volid = volumes::allocate(self.sim, &wanted).await?;
            drive.file = volid;
            drive.options.remove("format");
        }
        if let Some(volid) = drive.volid() {
            volumes::await_link(self.sim, node, volid).await;
            let size = volumes::activate(&self.sim.lock(), node, volid)?;
            drive
                .options
                .insert("size".to_owned(), units::print_size(size));
        }
        Ok(())
    }
}

fn boot_order(vm: &Vm) -> Vec<String> {
    listed(vm.pending.get("boot").or_else(|| vm.config.get("boot")))
}

fn listed(boot: Option<&String>) -> Vec<String> {
    let text = boot.map(String::as_str).unwrap_or_default();
    let order = text
        .split(',')
        .find_map(|part| part.strip_prefix("order="))
        .unwrap_or_default();
    order
        .split(';')
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

pub(crate) fn print_boot(order: &[String]) -> String {
    if order.is_empty() {
        " ".to_owned()
    } else {
        format!("order={}", order.join(";"))
    }
}

/// Takes a deleted drive out of the boot order.
fn unboot(vm: &mut Vm, key: &str) -> bool {
    let mut order = boot_order(vm);
    let before = order.len();
    order.retain(|item| item != key);
    let changed = order.len() != before;
    if changed {
        vm.pending.insert("boot".to_owned(), print_boot(&order));
    }
    changed
}

/// A new CD drive goes to the end of an existing boot order.
fn boot_too(vm: &mut Vm, key: &str) -> bool {
    let mut order = boot_order(vm);
    let changed = !order.is_empty() && !order.iter().any(|item| item == key);
    if changed {
        order.push(key.to_owned());
        vm.pending.insert("boot".to_owned(), print_boot(&order));
    }
    changed
}

/// Whether the config, not what is pending, boots from this drive: it cannot be unplugged (`Drive.pm` `get_bootdisks`).
pub(crate) fn boots_from(vm: &Vm, key: &str) -> bool {
    listed(vm.config.get("boot")).iter().any(|item| item == key)
}

/// A dropped volume becomes `unusedN` if this VM owns it, else it just vanishes from the config.
pub(crate) fn keep_owned(sim: &Sim, change: &Change, value: &str) -> Result<(), Fail> {
    let volid = value.split(',').next().unwrap_or_default();
    let mut state = sim.lock();
    let owned = volume_owner(&state, volid) == Some(change.vmid);
    let vm = state
        .vms
        .get_mut(&change.vmid)
        .ok_or_else(|| no_config(&change.node, change.vmid))?;
    if owned && !value.contains("media=cdrom") {
        vm.add_unused(volid);
    }
    Ok(())
}

/// Frees the volume of a forcibly deleted drive or of an `unusedN`, if this VM owns it (`try_deallocate_drive`).
pub(crate) async fn destroy_owned(
    sim: &Arc<Sim>,
    change: &Change,
    key: &str,
    value: &str,
) -> Result<(), Fail> {
    let volid = value.split(',').next().unwrap_or_default().to_owned();
    {
        let state = sim.lock();
        if volume_owner(&state, &volid) != Some(change.vmid) {
            return Ok(());
        }
        let storage = volid.split_once(':').map_or("", |(storage, _)| storage);
        acl::need_all(
            &state,
            &change.who,
            &format!("/storage/{storage}"),
            &["Datastore.AllocateSpace"],
        )?;
        let uses = |section: &BTreeMap<String, String>, skip: &str| {
            section
                .iter()
                .any(|(k, v)| k != skip && v.split(',').next() == Some(volid.as_str()))
        };
        let vm = state
            .vms
            .get(&change.vmid)
            .ok_or_else(|| no_config(&change.node, change.vmid))?;
        if uses(&vm.config, key) || vm.snapshots.values().any(|section| uses(section, "")) {
            return Err(Fail::die(format!(
                "unable to delete '{volid}' - volume is still in use (snapshot?)"
            )));
        }
    }
    volumes::free(sim, &change.node, &volid, None).await
}
