use super::{ROOT, World, cluster};
use crate::{ClockMode, Health, RequestEffect, RequestFault, TaskEffect, TaskFault};
use std::time::Duration;

const CONTENT: &str = "/nodes/{node}/storage/{storage}/content";

fn fault(effect: RequestEffect) -> RequestFault {
    RequestFault {
        method: "POST".into(),
        path: CONTENT.into(),
        nth: 1,
        times: 1,
        effect,
    }
}

fn count(world: &World) -> usize {
    world.sim.state().volumes.len()
}

#[tokio::test]
async fn a_lost_reply_has_its_effect_and_a_lost_request_has_none() {
    let world = World::new(cluster()).await;
    let before = count(&world);
    let post = || {
        world.send(
            ROOT,
            "POST",
            "/nodes/pve1/storage/local/content",
            "vmid=9999&size=1M&filename=x.raw",
        )
    };
    world.sim.add_fault(fault(RequestEffect::LostRequest));
    assert!(post().await.is_none());
    assert_eq!(count(&world), before);
    world.sim.add_fault(fault(RequestEffect::LostReply));
    assert!(post().await.is_none());
    assert_eq!(count(&world), before + 1);
    assert_eq!(world.sim.requests().last().unwrap().status, 0);
}

#[tokio::test]
async fn slow_work_is_cut_by_the_proxy_at_thirty_seconds_and_goes_on() {
    let world = World::new(cluster().clock(ClockMode::Stepped)).await;
    let before = count(&world);
    world
        .sim
        .add_fault(fault(RequestEffect::Delay { ms: 40_000 }));
    let post = world.send(
        ROOT,
        "POST",
        "/nodes/pve1/storage/local/content",
        "vmid=9999&size=1M&filename=x.raw",
    );
    let step = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.sim.advance(Duration::from_secs(30));
    };
    let (reply, ()) = tokio::join!(post, step);
    let reply = reply.unwrap();
    assert_eq!(
        (reply.status, reply.reason.as_str(), reply.body.is_none()),
        (596, "Connection timed out", true)
    );
    assert_eq!(count(&world), before);
    world.sim.advance(Duration::from_secs(10));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(count(&world), before + 1);
}

#[tokio::test]
async fn a_held_request_stands_before_or_after_its_effect_until_it_is_let_go() {
    let world = World::new(cluster()).await;
    let mut disks = count(&world);
    for (effect, made_while_held) in [(RequestEffect::Hold, 0), (RequestEffect::HoldReply, 1)] {
        world.sim.add_fault(fault(effect));
        let form = format!("vmid=9999&size=1M&filename=h{made_while_held}.raw");
        let post = world.send(ROOT, "POST", "/nodes/pve1/storage/local/content", &form);
        let letting_go = async {
            let mut held = world.sim.held();
            let seen = held.wait_for(|held| !held.is_empty()).await.unwrap();
            assert_eq!(*seen, [format!("POST {CONTENT}")]);
            drop(seen);
            let made = count(&world) - disks;
            world.sim.release();
            made
        };
        let (reply, made) = tokio::join!(post, letting_go);
        assert_eq!((reply.unwrap().status, made), (200, made_while_held));
        disks += 1;
        assert_eq!(count(&world), disks);
        assert!(world.sim.held().borrow().is_empty());
    }
}

#[tokio::test]
async fn a_held_task_runs_until_it_is_let_go() {
    let world = World::new(cluster()).await;
    let before = count(&world);
    world.sim.add_task_fault(TaskFault {
        task: "imgdel".into(),
        id: None,
        nth: 1,
        times: 1,
        effect: TaskEffect::Hold,
    });
    let path = "/nodes/pve1/storage/local/content/local:9999/vm-9999-a.raw";
    let upid = world.ok("DELETE", path, "").await;
    let upid = upid.as_str().unwrap();
    let mut held = world.sim.held();
    let seen = held.wait_for(|held| !held.is_empty()).await.unwrap();
    assert_eq!(*seen, [upid]);
    drop(seen);
    let status = format!("/nodes/pve1/tasks/{upid}/status");
    assert_eq!(world.ok("GET", &status, "").await["status"], "running");
    assert_eq!(count(&world), before);
    world.sim.release();
    assert_eq!(world.exit(&upid.into()).await, "OK");
    assert_eq!(count(&world), before - 1);
}

