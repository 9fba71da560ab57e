use super::{World, cluster};
use crate::ClockMode;
use std::time::Duration;

const A: &str = "local:9999/vm-9999-a.raw";

#[tokio::test]
async fn pending_carries_the_digest_and_a_stale_one_is_refused() {
    let world = World::new(cluster()).await;
    let digest = world.pending("digest").await["value"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(world.config("").await["digest"], digest);
    assert_eq!(
        world.put(&format!("description=x&digest={digest}")).await.0,
        200
    );
    let (status, body) = world.put(&format!("description=y&digest={digest}")).await;
    assert_eq!(
        (status, &body["message"]),
        (
            500,
            &"checksum mismatch (file change by other user?)\n".into()
        )
    );
}

#[tokio::test]
async fn the_verdict_of_a_resize_is_only_in_the_task() {
    let world = World::new(cluster()).await;
    let resize = |body: &'static str| world.call("PUT", "/nodes/pve1/qemu/100/resize", body);
    for (vmid, body, verdict) in [
        (100, "disk=scsi7&size=2G", "disk 'scsi7' does not exist"),
        (
            777,
            "disk=scsi1&size=2G",
            "Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist",
        ),
    ] {
        let upid = world
            .ok("PUT", &format!("/nodes/pve1/qemu/{vmid}/resize"), body)
            .await;
        assert_eq!(world.exit(&upid).await, verdict);
    }
    world.put(&format!("scsi1={A}")).await;
    for (body, verdict) in [
        ("disk=scsi1&size=1G", "OK"),
        ("disk=scsi1&size=1M", "shrinking disks is not supported"),
        ("disk=scsi1&size=5368709121", "OK"),
    ] {
        let (status, value) = resize(body).await;
        assert_eq!(
            (status, world.exit(&value["data"]).await.as_str()),
            (200, verdict),
            "{body}"
        );
    }
    assert_eq!(
        world.config("").await["scsi1"],
        format!("{A},size=5368709121")
    );
    assert_eq!(resize("disk=unused0&size=1G").await.0, 400);
}

#[tokio::test]
async fn a_locked_vm_refuses_changes_at_once_and_power_in_the_task() {
    let world = World::new(cluster()).await;
    world
        .sim
        .with_vm(100, |vm| vm.config.insert("lock".into(), "backup".into()));
    let (status, body) = world.put(&format!("scsi1={A}")).await;
    assert_eq!(
        (status, &body["message"]),
        (500, &"VM is locked (backup)\n".into())
    );
    let upid = world
        .ok("POST", "/nodes/pve1/qemu/100/status/stop", "")
        .await;
    assert_eq!(world.exit(&upid).await, "VM is locked (backup)");
}

#[tokio::test]
async fn errors_of_post_are_split_between_answer_and_task() {
    let world = World::new(cluster()).await;
    let path = "/nodes/pve1/qemu/100/config";
    let missing = "local:9999/vm-9999-none.raw";
    let upid = world.ok("POST", path, &format!("scsi1={missing}")).await;
    let text = format!("volume '{missing}' does not exist");
    assert_eq!(world.exit(&upid).await, text);
    let (status, body) = world
        .call("POST", path, &format!("scsi1={missing}&background_delay=5"))
        .await;
    assert_eq!(
        (status, &body["message"]),
        (500, &format!("failed to update VM 100: {text}\n").into())
    );
    assert!(
        world
            .ok("POST", path, &format!("scsi1={A}&background_delay=5"))
            .await
            .is_null()
    );
    assert_eq!(
        world.call("POST", path, "delete=scsi99").await.1["errors"]["delete"],
        "unknown option 'scsi99'"
    );
}

#[tokio::test]
async fn background_delay_ends_with_the_upid_of_the_running_task() {
    let world = World::new(cluster().clock(ClockMode::Stepped)).await;
    world.sim.add_task_fault(crate::TaskFault {
        task: "qmconfig".into(),
        id: None,
        nth: 1,
        times: 1,
        effect: crate::TaskEffect::Slow { ms: 15_000 },
    });
    let body = format!("scsi1={A}&background_delay=10");
    let post = world.call("POST", "/nodes/pve1/qemu/100/config", &body);
    let step = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.sim.advance(Duration::from_secs(10));
    };
    let ((status, answer), ()) = tokio::join!(post, step);
    assert_eq!(status, 200);
    let upid = answer["data"].as_str().unwrap().to_owned();
    let running = world
        .ok("GET", &format!("/nodes/pve1/tasks/{upid}/status"), "")
        .await;
    assert_eq!(running["status"], "running");
    let active = world
        .ok("GET", "/nodes/pve1/tasks?source=active&vmid=100", "")
        .await;
    assert_eq!(
        (&active[0]["upid"], &active[0]["status"]),
        (&upid.clone().into(), &"RUNNING".into())
    );
    world.sim.advance(Duration::from_secs(5));
    assert_eq!(world.exit(&answer["data"]).await, "OK");
}

#[tokio::test]
async fn the_config_lock_is_waited_for_ten_seconds() {
    let world = World::new(cluster().clock(ClockMode::Real { speed: 200 })).await;
    world
        .sim
        .hold_vm_lock(100, Duration::from_secs(15))
        .await
        .unwrap();
    let before = world.sim.now();
    let (status, body) = world.put("description=x").await;
    assert!(world.sim.now().checked_sub(before).unwrap() >= Duration::from_secs(10));
    assert_eq!(
        (status, &body["message"]),
        (
            500,
            &"can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout\n".into()
        )
    );
    assert_eq!(world.put("description=x").await.0, 200);
}

#[tokio::test]
async fn deleting_an_unset_slot_succeeds_and_protection_forbids_a_set_one() {
    let world = World::new(cluster()).await;
    assert_eq!(world.put("delete=scsi9").await.0, 200);
    world.put(&format!("scsi1={A}")).await;
    world.put("protection=1").await;
    let (status, body) = world.put("delete=scsi1").await;
    assert_eq!(
        (status, &body["message"]),
        (
            500,
            &"can't remove drive 'scsi1' - protection mode enabled\n".into()
        )
    );
}

#[tokio::test]
async fn a_stopped_owner_vm_frees_its_volumes_through_unused_entries() {
    let builder = cluster()
        .vm_with(500, "pve1", &[("name", "owner")], false)
        .volume("local", Some("pve1"), "500/vm-500-pvc-1.raw", 1 << 20);
    let world = World::new(builder).await;
    let path = "/nodes/pve1/qemu/500/config";
    world
        .ok("PUT", path, "unused0=local:500/vm-500-pvc-1.raw")
        .await;
    assert_eq!(
        world.ok("GET", path, "").await["unused0"],
        "local:500/vm-500-pvc-1.raw"
    );
    world.ok("PUT", path, "delete=unused0").await;
    assert!(
        !world
            .sim
            .state()
            .volumes
            .iter()
            .any(|volume| volume.name.starts_with("500/"))
    );
}

#[tokio::test]
async fn a_vm_that_moved_away_is_no_longer_found_on_its_old_node() {
    let world = World::new(cluster()).await;
    world.sim.with_vm(100, |vm| vm.node = "pve2".into());
    let (status, body) = world.call("GET", "/nodes/pve1/qemu/100/config", "").await;
    assert_eq!(
        (status, &body["message"]),
        (
            500,
            &"Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist\n".into()
        )
    );
    world.ok("GET", "/nodes/pve2/qemu/100/config", "").await;
}
