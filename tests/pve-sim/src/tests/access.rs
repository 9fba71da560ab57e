//! Users, groups, roles, tokens and lists of rights, changed over the API; logins.

use serde_json::{Value, json};

use super::{ROOT, World, cluster, grant};

/// What a caller holds on a path, asked as root.
async fn held(world: &World, who: &str, path: &str) -> Value {
    let who = who.replace('!', "%21").replace('@', "%40");
    let body = world
        .ok(
            "GET",
            &format!("/access/permissions?userid={who}&path={path}"),
            "",
        )
        .await;
    body[path].clone()
}

async fn message(world: &World, who: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let (status, body) = world.call_as(who, method, path, body).await;
    let text = body["message"].as_str().unwrap_or_default();
    (status, text.trim_end().to_owned())
}

async fn world() -> World {
    let builder = cluster()
        .pool("tenant", &[100])
        .role("MIN", &["VM.Audit", "Datastore.Audit"])
        .token(grant("csi@pve!tok", true, &[("/pool/tenant", "MIN")]))
        .token(grant("admin@pve!tok", false, &[]));
    World::new(builder).await
}

#[tokio::test]
async fn a_role_of_a_group_reaches_its_members_until_they_leave_or_the_group_goes() {
    let world = world().await;
    world
        .ok(
            "POST",
            "/access/roles",
            "roleid=Seer&privs=VM.Audit,Sys.Audit",
        )
        .await;
    world
        .ok("POST", "/access/groups", "groupid=ops&comment=people")
        .await;
    world
        .ok(
            "POST",
            "/access/users",
            "userid=kim@pve&groups=ops&password=secret-one",
        )
        .await;
    world
        .ok("PUT", "/access/acl", "path=/vms&roles=Seer&groups=ops")
        .await;
    let on = |path: &'static str| held(&world, "kim@pve", path);
    assert_eq!(on("/vms/100").await, json!({"VM.Audit": 1, "Sys.Audit": 1}));
    world
        .ok("PUT", "/access/roles/Seer", "privs=VM.Clone&append=1")
        .await;
    assert_eq!(on("/vms/100").await["VM.Clone"], 1);
    // A role of one's own on the same path takes the place of the group's.
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/vms&roles=PVETemplateUser&users=kim@pve&propagate=0",
        )
        .await;
    assert_eq!(on("/vms").await, json!({"VM.Audit": 0, "VM.Clone": 0}));
    assert_eq!(on("/vms/100").await["Sys.Audit"], 1);
    let group = world.ok("GET", "/access/groups/ops", "").await;
    assert_eq!(group, json!({"members": ["kim@pve"], "comment": "people"}));
    world.ok("PUT", "/access/users/kim@pve", "groups=").await;
    assert_eq!(on("/vms/100").await, json!({}));
    world
        .ok("PUT", "/access/users/kim@pve", "groups=ops&append=1")
        .await;
    assert_eq!(on("/vms/100").await["VM.Audit"], 1);
    world.ok("DELETE", "/access/groups/ops", "").await;
    assert_eq!(on("/vms/100").await, json!({}));
}

/// Method, path, body of requests of root; status and first line of what comes back.
const REFUSED: &[(&str, &str, &str, u16, &str)] = &[
    (
        "POST",
        "/access/roles",
        "roleid=MIN",
        500,
        "create role failed: role 'MIN' already exists",
    ),
    (
        "PUT",
        "/access/roles/PVEAuditor",
        "privs=VM.Audit",
        500,
        "auto-generated role 'PVEAuditor' cannot be modified",
    ),
    (
        "DELETE",
        "/access/roles/nosuch",
        "",
        500,
        "delete role failed: role 'nosuch' does not exist",
    ),
    (
        "POST",
        "/access/users",
        "userid=csi@pve",
        500,
        "create user failed: user 'csi@pve' already exists",
    ),
    (
        "POST",
        "/access/users",
        "userid=a@pve&groups=none",
        500,
        "create user failed: no such group 'none'",
    ),
    (
        "GET",
        "/access/users/ghost@pve",
        "",
        500,
        "no such user ('ghost@pve')",
    ),
    (
        "POST",
        "/access/users/ghost@pve/token/xyz",
        "",
        403,
        "Permission check failed",
    ),
    (
        "GET",
        "/access/users/csi@pve/token/xyz",
        "",
        500,
        "no such token 'xyz' for user 'csi@pve'",
    ),
    (
        "PUT",
        "/access/acl",
        "path=/vms/100&roles=MIN&users=ghost@pve",
        500,
        "ACL update failed: user 'ghost@pve' does not exist",
    ),
    (
        "PUT",
        "/access/acl",
        "path=/vms/100&roles=MIN&tokens=csi@pve!none",
        500,
        "ACL update failed: no such token 'none' for user 'csi@pve'",
    ),
    (
        "PUT",
        "/access/acl",
        "path=/vms/100&roles=MIN",
        400,
        "Parameter verification failed.",
    ),
    (
        "PUT",
        "/access/acl",
        "path=/bogus&roles=MIN&users=csi@pve",
        400,
        "Parameter verification failed.",
    ),
    (
        "POST",
        "/pools",
        "poolid=tenant",
        500,
        "create pool failed: pool 'tenant' already exists",
    ),
    (
        "POST",
        "/pools",
        "poolid=no/child",
        500,
        "create pool failed: parent 'no' of pool 'no/child' does not exist",
    ),
    (
        "DELETE",
        "/pools/tenant",
        "",
        500,
        "delete pool failed: pool 'tenant' is not empty (contains VM 100)",
    ),
    (
        "POST",
        "/storage",
        "storage=thin&type=lvmthin&vgname=vg1&thinpool=data",
        500,
        "create storage failed: storage ID 'thin' already defined",
    ),
    (
        "POST",
        "/storage",
        "storage=new&type=dir",
        500,
        "missing value for required option 'path'",
    ),
    (
        "PUT",
        "/storage/local",
        "path=/x",
        400,
        "Parameter verification failed.",
    ),
    (
        "DELETE",
        "/storage/nosuch",
        "",
        500,
        "delete storage failed: storage 'nosuch' does not exist",
    ),
];

