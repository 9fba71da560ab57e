//! Two controllers of one tenant and the Lease between them: the one that has not got it says so and does nothing, and the
//! one that has lost it has written for the last time before the other writes for the first time.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use csi_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, GetCapacityRequest, GetPluginInfoRequest, ProbeRequest,
    ValidateVolumeCapabilitiesRequest,
};
use harness::caller::{Caller, SIZE, until_ok};
use harness::csi::{Csi, mount_capability};
use harness::extra_controller::ExtraController;
use harness::lease_stub::LeaseStub;
use harness::process::Signal;
use harness::requirements::noted;
use harness::truth::Truth;
use harness::world::{SHARED, World, tenant};
use pve_sim::{RequestEffect, RequestFault};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// A Lease of 15 s is taken over within this time, and one that was given back within the other.
const EXPIRED: Duration = Duration::from_secs(20);
const RELEASED: Duration = Duration::from_secs(5);

/// One of the controllers. It serves a VM of its own, and its volumes bear its name, so that the log of PVE says whose a
/// write was.
struct Replica {
    name: &'static str,
    vmid: u32,
    controller: ExtraController,
}

impl Replica {
    async fn start(world: &World, management: &LeaseStub, name: &'static str, vmid: u32) -> Self {
        let kubeconfig = management.kubeconfig(world.folder(), name).unwrap();
        let arguments = [
            "--leader-elect".to_owned(),
            "--lease-namespace=tenant-a".to_owned(),
            format!("--management-kubeconfig={}", kubeconfig.display()),
        ];
        let controller = world.extra_controller_with(name, &arguments).await.unwrap();
        Self {
            name,
            vmid,
            controller,
        }
    }

    fn csi(&self) -> Csi {
        Csi::at(&self.controller.socket)
    }

    async fn ready(&self) -> bool {
        let answer = self.csi().identity().probe(ProbeRequest {}).await;
        answer.unwrap().into_inner().ready.unwrap_or(true)
    }

    /// How long it took until it leads.
    async fn leads(&self, within: Duration) -> Duration {
        let begun = Instant::now();
        while !self.ready().await {
            assert!(begun.elapsed() < within, "{} does not lead", self.name);
            sleep(Duration::from_millis(20)).await;
        }
        begun.elapsed()
    }

    /// Its sidecars: they wait until it is ready, and then never rest.
    fn sidecars(&self) -> Sidecars {
        let (csi, name, vmid) = (self.csi(), self.name, self.vmid);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let probed = async || {
                let answer = csi.identity().probe(ProbeRequest {}).await;
                answer.is_ok_and(|answer| answer.into_inner().ready == Some(true))
            };
            while !probed().await {
                sleep(Duration::from_millis(20)).await;
            }
            let caller = Caller::new(csi.clone());
            let mut lives = 0;
            while !stopped.load(Ordering::Relaxed) {
                let volume = format!("pvc-{name}-{lives}");
                match whole_life(&caller, &volume, vmid).await {
                    Ok(()) => lives += 1,
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
            lives
        });
        Sidecars { stop, task }
    }

    fn signal(&self, signal: Signal) {
        self.controller.process.signal(signal).unwrap();
    }

    /// When it ended and with which code; none of a signal.
    async fn ends(&mut self, within: Duration) -> (Instant, Option<i32>) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.controller.process.ended().unwrap() {
                return (Instant::now(), status.code());
            }
            assert!(begun.elapsed() < within, "{} does not end", self.name);
            sleep(Duration::from_millis(10)).await;
        }
    }
}

struct Sidecars {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u32>,
}

