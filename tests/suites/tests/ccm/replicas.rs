//! Several programs of which one writes, whatever ends or stands still.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm::{CcmWorld, Line, Numbers, Relay, registered, tenant};
use harness::cluster::objects::NAMESPACE;
use harness::cluster::{eventually, requirements};
use harness::process::Signal;
use harness::requirements::noted;
use harness::world::uuid;
use serde_json::Value;

use crate::alone;

/// A Lease of 15 s is taken over within this time.
const EXPIRED: Duration = Duration::from_secs(20);
/// And one that was given back, within this.
const RELEASED: Duration = Duration::from_secs(4);
/// How long the end may take.
const END: Duration = Duration::from_secs(5);
/// Of each Node: its addresses, then all else.
const WRITES: u32 = 2;
const FIRST: u32 = 1001;
const VMS: u32 = 200;

/// One of the programs.
#[derive(Debug, Clone, Copy)]
struct Replica {
    index: usize,
    admin: SocketAddr,
}

impl Replica {
    /// Starts one that reaches the management cluster by this kubeconfig.
    async fn start(world: &mut CcmWorld, management: &Path) -> Result<Self> {
        let config = world.config();
        let args = [
            "--leader-elect".to_owned(),
            format!("--lease-namespace={NAMESPACE}"),
            format!("--management-kubeconfig={}", management.display()),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let admin = world.launch_ccm(&config, &args)?;
        let index = world.ccms.len() - 1;
        eventually("the admin port", EXPIRED, async || {
            Ok(Numbers::of(admin).await.ok())
        })
        .await?;
        Ok(Self { index, admin })
    }

    async fn leads(self) -> Result<bool> {
        let numbers = Numbers::of(self.admin).await?;
        Ok(numbers.sum("proxmox_ccm_leading", &[]) == 1)
    }

    async fn takes_over(self, within: Duration) -> Result<Duration> {
        let ((), took) = eventually("the other one leads", within, async || {
            Ok(self.leads().await?.then_some(()))
        })
        .await?;
        Ok(took)
    }

    fn signal(self, world: &CcmWorld, signal: Signal) -> Result<()> {
        world
            .ccms
            .get(self.index)
            .context("no such program")?
            .signal(signal)
    }

    async fn ends(self, world: &mut CcmWorld, within: Duration) -> Result<ExitStatus> {
        let process = world.ccms.get_mut(self.index).context("no such program")?;
        let (status, _) = eventually("it ends", within, async || process.ended()).await?;
        Ok(status)
    }
}

/// Nodes of these VMs.
fn nodes(from: u32, to: u32) -> Vec<Value> {
    (FIRST + from..FIRST + to)
        .map(|vmid| registered(&format!("worker-{vmid}"), &uuid(vmid), true))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_writes_and_another_goes_on_when_it_ends_or_stands_still() -> Result<()> {
    let Some(programs) = requirements("ccm: one of several writes") else {
        return Ok(());
    };
    let _alone = alone().await;
    let names: Vec<(u32, &str)> = (FIRST..FIRST + VMS).map(|vmid| (vmid, "pve1")).collect();
    let mut world = CcmWorld::start(&programs, tenant(&names)).await?;
    let management = world.management().to_owned();
    let changes = world.record_changes().await?;

    let first = Replica::start(&mut world, &management).await?;
    first.takes_over(RELEASED).await?;
    let second = Replica::start(&mut world, &management).await?;
    let killed = killed_amid_work(&mut world, first, second).await?;
    let third = Replica::start(&mut world, &management).await?;
    let ended = told_to_end(&mut world, second, third).await?;
    stands_still(&mut world, &management, third).await?;
    changes.every_node_was_changed(WRITES, 110)?;
    let alone = cut_off(&mut world, &management).await?;
    eventually("all Nodes initialised", EXPIRED, async || {
        Ok(changes.every_node_was_changed(WRITES, 140).ok())
    })
    .await?;
    noted(&format!(
        "ccm: another one leads {:.1} s after kill -9, {:.1} s after SIGTERM, {:.1} s after the management cluster was gone",
        killed.as_secs_f64(),
        ended.as_secs_f64(),
        alone.as_secs_f64(),
    ));
    world.ccms.clear();
    world.stop().await
}

/// While Nodes register, who leads is killed.
async fn killed_amid_work(
    world: &mut CcmWorld,
    leader: Replica,
    other: Replica,
) -> Result<Duration> {
    let killing = async {
        world.initialised_all(leader.admin, 5).await?;
        leader.signal(world, Signal::SIGKILL)
    };
    tokio::try_join!(world.register_all(nodes(0, 60)), killing)?;
    let status = leader.ends(world, RELEASED).await?;
    ensure!(status.signal() == Some(9), "{status}");
    ensure!(!other.leads().await?, "two lead");
    let writes = Numbers::of(other.admin).await?.writes(None);
    ensure!(writes == 0, "one that does not lead has written");
    world.register_all(nodes(60, 80)).await?;
    let took = other.takes_over(EXPIRED).await?;
    world.initialised("worker-1080").await?;
    Ok(took)
}

/// Who leads gives the Lease back.
async fn told_to_end(world: &mut CcmWorld, leader: Replica, other: Replica) -> Result<Duration> {
    leader.signal(world, Signal::SIGTERM)?;
    let took = other.takes_over(RELEASED).await?;
    let status = leader.ends(world, RELEASED).await?;
    ensure!(status.success(), "{status}");
    world.register_all(nodes(80, 110)).await?;
    world.initialised("worker-1110").await?;
    Ok(took)
}

/// Who leads stands still until another leads, which is killed; then there is work, and the first one goes on: it must see
/// that it leads no more before it does any.
async fn stands_still(world: &mut CcmWorld, management: &Path, leader: Replica) -> Result<()> {
    leader.signal(world, Signal::SIGSTOP)?;
    let other = Replica::start(world, management).await?;
    other.takes_over(EXPIRED).await?;
    other.signal(world, Signal::SIGKILL)?;
    other.ends(world, RELEASED).await?;
    world.register_all(nodes(110, 140)).await?;
    leader.signal(world, Signal::SIGCONT)?;
    let status = leader.ends(world, RELEASED).await?;
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}

/// Who leads can't reach the management cluster any more: it ends before another leads. And when it is told to end then, it
/// does not wait for that.
async fn cut_off(world: &mut CcmWorld, management: &Path) -> Result<Duration> {
    let (relay, far) = Relay::of_kubeconfig(management, "far", Line::Open)?;
    let leader = Replica::start(world, &far).await?;
    leader.takes_over(EXPIRED).await?;
    let other = Replica::start(world, management).await?;
    relay.set(Line::Dead);
    let begin = tokio::time::Instant::now();
    let status = leader.ends(world, EXPIRED).await?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(!other.leads().await?, "two lead");
    other.takes_over(EXPIRED).await?;
    let took = begin.elapsed();
    relay.set(Line::Open);
    let last = Replica::start(world, &far).await?;
    other.signal(world, Signal::SIGTERM)?;
    last.takes_over(RELEASED).await?;
    relay.set(Line::Dead);
    last.signal(world, Signal::SIGTERM)?;
    let status = last.ends(world, END).await?;
    ensure!(status.success(), "{status}");
    Ok(took)
}