#[tokio::test]
async fn tasks_fail_warn_vanish_and_die_as_told() {
    let world = World::new(cluster()).await;
    for (effect, verdict) in [
        (
            TaskEffect::Fail {
                text: "boom".into(),
            },
            "boom",
        ),
        (TaskEffect::Warn { count: 2 }, "WARNINGS: 2"),
        (TaskEffect::Kill, "unexpected status"),
        (TaskEffect::Vanish, ""),
    ] {
        world.sim.add_task_fault(TaskFault {
            task: "imgdel".into(),
            id: Some("9999@local".into()),
            nth: 1,
            times: 1,
            effect,
        });
        let upid = world
            .ok(
                "DELETE",
                "/nodes/pve1/storage/local/content/local:9999/vm-9999-a.raw",
                "",
            )
            .await;
        world.exit(&upid).await;
        let (status, body) = world
            .call(
                "GET",
                &format!("/nodes/pve1/tasks/{}/status", upid.as_str().unwrap()),
                "",
            )
            .await;
        if verdict.is_empty() {
            assert_eq!(
                (status, &body["errors"]["upid"]),
                (400, &"no such task".into())
            );
        } else {
            assert_eq!(
                (status, &body["data"]["exitstatus"]),
                (200, &verdict.into())
            );
        }
    }
}

#[tokio::test]
async fn a_dead_node_answers_595_and_a_hung_one_596() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 500 })).await;
    world.sim.node_health("pve2", Health::Offline);
    let reply = world
        .send(ROOT, "GET", "/nodes/pve2/qemu/101/config", "")
        .await
        .unwrap();
    assert_eq!(
        (reply.status, reply.reason.as_str(), reply.body.is_none()),
        (595, "No route to host", true)
    );
    let nodes = world.ok("GET", "/cluster/resources?type=node", "").await;
    assert_eq!(nodes[1]["status"], "offline");
    assert!(nodes[1].get("maxmem").is_some() && nodes[1].get("mem").is_none());
    // Its VMs and storages stay as they were last told, for five minutes.
    let storages = world.ok("GET", "/cluster/resources?type=storage", "").await;
    assert!(
        storages
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["status"] == "available")
    );
    world.sim.advance(Duration::from_mins(5));
    let vms = world.ok("GET", "/cluster/resources?type=vm", "").await;
    assert_eq!(
        (&vms[0]["status"], &vms[1]["status"]),
        (&"running".into(), &"unknown".into())
    );
    world.sim.node_health("pve2", Health::Hung);
    let reply = world
        .send(ROOT, "GET", "/nodes/pve2/qemu/101/config", "")
        .await
        .unwrap();
    assert_eq!(
        (reply.status, reply.reason.as_str()),
        (596, "Connection timed out")
    );
}

#[tokio::test]
async fn an_unreachable_api_refuses_connections_and_comes_back_at_the_same_port() {
    let world = World::new(cluster().insecure_http()).await;
    let address = world.sim.url().trim_start_matches("http://").to_owned();
    assert!(tokio::net::TcpStream::connect(&address).await.is_ok());
    world.sim.set_reachable(false);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
    world.sim.set_reachable(true);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(tokio::net::TcpStream::connect(&address).await.is_ok());
}

#[tokio::test]
async fn the_request_log_counts_by_template() {
    let world = World::new(cluster()).await;
    world.ok("GET", "/nodes/pve1/qemu/100/config", "").await;
    world.ok("GET", "/nodes/pve2/qemu/101/config", "").await;
    assert_eq!(
        world.sim.request_counts()["GET /nodes/{node}/qemu/{vmid}/config"],
        2
    );
    assert_eq!(world.sim.requests()[0].caller, ROOT);
}
