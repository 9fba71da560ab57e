//! Claims' whole lives in a real Kubernetes: bound, mounted, written, moved, read, deleted.

use anyhow::{Context, Result, ensure};
use harness::cluster::{
    Claim, Place, STAY, Stack, Tenant, View, Workload, mounted_at, requirements, wait_content,
};
use harness::truth::Truth;
use harness::world::{FILES, SHARED, THIN};

const N1: Place = Place {
    vmid: 101,
    pve_node: "pve1",
};
const N2: Place = Place {
    vmid: 102,
    pve_node: "pve1",
};
const N3: Place = Place {
    vmid: 103,
    pve_node: "pve2",
};

/// A claim, what a Pod on `n1` does with it, and a Pod on another Node later.
struct Life {
    name: &'static str,
    class: &'static str,
    view: View,
    write: String,
    then: Place,
    node: &'static str,
    read: String,
}

/// Three at once: a file system and a block device on local storages, and a file system whose Pod goes to another PVE node.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_keep_their_bytes_when_their_pods_move_and_leave_nothing_behind() -> Result<()> {
    let Some(programs) = requirements("cluster: round trip of claims") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &[N1, N2, N3]).await?;
    let outcome = whole_lives(&stack).await;
    stack.finish(outcome).await
}

async fn whole_lives(stack: &Stack) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    let lives = [
        file_system("files", FILES, (N2, "n2")),
        block_device(),
        file_system("shared", SHARED, (N3, "n3")),
    ];
    let [one, two, three] = &lives;
    tokio::try_join!(
        live(stack, &tenant, one),
        live(stack, &tenant, two),
        live(stack, &tenant, three)
    )?;
    tenant.wait_detached().await?;
    for worker in &stack.workers {
        let disks = stack.world.sim.disks(worker.vmid());
        ensure!(disks.is_empty(), "VM {} has {disks:?}", worker.vmid());
    }
    for life in &lives {
        tenant.delete_claim(life.name).await?;
    }
    let truth = Truth::of(&stack.world.sim);
    let (left, wrong) = (truth.disks(), truth.violations());
    ensure!(left.is_empty(), "disks are left: {left:?}");
    ensure!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

fn file_system(name: &'static str, class: &'static str, then: (Place, &'static str)) -> Life {
    Life {
        name,
        class,
        view: View::Mount,
        write: format!(
            "grep -q ' /data ext4 ' /proc/self/mounts; echo bytes of n1 > /data/hello; sync; {STAY}"
        ),
        then: then.0,
        node: then.1,
        read: "test \"$(cat /data/hello)\" = 'bytes of n1'".to_owned(),
    }
}

fn block_device() -> Life {
    // The whole device, and not only where a file system has its superblock.
    let pattern = "yes 'block of n1' | head -c 67108864";
    Life {
        name: "block",
        class: THIN,
        view: View::Device,
        write: format!("{pattern} | dd of=/dev/xvda bs=1M iflag=fullblock conv=fsync,nocreat"),
        then: N2,
        node: "n2",
        read: format!("{pattern} | cmp - /dev/xvda"),
    }
}

/// Until the second Pod is gone.
async fn live(stack: &Stack, tenant: &Tenant, life: &Life) -> Result<()> {
    let claim = Claim {
        name: life.name,
        class: life.class,
        access: "ReadWriteOnce",
        view: life.view,
    };
    tenant.claim(&claim).await?;
    let writer = Workload {
        name: &format!("{}-writer", life.name),
        node: "n1",
        claim: life.name,
        view: life.view,
        command: &life.write,
    };
    tenant.run(&writer).await?;
    match life.view {
        View::Mount => written(stack, tenant, writer.name, life.name).await?,
        View::Device => drop(tenant.wait_succeeded(writer.name).await?),
    }
    let handle = tenant.handle_of(life.name).await?;
    let holders = Truth::of(&stack.world.sim).holders(&handle);
    ensure!(holders.into_iter().eq([N1.vmid]));
    tenant.delete_pod(writer.name).await?;

    let reader = Workload {
        name: &format!("{}-reader", life.name),
        node: life.node,
        command: &life.read,
        ..writer
    };
    tenant.run(&reader).await?;
    tenant.wait_succeeded(reader.name).await?;
    let holders = Truth::of(&stack.world.sim).holders(&handle);
    ensure!(holders.into_iter().eq([life.then.vmid]));
    tenant.delete_pod(reader.name).await
}

/// The Pod's file is there, on an ext4 that the kernel knows of.
async fn written(stack: &Stack, tenant: &Tenant, pod: &str, claim: &str) -> Result<()> {
    tenant.wait_running(pod).await?;
    let worker = stack.workers.first().context("no worker")?;
    let path = tenant.mount_path(pod, claim, &worker.kubelet).await?;
    wait_content(&path.join("hello"), "bytes of n1\n").await?;
    let mounted = mounted_at(&path).unwrap_or_default();
    ensure!(mounted.starts_with("ext4 on "), "mounted: {mounted:?}");
    Ok(())
}
