//! Logins with a password, and what a ticket may do.

use std::sync::Arc;

use serde_json::json;

use super::{ROOT, World, cluster, grant};
use crate::acl::Who;
use crate::dispatch;
use crate::http::{Reply, Request};

const CONFIG: &str = "/api2/json/nodes/pve1/qemu/100/config";

async fn world() -> World {
    World::new(cluster().token(grant("csi@pve!tok", false, &[]))).await
}

/// A change of VM 100 that skips a lock, with the ticket in the cookie, percent-encoded as browsers send it.
async fn send(world: &World, ticket: String, csrf: Option<String>) -> Option<Reply> {
    let parts = CONFIG.split('/').filter(|part| !part.is_empty());
    let request = Request {
        method: "PUT".to_owned(),
        path: parts.map(str::to_owned).collect(),
        raw_path: CONFIG.to_owned(),
        query: crate::schema::RawParams::new(),
        authorization: None,
        cookie: Some(format!("PVEAuthCookie={}", ticket.replace(':', "%3A"))),
        csrf,
        content_type: Some("application/x-www-form-urlencoded".to_owned()),
        chunked: false,
        body: b"skiplock=1&description=x".to_vec(),
    };
    dispatch::answer(Arc::clone(&world.sim.sim), "pve1".to_owned(), request).await
}

#[tokio::test]
async fn a_ticket_is_root_itself_and_needs_its_csrf_token_to_change_anything() {
    let world = world().await;
    world.sim.edit(|state| {
        state.users.get_mut("root@pam").unwrap().password = Some("oracle".to_owned());
        state.users.get_mut("csi@pve").unwrap().enabled = false;
    });
    let wrong = world
        .call_as(
            "",
            "POST",
            "/access/ticket",
            "username=root@pam&password=no",
        )
        .await;
    assert_eq!(
        (wrong.0, &wrong.1["message"]),
        (401, &json!("authentication failure\n"))
    );
    let (status, body) = world
        .call_as(
            "",
            "POST",
            "/access/ticket",
            "username=root&realm=pam&password=oracle",
        )
        .await;
    let data = &body["data"];
    assert_eq!(
        (status, &data["cap"]["access"]["User.Modify"]),
        (200, &json!(1))
    );
    let text = |key: &str| data[key].as_str().unwrap().to_owned();
    let (ticket, csrf) = (text("ticket"), text("CSRFPreventionToken"));
    let reply = send(&world, ticket.clone(), None).await.unwrap();
    assert_eq!(
        (reply.status, reply.reason.as_str()),
        (401, "Permission denied - invalid csrf token")
    );
    let reply = send(&world, format!("{ticket}x"), Some(csrf.clone()))
        .await
        .unwrap();
    assert_eq!(
        (reply.status, reply.reason.as_str()),
        (401, "Authentication failed!")
    );
    // A token of root@pam may not skip a lock.
    let (status, body) = world.put("skiplock=1&description=x").await;
    assert_eq!(
        (status, &body["errors"]["skiplock"]),
        (400, &json!("Only root may use this option."))
    );
    assert_eq!(send(&world, ticket, Some(csrf)).await.unwrap().status, 200);
    let log = world.ok("GET", "/cluster/log?max=1", "").await;
    assert_eq!(log[0]["msg"], "successful auth for user 'root@pam'");
    assert!(!Who::parse(ROOT).is_root());
}
