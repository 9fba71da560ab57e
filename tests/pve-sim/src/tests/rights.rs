use super::{World, cluster, grant};

const CSI: &[&str] = &[
    "VM.Audit",
    "VM.Config.Disk",
    "Datastore.Allocate",
    "Datastore.AllocateSpace",
    "Datastore.Audit",
];
const MIN: &[&str] = &[
    "VM.Audit",
    "VM.Config.Disk",
    "Datastore.AllocateSpace",
    "Datastore.Audit",
];

async fn held(world: &World, path: &str) -> serde_json::Value {
    let (_, body) = world
        .call_as(
            "csi@pve!t",
            "GET",
            &format!("/access/permissions?path={path}"),
            "",
        )
        .await;
    body["data"][path].clone()
}

#[tokio::test]
async fn pool_roles_reach_member_vms_storages_and_vmids_that_have_no_vm() {
    let builder = cluster()
        .pool("tenant", &[100, 9999])
        .role("MIN", MIN)
        .token(grant("csi@pve!t", true, &[("/pool/tenant", "MIN")]));
    let world = World::new(builder).await;
    let held = |path: &'static str| held(&world, path);
    assert_eq!(held("/vms/9999").await["VM.Config.Disk"], 0);
    assert_eq!(held("/vms/101").await, serde_json::json!({}));
    world.sim.edit(|state| {
        state
            .pools
            .get_mut("tenant")
            .unwrap()
            .storages
            .insert("local".into())
    });
    assert_eq!(held("/storage/local").await["Datastore.AllocateSpace"], 0);
    assert_eq!(held("/storage/thin").await, serde_json::json!({}));
}

#[tokio::test]
async fn a_privilege_separated_token_has_no_more_than_its_user_and_no_more_than_itself() {
    let builder = cluster()
        .role("CSI", CSI)
        .role("MIN", MIN)
        .token(grant("csi@pve!t", true, &[]));
    let world = World::new(builder).await;
    let acl = |subject: &str, role: &str| crate::AclEntry {
        path: "/storage/local".into(),
        subject: subject.into(),
        role: role.into(),
        propagate: true,
    };
    let size = || {
        world.call_as(
            "csi@pve!t",
            "DELETE",
            "/nodes/pve1/storage/local/content/local:9999/vm-9999-a.raw?delay=5",
            "",
        )
    };
    world
        .sim
        .edit(|state| state.acl.push(acl("csi@pve!t", "CSI")));
    assert_eq!(size().await.0, 403);
    world
        .sim
        .edit(|state| state.acl.push(acl("csi@pve", "MIN")));
    let (status, body) = size().await;
    assert_eq!(
        (status, &body["message"]),
        (
            403,
            &"Permission check failed (/storage/local, Datastore.Allocate)\n".into()
        )
    );
    world
        .sim
        .edit(|state| state.acl.last_mut().unwrap().role = "CSI".into());
    assert_eq!(size().await.0, 200);
}

#[tokio::test]
async fn a_deeper_acl_replaces_what_is_inherited_and_no_access_wipes_it() {
    let builder = cluster().role("CSI", CSI).token(grant(
        "csi@pve!t",
        false,
        &[
            ("/vms", "CSI"),
            ("/vms/100", "PVEVMUser"),
            ("/vms/101", "NoAccess"),
        ],
    ));
    let world = World::new(builder).await;
    let held = |path: &'static str| held(&world, path);
    assert!(held("/vms/100").await.get("VM.Config.Disk").is_none());
    assert_eq!(held("/vms/100").await["VM.PowerMgmt"], 1);
    assert_eq!(held("/vms/101").await, serde_json::json!({}));
    assert_eq!(held("/vms/102").await["VM.Config.Disk"], 1);
}

