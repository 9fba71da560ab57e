//! How Nodes are marked and how they end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm::{CcmWorld, has_taint, tenant};
use harness::cluster::{eventually, requirements};
use harness::process::built;
use harness::world::{POOL, uuid};
use pve_ccm::metrics::Metrics;
use pve_ccm::node::NodeView;
use pve_ccm::writer::{Active, WriteError, Writer};
use pve_kube::Tenant;
use pve_model::topology::SHUTDOWN_TAINT;
use pve_sim::{RequestEffect, RequestFault};
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Longer than a Node whose VM is gone needs to end.
const DWELL: Duration = Duration::from_secs(6);
const VMS: [(u32, &str); 4] = [(101, "pve1"), (102, "pve2"), (103, "pve1"), (104, "pve2")];

/// A world with initialised Nodes of 101, 102 and 103.
async fn world(test: &str, args: &[&str]) -> Result<Option<CcmWorld>> {
    let Some(programs) = requirements(test) else {
        return Ok(None);
    };
    let mut world = CcmWorld::start(&programs, tenant(&VMS)).await?;
    let config = world.config();
    world.start_ccm(&config, args).await?;
    for (vmid, _) in &VMS[..3] {
        world.register(&name(*vmid), *vmid).await?;
        world.initialised(&name(*vmid)).await?;
    }
    Ok(Some(world))
}

fn name(vmid: u32) -> String {
    format!("worker-{vmid}")
}

async fn uid(world: &CcmWorld, vmid: u32) -> Result<Option<String>> {
    let node = world.node(&name(vmid)).await?;
    Ok(node.and_then(|node| node.metadata.uid))
}

/// What an Event of that reason says, once there is one.
async fn told(world: &CcmWorld, vmid: u32, reason: &str) -> Result<String> {
    let what = format!("{reason} on {}", name(vmid));
    let (message, _) = eventually(&what, Duration::from_secs(30), async || {
        let events = world.events(&name(vmid)).await?;
        let event = events
            .into_iter()
            .find(|e| e.reason.as_deref() == Some(reason));
        Ok(event.and_then(|event| event.message))
    })
    .await?;
    Ok(message)
}

async fn is_marked(world: &CcmWorld, vmid: u32) -> Result<bool> {
    let node = world.node(&name(vmid)).await?;
    Ok(has_taint(&node.context("it is there")?, SHUTDOWN_TAINT))
}

