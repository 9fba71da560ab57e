//! What guest agents tell becomes addresses, and stays.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm::CcmWorld;
use harness::cluster::{eventually, requirements};
use kube::api::{Patch, PatchParams};
use pve_model::topology::PROVIDED_NODE_IP;
use serde_json::{Value, json};

use super::{addresses, cluster, interface, mac, name, plain, set_addresses, tells};
use crate::alone;

const VIP_FIRST: u32 = 201;
const VETHS: u32 = 202;
const IPV6: u32 = 203;
const SILENT: u32 = 204;
const PROVIDED: u32 = 205;
const TWO: u32 = 206;
const PARTIAL: u32 = 207;
const ALL: [u32; 7] = [VIP_FIRST, VETHS, IPV6, SILENT, PROVIDED, TWO, PARTIAL];
/// What each Node gets.
const EXPECTED: [(u32, &[&str]); 7] = [
    (VIP_FIRST, &["InternalIP 10.0.0.21"]),
    (VETHS, &["InternalIP 10.0.0.22"]),
    (IPV6, &["InternalIP 2001:db8::23"]),
    (SILENT, &["InternalIP 10.0.0.24"]),
    (
        PROVIDED,
        &[
            "InternalIP 10.0.0.25",
            "InternalIP 2001:db8::25",
            "ExternalIP 203.0.113.25",
        ],
    ),
    (TWO, &["InternalIP 10.0.0.26", "ExternalIP 203.0.113.26"]),
    (PARTIAL, &["InternalIP 10.0.0.28", "InternalIP 10.0.0.27"]),
];
const REFRESHES: usize = 10;
/// For these refreshes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// B70: agents that are silent, partial, with the VIP first, with 20 veths, with IPv6 only, with more than one
/// interface; no flapping over 10 refreshes.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_those_of_the_vms_interfaces_and_stay_through_ten_refreshes() -> Result<()> {
    let _alone = alone().await;
    let Some(programs) = requirements("ccm: addresses") else {
        return Ok(());
    };
    let mut world = CcmWorld::start(&programs, cluster(&ALL)).await?;
    let mut config = world.config();
    let external = json!(["203.0.113.0/24"]);
    config["nodes"] = json!({ "addresses": { "agent": true, "external": external } });
    guests(&world);
    world.start_ccm(&config, &[]).await?;
    for vmid in ALL {
        register(&world, vmid).await?;
    }
    for (vmid, expected) in EXPECTED {
        let node = name(vmid);
        world.initialised(&node).await?;
        let is = |node: &_| addresses(node) == expected;
        let got = world.until(&node, "its addresses", is).await;
        let now = world.node(&node).await?;
        got.with_context(|| format!("{:?}", now.as_ref().map(addresses)))?;
    }
    stay(&world).await?;
    silent_agents_change_nothing(&world).await?;
    world.stop().await
}

/// What the guests say, in the worst order.
fn guests(world: &CcmWorld) {
    tells(
        world,
        VIP_FIRST,
        plain(VIP_FIRST, &["10.0.0.100/32", "10.0.0.21/24"]),
    );
    tells(world, VETHS, with_veths());
    tells(world, IPV6, plain(IPV6, &["fe80::1/64", "2001:db8::23/64"]));
    world.sim().with_vm(SILENT, |vm| vm.guest.silent = true);
    let mut provided = plain(
        PROVIDED,
        &["10.0.0.99/24", "10.0.0.25/24", "2001:db8::99/64"],
    );
    provided.push(interface(
        "eth1",
        Some(&mac(PROVIDED, 1)),
        &["203.0.113.25/24"],
    ));
    tells(world, PROVIDED, provided);
    // The guest names the second interface of the VM first, and has one that the VM lacks.
    let (first, second) = (mac(TWO, 0), mac(TWO, 1));
    let tunnel = interface("ppp0", Some("02:00:00:00:00:01"), &["192.168.77.1/24"]);
    let outer = interface("ens18", Some(&second), &["203.0.113.26/24"]);
    let inner = interface("ens19", Some(&first), &["10.0.0.26/24"]);
    tells(world, TWO, vec![tunnel, outer, inner]);
    let mut partial = plain(PARTIAL, &["169.254.7.7/16", "10.0.0.28/24", "10.0.0.27/24"]);
    partial.push(interface("eth1", Some(&mac(PARTIAL, 1)), &[]));
    partial.push(json!({ "name": "sit0" }));
    tells(world, PARTIAL, partial);
}

