//! "Not there" is PVE's word for many things. What is concluded from it, and what is not.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use csi_proto::csi::v1::GetCapacityRequest;
use harness::truth::Truth;
use harness::world::{FILES, REGION, THIN, World, tenant};
use pve_sim::{RequestEffect, RequestFault, TaskEffect, TaskFault};
use serde_json::json;
use tonic::{Code, Status};

const DISK: &str = "/nodes/{node}/storage/{storage}/content/{volume*}";

/// At these the provisioner keeps calling (external-provisioner `checkError`).
const NOT_FINAL: [Code; 2] = [Code::Unavailable, Code::Aborted];

async fn world() -> World {
    World::start(tenant(&[(101, "pve1")])).await.unwrap()
}

fn fault(method: &str, effect: RequestEffect) -> RequestFault {
    RequestFault {
        method: method.to_owned(),
        path: DISK.to_owned(),
        nth: 1,
        times: 1,
        effect,
    }
}

fn says(text: &str) -> RequestEffect {
    RequestEffect::FailBefore {
        status: 500,
        message: text.to_owned(),
    }
}

fn usable(world: &World, usable: &str) {
    world.sim.edit(|state| {
        let files = state.storages.get_mut(FILES).unwrap();
        files.disable = usable != "usable";
    });
}

/// A `stat` that fails looks like a missing file (PVE's `Plugin.pm`, `file_size_info`).
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_removal_from_a_directory_that_can_not_be_read_is_no_success() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-a", FILES, Some("pve1")).await.unwrap();
    usable(&world, "not usable");
    let busy = "cannot remove '/mnt/files/images/9999/vm-9999-pvc-a.raw': dataset is busy";
    world.sim.add_fault(fault("DELETE", says(busy)));
    let no_format = "volume_size_info on 'files:9999/vm-9999-pvc-a.raw' failed - no format";
    world.sim.add_fault(fault("GET", says(no_format)));
    let refused = caller.delete(&volume).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(Truth::of(&world.sim).disks().len(), 1);
    usable(&world, "usable");
    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&world.sim).disks().is_empty());
}

/// `qemu-img info` that says nothing in time looks like a missing file too.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_answer_that_shows_no_disk_is_no_reason_to_send_a_pod_elsewhere() {
    let world = world().await;
    let caller = world.caller();
    world.sim.edit(|state| {
        let files = state.storages.get_mut(FILES).unwrap();
        files.used = files.total;
    });
    world
        .sim
        .add_fault(fault("GET", RequestEffect::Delay { ms: 2200 }));
    let unknown = caller.create("pvc-a", FILES, Some("pve1")).await;
    let unknown = unknown.unwrap_err();
    assert_eq!(unknown.code(), Code::Unavailable, "{unknown:?}");
    let full = caller.create("pvc-a", FILES, Some("pve1")).await;
    assert_eq!(full.unwrap_err().code(), Code::ResourceExhausted);
}

async fn capacity(world: &World, storage: &str) -> Result<i64, Status> {
    let request = GetCapacityRequest {
        parameters: [("storage".to_owned(), storage.to_owned())].into(),
        ..Default::default()
    };
    let answer = world.csi().controller().get_capacity(request).await?;
    Ok(answer.into_inner().available_capacity)
}

/// PVE leaves out of its lists what the token may not see.
#[tokio::test(flavor = "multi_thread")]
async fn a_storage_that_the_token_can_not_see_is_not_called_full() {
    let world = world().await;
    world.sim.edit(|state| {
        let role = state.roles.get_mut("TenantStorage").unwrap();
        role.remove("Datastore.Audit");
    });
    let refused = world.caller().create("pvc-a", THIN, Some("pve1")).await;
    let refused = refused.unwrap_err();
    assert!(NOT_FINAL.contains(&refused.code()), "{refused:?}");
    assert!(capacity(&world, THIN).await.is_err());
    assert!(Truth::of(&world.sim).disks().is_empty());
    let log = world.controller_log();
    assert!(log.contains("Datastore.Audit on /storage/thin"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_whose_entry_can_not_be_read_is_not_called_full() {
    for hosts in [vec!["no host"], vec!["no host", "pve1"]] {
        let world = world().await;
        world.sim.edit(|state| {
            let host = state.nodes["pve2"].clone();
            state.nodes.insert("no host".to_owned(), host);
            let thin = state.storages.get_mut(THIN).unwrap();
            thin.nodes = hosts.iter().map(|host| (*host).to_owned()).collect();
        });
        let refused = world.caller().create("pvc-a", THIN, Some("pve2")).await;
        let refused = refused.unwrap_err();
        assert!(
            NOT_FINAL.contains(&refused.code()),
            "{hosts:?}: {refused:?}"
        );
        assert!(Truth::of(&world.sim).disks().is_empty());
    }
}

/// The same of disks: what can't be counted is no free quota.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_can_not_be_counted_is_not_unused() {
    let mut world = World::without_controller(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let mut config = world.config();
    config["regions"][REGION]["storages"] = json!({ THIN: { "maxVolumes": 1 } });
    world.start_controller_with(&config).await.unwrap();
    let grant = |disk_rights: bool| {
        world.sim.edit(|state| {
            for (role, privilege) in [
                ("TenantStorage", "Datastore.Allocate"),
                ("TenantPool", "VM.Config.Disk"),
            ] {
                let role = state.roles.get_mut(role).unwrap();
                if disk_rights {
                    role.insert(privilege.to_owned());
                } else {
                    role.remove(privilege);
                }
            }
        });
    };
    grant(false);
    let refused = world.caller().create("pvc-a", THIN, Some("pve1")).await;
    let refused = refused.unwrap_err();
    assert!(NOT_FINAL.contains(&refused.code()), "{refused:?}");
    assert!(capacity(&world, THIN).await.is_err());
    assert!(Truth::of(&world.sim).disks().is_empty());
    grant(true);
    let caller = world.caller();
    caller.create("pvc-a", THIN, Some("pve1")).await.unwrap();
}

/// A sentence for each cause: only what passes by itself is called busy.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_removal_is_told_by_what_pve_said() {
    let world = world().await;
    let caller = world.caller();
    let volume = caller.create("pvc-a", FILES, Some("pve1")).await.unwrap();
    for (text, code, words) in [
        (
            "cannot destroy 'tank/vm-9999-pvc-a': dataset is busy",
            Code::Unavailable,
            "the storage is busy",
        ),
        (
            "base volume 'files:9999/vm-9999-pvc-a.raw' is still in use by linked clones",
            Code::Internal,
            "ask its operator",
        ),
        (
            "403 Permission check failed (/storage/files, Datastore.Allocate)",
            Code::Internal,
            "refuses this driver's token",
        ),
    ] {
        world.sim.add_task_fault(TaskFault {
            task: "imgdel".to_owned(),
            id: None,
            nth: 1,
            times: 1,
            effect: TaskEffect::Fail {
                text: text.to_owned(),
            },
        });
        let refused = caller.delete(&volume).await.unwrap_err();
        assert_eq!(refused.code(), code, "{text}: {refused:?}");
        assert!(refused.message().contains(words), "{text}: {refused:?}");
    }
    caller.delete(&volume).await.unwrap();
}
