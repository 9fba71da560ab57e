//! Claims that grow in a real Kubernetes: the API server, csi-resizer, our controller, Proxmox's simulator, a kubelet and our
//! node plugin.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::cluster::{
    Claim, Place, STAY, Stack, Tenant, View, Workload, eventually, requirements, wait_content,
};
use harness::requirements::noted;
use harness::truth::{Truth, volid};
use harness::world::{FILES, SHARED, THIN};

const N1: Place = Place {
    vmid: 101,
    pve_node: "pve1",
};
const GROWN: u64 = 128 << 20;
/// Waits in its container until the device has the new size, and writes all of it.
const FILLS_THE_NEW_SIZE: &str = "until test \"$(/usr/sbin/blockdev --getsize64 /dev/xvda)\" = 134217728; do sleep 0.2; done; \
     yes grown | head -c 134217728 | dd of=/dev/xvda bs=1M iflag=fullblock conv=fsync,nocreat";
/// The pauses of csi-resizer double from 1 s.
const PATIENCE: Duration = Duration::from_mins(1);

const RAW: Claim<'_> = Claim {
    name: "raw",
    class: THIN,
    access: "ReadWriteOnce",
    view: View::Device,
};

fn pod<'a>(claim: &Claim<'a>, name: &'a str, command: &'a str) -> Workload<'a> {
    Workload {
        name,
        node: "n1",
        claim: claim.name,
        view: claim.view,
        command,
    }
}

/// What storage, config and QEMU have.
fn is_grown(stack: &Stack, handle: &str) -> Result<()> {
    let truth = Truth::of(&stack.world.sim);
    let storage = truth.size(handle).context("no disk")?;
    ensure!(storage == GROWN, "the storage has {storage}");
    let state = stack.world.sim.state();
    let vm = state.vms.get(&N1.vmid).context("no VM")?;
    let volid = volid(handle);
    let devices = &mut vm.devices.iter();
    let (slot, device) = devices
        .find(|(_, device)| device.volid == volid)
        .context("QEMU does not have it")?;
    ensure!(device.size == GROWN, "QEMU has {}", device.size);
    let line = truth.config(N1.vmid, slot).context("not in the config")?;
    ensure!(line.contains(",size=128M"), "{line}");
    ensure!(truth.violations().is_empty(), "{:?}", truth.violations());
    Ok(())
}

async fn end(tenant: &Tenant, pod: &str, claim: &str) -> Result<()> {
    tenant.delete_pod(pod).await?;
    tenant.wait_detached().await?;
    tenant.delete_claim(claim).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_claim_grows_under_its_running_pod() -> Result<()> {
    let Some(programs) = requirements("cluster: a raw claim grows") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &[N1]).await?;
    let outcome = raw_grows(&stack).await;
    stack.finish(outcome).await
}

async fn raw_grows(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    let user = pod(&RAW, "user", STAY);
    tenant.claim(&RAW).await?;
    tenant.run(&user).await?;
    tenant.wait_running(user.name).await?;
    ensure!(tenant.sizes(RAW.name).await? == (64 << 20, 64 << 20));
    tenant.grow(RAW.name, "128Mi").await?;
    tenant.wait_size(RAW.name, GROWN).await?;
    is_grown(stack, &tenant.handle_of(RAW.name).await?)?;
    tenant.delete_pod(user.name).await?;
    tenant.wait_detached().await?;
    let writer = pod(&RAW, "writer", FILLS_THE_NEW_SIZE);
    tenant.run(&writer).await?;
    tenant.wait_succeeded(writer.name).await?;
    end(&tenant, writer.name, RAW.name).await
}

/// PVE can't grow what no VM has: the person is told so, and needs to do nothing but start a Pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_a_pod_grows_once_one_runs() -> Result<()> {
    let Some(programs) = requirements("cluster: a claim without a Pod grows later") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &[N1]).await?;
    let outcome = grows_later(&stack).await;
    stack.finish(outcome).await
}

async fn grows_later(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    let first = pod(&RAW, "first", "true");
    tenant.claim(&RAW).await?;
    tenant.run(&first).await?;
    tenant.wait_succeeded(first.name).await?;
    tenant.delete_pod(first.name).await?;
    tenant.wait_detached().await?;
    tenant.grow(RAW.name, "128Mi").await?;
    tenant.wait_event(RAW.name, "start a Pod").await?;
    ensure!(tenant.sizes(RAW.name).await? == (64 << 20, 64 << 20));
    let second = pod(&RAW, "second", FILLS_THE_NEW_SIZE);
    tenant.run(&second).await?;
    tenant.wait_size(RAW.name, GROWN).await?;
    is_grown(stack, &tenant.handle_of(RAW.name).await?)?;
    tenant.wait_succeeded(second.name).await?;
    end(&tenant, second.name, RAW.name).await
}

/// The disk grows. Whether a mounted ext4 can is the kernel's business: where it refuses, the claim keeps its old size, the
/// refusal is told, and the Pod runs on.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_a_file_system_has_its_new_size_when_the_kernel_has_grown_it() -> Result<()> {
    let Some(programs) = requirements("cluster: a claim with ext4 grows") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &[N1]).await?;
    let outcome = both_grow(&stack).await;
    stack.finish(outcome).await
}

async fn both_grow(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    for (name, class) in [("files", FILES), ("shared", SHARED)] {
        file_system_grows(stack, &tenant, (name, class)).await?;
    }
    Ok(())
}

async fn file_system_grows(
    stack: &Stack,
    tenant: &Tenant,
    (name, class): (&str, &'static str),
) -> Result<()> {
    let claim = Claim {
        name,
        class,
        access: "ReadWriteOnce",
        view: View::Mount,
    };
    let command = format!("echo kept > /data/hello; sync; {STAY}");
    let app = format!("{name}-app");
    let app = pod(&claim, &app, &command);
    tenant.claim(&claim).await?;
    tenant.run(&app).await?;
    tenant.wait_running(app.name).await?;
    tenant.grow(name, "128Mi").await?;
    let what = format!("growth of {name}, or the kernel's refusal");
    let ((claimed, _), _) = eventually(&what, PATIENCE, async || {
        let sizes = tenant.sizes(name).await?;
        let refused = tenant.story().await?.contains("NodeExpandVolume failed");
        let ended = sizes.0 == GROWN || (sizes.1 == GROWN && refused);
        Ok(ended.then_some(sizes))
    })
    .await
    .context(tenant.story().await?)?;
    noted(&format!(
        "ext4 claim on {class}, grown while mounted: {}",
        claimed == GROWN
    ));
    is_grown(stack, &tenant.handle_of(name).await?)?;
    ensure!(tenant.phase(app.name).await? == "Running");
    let worker = stack.workers.first().context("no worker")?;
    let path = tenant.mount_path(app.name, name, &worker.kubelet).await?;
    wait_content(&path.join("hello"), "kept\n").await?;
    end(tenant, app.name, name).await
}
