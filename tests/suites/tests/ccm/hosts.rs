//! What must hold up no Node of others: a host that hangs, guest agents that say nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::ccm::{CcmWorld, ROLE, registered, tenant};
use harness::cluster::{eventually, requirements};
use harness::world::{POOL, uuid};
use pve_sim::Health;
use serde_json::json;

use crate::alone;

/// For a Node that registers.
const SOON: Duration = Duration::from_secs(5);
/// As by default: no list comes early by itself.
const PERIOD: &str = "--poll-period=60s";
const AGENT: &str = "GET /nodes/{node}/qemu/{vmid}/agent/network-get-interfaces";

/// 40 VMs on the host that hangs, whose configs nobody has read yet. B14: one host that is down.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_starts_while_a_host_hangs_initialises_nodes_of_the_others() -> Result<()> {
    let Some(programs) = requirements("ccm: a host hangs at the start") else {
        return Ok(());
    };
    let _alone = alone().await;
    let hung = (1001..1041).map(|vmid| (vmid, "pve2"));
    let vms: Vec<_> = [(101, "pve1")].into_iter().chain(hung).collect();
    let mut world = CcmWorld::start(&programs, tenant(&vms)).await?;
    world.sim().node_health("pve2", Health::Hung);
    world.register("worker-101", 101).await?;
    world.register("worker-1001", 1001).await?;
    let config = world.config();
    world.launch_ccm(&config, &[PERIOD])?;
    let (_, took) = world.initialised("worker-101").await?;
    ensure!(took < SOON, "{took:?} after the start");
    // The host is still waited for; this one needs another list.
    world.sim().edit(|state| {
        let mut vm = state.vms[&101].clone();
        let smbios = format!("uuid={}", uuid(102));
        vm.config.insert("smbios1".to_owned(), smbios);
        vm.config.insert("name".to_owned(), "worker-102".to_owned());
        state.vms.insert(102, vm);
        state.pools.get_mut(POOL).unwrap().vms.insert(102);
    });
    world.register("worker-102", 102).await?;
    let (_, took) = world.initialised("worker-102").await?;
    ensure!(took < SOON, "{took:?} after it was registered");
    world.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_vms_with_silent_agents_do_not_hold_up_a_new_node() -> Result<()> {
    let Some(programs) = requirements("ccm: silent guest agents") else {
        return Ok(());
    };
    let _alone = alone().await;
    let silent = 1001..1101;
    let host = |vmid| if vmid % 2 == 0 { "pve1" } else { "pve2" };
    let vms = [101].into_iter().chain(silent.clone());
    let vms: Vec<_> = vms.map(|vmid| (vmid, host(vmid))).collect();
    let mut world = CcmWorld::start(&programs, tenant(&vms)).await?;
    world.sim().edit(|state| {
        let role = state.roles.get_mut(ROLE).unwrap();
        role.insert("VM.GuestAgent.Audit".to_owned());
        for vmid in silent.clone() {
            state.vms.get_mut(&vmid).unwrap().guest.silent = true;
        }
        let addresses = json!([{ "name": "eth0", "ip-addresses": [
            { "ip-address": "10.1.0.7", "ip-address-type": "ipv4", "prefix": 24 },
        ]}]);
        let guest = &mut state.vms.get_mut(&101).unwrap().guest;
        let command = "network-get-interfaces".to_owned();
        guest.answers.insert(command, addresses);
    });
    let nodes = silent.map(|vmid| registered(&format!("worker-{vmid}"), &uuid(vmid), true));
    world.register_all(nodes.collect()).await?;
    let mut config = world.config();
    config["nodes"] = json!({ "addresses": { "agent": true } });
    world.launch_ccm(&config, &[PERIOD])?;
    let asked = || {
        world
            .sim()
            .request_counts()
            .get(AGENT)
            .copied()
            .unwrap_or(0)
    };
    eventually("agents are asked", Duration::from_secs(30), async || {
        Ok((asked() >= 4).then_some(()))
    })
    .await?;
    world.register("worker-101", 101).await?;
    let (node, took) = world.initialised("worker-101").await?;
    ensure!(took < SOON, "{took:?} after it was registered");
    ensure!(asked() < 20, "more than one at a time on a host");
    let addresses = node
        .status
        .and_then(|status| status.addresses)
        .unwrap_or_default();
    ensure!(
        addresses.iter().any(|one| one.address == "10.1.0.7"),
        "{addresses:?}"
    );
    world.stop().await
}
