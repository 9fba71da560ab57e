//! From a machine that comes up to a volume in a Pod, nothing written by hand: everything but PVE is real.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm::{has_taint, label};
use harness::cluster::{
    Claim, Place, REGISTERED, STAY, Stack, Tenant, View, Workload, eventually, requirements,
};
use harness::requirements::noted;
use harness::truth::Truth;
use harness::world::{FILES, SHARED, node_id, uuid};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use pve_model::topology::{HOST_LABEL, REGION, UNINITIALIZED_TAINT, ZONE};
use tokio::time::Instant;

const N1: Place = Place {
    vmid: 101,
    pve_node: "pve1",
};
/// What is promised: from the Node that the kubelet registers to the one without its taint.
const INITIALISED: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);

/// B64, B68: kubelet, cloud-controller-manager, node plugin, sidecars and controller find each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_comes_up_gets_its_identity_and_then_a_volume_and_keeps_both_when_it_moves()
-> Result<()> {
    let Some(programs) = requirements("cluster: the chain from kubelet to volume") else {
        return Ok(());
    };
    let mut stack = Stack::start_without_workers(&programs, &[N1]).await?;
    let outcome = chain(&mut stack).await;
    stack.finish(outcome).await
}

async fn chain(stack: &mut Stack) -> Result<()> {
    stack.start_ccm().await?;
    let client = stack.client();
    let (started, chain) = tokio::join!(stack.start_workers(&[N1]), alive(&client));
    started?;
    let (appeared, labelled) = chain?;
    let worker = stack.workers.first().context("no worker")?;
    let (found, _) = worker.wait_registered().await?;
    let registered = appeared.elapsed();
    ensure!(labelled < INITIALISED, "initialised after {labelled:?}");
    ensure!(
        registered < labelled + REGISTERED,
        "registered after {registered:?}"
    );
    ensure!(found == node_id(N1.vmid), "registered as {found}");
    identity(stack).await?;
    let tenant = Tenant::new(&stack.client());
    let volume = volume("first", FILES);
    run(&tenant, &volume).await?;
    let running = appeared.elapsed();
    noted(&format!(
        "chain: initialised {labelled:.1?}, plugin registered {registered:.1?}, Pod with a new volume runs {running:.1?} after the kubelet registered the Node"
    ));
    end(&tenant, &volume).await?;
    moved(stack, &tenant).await?;
    ensure!(Truth::of(&stack.world.sim).disks().is_empty());
    Ok(())
}

/// When the kubelet's Node appeared, and how long it took to lose its taint.
async fn alive(client: &Client) -> Result<(Instant, Duration)> {
    let nodes: Api<Node> = Api::all(client.clone());
    let when = async |what: &str, is: fn(&Node) -> bool| {
        eventually(what, PATIENCE, async || {
            Ok(nodes.get_opt("n1").await?.filter(is))
        })
        .await
    };
    when("the Node", |node| has_taint(node, UNINITIALIZED_TAINT)).await?;
    let appeared = Instant::now();
    when("the Node is initialised", |node| {
        !has_taint(node, UNINITIALIZED_TAINT)
    })
    .await?;
    Ok((appeared, appeared.elapsed()))
}

/// Labels and provider id, as Cluster API expects them.
async fn identity(stack: &Stack) -> Result<()> {
    let worker = stack.workers.first().context("no worker")?;
    let node = worker.kubelet.node().await?.context("no Node")?;
    for (key, wanted) in [(REGION, "r1"), (ZONE, "pve1"), (HOST_LABEL, "pve1")] {
        ensure!(
            label(&node, key) == Some(wanted),
            "{key}: {:?}",
            label(&node, key)
        );
    }
    let id = node.spec.and_then(|spec| spec.provider_id);
    ensure!(id == Some(format!("proxmox://{}", uuid(N1.vmid))), "{id:?}");
    Ok(())
}

/// The VM moves to another PVE node: its labels follow, and the plugin can register anew at any time.
async fn moved(stack: &mut Stack, tenant: &Tenant) -> Result<()> {
    stack
        .world
        .sim
        .with_vm(N1.vmid, |vm| "pve2".clone_into(&mut vm.node))
        .context("no VM")?;
    let worker = stack.workers.first_mut().context("no worker")?;
    eventually("the zone follows the VM", PATIENCE, async || {
        let node = worker.kubelet.node().await?.context("no Node")?;
        Ok((label(&node, ZONE) == Some("pve2")).then_some(()))
    })
    .await?;
    worker.crash_plugin().await?;
    let collisions = worker.kubelet.log().matches("collision").count();
    ensure!(
        collisions == 0,
        "the kubelet found other labels than the plugin told"
    );
    let (found, _) = worker.wait_registered().await?;
    ensure!(found == node_id(N1.vmid), "registered as {found}");
    let volume = volume("second", SHARED);
    run(tenant, &volume).await?;
    end(tenant, &volume).await
}

fn volume<'a>(name: &'a str, class: &'a str) -> Claim<'a> {
    Claim {
        name,
        class,
        access: "ReadWriteOnce",
        view: View::Mount,
    }
}

async fn run(tenant: &Tenant, claim: &Claim<'_>) -> Result<()> {
    tenant.claim(claim).await?;
    let pod = Workload {
        name: claim.name,
        node: "n1",
        claim: claim.name,
        view: claim.view,
        command: STAY,
    };
    tenant.run(&pod).await?;
    tenant.wait_running(claim.name).await?;
    Ok(())
}

async fn end(tenant: &Tenant, claim: &Claim<'_>) -> Result<()> {
    tenant.delete_pod(claim.name).await?;
    tenant.wait_detached().await?;
    tenant.delete_claim(claim.name).await?;
    Ok(())
}
