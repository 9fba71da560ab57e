//! `/nodes/{node}/qemu/{vmid}/snapshot`: taking, listing and dropping snapshots of a VM.

mod sections;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::drive;
use crate::fail::{ApiResult, Fail};
use crate::hardware::Backing;
use crate::qemu;
use crate::router::{Call, Route, now};
use crate::sim::Sim;
use crate::state::{State, StorageKind, Vm, VmNumber, Volume, suffix_format};
use crate::tasks::{self, TaskKind};
use crate::{update, volumes};
use sections::{blocked_by_newer, disks, forget, restore, sizes};

pub(super) fn routes() -> Vec<Route> {
    let base = "/nodes/{node}/qemu/{vmid}/snapshot";
    vec![
        now("GET", base, list),
        now("POST", base, create),
        now(
            "DELETE",
            "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}",
            delete,
        ),
        now(
            "POST",
            "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}/rollback",
            rollback,
        ),
        now(
            "GET",
            "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}/config",
            config,
        ),
    ]
}

fn absent(name: &str) -> Fail {
    Fail::die(format!("snapshot '{name}' does not exist"))
}

fn list(call: &Call) -> ApiResult {
    let rows = call.sim.with_vm(&call.node(), call.vmid(), |vm| {
        let mut rows: Vec<Value> = vm
            .snapshots
            .iter()
            .map(|(name, section)| snapshot_row(name, section))
            .collect();
        let mut current = Map::new();
        current.insert("name".into(), json!("current"));
        current.insert("description".into(), json!("You are here!"));
        current.insert("digest".into(), json!(vm.digest()));
        current.insert("running".into(), json!(u8::from(vm.running)));
        if let Some(parent) = vm.config.get("parent") {
            current.insert("parent".into(), json!(parent));
        }
        rows.push(Value::Object(current));
        rows
    })?;
    Ok(Value::Array(rows).into())
}

fn snapshot_row(name: &str, section: &BTreeMap<String, String>) -> Value {
    let time = section
        .get("snaptime")
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or_default();
    let description = section.get("description").map_or("", String::as_str);
    let mut row = Map::new();
    row.insert("name".into(), json!(name));
    row.insert("snaptime".into(), json!(time));
    row.insert("description".into(), json!(description));
    row.insert(
        "vmstate".into(),
        json!(u8::from(section.contains_key("vmstate"))),
    );
    if let Some(parent) = section.get("parent") {
        row.insert("parent".into(), json!(parent));
    }
    Value::Object(row)
}

fn config(call: &Call) -> ApiResult {
    let name = call.text("snapname");
    let section = call
        .sim
        .with_vm(&call.node(), call.vmid(), |vm| {
            vm.snapshots.get(name).cloned()
        })?
        .ok_or_else(|| absent(name))?;
    let map: Map<String, Value> = section
        .iter()
        .map(|(key, text)| (key.clone(), super::config::value(key, text)))
        .collect();
    Ok(Value::Object(map).into())
}

/// Whether every disk can be snapshotted: by its storage, or as a qcow2 file (`volume_has_feature`).
fn has_feature(state: &State, vm: &Vm) -> bool {
    disks(&vm.config).iter().all(|volid| {
        let (storage, name) = volid.split_once(':').unwrap_or((volid, ""));
        let kind = state.storages.get(storage).map(|found| found.kind);
        kind.is_some_and(StorageKind::snapshots_raw) || suffix_format(name) == Some("qcow2")
    })
}

fn is_template(vm: &Vm) -> bool {
    vm.config.get("template").is_some_and(|flag| flag == "1")
}

/// A snapshot that is worked on.
struct Work {
    sim: Arc<Sim>,
    node: String,
    vmid: VmNumber,
    name: String,
}

