//! `make demo CLUSTER=1`: two claims' whole life through PVCs and Pods, told step by step.

use anyhow::{Context, Result, bail, ensure};

use super::requirements::Programs;
use super::stack::{Place, Stack};
use super::wait::wait_content;
use super::workload::{Claim, STAY, Tenant, View, Workload};
use crate::demo::Steps;
use crate::requirements::loop_devices;
use crate::run_dir::mounted_at;
use crate::truth::Truth;
use crate::world::{FILES, THIN};

const PLACES: [Place; 2] = [
    Place {
        vmid: 101,
        pve_node: "pve1",
    },
    Place {
        vmid: 102,
        pve_node: "pve1",
    },
];
const FILE: &str = "file";
const BLOCK: &str = "block";

/// Needs root and loop devices; builds the Kubernetes programs if nobody has yet.
pub async fn run() -> Result<()> {
    loop_devices().map_err(anyhow::Error::msg)?;
    let programs = match Programs::built() {
        Ok(programs) => programs,
        Err(_) => Programs::build().await?,
    };
    tokio::select! {
        outcome = tell(&programs) => outcome,
        // Dropped, the cluster takes its mounts and disks with it.
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    }
}

async fn tell(programs: &Programs) -> Result<()> {
    let mut told = Told {
        steps: Steps::default(),
        seen: 0,
    };
    let stack = Stack::start(programs, &PLACES).await?;
    told.step(
        &stack,
        "Kubernetes, sidecars, simulator, controller and two workers are up",
    );
    let outcome = whole_life(&stack, &mut told).await;
    stack.finish(outcome).await?;
    told.steps.finish("PVC round trip");
    Ok(())
}

struct Told {
    steps: Steps,
    seen: usize,
}

impl Told {
    fn step(&mut self, stack: &Stack, what: &str) {
        let requests = stack.world.sim.requests().len();
        self.steps.done(requests - self.seen, what);
        self.seen = requests;
    }
}

async fn whole_life(stack: &Stack, told: &mut Told) -> Result<()> {
    let tenant = Tenant::new(&stack.client());
    for (name, class, view) in [(FILE, FILES, View::Mount), (BLOCK, THIN, View::Device)] {
        let claim = Claim {
            name,
            class,
            access: "ReadWriteOnce",
            view,
        };
        tenant.claim(&claim).await?;
    }
    told.step(stack, "two PVCs: a file system, a raw block device");

    let write_file = format!("echo hello > /data/hello; sync; {STAY}");
    let write_block = "echo hello | dd of=/dev/xvda bs=512 conv=sync,fsync,nocreat";
    pods(&tenant, ("n1", "writes"), [&write_file, write_block]).await?;
    let mounted = written(stack, &tenant).await?;
    tenant.wait_succeeded("block-writes").await?;
    told.step(
        stack,
        &format!("PVCs bound, Pods on n1 have written: {mounted}"),
    );

    delete_pods(&tenant, "writes").await?;
    told.step(stack, "these Pods are gone");

    let read_file = "test \"$(cat /data/hello)\" = hello";
    let read_block = "test \"$(head -c 5 /dev/xvda)\" = hello";
    pods(&tenant, ("n2", "reads"), [read_file, read_block]).await?;
    tenant.wait_succeeded("file-reads").await?;
    tenant.wait_succeeded("block-reads").await?;
    told.step(stack, "Pods on n2 have read the same bytes");

    delete_pods(&tenant, "reads").await?;
    tenant.wait_detached().await?;
    told.step(stack, "they are gone, too: no VM has a disk");

    tenant.delete_claim(FILE).await?;
    tenant.delete_claim(BLOCK).await?;
    let truth = Truth::of(&stack.world.sim);
    let (left, wrong) = (truth.disks(), truth.violations());
    ensure!(left.is_empty(), "disks are left: {left:?}");
    ensure!(wrong.is_empty(), "{wrong:?}");
    told.step(stack, "PVCs deleted: the disks are gone");
    Ok(())
}

/// Waits until the Pod `file-writes` has written; returns what is mounted for it.
async fn written(stack: &Stack, tenant: &Tenant) -> Result<String> {
    tenant.wait_running("file-writes").await?;
    let worker = stack.workers.first().context("no worker")?;
    let path = tenant
        .mount_path("file-writes", FILE, &worker.kubelet)
        .await?;
    wait_content(&path.join("hello"), "hello\n").await?;
    mounted_at(&path).context("nothing is mounted for the Pod")
}

async fn delete_pods(tenant: &Tenant, deed: &str) -> Result<()> {
    let [file, block] = [FILE, BLOCK].map(|claim| format!("{claim}-{deed}"));
    tokio::try_join!(tenant.delete_pod(&file), tenant.delete_pod(&block))?;
    Ok(())
}

/// Makes two Pods on a node, one for each claim.
async fn pods(tenant: &Tenant, (node, deed): (&str, &str), [file, block]: [&str; 2]) -> Result<()> {
    let two = [(FILE, View::Mount, file), (BLOCK, View::Device, block)];
    for (claim, view, command) in two {
        let workload = Workload {
            name: &format!("{claim}-{deed}"),
            node,
            claim,
            view,
            command,
        };
        tenant.run(&workload).await?;
    }
    Ok(())
}
