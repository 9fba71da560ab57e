//! What is asked of a VM besides its config and its power: the listing of its endpoints, features of its disks, its conversion to
//! a template, its cloud-init values (`API2/Qemu.pm`).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::drive::{self, Drive};
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::sim::{Sim, no_config};
use crate::state::{State, StorageKind, Vm, VmNumber, suffix_format};
use crate::tasks::{self, TaskKind};
use crate::update;

const ENTRIES: &[&str] = &[
    "config",
    "cloudinit",
    "pending",
    "status",
    "unlink",
    "vncproxy",
    "termproxy",
    "migrate",
    "resize",
    "move",
    "rrd",
    "rrddata",
    "monitor",
    "agent",
    "snapshot",
    "spiceproxy",
    "sendkey",
    "firewall",
    "mtunnel",
    "remote_migrate",
];
const CLOUD_INIT: &[&str] = &[
    "cicustom",
    "cipassword",
    "citype",
    "ciuser",
    "ciupgrade",
    "nameserver",
    "searchdomain",
    "sshkeys",
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/nodes/{node}/qemu/{vmid}", |_| {
            Ok(super::subdirs(ENTRIES).into())
        }),
        now(
            "GET",
            "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}",
            |_| Ok(json!([{"cmd": "rollback"}, {"cmd": "config"}]).into()),
        ),
        now("GET", "/nodes/{node}/qemu/{vmid}/feature", feature),
        now("POST", "/nodes/{node}/qemu/{vmid}/template", template),
        now("GET", "/nodes/{node}/qemu/{vmid}/cloudinit", cloud_init),
        now("PUT", "/nodes/{node}/qemu/{vmid}/cloudinit", |call| {
            call.sim.with_vm(&call.node(), call.vmid(), |vm| {
                update::check_state(vm, None)
            })??;
            Ok(null())
        }),
    ]
}

/// Disks, CD drives left out.
fn disks(section: &std::collections::BTreeMap<String, String>) -> Vec<(String, Drive)> {
    let slots = section.iter().filter(|(key, _)| drive::slot(key).is_some());
    let parsed = slots.filter_map(|(key, text)| Some((key.clone(), Drive::parse(key, text).ok()?)));
    parsed
        .filter(|(_, drive)| !drive.is_cdrom() && drive.volid().is_some())
        .collect()
}

/// `volume_has_feature` of each type of storage (api.md 4.6); `of_snapshot` asks for a snapshot of the volume.
fn volume_has(state: &State, volid: &str, feature: &str, of_snapshot: bool) -> bool {
    let Some((id, name)) = volid.split_once(':') else {
        return false;
    };
    let file = name.rsplit('/').next().unwrap_or(name);
    let base = file.starts_with("base-");
    let qcow2 = suffix_format(name) == Some("qcow2");
    match state.storages.get(id).map(|storage| storage.kind) {
        Some(StorageKind::LvmThin | StorageKind::Rbd) => match feature {
            "snapshot" => !of_snapshot && !base,
            "clone" => base || of_snapshot,
            _ => true,
        },
        Some(StorageKind::ZfsPool) => match feature {
            "snapshot" => !of_snapshot && !base,
            "clone" => base && !of_snapshot,
            _ => true,
        },
        Some(StorageKind::Drbd) => match feature {
            "snapshot" => !of_snapshot,
            "clone" => false,
            _ => true,
        },
        Some(StorageKind::Lvm) => match feature {
            "snapshot" | "clone" => false,
            _ => !of_snapshot,
        },
        Some(StorageKind::Dir | StorageKind::Nfs) => match feature {
            "snapshot" => qcow2 && !of_snapshot && !base,
            "clone" => base && !of_snapshot,
            _ => qcow2 || !of_snapshot,
        },
        None => false,
    }
}