/// A worker with the noise of a container network: 20 veths, bridges and tunnels, before its own interface.
fn with_veths() -> Vec<Value> {
    let mut all = vec![
        interface("docker0", Some("02:42:00:00:00:01"), &["172.17.0.1/16"]),
        interface("cilium_host", Some("aa:00:00:00:00:01"), &["10.244.1.1/32"]),
        interface("kube-ipvs0", Some("aa:00:00:00:00:02"), &["10.96.0.1/32"]),
    ];
    for index in 0..20 {
        let name = format!("veth{index:08x}");
        let mac = format!("aa:00:00:00:01:{index:02x}");
        let address = format!("10.244.1.{}/32", index + 10);
        all.push(interface(&name, Some(&mac), &[&address]));
    }
    all.extend(plain(VETHS, &["10.0.0.22/24"]));
    all
}

async fn register(world: &CcmWorld, vmid: u32) -> Result<()> {
    let node = name(vmid);
    world.register(&node, vmid).await?;
    if vmid == SILENT {
        set_addresses(world, &node, "10.0.0.24").await?;
    }
    if vmid == PROVIDED {
        let provided = json!({ PROVIDED_NODE_IP: "10.0.0.25,2001:db8::25" });
        let patch = json!({ "metadata": { "annotations": provided } });
        let params = PatchParams::default();
        world
            .nodes()
            .patch(&node, &params, &Patch::Merge(patch))
            .await?;
    }
    Ok(())
}

/// The versions of all Nodes: another one after any write.
async fn versions(world: &CcmWorld) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for vmid in ALL {
        let node = world.node(&name(vmid)).await?.context("no Node")?;
        let version = node.metadata.resource_version.context("no version")?;
        all.insert(name(vmid), version);
    }
    Ok(all)
}

/// How often the agent of a VM was asked.
fn asked(world: &CcmWorld, vmid: u32) -> usize {
    let path = format!("/qemu/{vmid}/agent/network-get-interfaces");
    let requests = world.sim().requests();
    requests
        .iter()
        .filter(|request| request.path.ends_with(&path))
        .count()
}

/// Each refresh tells the same in another order.
async fn stay(world: &CcmWorld) -> Result<()> {
    let before = versions(world).await?;
    world.sim().clear_requests();
    let told = [VIP_FIRST, VETHS, IPV6, PROVIDED, TWO, PARTIAL];
    let mut turns = 0;
    eventually("refreshes", PATIENCE, async || {
        let least = told.iter().map(|vmid| asked(world, *vmid)).min();
        if least.is_some_and(|least| least > turns) {
            turns += 1;
            for vmid in told {
                world
                    .sim()
                    .with_vm(vmid, |vm| turned(&mut vm.guest.answers));
            }
        }
        Ok((turns > REFRESHES).then_some(()))
    })
    .await?;
    ensure!(versions(world).await? == before, "a Node was written");
    Ok(())
}

fn turned(answers: &mut BTreeMap<String, Value>) {
    let Some(Value::Array(interfaces)) = answers.get_mut("network-get-interfaces") else {
        return;
    };
    interfaces.rotate_left(1);
    for interface in interfaces {
        if let Some(Value::Array(addresses)) = interface.get_mut("ip-addresses") {
            addresses.rotate_left(1);
        }
    }
}

/// Agents end, or tell nothing: what the Nodes have stays.
async fn silent_agents_change_nothing(world: &CcmWorld) -> Result<()> {
    let before = versions(world).await?;
    for vmid in [VIP_FIRST, PROVIDED] {
        world.sim().with_vm(vmid, |vm| vm.guest.silent = true);
    }
    let refusal = json!({ "error": { "class": "GenericError", "desc": "no such device" } });
    let answers = [
        (VETHS, json!([])),
        (IPV6, refusal),
        (TWO, json!([{ "name": "lo" }])),
    ];
    for (vmid, answer) in answers {
        let key = "network-get-interfaces".to_owned();
        world
            .sim()
            .with_vm(vmid, |vm| vm.guest.answers.insert(key, answer));
    }
    world.sim().clear_requests();
    let all = [VIP_FIRST, VETHS, IPV6, PROVIDED, TWO];
    eventually("asked again", PATIENCE, async || {
        let least = all.iter().map(|vmid| asked(world, *vmid)).min();
        Ok(least.is_some_and(|least| least > 2).then_some(()))
    })
    .await?;
    ensure!(versions(world).await? == before, "a Node was written");
    Ok(())
}
