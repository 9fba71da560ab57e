//! What went wrong for others on the node, and what is right: whole stack, real devices.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use std::collections::HashMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::csi::v1::{
    NodeGetInfoRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
    volume_capability::{AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use harness::csi::{Csi, capability, mount_capability, node_publish_request, stage_request};
use harness::requirements::{loop_devices, skipped};
use harness::truth::{Truth, volid};
use harness::world::{FILES, NodePlugin, World, tenant};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

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

/// The file behind the disk of a handle.
fn backing(world: &World, handle: &str) -> PathBuf {
    let name = volid(handle).split_once(':').unwrap().1.to_owned();
    let file = world
        .folder()
        .join("pve/volumes")
        .join(FILES)
        .join("pve1")
        .join(name);
    assert!(file.is_file(), "{}", file.display());
    file
}

async fn attached(world: &World, name: &str) -> (String, HashMap<String, String>) {
    let caller = world.caller();
    let volume = caller.create(name, FILES, Some("pve1")).await.unwrap();
    let context = caller.publish(&volume, 101).await.unwrap();
    (volume, context)
}

fn staging(node: &NodePlugin, name: &str) -> PathBuf {
    let path = node.kubelet.join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

async fn stage(csi: &Csi, request: &NodeStageVolumeRequest) -> Result<(), Status> {
    csi.node()
        .node_stage_volume(request.clone())
        .await
        .map(drop)
}

async fn unstage(csi: &Csi, volume: &str, path: &Path) -> Result<(), Status> {
    let request = NodeUnstageVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: path.display().to_string(),
    };
    csi.node().node_unstage_volume(request).await.map(drop)
}

fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from);
    points.filter(|point| point.starts_with(folder)).collect()
}

/// B50: a disk that is not blank is not formatted, whatever is on it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_a_disk_is_never_formatted_over() {
    let Some((world, node)) = worker("what_is_on_a_disk_is_never_formatted_over").await else {
        return;
    };
    let contents: [(&str, u64, &[u8]); 5] = [
        ("luks", 0, b"LUKS\xba\xbe\x00\x02"),
        ("lvm", 512, b"LABELONE\x01\x00\x00\x00\x00\x00\x00\x00"),
        ("mbr", 510, b"\x55\xaa"),
        ("text", 300, b"somebody's bytes"),
        ("tail", (64 << 20) - 4096, b"at the very end"),
    ];
    for (name, at, bytes) in contents {
        let (volume, context) = attached(&world, &format!("pvc-{name}")).await;
        let file = std::fs::File::options()
            .write(true)
            .open(backing(&world, &volume))
            .unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
        let path = staging(&node, name);
        let request = stage_request(&volume, &context, &path, mount_capability());
        for _ in 0..2 {
            let status = stage(&node.csi, &request).await.expect_err(name);
            assert_eq!(
                status.code(),
                Code::FailedPrecondition,
                "{name}: {status:?}"
            );
        }
        let mut found = vec![0; bytes.len()];
        let file = std::fs::File::open(backing(&world, &volume)).unwrap();
        file.read_exact_at(&mut found, at).unwrap();
        assert_eq!(found, bytes, "{name}");
    }
    assert!(mounts_below(&node.kubelet).is_empty());
}

/// B52: the place is taken by another volume, as a crash may leave it.
#[tokio::test(flavor = "multi_thread")]
async fn a_staging_path_with_another_volume_is_refused() {
    let Some((world, node)) = worker("a_staging_path_with_another_volume_is_refused").await else {
        return;
    };
    let (first, first_context) = attached(&world, "pvc-first").await;
    let (second, second_context) = attached(&world, "pvc-second").await;
    let path = staging(&node, "staging");
    let first_stage = stage_request(&first, &first_context, &path, mount_capability());
    stage(&node.csi, &first_stage).await.unwrap();
    std::fs::write(path.join("of-the-first"), "x").unwrap();
    let node = world.crash_node(node).await.unwrap();
    let second_stage = stage_request(&second, &second_context, &path, mount_capability());
    let status = stage(&node.csi, &second_stage).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    let target = node.kubelet.join("target");
    let publish = node_publish_request(&second_stage, &target);
    let status = node
        .csi
        .node()
        .node_publish_volume(publish)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    stage(&node.csi, &first_stage).await.unwrap();
    assert!(path.join("of-the-first").is_file());
    assert_eq!(mounts_below(&path).len(), 1, "it was mounted a second time");
    unstage(&node.csi, &first, &path).await.unwrap();
}

