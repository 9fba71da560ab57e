//! A volume's whole life: on every kind of storage in memory, and with a real disk, filesystem and raw block.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use csi_proto::csi::v1::{
    NodeGetVolumeStatsRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
};
use harness::csi::{block_capability, mount_capability, node_publish_request, stage_request};
use harness::requirements::{loop_devices, skipped};
use harness::truth::Truth;
use harness::world::{FILES, NodePlugin, SHARED, THIN, World, node_id, tenant};

const NONE: [String; 0] = [];

async fn lives_in_memory(storage: &str, zone: Option<&str>) {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let caller = world.caller();
    let volume = caller.create("pvc-life", storage, zone).await.unwrap();
    assert_eq!(Truth::of(&world.sim).size(&volume), Some(64 << 20));
    for vmid in [101, 102] {
        let context = caller.publish(&volume, vmid).await.unwrap();
        let truth = Truth::of(&world.sim);
        let slots = truth.slots(vmid, &volume);
        assert_eq!(slots.len(), 1, "{truth:?}");
        let drive = truth.config(vmid, &slots[0]).unwrap();
        let wwn = context["DevicePath"].trim_start_matches("/dev/disk/by-id/wwn-");
        assert!(
            drive.contains(&format!("wwn={wwn}")),
            "{drive} of {context:?}"
        );
        assert_eq!(truth.violations(), NONE);

        caller.unpublish(&volume, vmid).await.unwrap();
        let truth = Truth::of(&world.sim);
        assert!(truth.holders(&volume).is_empty());
        assert_eq!(truth.violations(), NONE);
    }
    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&world.sim).disks().is_empty());
    assert_eq!(world.leaks().unwrap(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_on_local_files_lives_and_leaves_nothing() {
    lives_in_memory(FILES, Some("pve1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_on_a_thin_pool_lives_and_leaves_nothing() {
    lives_in_memory(THIN, Some("pve1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_on_shared_storage_lives_and_leaves_nothing() {
    lives_in_memory(SHARED, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rpc_may_be_repeated() {
    let world = World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
        .await
        .unwrap();
    let caller = world.caller();
    let mut volumes = Vec::new();
    for _ in 0..2 {
        volumes.push(caller.create("pvc-twice", SHARED, None).await.unwrap());
    }
    assert_eq!(volumes[0], volumes[1]);
    assert_eq!(Truth::of(&world.sim).disks().len(), 1);
    let volume = &volumes[0];
    let mut first = caller.publish(volume, 101).await.unwrap();
    let mut again = caller.publish(volume, 101).await.unwrap();
    // A controller that has not looked at the VM before reads its config only once, before PVE fills the size in.
    assert_eq!(again.remove("size").as_deref(), Some("67108864"));
    first.remove("size");
    assert_eq!(again, first);
    assert_eq!(first.len(), 2);
    for _ in 0..2 {
        caller.unpublish(volume, 101).await.unwrap();
    }
    for _ in 0..2 {
        caller.delete(volume).await.unwrap();
    }
    caller.unpublish(volume, 101).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert!(truth.disks().is_empty());
    assert_eq!(truth.violations(), NONE);
}

/// Filesystem and device at exactly this path.
fn mounted_at(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let at = left.split(' ').nth(4)?;
        (Path::new(at) == path).then(|| right.to_owned())
    })
}

async fn take_back(node: &NodePlugin, stage: &NodeStageVolumeRequest, target: &Path) {
    let mut client = node.csi.node();
    for _ in 0..2 {
        let request = NodeUnpublishVolumeRequest {
            volume_id: stage.volume_id.clone(),
            target_path: target.display().to_string(),
        };
        client.node_unpublish_volume(request).await.unwrap();
    }
    assert!(!target.exists(), "the target is left");
    for _ in 0..2 {
        let request = NodeUnstageVolumeRequest {
            volume_id: stage.volume_id.clone(),
            staging_target_path: stage.staging_target_path.clone(),
        };
        client.node_unstage_volume(request).await.unwrap();
    }
    assert_eq!(mounted_at(Path::new(&stage.staging_target_path)), None);
}

/// Stages and publishes on the node of a VM; `use_it` gets the target.
async fn on_node(
    (world, node): (&World, &NodePlugin),
    (volume, vmid): (&str, u32),
    capability: VolumeCapability,
    use_it: impl AsyncFnOnce(&NodePlugin, &Path),
) {
    let caller = world.caller();
    let context = caller
        .publish_as(volume, &node_id(vmid), capability.clone())
        .await
        .unwrap();
    let staging = node.kubelet.join("staging");
    std::fs::create_dir_all(&staging).unwrap();
    let stage = stage_request(volume, &context, &staging, capability);
    let target = node.kubelet.join("pods").join("target");
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    let mut client = node.csi.node();
    for _ in 0..2 {
        client.node_stage_volume(stage.clone()).await.unwrap();
        client
            .node_publish_volume(node_publish_request(&stage, &target))
            .await
            .unwrap();
    }
    use_it(node, &target).await;
    take_back(node, &stage, &target).await;
    caller.unpublish(volume, vmid).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_written_on_one_worker_are_read_on_the_next() {
    if let Err(reason) = loop_devices() {
        return skipped("bytes_written_on_one_worker_are_read_on_the_next", &reason);
    }
    let world = World::start_with_loop_devices(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let first = world.start_node(101, Some("pve1")).await.unwrap();
    let second = world.start_node(102, Some("pve1")).await.unwrap();
    let caller = world.caller();
    let volume = caller
        .create("pvc-ext4", FILES, Some("pve1"))
        .await
        .unwrap();
    let write = async |node: &NodePlugin, target: &Path| {
        assert!(mounted_at(target).unwrap().starts_with("ext4 "));
        std::fs::write(target.join("hello"), "written").unwrap();
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.clone(),
            volume_path: target.display().to_string(),
            ..Default::default()
        };
        let stats = node
            .csi
            .node()
            .node_get_volume_stats(request)
            .await
            .unwrap();
        assert!(stats.into_inner().usage[0].total > 32 << 20);
    };
    on_node((&world, &first), (&volume, 101), mount_capability(), write).await;
    let read = async |_: &NodePlugin, target: &Path| {
        assert_eq!(
            std::fs::read_to_string(target.join("hello")).unwrap(),
            "written"
        );
    };
    on_node((&world, &second), (&volume, 102), mount_capability(), read).await;
    caller.delete(&volume).await.unwrap();
    let truth = Truth::of(&world.sim);
    assert!(truth.disks().is_empty());
    assert_eq!(truth.violations(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_block_volume_keeps_its_bytes_and_gets_no_filesystem() {
    if let Err(reason) = loop_devices() {
        let name = "a_raw_block_volume_keeps_its_bytes_and_gets_no_filesystem";
        return skipped(name, &reason);
    }
    let world = World::start_with_loop_devices(tenant(&[(101, "pve1"), (102, "pve1")]))
        .await
        .unwrap();
    let first = world.start_node(101, Some("pve1")).await.unwrap();
    let second = world.start_node(102, Some("pve1")).await.unwrap();
    let caller = world.caller();
    let volume = caller
        .create("pvc-block", THIN, Some("pve1"))
        .await
        .unwrap();
    let open = |target: &Path| {
        let device = std::fs::File::options()
            .read(true)
            .write(true)
            .open(target)
            .unwrap();
        assert!(device.metadata().unwrap().file_type().is_block_device());
        device
    };
    let write = async |_: &NodePlugin, target: &Path| {
        let mut device = open(target);
        let mut head = vec![1; 4096];
        device.read_exact(&mut head).unwrap();
        assert!(
            head.iter().all(|byte| *byte == 0),
            "somebody wrote on the device"
        );
        let mut device = open(target);
        device.write_all(b"raw bytes").unwrap();
        device.sync_all().unwrap();
    };
    on_node((&world, &first), (&volume, 101), block_capability(), write).await;
    let read = async |_: &NodePlugin, target: &Path| {
        let mut found = [0; 9];
        open(target).read_exact(&mut found).unwrap();
        assert_eq!(&found, b"raw bytes");
    };
    on_node((&world, &second), (&volume, 102), block_capability(), read).await;
    caller.delete(&volume).await.unwrap();
    assert!(Truth::of(&world.sim).disks().is_empty());
    assert_eq!(world.leaks().unwrap(), NONE);
}
