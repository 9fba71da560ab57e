//! One simulator with one controller that serves many cases: with disks and VMs of others around that must never change.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pve_sim::{Builder, State};
use tokio::time::{Instant, sleep};

use super::invariants::{self, differs, foreign};
use super::{Answer, Rpc, Volume};
use crate::caller::Caller;
use crate::extra_controller::ExtraController;
use crate::world::{SHARED, THIN, World, tenant};

/// The VM to which most volumes are attached.
pub const VM: u32 = 101;
/// The other worker.
pub const OTHER_VM: u32 = 102;
/// The host of [`VM`].
pub const HOST: &str = "pve1";
/// The host of [`OTHER_VM`].
pub const OTHER_HOST: &str = "pve2";
/// The owner of another tenant's disks.
const OTHERS: &str = "9998";
/// How long a new controller may take to say hello to PVE.
const HELLO: Duration = Duration::from_secs(5);

/// A world, what is normal in it, and what must stay.
#[derive(Debug)]
pub struct Lane {
    /// The simulator and the controller.
    pub world: World,
    /// The requests that each RPC makes if nothing goes wrong.
    pub normal: BTreeMap<Rpc, Normal>,
    /// One more controller with the same config, once it was wanted.
    pub second: Option<ExtraController>,
    before: State,
    number: usize,
    volumes: u32,
}

/// How many requests an RPC makes: a list of guests may be shared with the RPC before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Normal {
    /// At least.
    pub least: usize,
    /// At most.
    pub most: usize,
}

/// The tenant's two workers, one of them with disks of its administrator, and another tenant's VM and disks.
pub fn cluster() -> Builder {
    let uuid = |vmid: u32| format!("uuid={}", crate::world::uuid(vmid));
    let worker = uuid(VM);
    let worker = [
        ("name", "worker-101"),
        ("memory", "2048"),
        ("scsihw", "virtio-scsi-single"),
        ("smbios1", &worker),
        ("boot", "order=scsi0"),
        ("scsi0", "shared:101/vm-101-disk-0.raw,size=1G"),
        ("scsi2", "shared:101/vm-101-disk-1.raw,size=1G"),
    ];
    let stranger = [
        ("name", "stranger"),
        ("scsihw", "virtio-scsi-single"),
        ("scsi0", "shared:201/vm-201-disk-0.raw,size=1G"),
        ("scsi1", "shared:9998/vm-9998-pvc-a.raw,size=1G"),
    ];
    let gib = 1 << 30;
    let thin = format!("vm-{OTHERS}-pvc-c");
    tenant(&[(VM, HOST), (OTHER_VM, OTHER_HOST)])
        .volume(SHARED, None, "101/vm-101-disk-0.raw", gib)
        .volume(SHARED, None, "101/vm-101-disk-1.raw", gib)
        .volume(SHARED, None, "201/vm-201-disk-0.raw", gib)
        .volume(SHARED, None, "9998/vm-9998-pvc-a.raw", gib)
        .volume(SHARED, None, "9998/vm-9998-pvc-b.raw", gib)
        .volume(THIN, Some(HOST), &thin, gib)
        .vm_with(VM, HOST, &worker, true)
        .vm_with(201, HOST, &stranger, true)
        .pool("tenant-b", &[201, 9998])
}

impl Lane {
    /// Starts it, and learns what is normal.
    pub async fn new(number: usize) -> Result<Self> {
        let world = World::start(cluster()).await?;
        let mut lane = Self {
            before: foreign(&world.sim),
            world,
            normal: BTreeMap::new(),
            second: None,
            number,
            volumes: 0,
        };
        lane.settled().await?;
        for _ in 0..2 {
            lane.learn().await?;
        }
        Ok(lane)
    }

    /// Another world in the place of one in which something went wrong.
    pub async fn renew(&mut self) -> Result<()> {
        *self = Self::new(self.number).await?;
        Ok(())
    }

    /// Calls to a second controller at work on the same PVE cluster.
    pub async fn second(&mut self) -> Result<Caller> {
        if let Some(second) = &self.second {
            return Ok(second.caller.clone());
        }
        self.world.sim.clear_requests();
        let second = self.world.extra_controller("second").await?;
        let caller = second.caller.clone();
        self.second = Some(second);
        self.settled().await?;
        Ok(caller)
    }

    /// A volume that is not there yet.
    pub fn volume(&mut self) -> Volume {
        self.volumes += 1;
        Volume {
            name: format!("pvc-{}-{}", self.number, self.volumes),
            storage: SHARED,
            zone: None,
            vmid: VM,
            handle: String::new(),
            bytes: 0,
        }
    }

    /// Calls to the controller.
    pub fn caller(&self) -> Caller {
        self.world.caller()
    }

    async fn learn(&mut self) -> Result<()> {
        let mut volume = self.volume();
        for rpc in Rpc::LIFE {
            self.world.sim.clear_requests();
            self.calm(&mut volume, rpc).await?;
            let requests = self.world.sim.requests();
            let made = requests.len();
            // One that was shared with the RPC before is missing here.
            let listed = requests.iter().any(|r| r.template == "/cluster/resources");
            let normal = self.normal.entry(rpc).or_insert(Normal {
                least: made,
                most: made,
            });
            normal.least = normal.least.min(made);
            normal.most = normal.most.max(made + usize::from(!listed));
        }
        self.clean()
    }

    /// An RPC at which nothing goes wrong: it has to say OK at once.
    pub async fn calm(&self, volume: &mut Volume, rpc: Rpc) -> Result<Answer> {
        let answer = volume.call(&self.caller(), rpc).await;
        let answer = answer.with_context(|| format!("{rpc:?} with nothing wrong"))?;
        let broken = invariants::broken(&self.world.sim, volume, rpc.stage(), &answer);
        ensure!(
            broken.is_empty(),
            "{rpc:?} with nothing wrong: {}",
            broken.join("; ")
        );
        Ok(answer)
    }

    /// Fails unless nothing is left of a case, and all that belongs to others is as it was.
    pub fn clean(&self) -> Result<()> {
        let changed = differs(&self.before, &foreign(&self.world.sim));
        ensure!(changed.is_empty(), "{}", changed.join("; "));
        Ok(())
    }

    /// Ends the controller as a crash would.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(controller) = self.world.controller.take() {
            controller.kill().await?;
        }
        Ok(())
    }

    /// Ends the controller as a crash would, if it runs, and starts it again.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill().await?;
        self.world.sim.clear_requests();
        self.world.start_controller().await?;
        self.settled().await
    }

    /// A controller asks PVE about its owner when it starts: no request of any RPC.
    async fn settled(&self) -> Result<()> {
        let deadline = Instant::now() + HELLO;
        let hello = || {
            let requests = self.world.sim.requests();
            requests.iter().any(|r| r.template == "/cluster/nextid")
        };
        while !hello() {
            if Instant::now() > deadline {
                bail!("the controller did not ask PVE anything when it started");
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}