impl Sidecars {
    /// How many volumes had a whole life.
    async fn end(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

async fn whole_life(caller: &Caller, name: &str, vmid: u32) -> Result<(), Status> {
    let volume = caller.create(name, SHARED, None).await?;
    caller.publish(&volume, vmid).await?;
    caller.unpublish(&volume, vmid).await?;
    caller.delete(&volume).await
}

async fn world() -> (World, LeaseStub) {
    let vms = [(101, "pve1"), (102, "pve2")];
    let world = World::without_controller(tenant(&vms)).await.unwrap();
    (world, LeaseStub::start().await.unwrap())
}

/// The numbers in PVE's log of the writes for a replica's VM and volumes.
fn writes(world: &World, replica: &Replica) -> Vec<u64> {
    let (vm, volume) = (
        format!("/qemu/{}/", replica.vmid),
        format!("pvc-{}-", replica.name),
    );
    let about = |text: &str| text.contains(&vm) || text.contains(&volume);
    let requests = world.sim.requests().into_iter();
    requests
        .filter(|request| request.method != "GET")
        .filter(|request| about(&request.path) || request.params.values().any(|value| about(value)))
        .map(|request| request.seq)
        .collect()
}

/// Each wrote, and one after the other.
fn one_after_the_other(world: &World, first: &Replica, second: &Replica) {
    let (before, after) = (writes(world, first), writes(world, second));
    let (last, next) = (before.last().unwrap(), after.first().unwrap());
    assert!(last < next, "{} wrote {last} after {next}", first.name);
}

/// All that a controller of the tenant has made is in order once the one that is left has gone over it.
async fn all_ends_well(world: &World, replica: &Replica, others: &Replica) {
    let caller = &replica.controller.caller;
    for disk in Truth::of(&world.sim).disks() {
        let volume = format!("r1//{}", disk.replacen(':', "/", 1));
        let limit = Duration::from_mins(1);
        until_ok(limit, async || caller.unpublish(&volume, others.vmid).await)
            .await
            .unwrap();
        until_ok(limit, async || {
            caller.unpublish(&volume, replica.vmid).await
        })
        .await
        .unwrap();
        until_ok(limit, async || caller.delete(&volume).await)
            .await
            .unwrap();
    }
    let truth = Truth::of(&world.sim);
    assert!(truth.disks().is_empty(), "{:?}", truth.disks());
    let wrong = truth.violations();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_waits_says_so_and_refuses_everything_else_without_a_request_to_pve() {
    let (world, management) = world().await;
    let first = Replica::start(&world, &management, "one", 101).await;
    first.leads(RELEASED).await;
    let second = Replica::start(&world, &management, "two", 102).await;
    let volume = first.controller.caller.create("pvc-x", SHARED, None).await;
    let volume = volume.unwrap();
    world.sim.clear_requests();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert!(!second.ready().await);
        for (rpc, refused) in every_rpc(&second, &volume).await {
            assert_eq!(refused.code(), Code::Unavailable, "{rpc}: {refused:?}");
            assert!(refused.message().contains("another controller"), "{rpc}");
        }
        let mut identity = second.csi().identity();
        let info = identity.get_plugin_info(GetPluginInfoRequest {}).await;
        let name = info.unwrap().into_inner().name;
        assert_eq!(name, "csi.proxmox.sinextra.dev");
    }
    let sent = world.sim.requests();
    assert!(sent.is_empty(), "{sent:?}");
    assert!(first.ready().await);
    first.controller.caller.delete(&volume).await.unwrap();
}

async fn every_rpc(replica: &Replica, volume: &str) -> Vec<(&'static str, Status)> {
    let (caller, vmid) = (&replica.controller.caller, replica.vmid);
    let mut controller = replica.csi().controller();
    let confirm = ValidateVolumeCapabilitiesRequest {
        volume_id: volume.to_owned(),
        volume_capabilities: vec![mount_capability()],
        ..Default::default()
    };
    let capacity = GetCapacityRequest {
        parameters: HashMap::from([("storage".to_owned(), SHARED.to_owned())]),
        ..Default::default()
    };
    let capabilities = ControllerGetCapabilitiesRequest {};
    vec![
        (
            "create",
            caller.create("pvc-y", SHARED, None).await.unwrap_err(),
        ),
        ("publish", caller.publish(volume, vmid).await.unwrap_err()),
        (
            "unpublish",
            caller.unpublish(volume, vmid).await.unwrap_err(),
        ),
        ("expand", caller.expand(volume, SIZE * 2).await.unwrap_err()),
        ("delete", caller.delete(volume).await.unwrap_err()),
        // What is no handle would be gone by definition.
        ("delete nothing", caller.delete("x").await.unwrap_err()),
        (
            "validate",
            controller
                .validate_volume_capabilities(confirm)
                .await
                .unwrap_err(),
        ),
        (
            "capacity",
            controller.get_capacity(capacity).await.unwrap_err(),
        ),
        (
            "capabilities",
            controller
                .controller_get_capabilities(capabilities)
                .await
                .unwrap_err(),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn another_goes_on_after_kill_9_and_after_sigterm() {
    let (world, management) = world().await;
    let mut first = Replica::start(&world, &management, "one", 101).await;
    first.leads(RELEASED).await;
    let mut second = Replica::start(&world, &management, "two", 102).await;
    let (of_first, of_second) = (first.sidecars(), second.sidecars());
    sleep(Duration::from_secs(2)).await;
    first.signal(Signal::SIGKILL);
    let killed = second.leads(EXPIRED).await;
    first.ends(RELEASED).await;
    of_first.end().await;
    sleep(Duration::from_secs(1)).await;
    one_after_the_other(&world, &first, &second);

    let third = Replica::start(&world, &management, "three", 101).await;
    assert!(!third.ready().await);
    let of_third = third.sidecars();
    let before = world.sim.requests().len();
    second.signal(Signal::SIGTERM);
    let ended = third.leads(RELEASED).await;
    let (_, code) = second.ends(RELEASED).await;
    assert_eq!(code, Some(0));
    assert!(of_second.end().await > 0);
    sleep(Duration::from_secs(1)).await;
    assert!(world.sim.requests().len() > before);
    let (of_two, of_three) = (writes(&world, &second), volumes_of(&world, "three"));
    assert!(of_two.last().unwrap() < of_three.first().unwrap());
    assert!(of_third.end().await > 0);
    all_ends_well(&world, &third, &second).await;
    noted(&format!(
        "controller: another one is ready {:.1} s after kill -9 and {:.1} s after SIGTERM",
        killed.as_secs_f64(),
        ended.as_secs_f64()
    ));
}

/// Writes that name a volume of that replica: VM 101 was another's before.
fn volumes_of(world: &World, name: &str) -> Vec<u64> {
    let volume = format!("pvc-{name}-");
    let requests = world.sim.requests().into_iter();
    requests
        .filter(|request| request.method != "GET")
        .filter(|request| {
            let mut texts = request.params.values().chain([&request.path]);
            texts.any(|text| text.contains(&volume))
        })
        .map(|request| request.seq)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_can_not_renew_the_lease_has_ended_before_another_begins() {
    let (world, management) = world().await;
    let mut first = Replica::start(&world, &management, "one", 101).await;
    first.leads(RELEASED).await;
    let second = Replica::start(&world, &management, "two", 102).await;
    let (of_first, of_second) = (first.sidecars(), second.sidecars());
    sleep(Duration::from_secs(2)).await;
    management.cut("one");
    let cut = Instant::now();
    let (ending, took) = tokio::join!(first.ends(EXPIRED), second.leads(EXPIRED));
    let (ended, code) = (ending.0.duration_since(cut), ending.1);
    assert_eq!(code, Some(1));
    assert!(
        ended < took,
        "ended after {ended:?}, the other began after {took:?}"
    );
    assert!(of_first.end().await > 0);
    sleep(Duration::from_secs(1)).await;
    one_after_the_other(&world, &first, &second);
    assert!(of_second.end().await > 0);
    all_ends_well(&world, &second, &first).await;
    noted(&format!(
        "controller: without the management cluster it has ended after {:.1} s, and another one is ready after {:.1} s",
        ended.as_secs_f64(),
        took.as_secs_f64()
    ));
}

/// It stands still between the look at the storages and the allocation: what it does next when it goes on must not be that.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_stood_still_amid_an_rpc_writes_no_more_when_it_goes_on() {
    let (world, management) = world().await;
    let mut first = Replica::start(&world, &management, "one", 101).await;
    first.leads(RELEASED).await;
    let second = Replica::start(&world, &management, "two", 102).await;
    world.sim.add_fault(RequestFault {
        method: "GET".to_owned(),
        path: "/cluster/resources".to_owned(),
        nth: 1,
        times: 1,
        effect: RequestEffect::Delay { ms: 1500 },
    });
    let caller = first.controller.caller.clone();
    let creating = tokio::spawn(async move { caller.create("pvc-one-0", SHARED, None).await });
    sleep(Duration::from_millis(700)).await;
    assert_eq!(world.sim.faults_left(), 0, "it has asked");
    first.signal(Signal::SIGSTOP);
    second.leads(EXPIRED).await;
    first.signal(Signal::SIGCONT);
    let (_, code) = first.ends(RELEASED).await;
    assert_eq!(code, Some(1));
    assert!(creating.await.unwrap().is_err());
    let written = writes(&world, &first);
    assert!(written.is_empty(), "{written:?}");
    assert!(Truth::of(&world.sim).disks().is_empty());
}
