//! `POST …/clone`: what an administrator does to a VM that holds volumes (`Qemu.pm`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use crate::acl;
use crate::copies::{self, Copy};
use crate::drive::{self, Drive};
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now};
use crate::state::{Vm, VmNumber};
use crate::tasks::{self, TaskKind};
use crate::update;

pub(super) fn routes() -> Vec<Route> {
    vec![now("POST", "/nodes/{node}/qemu/{vmid}/clone", clone)]
}

/// Disks of a VM, CD drives left out.
pub(super) fn disks(vm: &Vm) -> Vec<(String, Drive)> {
    let slots = vm
        .config
        .iter()
        .filter(|(key, _)| drive::slot(key).is_some());
    let parsed = slots.filter_map(|(key, text)| Some((key.clone(), Drive::parse(key, text).ok()?)));
    parsed
        .filter(|(_, drive)| !drive.is_cdrom() && drive.volid().is_some())
        .collect()
}

/// Takes the new VMID, locked until the copies are made.
fn reserve(call: &Call, newid: VmNumber, from: &[(String, Drive)]) -> Result<(), Fail> {
    let mut state = call.sim.lock();
    if state.vms.contains_key(&newid) {
        return Err(Fail::die(format!(
            "unable to create VM {newid}: config file already exists"
        )));
    }
    for (_, drive) in from {
        let path = format!(
            "/storage/{}",
            call.get("storage").unwrap_or(storage_of(drive))
        );
        acl::need_all(&state, &call.who, &path, &["Datastore.AllocateSpace"])?;
    }
    let locked = [("lock".to_owned(), "clone".to_owned())].into();
    state.vms.insert(
        newid,
        Vm {
            node: call.node(),
            config: locked,
            ..Vm::default()
        },
    );
    if let Some(pool) = call.get("pool").and_then(|pool| state.pools.get_mut(pool)) {
        pool.vms.insert(newid);
    }
    Ok(())
}

fn storage_of(drive: &Drive) -> &str {
    drive
        .file
        .split_once(':')
        .map_or("", |(storage, _)| storage)
}

/// The clone's config before its disks are copied.
fn new_config(call: &Call, mut config: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = ["parent", "template", "vmgenid", "description"];
    config.retain(|key, _| !drive::is_unused(key) && !own.contains(&key.as_str()));
    for key in ["name", "description"] {
        if let Some(text) = call.get(key) {
            config.insert(key.to_owned(), text.to_owned());
        }
    }
    super::qemu::renew(&call.sim, &mut config);
    config
}

fn clone(call: &Call) -> ApiResult {
    let (node, vmid) = (call.node(), call.vmid());
    let newid: VmNumber = call.text("newid").parse().unwrap_or_default();
    let (config, from) = call.sim.with_vm(&node, vmid, |vm| {
        update::check_state(vm, None)?;
        Ok::<_, Fail>((vm.config.clone(), disks(vm)))
    })??;
    reserve(call, newid, &from)?;
    let mut config = new_config(call, config);
    let target = call.get("storage").map(str::to_owned);
    let what = TaskKind {
        node: node.clone(),
        kind: "qmclone",
        id: vmid.to_string(),
    };
    let sim = Arc::clone(&call.sim);
    let upid = tasks::fork(&call.sim, &call.who, &what, move |log| async move {
        let _guard = sim.lock_vm(&node, vmid).await?;
        log.line(format!("creating a clone of VM {vmid} with ID {newid}"));
        for (slot, drive) in &from {
            let storage = target.as_deref().unwrap_or(storage_of(drive));
            let copy = Copy {
                node: &node,
                vmid: newid,
                storage,
                slot,
            };
            let made = copies::full(&sim, &copy, drive, &log).await?;
            config.insert(slot.clone(), made.print());
        }
        sim.with_vm(&node, newid, |vm| vm.config = config)
    });
    Ok(json!(upid).into())
}