#[tokio::test]
async fn attaching_another_tenants_volume_needs_disk_rights_on_its_owner() {
    let builder = cluster()
        .pool("tenant", &[100])
        .role("MIN", MIN)
        .token(grant(
            "csi@pve!t",
            true,
            &[("/pool/tenant", "MIN"), ("/storage/local", "MIN")],
        ));
    let world = World::new(builder).await;
    let attach =
        |body: &'static str| world.call_as("csi@pve!t", "PUT", "/nodes/pve1/qemu/100/config", body);
    let (status, body) = attach("scsi1=local:9999/vm-9999-a.raw").await;
    assert_eq!(
        (status, &body["message"]),
        (
            403,
            &"Permission check failed (/vms/9999, VM.Config.Disk)\n".into()
        )
    );
    assert_eq!(attach("scsi1=local:100/vm-100-disk-0.raw").await.0, 200);
    world
        .sim
        .edit(|state| state.pools.get_mut("tenant").unwrap().vms.insert(9999));
    assert_eq!(attach("scsi1=local:9999/vm-9999-a.raw").await.0, 200);
}

#[tokio::test]
async fn what_is_not_permitted_is_refused_before_it_is_known_to_exist() {
    let world = World::new(cluster().token(grant("nobody@pve!t", false, &[]))).await;
    let (status, body) = world
        .call_as("nobody@pve!t", "GET", "/nodes/pve9/qemu/777/config", "")
        .await;
    assert_eq!(
        (status, &body["message"]),
        (
            403,
            &"Permission check failed (/vms/777, VM.Audit)\n".into()
        )
    );
    let (_, body) = world.call("GET", "/nodes/pve9/qemu/777/config", "").await;
    assert_eq!(
        body["message"],
        "hostname lookup 'pve9' failed - failed to get address info for: pve9: Name or service not known\n"
    );
}

#[tokio::test]
async fn nextid_tells_of_invisible_vms() {
    let world = World::new(cluster().token(grant("nobody@pve!t", false, &[]))).await;
    let (status, body) = world
        .call_as("nobody@pve!t", "GET", "/cluster/nextid?vmid=100", "")
        .await;
    assert_eq!(
        (status, &body["errors"]["vmid"]),
        (400, &"VM 100 already exists".into())
    );
    assert_eq!(
        world.ok("GET", "/cluster/nextid?vmid=9999", "").await,
        "9999"
    );
    assert_eq!(world.ok("GET", "/cluster/nextid", "").await, 102);
}

#[tokio::test]
async fn resources_show_what_the_caller_may_see() {
    let builder = cluster()
        .pool("tenant", &[100])
        .role("MIN", MIN)
        .token(grant(
            "csi@pve!t",
            true,
            &[("/pool/tenant", "MIN"), ("/storage/local", "MIN")],
        ));
    let world = World::new(builder).await;
    let (_, body) = world
        .call_as("csi@pve!t", "GET", "/cluster/resources", "")
        .await;
    let ids: Vec<&str> = body["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        [
            "qemu/100",
            "node/pve1",
            "node/pve2",
            "storage/pve1/local",
            "storage/pve2/local"
        ]
    );
    assert!(body["data"][0].get("pool").is_none());
    assert!(body["data"][1].get("maxmem").is_none());
    world.sim.edit(|state| {
        state
            .roles
            .get_mut("MIN")
            .unwrap()
            .insert("Pool.Audit".into())
    });
    let (_, body) = world
        .call_as("csi@pve!t", "GET", "/cluster/resources?type=vm", "")
        .await;
    assert_eq!(body["data"][0]["pool"], "tenant");
}

#[tokio::test]
async fn a_task_is_read_by_the_token_that_started_it_only() {
    let roles = [("/storage/local", "CSI")];
    let builder = cluster()
        .role("CSI", CSI)
        .token(grant("csi@pve!one", false, &roles))
        .token(grant("csi@pve!two", false, &[]));
    let world = World::new(builder).await;
    let (_, body) = world
        .call_as(
            "csi@pve!one",
            "DELETE",
            "/nodes/pve1/storage/local/content/local:9999/vm-9999-a.raw",
            "",
        )
        .await;
    let path = format!(
        "/nodes/pve1/tasks/{}/status",
        body["data"].as_str().unwrap()
    );
    assert_eq!(world.call_as("csi@pve!one", "GET", &path, "").await.0, 200);
    let (status, body) = world.call_as("csi@pve!two", "GET", &path, "").await;
    assert_eq!(
        (status, &body["message"]),
        (
            403,
            &"Permission check failed (/nodes/pve1, Sys.Audit)\n".into()
        )
    );
}