/// B53: unstage of what is not mounted does nothing to the filesystem around it.
#[tokio::test(flavor = "multi_thread")]
async fn unstage_of_a_plain_directory_touches_nothing() {
    let Some((world, node)) = worker("unstage_of_a_plain_directory_touches_nothing").await else {
        return;
    };
    let (volume, context) = attached(&world, "pvc-1").await;
    let plain = staging(&node, "plain");
    std::fs::write(plain.join("kept"), "kept").unwrap();
    let before = mounts_below(Path::new("/"));
    unstage(&node.csi, &volume, &plain).await.unwrap();
    unstage(&node.csi, &volume, &node.kubelet.join("missing"))
        .await
        .unwrap();
    assert_eq!(std::fs::read_to_string(plain.join("kept")).unwrap(), "kept");
    // The disk works still.
    let path = staging(&node, "staging");
    let request = stage_request(&volume, &context, &path, mount_capability());
    stage(&node.csi, &request).await.unwrap();
    std::fs::write(path.join("file"), "written").unwrap();
    unstage(&node.csi, &volume, &path).await.unwrap();
    let own = |points: Vec<PathBuf>| -> Vec<PathBuf> {
        points
            .into_iter()
            .filter(|point| point.starts_with(world.folder()))
            .collect()
    };
    assert_eq!(own(mounts_below(Path::new("/"))), own(before));
}

/// B09: the context of an attach that is over, while another volume has come into its slot.
#[tokio::test(flavor = "multi_thread")]
async fn a_context_of_a_former_attach_never_leads_to_the_disk_that_came_after() {
    let test = "a_context_of_a_former_attach_never_leads_to_the_disk_that_came_after";
    let Some((mut world, node)) = worker(test).await else {
        return;
    };
    let (first, old) = attached(&world, "pvc-first").await;
    let slot = Truth::of(&world.sim).slots(101, &first);
    world.caller().unpublish(&first, 101).await.unwrap();
    // A controller that remembers takes another slot.
    world.crash_controller().await.unwrap();
    let (second, new) = attached(&world, "pvc-second").await;
    assert_eq!(
        Truth::of(&world.sim).slots(101, &second),
        slot,
        "the slot was to be the same"
    );
    assert_ne!(old["DevicePath"], new["DevicePath"]);
    let path = staging(&node, "staging");
    let other = stage_request(&second, &old, &path, mount_capability());
    let status = stage(&node.csi, &other).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(mounts_below(&path).is_empty());
    let right = stage_request(&second, &new, &path, mount_capability());
    stage(&node.csi, &right).await.unwrap();
    unstage(&node.csi, &second, &path).await.unwrap();
}

/// `ReadWriteOncePod`: one target only, as a filesystem and as a raw device.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_one_pod_is_published_at_one_target() {
    let test = "a_volume_of_one_pod_is_published_at_one_target";
    let Some((world, node)) = worker(test).await else {
        return;
    };
    let mode = Mode::SingleNodeSingleWriter;
    let kinds = [
        AccessType::Mount(MountVolume::default()),
        AccessType::Block(BlockVolume {}),
    ];
    for (number, kind) in kinds.into_iter().enumerate() {
        let (volume, context) = attached(&world, &format!("pvc-{number}")).await;
        let path = staging(&node, &format!("staging-{number}"));
        let staged = stage_request(&volume, &context, &path, capability(kind, mode));
        stage(&node.csi, &staged).await.unwrap();
        let at = |name: &str| {
            node_publish_request(&staged, &node.kubelet.join(format!("{name}-{number}")))
        };
        let mut client = node.csi.node();
        for _ in 0..2 {
            client.node_publish_volume(at("first")).await.unwrap();
        }
        let status = client.node_publish_volume(at("second")).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        assert!(!node.kubelet.join(format!("second-{number}")).exists());
        for (name, others) in [("first", false), ("second", true)] {
            if others {
                client.node_publish_volume(at(name)).await.unwrap();
            }
            let request = NodeUnpublishVolumeRequest {
                volume_id: volume.clone(),
                target_path: at(name).target_path,
            };
            client.node_unpublish_volume(request).await.unwrap();
        }
        unstage(&node.csi, &volume, &path).await.unwrap();
    }
    assert!(mounts_below(&node.kubelet).is_empty());
}

/// B64: labels come later.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_labels_waits_and_is_there_soon_after_they_come() {
    let world = World::start(tenant(&[(101, "pve1")])).await.unwrap();
    let mut node = world.start_node(101, None).await.unwrap();
    let sockets = |node: &NodePlugin| std::fs::read_dir(&node.registration).unwrap().count();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!(sockets(&node), 0, "registered without labels");
        let status = node
            .csi
            .node()
            .node_get_info(NodeGetInfoRequest {})
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        sleep(Duration::from_millis(200)).await;
    }
    node.label("pve1");
    let labelled = Instant::now();
    while sockets(&node) == 0 {
        assert!(
            labelled.elapsed() < Duration::from_secs(5),
            "{}",
            node.process.log()
        );
        sleep(Duration::from_millis(20)).await;
    }
    let info = node
        .csi
        .node()
        .node_get_info(NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(info.node_id.ends_with("/101"), "{info:?}");
    assert!(node.process.ended().unwrap().is_none());
    let registration = node.registration.clone();
    assert!(node.process.stop().await.unwrap().success());
    assert_eq!(
        std::fs::read_dir(registration).unwrap().count(),
        0,
        "still registered"
    );
}
