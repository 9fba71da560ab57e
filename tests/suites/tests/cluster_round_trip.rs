//! A claim's whole life in a real Kubernetes: bound, mounted, written, moved, read, deleted.

use anyhow::{Context, Result, ensure};
use harness::cluster::{Claim, Place, Stack, Tenant, View, Workload, requirements};
use harness::truth::Truth;
use harness::world::{FILES, THIN};

const ON_ONE_PVE_NODE: [Place; 2] = [
    Place {
        vmid: 101,
        pve_node: "pve1",
    },
    Place {
        vmid: 102,
        pve_node: "pve1",
    },
];
/// Ends on SIGTERM, which the first process of a container gets only if it asks for it.
const STAY: &str = "trap 'exit 0' TERM; sleep 600 & wait";

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_finds_on_its_second_node_what_it_wrote_on_the_first() -> Result<()> {
    let Some(programs) = requirements("cluster: round trip of a file system") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &ON_ONE_PVE_NODE).await?;
    let outcome = file_system(&stack).await;
    finish(stack, outcome).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_block_volume_keeps_its_bytes_when_its_pod_moves() -> Result<()> {
    let Some(programs) = requirements("cluster: round trip of a block device") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &ON_ONE_PVE_NODE).await?;
    let outcome = block_device(&stack).await;
    finish(stack, outcome).await
}

async fn file_system(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    let claim = Claim {
        name: "files",
        class: FILES,
        access: "ReadWriteOnce",
        view: View::Mount,
    };
    tenant.claim(&claim).await?;
    let write = format!(
        "grep -q ' /data ext4 ' /proc/self/mounts; echo bytes of n1 > /data/hello; sync; {STAY}"
    );
    let writer = Workload {
        name: "writer",
        node: "n1",
        claim: "files",
        view: View::Mount,
        command: &write,
    };
    tenant.run(&writer).await?;
    tenant.wait_running("writer").await?;
    let handle = tenant.handle_of("files").await?;
    ensure!(
        Truth::of(&stack.world.sim)
            .holders(&handle)
            .into_iter()
            .eq([101])
    );
    let worker = stack.workers.first().context("no worker")?;
    let path = tenant
        .mount_path("writer", "files", &worker.kubelet)
        .await?;
    ensure!(file_system_at(&path)? == "ext4");
    tenant.delete_pod("writer").await?;
    ensure!(file_system_at(&path).is_err(), "still mounted");

    let reader = Workload {
        name: "reader",
        node: "n2",
        command: "test \"$(cat /data/hello)\" = 'bytes of n1'",
        ..writer
    };
    tenant.run(&reader).await?;
    tenant.wait_succeeded("reader").await?;
    ensure!(
        Truth::of(&stack.world.sim)
            .holders(&handle)
            .into_iter()
            .eq([102])
    );
    tenant.delete_pod("reader").await?;
    gone(stack, &tenant, "files").await
}

async fn block_device(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    let claim = Claim {
        name: "block",
        class: THIN,
        access: "ReadWriteOnce",
        view: View::Device,
    };
    tenant.claim(&claim).await?;
    // Across the whole device, and not where a file system would have its superblock only.
    let pattern = "yes 'block of n1' | head -c 67108864";
    let write = format!("{pattern} | dd of=/dev/xvda bs=1M iflag=fullblock conv=fsync,nocreat");
    let writer = Workload {
        name: "writer",
        node: "n1",
        claim: "block",
        view: View::Device,
        command: &write,
    };
    tenant.run(&writer).await?;
    tenant.wait_succeeded("writer").await?;
    let handle = tenant.handle_of("block").await?;
    ensure!(
        Truth::of(&stack.world.sim)
            .holders(&handle)
            .into_iter()
            .eq([101])
    );
    tenant.delete_pod("writer").await?;

    let read = format!("{pattern} | cmp - /dev/xvda");
    let reader = Workload {
        name: "reader",
        node: "n2",
        command: &read,
        ..writer
    };
    tenant.run(&reader).await?;
    tenant.wait_succeeded("reader").await?;
    ensure!(
        Truth::of(&stack.world.sim)
            .holders(&handle)
            .into_iter()
            .eq([102])
    );
    tenant.delete_pod("reader").await?;
    gone(stack, &tenant, "block").await
}

/// Deletes the claim; afterwards the PVE cluster is as before.
async fn gone(stack: &Stack, tenant: &Tenant, claim: &str) -> Result<()> {
    tenant.wait_detached().await?;
    tenant.delete_claim(claim).await?;
    let truth = Truth::of(&stack.world.sim);
    ensure!(
        truth.disks().is_empty(),
        "disks are left: {:?}",
        truth.disks()
    );
    ensure!(truth.violations().is_empty(), "{:?}", truth.violations());
    for worker in &stack.workers {
        let disks = stack.world.sim.disks(worker.vmid());
        ensure!(disks.is_empty(), "VM {} has {disks:?}", worker.vmid());
    }
    Ok(())
}

fn file_system_at(path: &std::path::Path) -> Result<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(4).map(std::path::Path::new) == Some(path))
        .with_context(|| format!("nothing is mounted at {}", path.display()))?;
    let (_, right) = line.split_once(" - ").context("no type")?;
    Ok(right.split(' ').next().unwrap_or_default().to_owned())
}

/// Ends the cluster. If the test failed, tells what the programs had to say.
async fn finish(mut stack: Stack, outcome: Result<()>) -> Result<()> {
    let outcome = outcome.and_then(|()| stack.no_restarts());
    if let Err(error) = outcome {
        return Err(error.context(stack.logs()));
    }
    stack.stop().await
}