fn feature(call: &Call) -> ApiResult {
    let (node, vmid) = (call.node(), call.vmid());
    let state = call.sim.lock();
    let vm = state.vms.get(&vmid).filter(|vm| vm.node == node);
    let vm = vm.ok_or_else(|| no_config(&node, vmid))?;
    let section = match call.get("snapname") {
        None => &vm.config,
        Some(name) => vm
            .snapshots
            .get(name)
            .ok_or_else(|| Fail::die(format!("snapshot '{name}' does not exist")))?,
    };
    let of_snapshot = call.get("snapname").is_some();
    let mut nodes: BTreeSet<&String> = state.nodes.keys().collect();
    let mut has = true;
    for (_, drive) in disks(section) {
        has &= volume_has(&state, &drive.file, call.text("feature"), of_snapshot);
        let storage = drive
            .file
            .split_once(':')
            .and_then(|(id, _)| state.storages.get(id));
        nodes.retain(|name| {
            storage.is_some_and(|s| s.on_node(name) && !s.disable && (s.shared || **name == node))
        });
    }
    Ok(json!({"hasFeature": u8::from(has), "nodes": nodes}).into())
}

fn template(call: &Call) -> ApiResult {
    let (node, vmid) = (call.node(), call.vmid());
    let disk = call.get("disk").map(str::to_owned);
    let checked = {
        let disk = disk.clone();
        move |vm: &Vm| check_template(vm, disk.is_some())
    };
    call.sim.with_vm(&node, vmid, |vm| checked(vm))??;
    let what = TaskKind {
        node: node.clone(),
        kind: "qmtemplate",
        id: vmid.to_string(),
    };
    let sim = Arc::clone(&call.sim);
    let upid = tasks::fork(&call.sim, &call.who, &what, move |_| async move {
        let _guard = sim.lock_vm(&node, vmid).await?;
        sim.with_vm(&node, vmid, |vm| checked(vm))??;
        sim.with_vm(&node, vmid, |vm| {
            vm.config.insert("template".into(), "1".into())
        })?;
        make_bases(&sim, &node, vmid, disk.as_deref())
    });
    Ok(json!(upid).into())
}

fn check_template(vm: &Vm, one_disk: bool) -> Result<(), Fail> {
    update::check_state(vm, None)?;
    if !vm.snapshots.is_empty() {
        return Err(Fail::die(
            "unable to create template, because VM contains snapshots",
        ));
    }
    if vm.config.get("template").is_some_and(|flag| flag == "1") && !one_disk {
        return Err(Fail::die("you can't convert a template to a template"));
    }
    if vm.running {
        return Err(Fail::die(
            "you can't convert a VM to template if VM is running",
        ));
    }
    Ok(())
}

/// Renames `vm-…` to `base-…`, one disk after the other, and writes each into the config.
fn make_bases(sim: &Sim, node: &str, vmid: VmNumber, only: Option<&str>) -> Result<(), Fail> {
    let found = sim.with_vm(node, vmid, |vm| disks(&vm.config))?;
    for (slot, mut drive) in found
        .into_iter()
        .filter(|(slot, _)| only.is_none_or(|only| only == slot))
    {
        let mut state = sim.lock();
        let Some(at) = state.volume_at(node, &drive.file) else {
            return Err(Fail::die(format!("volume '{}' does not exist", drive.file)));
        };
        let Some(volume) = state.volumes.get_mut(at) else {
            continue;
        };
        let (folder, file) = volume
            .name
            .rsplit_once('/')
            .map_or((None, volume.name.as_str()), |(folder, file)| {
                (Some(folder), file)
            });
        if let Some(rest) = file.strip_prefix("vm-") {
            let base = format!("base-{rest}");
            volume.name = folder.map_or_else(|| base.clone(), |folder| format!("{folder}/{base}"));
        }
        drive.file = volume.volid();
        if let Some(vm) = state.vms.get_mut(&vmid) {
            vm.config.insert(slot, drive.print());
        }
    }
    Ok(())
}

/// Values of a VM without changes that its drive has not seen.
fn cloud_init(call: &Call) -> ApiResult {
    let rows = call.sim.with_vm(&call.node(), call.vmid(), |vm| {
        let of = vm.config.iter().filter(|(key, _)| {
            CLOUD_INIT.contains(&key.as_str())
                || key
                    .strip_prefix("ipconfig")
                    .and_then(drive::index)
                    .is_some()
        });
        of.map(|(key, text)| {
            let shown = if key == "cipassword" {
                json!("**********")
            } else {
                super::config::value(key, text)
            };
            Value::Object(Map::from_iter([
                ("key".to_owned(), json!(key)),
                ("value".to_owned(), shown),
            ]))
        })
        .collect::<Value>()
    })?;
    Ok(rows.into())
}
