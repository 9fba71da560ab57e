//! What goes wrong around the driver in a real Kubernetes, and needs no hands.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::cluster::{
    Claim, Place, REGISTERED, STAY, Stack, Tenant, View, Workload, eventually, requirements,
};
use harness::truth::Truth;
use harness::world::{FILES, node_id};
use tokio::time::{Instant, sleep};

const N1: Place = Place {
    vmid: 101,
    pve_node: "pve1",
};
const CLAIM: Claim<'_> = Claim {
    name: "data",
    class: FILES,
    access: "ReadWriteOnce",
    view: View::Mount,
};
const POD: Workload<'_> = Workload {
    name: "app",
    node: "n1",
    claim: "data",
    view: View::Mount,
    command: STAY,
};
/// Names the variable that makes the two waits ten minutes long.
const TEN_MINUTES: &str = "PVE_CLOUD_TEN_MINUTES";
/// Kubernetes' back-off after a short outage, and the volume's way to the Pod.
const RECOVERY: Duration = Duration::from_secs(45);
/// csi-provisioner doubles its pauses up to this (`--retry-interval-max`).
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// Real seconds: the clocks of the programs, of the sidecars and of Kubernetes are the machine's, there is none to move.
fn real(short: Duration) -> Duration {
    if std::env::var_os(TEN_MINUTES).is_some() {
        Duration::from_mins(10)
    } else {
        short
    }
}

/// More than the 30 s after which node-driver-registrar gives up.
fn unlabelled() -> Duration {
    real(Duration::from_secs(35))
}

fn outage_of_pve() -> Duration {
    real(Duration::from_secs(15))
}

fn recovery() -> Duration {
    if outage_of_pve() > LONGEST_PAUSE {
        RECOVERY + LONGEST_PAUSE
    } else {
        RECOVERY
    }
}

/// B64: the plugin starts long before the cloud controller manager has labelled its Node.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_waits_for_labels_without_restarts_and_is_registered_seconds_after_them()
-> Result<()> {
    let Some(programs) = requirements("cluster: a worker without labels") else {
        return Ok(());
    };
    let mut stack = Stack::start_uninitialised(&programs, &[N1]).await?;
    let outcome = labelled_late(&mut stack).await;
    stack.finish(outcome).await
}

async fn labelled_late(stack: &mut Stack) -> Result<()> {
    let worker = stack.workers.first().context("no worker")?;
    let labels = Instant::now() + unlabelled();
    while Instant::now() < labels {
        let offered = std::fs::read_dir(worker.kubelet.registry())?.count();
        ensure!(offered == 0, "offered to the kubelet without labels");
        sleep(Duration::from_millis(50)).await;
    }
    stack.no_restarts()?;
    stack.start_ccm().await?;
    let worker = stack.workers.first().context("no worker")?;
    let labelled = worker.wait_labelled().await?;
    let (found, took) = worker.wait_registered().await?;
    ensure!(labelled < REGISTERED, "labelled after {labelled:?}");
    ensure!(took < REGISTERED, "registered after {took:?}");
    ensure!(found == node_id(N1.vmid), "registered as {found}");
    Ok(())
}

/// PVE answers nobody for a while: nothing ends, and what was asked for meanwhile happens afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_pve_restarts_nothing_and_a_pending_pod_recovers_by_itself() -> Result<()> {
    let Some(programs) = requirements("cluster: PVE is unreachable") else {
        return Ok(());
    };
    let mut stack = Stack::start(&programs, &[N1]).await?;
    let outcome = outage(&mut stack).await;
    stack.finish(outcome).await
}

async fn outage(stack: &mut Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    stack.world.sim.set_reachable(false);
    tenant.claim(&CLAIM).await?;
    tenant.run(&POD).await?;
    sleep(outage_of_pve()).await;
    ensure!(tenant.phase(POD.name).await? == "Pending");
    stack.no_restarts()?;
    stack.world.sim.set_reachable(true);
    let back = Instant::now();
    while tenant.phase(POD.name).await? != "Running" {
        ensure!(back.elapsed() < recovery(), "{}", tenant.story().await?);
        sleep(Duration::from_millis(200)).await;
    }
    stack.no_restarts()?;
    end_of_claim(stack, &tenant).await
}

/// B21: the Node object is gone, but its VM runs and has the disk. That the Node isn't found is no proof of anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_leaves_a_running_vm_whose_node_object_was_deleted() -> Result<()> {
    let Some(programs) = requirements("cluster: a Node object is deleted") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &[N1]).await?;
    let outcome = node_deleted(&stack).await;
    stack.finish(outcome).await
}

async fn node_deleted(stack: &Stack) -> Result<()> {
    let (sim, tenant) = (&stack.world.sim, Tenant::new(&stack.client()));
    tenant.claim(&CLAIM).await?;
    tenant.run(&POD).await?;
    tenant.wait_running(POD.name).await?;
    let handle = tenant.handle_of(CLAIM.name).await?;
    // Kubernetes has begun to detach, and PVE isn't there to do it, when the Node object goes. (One whose status still
    // says that the volume is in use, the attach-detach controller leaves alone for six minutes.)
    sim.set_reachable(false);
    tenant.delete_pod(POD.name).await?;
    tenant.wait_detaching().await?;
    let worker = stack.workers.first().context("no worker")?;
    worker.kubelet.delete_node().await?;
    ensure!(Truth::of(sim).holders(&handle).into_iter().eq([N1.vmid]));
    sim.set_reachable(true);
    let left = eventually("the disk has left the VM", RECOVERY, async || {
        Ok(Truth::of(sim).holders(&handle).is_empty().then_some(()))
    });
    left.await.context(tenant.story().await?)?;
    let running = sim.state().vms.get(&N1.vmid).is_some_and(|vm| vm.running);
    ensure!(running, "the VM was stopped");
    tenant.wait_detached().await?;
    tenant.delete_claim(CLAIM.name).await?;
    ensure!(Truth::of(sim).disks().is_empty());
    Ok(())
}

/// What the driver can't do is said when it is asked for, not when it is too late.
#[tokio::test(flavor = "multi_thread")]
async fn claims_for_many_writers_are_refused_with_words() -> Result<()> {
    let Some(programs) = requirements("cluster: claims that are refused") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &[N1]).await?;
    let outcome = refused(&stack).await;
    stack.finish(outcome).await
}

async fn refused(stack: &Stack) -> Result<()> {
    let (sim, tenant) = (&stack.world.sim, Tenant::new(&stack.client()));
    let many = Claim {
        name: "many",
        access: "ReadWriteMany",
        ..CLAIM
    };
    tenant.claim(&many).await?;
    let pod = Workload {
        name: "many",
        claim: "many",
        ..POD
    };
    tenant.run(&pod).await?;
    let words = tenant.wait_event("many", "InvalidArgument").await?;
    ensure!(
        words.contains("MULTI_NODE") || words.contains("ReadWriteMany"),
        "{words}"
    );
    let claim = tenant.claims().get("many").await?;
    ensure!(claim.status.and_then(|s| s.phase).as_deref() == Some("Pending"));
    ensure!(tenant.phase("many").await? == "Pending");
    ensure!(Truth::of(sim).disks().is_empty());

    Ok(())
}

async fn end_of_claim(stack: &Stack, tenant: &Tenant) -> Result<()> {
    tenant.delete_pod(POD.name).await?;
    tenant.wait_detached().await?;
    tenant.delete_claim(CLAIM.name).await?;
    let truth = Truth::of(&stack.world.sim);
    let (left, wrong) = (truth.disks(), truth.violations());
    ensure!(left.is_empty(), "disks are left: {left:?}");
    ensure!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}
