//! Nodes of Cluster API's machines, whose VMs capmox makes: on manifests as capmox leaves them in the management cluster.

#![expect(
    clippy::indexing_slicing,
    reason = "a test may end where JSON is not as it was written"
)]

mod evidence;
mod machines;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use harness::ccm::granted;
use harness::ccm::management::documents;
use harness::world::POOL;
use pve_model::topology::UNINITIALIZED_TAINT;
use pve_sim::{Builder, Sim};
use serde_json::{Value, json};

/// As capmox 0.7 leaves them.
const FORMER: &str = include_str!("../../data/capmox/v1alpha1.yaml");
/// As capmox 0.8 and later leave them.
const PRESENT: &str = include_str!("../../data/capmox/v1alpha2.yaml");
/// The template that machines are cloned from.
const TEMPLATE: u32 = 100;
/// Cluster API lifts it once it has found the Node of a Machine.
const CLUSTER_API_TAINT: &str = "node.cluster.x-k8s.io/uninitialized";

/// One machine: its objects in the management cluster.
#[derive(Debug, Clone)]
struct Machine {
    name: String,
    /// `Machine`.
    object: Value,
    /// `ProxmoxMachine`.
    proxmox: Value,
    /// `KubeadmConfig`.
    bootstrap: Value,
}

impl Machine {
    fn vmid(&self) -> Result<u32> {
        let vmid = self.proxmox["spec"]["virtualMachineID"].as_u64();
        Ok(vmid.context("no VMID")?.try_into()?)
    }

    /// The identity of the VM, in lower case.
    fn uuid(&self) -> Result<&str> {
        let id = self.proxmox["spec"]["providerID"].as_str();
        let uuid = id.and_then(|id| id.strip_prefix("proxmox://"));
        uuid.context("no providerID")
    }

    fn host(&self) -> Result<&str> {
        let host = self.proxmox["status"]["proxmoxNode"].as_str();
        host.context("no PVE node")
    }

    fn is_worker(&self) -> bool {
        let labels = &self.object["metadata"]["labels"];
        labels.get("cluster.x-k8s.io/control-plane").is_none()
    }

    /// What its kubelet is started with, as cloud-init has rendered it and systemd taken its quotes away.
    fn kubelet(&self) -> Result<BTreeMap<String, String>> {
        let join = &self.bootstrap["spec"]["joinConfiguration"];
        let args = &join["nodeRegistration"]["kubeletExtraArgs"];
        let pairs: Vec<(&str, &Value)> = match args {
            Value::Object(map) => map.iter().map(|(key, text)| (key.as_str(), text)).collect(),
            Value::Array(list) => list
                .iter()
                .filter_map(|arg| Some((arg["name"].as_str()?, &arg["value"])))
                .collect(),
            _ => Vec::new(),
        };
        let uuid = self.uuid()?;
        let rendered = |text: &str| {
            text.replace("{{ ds.meta_data.instance_id }}", uuid)
                .replace('\'', "")
        };
        let pairs = pairs.into_iter();
        let args = pairs.map(|(key, text)| {
            let text = text.as_str().context("an argument that is no text")?;
            Ok((key.to_owned(), rendered(text)))
        });
        args.collect()
    }

    /// `spec` of the Node that this kubelet registers. Cluster API's taint stands in a worker's join configuration.
    fn registered(&self) -> Result<Value> {
        let args = self.kubelet()?;
        let mut taints = Vec::new();
        if args.get("cloud-provider").map(String::as_str) == Some("external") {
            taints.push(
                json!({ "key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule" }),
            );
        }
        if self.is_worker() {
            taints.push(json!({ "key": CLUSTER_API_TAINT, "effect": "NoSchedule" }));
        }
        let mut spec = json!({ "taints": taints });
        if let Some(id) = args.get("provider-id") {
            spec["providerID"] = json!(id);
        }
        Ok(spec)
    }
}

/// The machines of some manifests.
fn machines(manifests: &str) -> Result<Vec<Machine>> {
    let all = documents(manifests)?;
    let of = |kind: &str, name: &Value| {
        let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == *name;
        all.iter().find(is).cloned()
    };
    let machines = all.iter().filter(|object| object["kind"] == "Machine");
    let found = machines.map(|machine| {
        let name = &machine["metadata"]["name"];
        let text = name.as_str().context("a Machine without name")?;
        let [proxmox, bootstrap] =
            ["ProxmoxMachine", "KubeadmConfig"].map(|kind| of(kind, name).context(kind));
        Ok(Machine {
            name: text.to_owned(),
            object: machine.clone(),
            proxmox: proxmox?,
            bootstrap: bootstrap?,
        })
    });
    let found: Vec<Machine> = found.collect::<Result<_>>()?;
    ensure!(found.len() == 3, "{} machines", found.len());
    Ok(found)
}

/// A PVE cluster with a template outside of the pool and the VMs of these machines in it, as capmox has made them. The
/// last of each three has its UUID in upper case, as an imported template gives it.
fn cluster(machines: &[Machine]) -> Result<Builder> {
    let mut vmids = Vec::new();
    for machine in machines {
        ensure!(machine.proxmox["spec"]["pool"] == POOL, "{}", machine.name);
        vmids.push(machine.vmid()?);
    }
    let base = Sim::builder().node("pve1").node("pve2").pool(POOL, &vmids);
    let template = [("name", "ubuntu-2404"), ("template", "1"), ("agent", "1")];
    let mut builder = granted(base).vm_with(TEMPLATE, "pve1", &template, false);
    for (index, machine) in machines.iter().enumerate() {
        let uuid = machine.uuid()?;
        let uuid = if index % 3 == 2 {
            uuid.to_uppercase()
        } else {
            uuid.to_owned()
        };
        let smbios = format!("uuid={uuid}");
        let options = [
            ("name", machine.name.as_str()),
            ("memory", "2048"),
            ("cores", "2"),
            ("scsihw", "virtio-scsi-single"),
            ("agent", "1"),
            ("smbios1", smbios.as_str()),
        ];
        builder = builder.vm_with(machine.vmid()?, machine.host()?, &options, true);
    }
    Ok(builder)
}
