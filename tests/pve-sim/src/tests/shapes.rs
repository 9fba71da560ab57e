use super::{ROOT, World, cluster};
use crate::ClockMode;
use std::time::Duration;

#[tokio::test]
async fn a_401_has_no_body_and_comes_after_three_seconds() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 100 })).await;
    for (who, reason) in [
        ("", "No ticket"),
        ("root@pam!nope", "Authentication failed!"),
        ("ghost@pve!x", "Authentication failed!"),
    ] {
        let before = world.sim.now();
        let reply = world.send(who, "GET", "/version", "").await.unwrap();
        assert_eq!(
            (reply.status, reply.reason.as_str(), reply.body.is_none()),
            (401, reason, true)
        );
        assert!(world.sim.now().checked_sub(before).unwrap() >= Duration::from_secs(3));
    }
}

#[tokio::test]
async fn expired_tokens_and_disabled_users_are_refused_alike() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 1000 })).await;
    world.sim.edit(|state| {
        state
            .users
            .get_mut("root@pam")
            .unwrap()
            .tokens
            .get_mut("full")
            .unwrap()
            .expire = 1;
    });
    assert_eq!(
        world
            .send(ROOT, "GET", "/version", "")
            .await
            .unwrap()
            .reason,
        "Authentication failed!"
    );
    world.sim.edit(|state| {
        let user = state.users.get_mut("root@pam").unwrap();
        user.tokens.get_mut("full").unwrap().expire = 0;
        user.enabled = false;
    });
    assert_eq!(
        world
            .send(ROOT, "GET", "/version", "")
            .await
            .unwrap()
            .status,
        401
    );
}

#[tokio::test]
async fn unknown_paths_and_methods_are_501() {
    let world = World::new(cluster()).await;
    for (method, path, text) in [
        ("GET", "/nosuch", "Method 'GET /nosuch' not implemented"),
        ("POST", "/version", "Method 'POST /version' not implemented"),
    ] {
        let reply = world.send(ROOT, method, path, "").await.unwrap();
        assert_eq!((reply.status, reply.reason.as_str()), (501, text));
    }
    let reply = world.send(ROOT, "PATCH", "/version", "").await.unwrap();
    assert_eq!(
        (reply.status, reply.reason.as_str()),
        (501, "method 'PATCH' not available")
    );
    let reply = world.send(ROOT, "DELETE", "/version", "a=1").await.unwrap();
    assert_eq!(
        (reply.status, reply.reason.as_str()),
        (501, "Unexpected content for method 'DELETE'")
    );
}

#[tokio::test]
async fn the_reason_is_the_first_line_of_the_message() {
    let world = World::new(cluster()).await;
    let reply = world
        .send(ROOT, "GET", "/nodes/pve1/qemu/777/config", "")
        .await
        .unwrap();
    assert_eq!(
        reply.reason,
        "Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist"
    );
}

#[tokio::test]
async fn unknown_parameters_are_refused_by_name() {
    let world = World::new(cluster()).await;
    let unknown =
        "property is not defined in schema and the schema does not allow additional properties";
    let (status, body) = world.call("GET", "/version?bogus=1", "").await;
    assert_eq!((status, &body["errors"]["bogus"]), (400, &unknown.into()));
    let (_, body) = world.put("scsi31=local:9999/vm-9999-a.raw").await;
    assert_eq!(body["errors"]["scsi31"], unknown);
    let (_, body) = world.put("node=pve2").await;
    assert_eq!(
        body["errors"]["node"],
        "duplicate parameter (already defined in URI) with conflicting values!"
    );
}

#[tokio::test]
async fn the_query_wins_over_the_body() {
    let world = World::new(cluster()).await;
    let path = "/nodes/pve1/storage/local/content?filename=query.raw";
    let data = world
        .ok("POST", path, "vmid=9999&size=1M&filename=body.raw")
        .await;
    assert_eq!(data, "local:9999/query.raw");
}

#[tokio::test]
async fn resources_lag_behind_the_truth_by_ten_seconds() {
    let world = World::new(cluster().clock(ClockMode::Stepped)).await;
    world.sim.stop_vm(100).unwrap();
    let status =
        || async { world.ok("GET", "/cluster/resources?type=vm", "").await[0]["status"].clone() };
    assert_eq!(status().await, "running");
    world.sim.advance(Duration::from_secs(10));
    assert_eq!(status().await, "stopped");
}