async fn unmarked(world: &CcmWorld, vmid: u32) -> Result<()> {
    let is = |node: &harness::ccm::Node| !has_taint(node, SHUTDOWN_TAINT);
    world.until(&name(vmid), "unmarked", is).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_marked_as_shut_down_while_it_is_unready_and_its_vm_is_surely_stopped()
-> Result<()> {
    let _alone = crate::alone().await;
    let Some(world) = world("ccm: VMs that are shut down", &[]).await? else {
        return Ok(());
    };
    let sim = world.sim();
    for vmid in [101, 102, 103] {
        sim.stop_vm(vmid).map_err(anyhow::Error::msg)?;
    }
    sim.freeze_resources(false);
    sim.freeze_resources(true);
    // The list says that it is stopped for another while.
    sim.start_vm(103).map_err(anyhow::Error::msg)?;
    sleep(DWELL).await;
    for vmid in [101, 102, 103] {
        ensure!(!is_marked(&world, vmid).await?, "{vmid} is ready");
        world.set_ready(&name(vmid), false).await?;
    }
    for vmid in [101, 102] {
        let is = |node: &harness::ccm::Node| has_taint(node, SHUTDOWN_TAINT);
        world.until(&name(vmid), "marked", is).await?;
        told(&world, vmid, "VMShutDown").await?;
    }
    sleep(Duration::from_secs(3)).await;
    ensure!(
        !is_marked(&world, 103).await?,
        "only the list calls it stopped"
    );
    // It is ready whatever the list says.
    world.set_ready(&name(102), true).await?;
    unmarked(&world, 102).await?;
    sim.start_vm(101).map_err(anyhow::Error::msg)?;
    sim.freeze_resources(false);
    unmarked(&world, 101).await?;
    told(&world, 101, "VMStarted").await?;
    world.stop().await
}

/// B67: with the rights of the `ClusterRole` alone. A VM that is destroyed is looked for as soon as its Node is not ready and
/// again when the grace time is over, without a wait for the next regular list: so 2 s of grace in place of 60 s say what
/// the default takes.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_destroyed_vm_ends_within_two_minutes() -> Result<()> {
    let _alone = crate::alone().await;
    let args = ["--poll-period=60s", "--deletion-grace=2s"];
    let Some(world) = world("ccm: the end of a Node", &args).await? else {
        return Ok(());
    };
    world.sim().edit(|state| state.vms.remove(&101));
    let begun = Instant::now();
    world.set_ready(&name(101), false).await?;
    world.deleted(&name(101)).await?;
    let took = begun.elapsed();
    ensure!(took < Duration::from_secs(20), "{took:?} with 2 s of grace");
    let by_default = took + Duration::from_secs(58);
    ensure!(by_default < Duration::from_mins(2), "{by_default:?}");
    told(&world, 101, "DeletedNode").await?;
    world.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_that_are_switched_off_are_told_and_not_done() -> Result<()> {
    let _alone = crate::alone().await;
    let Some(world) = world("ccm: no deletions", &["--dry-run-deletions"]).await? else {
        return Ok(());
    };
    world.sim().edit(|state| state.vms.remove(&101));
    let before = uid(&world, 101).await?;
    world.set_ready(&name(101), false).await?;
    told(&world, 101, "WouldDeleteNode").await?;
    sleep(DWELL).await;
    ensure!(before.is_some() && uid(&world, 101).await? == before);
    let events = world.events(&name(101)).await?;
    let count = events
        .iter()
        .filter(|e| e.reason.as_deref() == Some("WouldDeleteNode"))
        .count();
    ensure!(count == 1, "told {count} times");
    world.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_vm_out_of_sight_ends_once_the_operator_says_so() -> Result<()> {
    let _alone = crate::alone().await;
    let Some(world) = world("ccm: an invisible VM", &[]).await? else {
        return Ok(());
    };
    world.sim().edit(|state| {
        let pool = state.pools.get_mut(POOL);
        pool.is_some_and(|pool| pool.vms.remove(&103))
    });
    world.set_ready(&name(103), false).await?;
    let message = told(&world, 103, "NodeKept").await?;
    ensure!(
        !message.contains("103") && !message.contains("pool"),
        "{message}"
    );
    let line = format!("pvectl fence --gone 103:{} --region r1", uuid(103));
    ensure!(world.logs().contains(&line), "the operator is told how");
    fence(&world, &uuid(104)).await?;
    sleep(DWELL).await;
    ensure!(
        uid(&world, 103).await?.is_some(),
        "another VM is stated to be gone"
    );
    fence(&world, &uuid(103)).await?;
    world.deleted(&name(103)).await?;
    let log = world.logs();
    let used = log
        .lines()
        .find(|line| line.contains("the operator's fence decides"));
    ensure!(
        used.is_some_and(|line| line.contains("operator-1")),
        "{used:?}"
    );
    world.stop().await
}

/// States that the VM 103 of that UUID is gone.
async fn fence(world: &CcmWorld, uuid: &str) -> Result<()> {
    let what = format!("103:{uuid}");
    let output = Command::new(built("pvectl")?)
        .args([
            "fence",
            "--gone",
            &what,
            "--region",
            "r1",
            "--by",
            "operator-1",
            "--file",
        ])
        .arg(world.folder().join("fences.yaml"))
        .output()
        .await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_registers_anew_while_its_end_is_decided_stays() -> Result<()> {
    let _alone = crate::alone().await;
    let Some(world) = world("ccm: a Node registers anew", &[]).await? else {
        return Ok(());
    };
    let sim = world.sim();
    sim.edit(|state| state.vms.remove(&101));
    world.set_ready(&name(101), false).await?;
    // It was seen to be gone once.
    eventually("the grace time", Duration::from_secs(30), async || {
        Ok(world
            .logs()
            .contains("the VM of the Node is gone")
            .then_some(()))
    })
    .await?;
    sim.add_fault(RequestFault {
        method: "GET".to_owned(),
        path: "/cluster/nextid".to_owned(),
        nth: 1,
        times: 1,
        effect: RequestEffect::Hold,
    });
    let mut held = sim.held();
    held.wait_for(|held| !held.is_empty()).await?;
    world.remove(&name(101)).await?;
    world.register(&name(101), 101).await?;
    world.set_ready(&name(101), false).await?;
    let new = uid(&world, 101).await?;
    sim.release();
    sleep(DWELL).await;
    ensure!(new.is_some() && uid(&world, 101).await? == new);
    world.stop().await
}

/// What the API server makes of it when all that was seen is out of date.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_deleted_only_as_the_object_and_in_the_state_that_was_seen() -> Result<()> {
    let _alone = crate::alone().await;
    let Some(programs) = requirements("ccm: preconditions of deletions") else {
        return Ok(());
    };
    let world = CcmWorld::start(&programs, tenant(&VMS)).await?;
    let writer = Writer::new(
        Tenant::of_client(world.client()),
        Active {
            stop: CancellationToken::new(),
            holding: None,
        },
        Metrics::default(),
    );
    world.register("worker-101", 101).await?;
    let seen = async || {
        anyhow::Ok(NodeView::read(
            world.node("worker-101").await?.context("there")?,
        )?)
    };
    let first = seen().await?;
    world.set_ready("worker-101", false).await?;
    ensure!(
        matches!(writer.delete(&first).await, Err(WriteError::Outdated)),
        "it changed"
    );
    world.remove("worker-101").await?;
    world.register("worker-101", 101).await?;
    let second = seen().await?;
    ensure!(
        matches!(writer.delete(&first).await, Err(WriteError::Outdated)),
        "it is another"
    );
    // The version of this one does not make it that one.
    let mixed = NodeView {
        version: second.version.clone(),
        ..first
    };
    ensure!(
        matches!(writer.delete(&mixed).await, Err(WriteError::Outdated)),
        "its uid is another"
    );
    ensure!(seen().await? == second, "it is as it was");
    writer.delete(&second).await?;
    world.deleted("worker-101").await?;
    world.stop().await
}
