//! How pending changes reach a stopped config or a running QEMU (`QemuServer.pm`
//! `vmconfig_hotplug_pending`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::drive::{self, Drive};
use crate::fail::Fail;
use crate::options;
use crate::qemu;
use crate::sim::Sim;
use crate::state::Vm;
use crate::update::{self, Change};

/// Drive options whose change a plugged disk cannot take: they stay pending until the VM starts anew.
const COLD: &[&str] = &[
    "aio", "discard", "iothread", "queues", "product", "cache", "ssd", "vendor", "ro",
];

/// What became of one pending key.
enum Outcome {
    /// Written to the config.
    Done,
    /// Left pending without a word.
    Skipped,
    /// Left pending, with this text.
    Failed(String),
}

/// Applies what can be applied: everything on a stopped VM, the request's own keys on a running one. Failures leave the entry
/// pending and end in a 400 that names each of them.
pub(crate) async fn apply_pending(
    sim: &Arc<Sim>,
    change: &Change,
    modified: &BTreeSet<String>,
) -> Result<(), Fail> {
    let running = sim.with_vm(&change.node, change.vmid, |vm| vm.running)?;
    if !running {
        return apply_cold(sim, change).await;
    }
    let (deletes, sets) = sim.with_vm(&change.node, change.vmid, |vm| {
        (vm.pending_delete.clone(), vm.pending.clone())
    })?;
    let mut errors = BTreeMap::new();
    for (key, force) in deletes
        .into_iter()
        .filter(|(key, _)| modified.contains(key))
    {
        let outcome = hot_delete(sim, change, &key, force).await?;
        settle(sim, change, &key, outcome, &mut errors)?;
    }
    for (key, value) in sets.into_iter().filter(|(key, _)| modified.contains(key)) {
        let outcome = hot_set(sim, change, &key, &value).await?;
        settle(sim, change, &key, outcome, &mut errors)?;
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Fail::params(errors))
    }
}

fn settle(
    sim: &Sim,
    change: &Change,
    key: &str,
    outcome: Outcome,
    errors: &mut BTreeMap<String, String>,
) -> Result<(), Fail> {
    match outcome {
        Outcome::Skipped => Ok(()),
        Outcome::Failed(text) => {
            errors.insert(key.to_owned(), format!("hotplug problem - {text}\n"));
            Ok(())
        }
        // QEMU has it already, whatever becomes of the file.
        Outcome::Done => sim.may_write(&change.node, change.vmid).and_then(|()| {
            sim.with_vm(&change.node, change.vmid, |vm| {
                if vm.pending_delete.remove(key).is_some() {
                    vm.config.remove(key);
                }
                if let Some(value) = vm.pending.remove(key) {
                    vm.config.insert(key.to_owned(), value);
                }
            })
        }),
    }
}

async fn hot_delete(
    sim: &Arc<Sim>,
    change: &Change,
    key: &str,
    force: bool,
) -> Result<Outcome, Fail> {
    let Some((bus, _)) = drive::slot(key) else {
        return Ok(if options::is_fast(key) {
            Outcome::Done
        } else {
            Outcome::Skipped
        });
    };
    let (hotplugs, value) = sim.with_vm(&change.node, change.vmid, |vm| {
        (
            vm.hotplugs("disk"),
            vm.config.get(key).cloned().unwrap_or_default(),
        )
    })?;
    if !hotplugs || bus == "ide" || bus == "sata" {
        return Ok(Outcome::Skipped);
    }
    if let Err(text) = qemu::unplug(sim, (&change.node, change.vmid), key).await? {
        return Ok(Outcome::Failed(text));
    }
    detach(sim, change, (key, &value), force).await?;
    Ok(Outcome::Done)
}

async fn hot_set(sim: &Arc<Sim>, change: &Change, key: &str, value: &str) -> Result<Outcome, Fail> {
    let Some((bus, _)) = drive::slot(key) else {
        return Ok(if options::is_fast(key) {
            Outcome::Done
        } else {
            Outcome::Skipped
        });
    };
    let (hotplugs, old) = sim.with_vm(&change.node, change.vmid, |vm| {
        (vm.hotplugs("disk"), vm.config.get(key).cloned())
    })?;
    let parse = |text: &str| Drive::parse(key, text).unwrap_or_default();
    let new = parse(value);
    let at = (change.node.as_str(), change.vmid);
    if let Some(old_value) = old {
        let old = parse(&old_value);
        if old.file == new.file {
            let cold = COLD
                .iter()
                .any(|option| old.option(option) != new.option(option));
            return Ok(if cold {
                Outcome::Skipped
            } else {
                Outcome::Done
            });
        }
        if !hotplugs || bus == "ide" || bus == "sata" {
            return Ok(Outcome::Skipped);
        }
        if let Err(text) = qemu::unplug(sim, at, key).await? {
            return Ok(Outcome::Failed(text));
        }
        update::keep_owned(sim, change, &old_value)?;
    } else if !hotplugs || bus == "ide" || bus == "sata" {
        return Ok(Outcome::Skipped);
    }
    Ok(match qemu::plug(sim, at, key, &new).await? {
        Ok(()) => Outcome::Done,
        Err(text) => Outcome::Failed(text),
    })
}

/// `vmconfig_delete_or_detach_drive`.
async fn detach(
    sim: &Arc<Sim>,
    change: &Change,
    (key, value): (&str, &str),
    force: bool,
) -> Result<(), Fail> {
    if force {
        update::destroy_owned(sim, change, key, value).await
    } else {
        update::keep_owned(sim, change, value)
    }
}

async fn apply_cold(sim: &Arc<Sim>, change: &Change) -> Result<(), Fail> {
    let (deletes, sets) = sim.with_vm(&change.node, change.vmid, |vm| {
        (vm.pending_delete.clone(), vm.pending.clone())
    })?;
    if !deletes.is_empty() || !sets.is_empty() {
        sim.may_write(&change.node, change.vmid)?;
    }
    for (key, force) in deletes {
        let value = sim.with_vm(&change.node, change.vmid, |vm| {
            vm.config.get(&key).cloned().unwrap_or_default()
        })?;
        if drive::slot(&key).is_some() {
            detach(sim, change, (&key, &value), force).await?;
        }
        sim.with_vm(&change.node, change.vmid, |vm| {
            vm.pending_delete.remove(&key);
            vm.config.remove(&key);
        })?;
    }
    for (key, value) in sets {
        let old = sim.with_vm(&change.node, change.vmid, |vm| vm.config.get(&key).cloned())?;
        if let (Some(old), true) = (&old, drive::slot(&key).is_some())
            && old.split(',').next() != value.split(',').next()
        {
            update::keep_owned(sim, change, old)?;
        }
        sim.with_vm(&change.node, change.vmid, |vm| {
            vm.pending.remove(&key);
            vm.config.insert(key, value);
        })?;
    }
    Ok(())
}

/// The config with everything pending applied: what a plain `GET config` shows.
pub(crate) fn with_pending(vm: &Vm) -> BTreeMap<String, String> {
    let mut view = vm.config.clone();
    view.retain(|key, _| !vm.pending_delete.contains_key(key));
    view.extend(vm.pending.clone());
    view
}
