//! VMs that are gone or out of sight, and hosts that are dead or seem so: nothing is concluded without proof, and a volume is
//! never in two VMs.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod fences;
mod hosts;
mod returns;
mod vms;

use std::collections::BTreeSet;
use std::time::Duration;

use harness::csi::mount_capability;
use harness::process::built;
use harness::truth::{Truth, mutations};
use harness::world::{REGION, World, node_id, tenant};
use pve_sim::{ClockMode, SimHandle};
use serde_json::json;
use tokio::process::Command;
use tokio::time::sleep;
use tonic::{Code, Status};

const NONE: [String; 0] = [];
/// How much faster the simulator's time passes: a dead host costs 0.3 s, one that hangs 3 s.
const SPEED: u32 = 10;

/// Three hosts that share a storage, and these VMs on them.
async fn world(vms: &[(u32, &str)]) -> World {
    let builder = tenant(vms).node("pve3");
    let builder = builder.clock(ClockMode::Real { speed: SPEED });
    let mut world = World::without_controller(builder).await.unwrap();
    start(&mut world).await;
    world
}

/// One VM on each host.
async fn one_each() -> World {
    world(&[(101, "pve1"), (102, "pve2"), (103, "pve3")]).await
}

async fn start(world: &mut World) {
    let mut config = world.config();
    config["regions"][REGION]["nodes"] = json!(["pve1", "pve2", "pve3"]);
    world.start_controller_with(&config).await.unwrap();
}

/// Ends the controller as a crash would, and starts it again: it remembers nothing.
async fn restart(world: &mut World) {
    let process = world.controller.take().unwrap();
    process.kill().await.unwrap();
    start(world).await;
}

/// Runs `pvectl fence …` on the controller's fence file.
async fn pvectl(world: &World, line: &str) -> String {
    let file = world.folder().join("fences.yaml");
    let words = line.split(' ').filter(|word| !word.is_empty());
    let output = Command::new(built("pvectl").unwrap())
        .arg("fence")
        .args(words)
        .args(["--by", "operator-1", "--file"])
        .arg(file)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The answer to a publish that must fail, and that nothing was told to change.
async fn refused(world: &World, volume: &str, vmid: u32, code: Code) -> Status {
    world.sim.clear_requests();
    let id = node_id(vmid);
    let publish = world
        .caller()
        .publish_as(volume, &id, mount_capability())
        .await;
    let status = publish.unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    let changes = mutations(&world.sim.requests());
    assert_eq!(changes, NONE, "a refusal touches nothing");
    for word in ["pve3", "103", "fence"] {
        let message = status.message();
        assert!(
            !message.contains(word) || message.contains("worker-103"),
            "{message}"
        );
    }
    status
}

/// What PVE was asked about VMs on this host since the log was cleared.
fn questions(sim: &SimHandle, host: &str) -> Vec<String> {
    let below = format!("/nodes/{host}/qemu/");
    let paths = sim.requests().into_iter().map(|request| request.path);
    paths.filter(|path| path.contains(&below)).collect()
}

fn holders(world: &World, volume: &str) -> BTreeSet<u32> {
    Truth::of(&world.sim).holders(volume)
}

/// Runs the story and looks all the time that no more than one VM has the volume.
async fn never_in_two<T>(world: &World, volume: &str, story: impl Future<Output = T>) -> T {
    let mut story = std::pin::pin!(story);
    let mut looks = 0;
    loop {
        tokio::select! {
            outcome = &mut story => {
                assert!(looks > 0);
                return outcome;
            }
            () = sleep(Duration::from_millis(5)) => {
                looks += 1;
                let holders = holders(world, volume);
                assert!(holders.len() < 2, "{volume} is in {holders:?}");
            }
        }
    }
}
