//! How many requests a PVE node works at, and what is checked before anything is done.

use std::time::Duration;

use super::{ROOT, World, cluster, grant};
use crate::faults::{RequestEffect, RequestFault};

/// Three requests wait for a VM's lock; the fourth waits for a worker, reads that pveproxy answers itself do not.
#[tokio::test]
async fn three_requests_that_wait_keep_all_workers_of_a_node_busy() {
    let world = World::new(cluster().vm(102, "pve1", "worker-c")).await;
    world
        .sim
        .hold_vm_lock(100, Duration::from_secs(5))
        .await
        .unwrap();
    let body = "description=x";
    let held = "/nodes/pve1/qemu/100/config";
    let slow = async {
        tokio::join!(
            world.call("PUT", held, body),
            world.call("PUT", held, body),
            world.call("PUT", held, body)
        )
    };
    let quick = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let free = "/nodes/pve1/qemu/102/config";
        let fourth = world.call("PUT", free, body);
        let waits = tokio::time::timeout(Duration::from_millis(100), fourth).await;
        let reads = world.ok("GET", free, "").await;
        let elsewhere = world.call("PUT", "/nodes/pve2/qemu/101/config", body).await;
        (waits.is_err(), reads["name"].clone(), elsewhere.0)
    };
    let (_, (waits, name, elsewhere)) = tokio::join!(
        async { tokio::time::timeout(Duration::from_secs(1), slow).await },
        quick
    );
    assert!(waits, "a fourth request found a worker");
    assert_eq!((name, elsewhere), ("worker-c".into(), 200));
}

#[tokio::test]
async fn parameters_are_checked_after_the_rights_and_before_the_code() {
    let world = World::new(cluster().token(grant("nobody@pve!t", false, &[]))).await;
    let content = "/nodes/pve1/storage/local/content";
    let (status, body) = world
        .call_as("nobody@pve!t", "POST", content, "bogus=1")
        .await;
    assert_eq!(status, 403, "{body}");
    let (status, body) = world
        .call(
            "POST",
            content,
            "bogus=1&vmid=100&size=1G&filename=x&vmid=101",
        )
        .await;
    assert_eq!(
        (status, &body["errors"]["vmid"]),
        (400, &"type check ('integer') failed - got ARRAY".into())
    );
    // An endpoint that the simulator has no code for is refused as PVE refuses it; only then it says so.
    let vnc = "/nodes/pve1/qemu/100/vncproxy";
    let (status, body) = world.call_as("nobody@pve!t", "POST", vnc, "").await;
    assert_eq!(
        (status, &body["message"]),
        (
            403,
            &"Permission check failed (/vms/100, VM.Console)\n".into()
        )
    );
    assert_eq!(world.call("POST", vnc, "websocket=2").await.0, 400);
    assert_eq!(world.call("POST", vnc, "").await.0, 501);
    // Everybody may ask for these, whoever he says that he is.
    assert_eq!(
        world
            .call_as("ghost@pve!t", "GET", "/access/domains", "")
            .await
            .0,
        200
    );
    let (status, body) = world
        .call_as(
            "ghost@pve!t",
            "POST",
            "/access/ticket",
            "username=a@pve&password=b",
        )
        .await;
    assert_eq!(status, 403, "{body}");
    world.sim.add_fault(RequestFault {
        method: "POST".into(),
        path: "/nodes/{node}/qemu/{vmid}/vncproxy".into(),
        nth: 1,
        times: 1,
        effect: RequestEffect::FailBefore {
            status: 500,
            message: "told so".into(),
        },
    });
    assert_eq!(world.call_as(ROOT, "POST", vnc, "").await.0, 500);
}
