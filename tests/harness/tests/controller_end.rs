//! The controller is told to end while PVE does not answer and somebody keeps a request to the admin port open.

use std::time::Duration;

use harness::caller::Caller;
use harness::csi::Csi;
use harness::process::{Process, built};
use harness::world::{FILES, World, free_port, tenant};
use nix::sys::signal::Signal;
use pve_sim::{RequestEffect, RequestFault};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// Kubernetes kills it 30 s after SIGTERM.
const END: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_in_time_although_pve_hangs_and_an_admin_request_never_ends() {
    let world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let (config, socket) = (world.folder().join("c.yaml"), world.controller_socket());
    std::fs::write(&config, world.config().to_string()).unwrap();
    let admin = free_port().unwrap();
    let arguments = [
        format!("--csi-address={}", socket.display()),
        format!("--cloud-config={}", config.display()),
        format!("--admin-address={admin}"),
    ];
    let program = built("pve-csi-controller").unwrap();
    let mut process = Process::start("controller", &program, &arguments, world.folder()).unwrap();
    let csi = Csi::at(&socket);
    csi.served_by(&mut process).await.unwrap();
    world.sim.add_fault(RequestFault {
        method: "POST".to_owned(),
        path: "/nodes/{node}/storage/{storage}/content".to_owned(),
        nth: 1,
        times: u32::MAX,
        effect: RequestEffect::Delay { ms: 3_600_000 },
    });
    let creating =
        tokio::spawn(async move { Caller::new(csi).create("pvc-1", FILES, Some("pve1")).await });
    // The simulator notes a request when it has answered it.
    sleep(Duration::from_secs(1)).await;
    let mut open = TcpStream::connect(admin).await.unwrap();
    open.write_all(b"GET /met").await.unwrap();
    let begun = Instant::now();
    process.signal(Signal::SIGTERM).unwrap();
    let status = loop {
        if let Some(status) = process.ended().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < END, "it still runs:\n{}", process.log());
        sleep(Duration::from_millis(50)).await;
    };
    assert!(status.success(), "{status}\n{}", process.log());
    assert!(
        begun.elapsed() > Duration::from_secs(14),
        "nothing had to be waited for"
    );
    assert!(creating.await.unwrap().is_err());
}
