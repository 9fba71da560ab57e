//! A network that carries nothing, with its connections open.

use std::net::SocketAddr;
use std::time::Duration;

use csi_proto::csi::v1::ProbeRequest;
use harness::caller::until_ok;
use harness::truth::Truth;
use harness::world::{FILES, REGION, World, tenant};
use pve_sim::{RequestEffect, RequestFault};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::Code;

use crate::{CONFIG, NONE};

/// Longer than the client waits for an answer (35 s).
const OUTAGE: Duration = Duration::from_secs(40);

/// What lies between the controller and PVE.
struct Network {
    address: SocketAddr,
    carries: watch::Sender<bool>,
}

impl Network {
    async fn to(pve: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (carries, gate) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&pve).await else {
                    continue;
                };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                tokio::spawn(carry(near_in, far_out, gate.clone()));
                tokio::spawn(carry(far_in, near_out, gate.clone()));
            }
        });
        Self { address, carries }
    }
}

/// One direction of a connection; what is not carried arrives late, as TCP repeats it.
async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut gate: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if gate.wait_for(|carries| *carries).await.is_err()
            || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}

/// A world whose controller reaches PVE over a network of ours.
async fn behind_a_network() -> (World, Network) {
    let mut world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let pve = world.sim.url().trim_start_matches("https://").to_owned();
    let network = Network::to(pve).await;
    let mut config = world.config();
    config["regions"][REGION]["endpoints"][0]["url"] =
        json!(format!("https://{}", network.address));
    world.start_controller_with(&config).await.unwrap();
    (world, network)
}

/// B29: nothing comes back, from the middle of a detach on. PVE does its part meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_in_the_middle_of_a_detach_leaves_nothing_stuck() {
    let (world, network) = behind_a_network().await;
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    caller.publish(&volume, 101).await.unwrap();
    let pid = world.controller.as_ref().unwrap().pid();
    world.sim.add_fault(RequestFault {
        method: "POST".to_owned(),
        path: CONFIG.to_owned(),
        nth: 1,
        times: 1,
        effect: RequestEffect::Hold,
    });
    let begin = Instant::now();
    let detach = tokio::spawn({
        let (caller, volume) = (caller.clone(), volume.clone());
        async move { caller.unpublish(&volume, 101).await }
    });
    let mut held = world.sim.held();
    held.wait_for(|list| !list.is_empty()).await.unwrap();
    network.carries.send_replace(false);
    world.sim.release();
    // What comes meanwhile is answered at once, and nobody restarts the Pod.
    let second = timeout(Duration::from_secs(2), caller.unpublish(&volume, 101)).await;
    assert_eq!(second.unwrap().unwrap_err().code(), Code::Aborted);
    let probe = timeout(
        Duration::from_secs(2),
        world.csi().identity().probe(ProbeRequest {}),
    )
    .await;
    assert_ne!(probe.unwrap().unwrap().into_inner().ready, Some(false));
    tokio::time::sleep(OUTAGE).await;
    network.carries.send_replace(true);
    let back = Instant::now();
    let answer = timeout(Duration::from_mins(1), detach)
        .await
        .unwrap()
        .unwrap();
    if let Err(status) = answer {
        let code = status.code();
        let again = [Code::Unavailable, Code::DeadlineExceeded, Code::Aborted];
        assert!(
            again.contains(&code),
            "{status:?} after {:?}",
            begin.elapsed()
        );
    }
    until_ok(Duration::from_secs(30), async || {
        caller.unpublish(&volume, 101).await
    })
    .await
    .unwrap();
    assert!(
        back.elapsed() < Duration::from_mins(1),
        "{:?}",
        back.elapsed()
    );
    assert_eq!(world.controller.as_ref().unwrap().pid(), pid);
    let truth = Truth::of(&world.sim);
    assert!(truth.holders(&volume).is_empty());
    assert_eq!(truth.violations(), NONE);
}