#[tokio::test]
async fn what_cannot_be_changed_is_refused_with_pves_words() {
    let world = world().await;
    for (method, path, body, status, text) in REFUSED {
        let got = message(&world, ROOT, method, path, body).await;
        assert_eq!(got, (*status, (*text).to_owned()), "{method} {path} {body}");
    }
}

#[tokio::test]
async fn without_the_right_to_modify_one_hands_out_no_more_than_one_has() {
    let world = world().await;
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/pool/tenant&roles=PVEPoolAdmin&users=admin@pve",
        )
        .await;
    let give = |role: &'static str| {
        let body = format!("path=/pool/tenant&roles={role}&users=csi@pve");
        let world = &world;
        async move {
            world
                .call_as("admin@pve!tok", "PUT", "/access/acl", &body)
                .await
        }
    };
    assert_eq!(give("PVEPoolUser").await.0, 200);
    let (status, body) = give("PVEVMAdmin").await;
    assert_eq!(status, 500);
    assert!(body["message"].as_str().unwrap().contains("role: Cannot add role 'PVEVMAdmin' - requires 'Permissions.Modify' or superset of privileges."), "{body}");
    assert_eq!(give("NoAccess").await.0, 500);
    let (status, text) = message(
        &world,
        "admin@pve!tok",
        "PUT",
        "/access/acl",
        "path=/vms/100&roles=PVEPoolUser&users=csi@pve",
    )
    .await;
    assert_eq!(
        (status, text.as_str()),
        (
            403,
            "Permission check failed (/vms/100, Permissions.Modify|VM.Allocate)"
        )
    );
    // Whoever may hand out rights on a path sees the list there.
    let (_, body) = world
        .call_as("admin@pve!tok", "GET", "/access/acl", "")
        .await;
    let paths: Vec<&str> = body["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["path"].as_str().unwrap())
        .collect();
    assert!(
        !paths.is_empty() && paths.iter().all(|path| *path == "/pool/tenant"),
        "{paths:?}"
    );
}

#[tokio::test]
async fn a_token_shares_propagation_with_its_user_and_a_storage_takes_roles_of_all_its_pools() {
    let world = world().await;
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/vms&roles=MIN&tokens=csi@pve!tok",
        )
        .await;
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/vms&roles=MIN&users=csi@pve&propagate=0",
        )
        .await;
    assert_eq!(held(&world, "csi@pve!tok", "/vms").await["VM.Audit"], 0);
    assert_eq!(held(&world, "csi@pve!tok", "/vms/101").await, json!({}));
    assert_eq!(held(&world, "csi@pve!gone", "/vms/100").await, json!({}));
    for pool in ["a", "z"] {
        world.ok("POST", "/pools", &format!("poolid={pool}")).await;
        world
            .ok("PUT", &format!("/pools/{pool}"), "storage=local")
            .await;
    }
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/pool/a&roles=PVEPoolUser&users=csi@pve",
        )
        .await;
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/pool/z&roles=PVEDatastoreUser&users=csi@pve",
        )
        .await;
    let on = || held(&world, "csi@pve", "/storage/local");
    assert_eq!(
        on().await,
        json!({"Pool.Audit": 0, "Datastore.AllocateSpace": 0, "Datastore.Audit": 0})
    );
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/pool/a&roles=NoAccess&users=csi@pve",
        )
        .await;
    assert_eq!(on().await, json!({}));
}

#[tokio::test]
async fn what_goes_takes_its_rights_with_it() {
    let world = world().await;
    let left = |path: &'static str| {
        let state = world.sim.state();
        state
            .acl
            .iter()
            .filter(|entry| entry.path == path || entry.subject == path)
            .count()
    };
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/storage/local&roles=MIN&users=csi@pve",
        )
        .await;
    world.ok("DELETE", "/storage/local", "").await;
    assert_eq!(left("/storage/local"), 0);
    world
        .ok("DELETE", "/access/users/csi@pve/token/tok", "")
        .await;
    assert_eq!(left("csi@pve!tok"), 0);
    assert_eq!(left("csi@pve"), 1);
    world.ok("DELETE", "/access/users/csi@pve", "").await;
    assert_eq!(left("csi@pve"), 0);
    world
        .ok("PUT", "/pools", "poolid=tenant&vms=100&delete=1")
        .await;
    world
        .ok(
            "PUT",
            "/access/acl",
            "path=/pool/tenant&roles=MIN&users=admin@pve",
        )
        .await;
    world.ok("DELETE", "/pools?poolid=tenant", "").await;
    assert_eq!(left("/pool/tenant"), 0);
}
