//! Addresses of Nodes: what the guest agents, the kubelet and the config of the VM say, end to end.

#![expect(
    clippy::indexing_slicing,
    reason = "a test may end where JSON is not as it was written"
)]

mod agent;
mod forbidden;
mod former;

use anyhow::Result;
use harness::ccm::{CcmWorld, PRIVILEGES, ROLE, granted};
use harness::world::POOL;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use pve_sim::{Builder, Sim};
use serde_json::{Value, json};

/// What the agent of a VM on PVE 9 is asked with.
const ASK: &str = "VM.GuestAgent.Audit";
/// And on PVE 8.
const ASK_8: &str = "VM.Monitor";

/// The hardware address of the VM's `netN`, as its config has it.
fn mac(vmid: u32, net: u32) -> String {
    format!("BC:24:11:00:{:02}:{net:02}", vmid % 100)
}

/// A PVE cluster with these running VMs, each with two interfaces and a guest agent that may be asked.
fn cluster(vmids: &[u32]) -> Builder {
    let base = Sim::builder().node("pve1").node("pve2").pool(POOL, vmids);
    let privileges = [PRIVILEGES.as_slice(), &[ASK]].concat();
    let base = granted(base).role(ROLE, &privileges);
    vmids.iter().fold(base, |builder, vmid| {
        let name = name(*vmid);
        let nets = [0, 1].map(|net| format!("virtio={},bridge=vmbr{net}", mac(*vmid, net)));
        let [first, second] = &nets;
        let options = [
            ("name", name.as_str()),
            ("memory", "2048"),
            ("cores", "2"),
            ("agent", "1"),
            ("net0", first),
            ("net1", second),
        ];
        builder.vm_with(*vmid, "pve1", &options, true)
    })
}

fn name(vmid: u32) -> String {
    format!("worker-{vmid}")
}

/// An interface as the agent of a Linux guest tells it, with addresses like `10.0.0.5/24`.
fn interface(name: &str, mac: Option<&str>, addresses: &[&str]) -> Value {
    let of = |text: &&str| {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "24"));
        let kind = if address.contains(':') {
            "ipv6"
        } else {
            "ipv4"
        };
        let prefix: u8 = prefix.parse().unwrap_or_default();
        json!({ "ip-address": address, "ip-address-type": kind, "prefix": prefix })
    };
    let mut told = json!({ "name": name });
    if let Some(mac) = mac {
        told["hardware-address"] = json!(mac.to_lowercase());
    }
    if !addresses.is_empty() {
        told["ip-addresses"] = addresses.iter().map(of).collect();
    }
    told
}

/// Loopback, and the first interface of the VM with these addresses.
fn plain(vmid: u32, addresses: &[&str]) -> Vec<Value> {
    let lo = interface("lo", Some("00:00:00:00:00:00"), &["127.0.0.1/8", "::1/128"]);
    vec![lo, interface("eth0", Some(&mac(vmid, 0)), addresses)]
}

/// What the agent tells from now on.
fn tells(world: &CcmWorld, vmid: u32, interfaces: Vec<Value>) {
    let key = "network-get-interfaces".to_owned();
    let told = Value::Array(interfaces);
    world
        .sim()
        .with_vm(vmid, |vm| vm.guest.answers.insert(key, told));
}

/// The addresses of a Node but its name, as `InternalIP 10.0.0.5`.
fn addresses(node: &Node) -> Vec<String> {
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.addresses.as_ref());
    let ips = all
        .into_iter()
        .flatten()
        .filter(|one| one.type_ != "Hostname");
    ips.map(|one| format!("{} {}", one.type_, one.address))
        .collect()
}

/// Writes the addresses that a Node has.
async fn set_addresses(world: &CcmWorld, name: &str, ip: &str) -> Result<()> {
    let list = json!([
        { "type": "Hostname", "address": name },
        { "type": "InternalIP", "address": ip },
    ]);
    let patch = json!({ "status": { "addresses": list } });
    let params = PatchParams::default();
    world
        .nodes()
        .patch_status(name, &params, &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Changes what the token may do on the pool.
fn may(world: &CcmWorld, more: &[&str]) {
    let all = PRIVILEGES.iter().chain(more);
    let role = all.map(|name| (*name).to_owned()).collect();
    world
        .sim()
        .edit(|state| state.roles.insert(ROLE.to_owned(), role));
}
