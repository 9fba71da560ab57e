//! Nodes without VMID, whose VMs are gone: `ProxmoxMachine`s may tell which they were.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm::management::{CAPMOX_0_7, CAPMOX_0_8, Management};
use harness::ccm::{CcmWorld, GRACE, PERIOD, annotation};
use harness::cluster::{eventually, requirements};
use pve_model::topology::VMID_ANNOTATION;
use serde_json::json;
use tokio::time::sleep;

use super::{FORMER, Machine, PRESENT, cluster, machines};
use crate::alone;

/// Long enough to delete a Node whose VM is proved gone.
const LONG: Duration = GRACE
    .saturating_mul(3)
    .saturating_add(PERIOD.saturating_mul(2));
const UNREADABLE: &str = "the ProxmoxMachines can't be read: Nodes tell their VMID alone";
const READABLE: &str = "the ProxmoxMachines can be read again";

/// B67: the leftovers of capmox's machines; B65: and no others.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_vmid_is_deleted_only_if_its_proxmox_machine_tells_it() -> Result<()> {
    let _alone = alone().await;
    let Some(programs) = requirements("ccm: ProxmoxMachines tell VMIDs") else {
        return Ok(());
    };
    let (former, present) = (machines(FORMER)?, machines(PRESENT)?);
    let builder = cluster(&[former.clone(), present.clone()].concat())?;
    let mut world = CcmWorld::start(&programs, builder).await?;
    let management = Management::install(&world, "tenant-a").await?;
    management.serve(&CAPMOX_0_7).await?;
    for machine in &former {
        management.apply(&machine.proxmox).await?;
    }
    kept_without_the_machines(&mut world, first(&former)?).await?;
    let config = world.config();
    let only = "--controllers=lifecycle";
    let [kubeconfig, namespace] = management.arguments();
    world
        .start_ccm(&config, &[only, &kubeconfig, &namespace])
        .await?;
    world.deleted(&first(&former)?.name).await?;
    kept_if_they_contradict(&world, &management, second(&former)?).await?;

    management.serve(&CAPMOX_0_8).await?;
    for machine in &present {
        management.apply(&machine.proxmox).await?;
    }
    deleted_a_moment_after_the_machine(&world, &management, &present).await?;
    world.stop().await
}

fn first(machines: &[Machine]) -> Result<&Machine> {
    machines.first().context("no machine")
}

fn second(machines: &[Machine]) -> Result<&Machine> {
    machines.get(1).context("no second machine")
}

/// Registers a Node that another controller has initialised: provider id, no taint, no VMID.
async fn registered(world: &CcmWorld, machine: &Machine, ready: bool) -> Result<()> {
    let uuid = machine.uuid()?;
    let spec = json!({ "taints": [], "providerID": format!("proxmox://{uuid}") });
    world.register_as(&machine.name, uuid, spec).await?;
    world.set_ready(&machine.name, ready).await
}

fn destroy(world: &CcmWorld, machine: &Machine) -> Result<()> {
    let vmid = machine.vmid()?;
    world.sim().edit(|state| {
        state.vms.remove(&vmid);
        for pool in state.pools.values_mut() {
            pool.vms.remove(&vmid);
        }
    });
    Ok(())
}

async fn said_to_be_kept(world: &CcmWorld, name: &str) -> Result<()> {
    eventually(&format!("{name}: said to be kept"), LONG, async || {
        let events = world.events(name).await?;
        let mut reasons = events.iter().map(|event| event.reason.as_deref());
        Ok(reasons
            .any(|reason| reason == Some("NodeKept"))
            .then_some(()))
    })
    .await?;
    sleep(LONG).await;
    let stays = world.node(name).await?.is_some();
    ensure!(stays, "{name}: deleted");
    Ok(())
}

async fn kept_without_the_machines(world: &mut CcmWorld, machine: &Machine) -> Result<()> {
    let config = world.config();
    world
        .start_ccm(&config, &["--controllers=lifecycle"])
        .await?;
    destroy(world, machine)?;
    registered(world, machine, false).await?;
    said_to_be_kept(world, &machine.name).await?;
    world.kill_ccms().await
}

/// A machine and a copy of it that names another VMID.
async fn kept_if_they_contradict(
    world: &CcmWorld,
    management: &Management,
    machine: &Machine,
) -> Result<()> {
    let mut other = machine.proxmox.clone();
    other["metadata"]["name"] = json!("tenant-a-workers-copy");
    other["spec"]["virtualMachineID"] = json!(999);
    management.apply(&other).await?;
    sleep(PERIOD * 2).await;
    destroy(world, machine)?;
    registered(world, machine, false).await?;
    said_to_be_kept(world, &machine.name).await?;
    management.delete(&other).await
}

/// The first while its machine is there; the second although its machine is deleted right after its VM.
async fn deleted_a_moment_after_the_machine(
    world: &CcmWorld,
    management: &Management,
    machines: &[Machine],
) -> Result<()> {
    let (one, two) = (first(machines)?, second(machines)?);
    for machine in [one, two] {
        registered(world, machine, true).await?;
    }
    sleep(PERIOD * 2).await;
    for machine in [one, two] {
        destroy(world, machine)?;
    }
    management.delete(&two.proxmox).await?;
    for machine in [one, two] {
        world.set_ready(&machine.name, false).await?;
        world.deleted(&machine.name).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_management_cluster_that_refuses_is_told_once_and_nothing_else_suffers() -> Result<()> {
    let _alone = alone().await;
    let Some(programs) = requirements("ccm: ProxmoxMachines are forbidden") else {
        return Ok(());
    };
    let present = machines(PRESENT)?;
    let mut world = CcmWorld::start(&programs, cluster(&present)?).await?;
    let management = Management::install(&world, "tenant-a").await?;
    management.serve(&CAPMOX_0_8).await?;
    management.allow(false).await?;
    for machine in &present {
        management.apply(&machine.proxmox).await?;
    }
    let config = world.config();
    let [kubeconfig, namespace] = management.arguments();
    let args = [kubeconfig.as_str(), namespace.as_str()];
    world.start_ccm(&config, &args).await?;

    let (fresh, gone) = (first(&present)?, second(&present)?);
    let uuid = fresh.uuid()?;
    world
        .register_as(&fresh.name, uuid, fresh.registered()?)
        .await?;
    let (_, took) = world.initialised(&fresh.name).await?;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    registered(&world, gone, true).await?;
    let told = |node: &_| annotation(node, VMID_ANNOTATION).is_some();
    world.until(&gone.name, "has a VMID", told).await?;
    destroy(&world, gone)?;
    world.set_ready(&gone.name, false).await?;
    world.deleted(&gone.name).await?;

    let third = present.get(2).context("no third machine")?;
    destroy(&world, third)?;
    sleep(PERIOD * 2).await;
    registered(&world, third, false).await?;
    said_to_be_kept(&world, &third.name).await?;
    assert_eq!(count(&world, UNREADABLE), 1);
    management.allow(true).await?;
    world.deleted(&third.name).await?;
    assert_eq!((count(&world, UNREADABLE), count(&world, READABLE)), (1, 1));
    world.stop().await
}

fn count(world: &CcmWorld, line: &str) -> usize {
    world.logs().matches(line).count()
}
