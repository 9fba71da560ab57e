//! A volume that grows while a Pod has it: from the controller over Proxmox VE and the kernel to the Pod's path.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use std::collections::HashMap;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use csi_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
};
use harness::csi::{block_capability, mount_capability, node_publish_request, stage_request};
use harness::requirements::{loop_devices, skipped};
use harness::world::{FILES, NodePlugin, World, tenant};
use tokio::time::sleep;
use tonic::{Code, Status};

const GROWN: u64 = 128 << 20;

/// A world with a worker on real devices, unless the machine has none.
async fn worker(test: &str) -> Option<(World, NodePlugin)> {
    if let Err(reason) = loop_devices() {
        skipped(test, &reason);
        return None;
    }
    let world = World::start_with_loop_devices(tenant(&[(101, "pve1")]))
        .await
        .unwrap();
    let node = world.start_node(101, Some("pve1")).await.unwrap();
    Some((world, node))
}

async fn attached(world: &World) -> (String, HashMap<String, String>) {
    let caller = world.caller();
    let volume = caller.create("pvc-1", FILES, Some("pve1")).await.unwrap();
    let context = caller.publish(&volume, 101).await.unwrap();
    (volume, context)
}

async fn use_it(node: &NodePlugin, request: &NodeStageVolumeRequest, target: &Path) {
    let mut client = node.csi.node();
    client.node_stage_volume(request.clone()).await.unwrap();
    let publish = node_publish_request(request, target);
    client.node_publish_volume(publish).await.unwrap();
}

async fn node_expand(node: &NodePlugin, volume: &str, path: &Path) -> Result<u64, Status> {
    let request = NodeExpandVolumeRequest {
        volume_id: volume.to_owned(),
        volume_path: path.display().to_string(),
        capacity_range: Some(CapacityRange {
            required_bytes: i64::try_from(GROWN).unwrap(),
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let answer = node.csi.node().node_expand_volume(request).await?;
    Ok(u64::try_from(answer.into_inner().capacity_bytes).unwrap())
}

async fn controller_expand(world: &World, volume: &str) {
    let wanted = i64::try_from(GROWN).unwrap();
    let answer = world.caller().expand(volume, wanted).await.unwrap();
    assert_eq!(answer, wanted);
}

async fn give_back(node: &NodePlugin, request: &NodeStageVolumeRequest, target: &Path) {
    let mut client = node.csi.node();
    let unpublish = NodeUnpublishVolumeRequest {
        volume_id: request.volume_id.clone(),
        target_path: target.display().to_string(),
    };
    client.node_unpublish_volume(unpublish).await.unwrap();
    let unstage = NodeUnstageVolumeRequest {
        volume_id: request.volume_id.clone(),
        staging_target_path: request.staging_target_path.clone(),
    };
    client.node_unstage_volume(unstage).await.unwrap();
}

/// B62: the node is asked while the kernel still has the old size.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_volume_grows_under_its_pod_and_the_node_waits_for_it() {
    let test = "a_raw_volume_grows_under_its_pod_and_the_node_waits_for_it";
    let Some((world, node)) = worker(test).await else {
        return;
    };
    let (volume, context) = attached(&world).await;
    let (staging, target) = (node.kubelet.join("staging"), node.kubelet.join("target"));
    let request = stage_request(&volume, &context, &staging, block_capability());
    use_it(&node, &request, &target).await;
    let size = || {
        let mut pod = std::fs::File::open(&target).unwrap();
        pod.seek(SeekFrom::End(0)).unwrap()
    };
    assert!(size() < GROWN);
    let (expanded, ()) = tokio::join!(node_expand(&node, &volume, &target), async {
        sleep(Duration::from_millis(500)).await;
        controller_expand(&world, &volume).await;
    });
    assert_eq!((expanded.unwrap(), size()), (GROWN, GROWN));
    let again = node_expand(&node, &volume, &target).await.unwrap();
    assert_eq!(again, GROWN);
    give_back(&node, &request, &target).await;
    // Nobody has it here any more.
    let status = node_expand(&node, &volume, &target).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
}

/// What is attached and not yet used grows before its first file system is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_system_that_fills_the_grown_disk_has_nothing_to_do() {
    let test = "a_file_system_that_fills_the_grown_disk_has_nothing_to_do";
    let Some((world, node)) = worker(test).await else {
        return;
    };
    let (volume, context) = attached(&world).await;
    controller_expand(&world, &volume).await;
    let (staging, target) = (node.kubelet.join("staging"), node.kubelet.join("target"));
    std::fs::create_dir_all(&staging).unwrap();
    let request = stage_request(&volume, &context, &staging, mount_capability());
    use_it(&node, &request, &target).await;
    for path in [&staging, &target] {
        let expanded = node_expand(&node, &volume, path).await.unwrap();
        assert_eq!(expanded, GROWN);
    }
    give_back(&node, &request, &target).await;
}

/// Where the kernel does not let this machine's root grow a mounted file system, that is told and breaks nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_file_system_grows_or_says_what_kept_it_from_growing() {
    let test = "a_mounted_file_system_grows_or_says_what_kept_it_from_growing";
    let Some((world, node)) = worker(test).await else {
        return;
    };
    let (volume, context) = attached(&world).await;
    let (staging, target) = (node.kubelet.join("staging"), node.kubelet.join("target"));
    std::fs::create_dir_all(&staging).unwrap();
    let request = stage_request(&volume, &context, &staging, mount_capability());
    use_it(&node, &request, &target).await;
    std::fs::write(target.join("kept"), "kept").unwrap();
    controller_expand(&world, &volume).await;
    match node_expand(&node, &volume, &target).await {
        Ok(expanded) => assert_eq!(expanded, GROWN),
        Err(status) => {
            assert_eq!(status.code(), Code::Internal, "{status:?}");
            let denied = "resize2fs failed (exit code 1): resize2fs: Permission denied";
            assert!(status.message().starts_with(denied), "{status:?}");
        }
    }
    let mounted = std::fs::read_to_string(target.join("kept")).unwrap();
    assert_eq!(mounted, "kept");
    std::fs::write(target.join("more"), "more").unwrap();
    give_back(&node, &request, &target).await;
}