impl Work {
    fn fork<F, W>(call: &Call, kind: &'static str, work: F) -> ApiResult
    where
        F: FnOnce(Self) -> W + Send + 'static,
        W: Future<Output = Result<(), Fail>> + Send + 'static,
    {
        let order = Self {
            sim: Arc::clone(&call.sim),
            node: call.node(),
            vmid: call.vmid(),
            name: call.text("snapname").to_owned(),
        };
        call.sim.with_vm(&order.node, order.vmid, |_| ())?;
        let what = TaskKind {
            node: order.node.clone(),
            kind,
            id: order.vmid.to_string(),
        };
        let upid = tasks::fork(&call.sim, &call.who, &what, move |_| work(order));
        Ok(json!(upid).into())
    }

    /// One step under the VM's file lock. Between the steps its `lock:` tells others to stay away.
    async fn step<T>(&self, code: impl FnOnce(&mut Vm) -> Result<T, Fail>) -> Result<T, Fail> {
        let _guard = self.sim.lock_vm(&self.node, self.vmid).await?;
        let before = self.sim.with_vm(&self.node, self.vmid, |vm| vm.clone())?;
        let done = self.sim.with_vm(&self.node, self.vmid, code)?;
        let wrote = done.and_then(|value| {
            self.sim.may_write(&self.node, self.vmid)?;
            Ok(value)
        });
        if wrote.is_err() {
            self.sim.with_vm(&self.node, self.vmid, |vm| *vm = before)?;
        }
        wrote
    }

    /// The state of a volume at the snapshot, beside it.
    fn image(&self, volume: &Volume) -> Backing {
        let mut image = volumes::backing(volume);
        image.name = format!("{}@{}", image.name, self.name);
        image
    }

    fn each_volume(
        &self,
        volids: &[String],
        code: impl Fn(&mut Volume, Backing) -> Result<(), String>,
    ) -> Result<(), Fail> {
        let mut state = self.sim.lock();
        for volid in volids {
            let at = state.volume_at(&self.node, volid);
            let volume = at.and_then(|at| state.volumes.get_mut(at));
            let Some(volume) = volume else {
                return Err(Fail::die(format!("volume '{volid}' does not exist")));
            };
            let image = self.image(volume);
            code(volume, image).map_err(Fail::die)?;
        }
        Ok(())
    }

    async fn take(self, description: Option<String>) -> Result<(), Fail> {
        let feature = {
            let state = self.sim.lock();
            let vm = state.vms.get(&self.vmid);
            vm.is_none_or(|vm| has_feature(&state, vm))
        };
        let now = self.sim.clock.epoch();
        let name = self.name.clone();
        let volids = self
            .step(|vm| {
                if is_template(vm) {
                    return Err(Fail::die("you can't take a snapshot if it's a template"));
                }
                update::check_state(vm, None)?;
                if vm.snapshots.contains_key(&name) {
                    return Err(Fail::die(format!("snapshot name '{name}' already used")));
                }
                if !feature {
                    return Err(Fail::die("snapshot feature is not available"));
                }
                let mut section = vm.config.clone();
                section.retain(|key, _| !drive::is_unused(key));
                section.insert("snaptime".into(), now.to_string());
                section.insert("snapstate".into(), "prepare".into());
                if let Some(text) = description {
                    section.insert("description".into(), text);
                }
                let volids = disks(&section);
                vm.snapshots.insert(name.clone(), section);
                vm.config.insert("lock".into(), "snapshot".into());
                Ok(volids)
            })
            .await?;
        self.sim.clock.sleep(self.sim.timing.allocate).await;
        self.each_volume(&volids, |volume, image| {
            self.sim.hardware.copy(&volumes::backing(volume), &image)
        })?;
        self.step(|vm| {
            if let Some(section) = vm.snapshots.get_mut(&self.name) {
                section.remove("snapstate");
            }
            vm.config.remove("lock");
            vm.config.insert("parent".into(), self.name.clone());
            Ok(())
        })
        .await
    }

    async fn drop(self) -> Result<(), Fail> {
        let volids = self
            .step(|vm| {
                let gone = || absent(&self.name);
                let section = vm.snapshots.get(&self.name).ok_or_else(gone)?;
                let volids = disks(section);
                update::check_state(vm, None)?;
                if is_template(vm) {
                    return Err(Fail::die("you can't delete a snapshot if vm is a template"));
                }
                vm.config.insert("lock".into(), "snapshot-delete".into());
                if let Some(section) = vm.snapshots.get_mut(&self.name) {
                    section.insert("snapstate".into(), "delete".into());
                }
                Ok(volids)
            })
            .await?;
        self.sim.clock.sleep(self.sim.timing.allocate).await;
        self.each_volume(&volids, |_, image| self.sim.hardware.remove(&image))?;
        self.step(|vm| {
            forget(vm, &self.name, &volids);
            Ok(())
        })
        .await
    }

    /// The VM is stopped and stays so; config and bytes are as they were (`snapshot_rollback`).
    async fn roll_back(self, start: bool) -> Result<(), Fail> {
        let newest = {
            let state = self.sim.lock();
            let vm = state.vms.get(&self.vmid);
            vm.and_then(|vm| blocked_by_newer(&state, vm, &self.name))
        };
        let (section, running) = self
            .step(|vm| {
                if is_template(vm) {
                    return Err(Fail::die("you can't rollback if vm is a template"));
                }
                let section = vm.snapshots.get(&self.name).cloned();
                let section = section.ok_or_else(|| absent(&self.name))?;
                if let Some(text) = newest {
                    return Err(Fail::die(text));
                }
                if let Some(state) = section.get("snapstate") {
                    return Err(Fail::die(format!(
                        "unable to rollback to incomplete snapshot (snapstate = {state})"
                    )));
                }
                update::check_state(vm, None)?;
                vm.config.insert("lock".into(), "rollback".into());
                Ok((section, vm.running))
            })
            .await?;
        if running {
            qemu::stop(&self.sim, &self.node, self.vmid)?;
        }
        self.sim.clock.sleep(self.sim.timing.allocate).await;
        let sizes = sizes(&section);
        self.each_volume(&disks(&section), |volume, image| {
            let own = volumes::backing(volume);
            self.sim.hardware.copy(&image, &own)?;
            if let Some(size) = sizes.get(&volume.volid()) {
                volume.size = *size;
                self.sim.hardware.resize(&own, *size)?;
            }
            Ok(())
        })?;
        self.step(|vm| {
            restore(vm, &self.name, &section);
            Ok(())
        })
        .await?;
        if start {
            qemu::start(&self.sim, &self.node, self.vmid)?;
        }
        Ok(())
    }
}

/// Bytes of a section's disks, as it says.
fn create(call: &Call) -> ApiResult {
    let name = call.text("snapname");
    if ["current", "pending"].contains(&name) {
        return Err(Fail::die(format!(
            "unable to use snapshot name '{name}' (reserved name)"
        )));
    }
    let description = call.get("description").map(str::to_owned);
    Work::fork(call, "qmsnapshot", move |work| work.take(description))
}

fn delete(call: &Call) -> ApiResult {
    Work::fork(call, "qmdelsnapshot", Work::drop)
}

fn rollback(call: &Call) -> ApiResult {
    let start = call.flag("start");
    Work::fork(call, "qmrollback", move |work| work.roll_back(start))
}
