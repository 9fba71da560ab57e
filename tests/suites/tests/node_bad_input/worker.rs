//! A worker with real devices and a volume that must not suffer.

use std::path::{Path, PathBuf};

use csi_proto::csi::v1::{
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use harness::csi::{mount_capability, stage_request};
use harness::requirements::{loop_devices, skipped};
use harness::world::{FILES, NodePlugin, OWNER, World, tenant};
use tonic::{Code, Status};

pub(crate) const NONE: [String; 0] = [];
pub(crate) const BAD: &[Code] = &[Code::InvalidArgument];

/// A worker with an attached, staged volume.
pub(crate) struct Worker {
    pub(crate) world: World,
    pub(crate) node: NodePlugin,
    pub(crate) stage: NodeStageVolumeRequest,
}

impl Worker {
    pub(crate) async fn start(test: &str) -> Option<Self> {
        if let Err(reason) = loop_devices() {
            skipped(test, &reason);
            return None;
        }
        let builder = tenant(&[(101, "pve1"), (102, "pve1")]);
        let world = World::start_with_loop_devices(builder).await.unwrap();
        let node = world.start_node(101, Some("pve1")).await.unwrap();
        let caller = world.caller();
        let volume = caller
            .create("pvc-kept", FILES, Some("pve1"))
            .await
            .unwrap();
        let context = caller.publish(&volume, 101).await.unwrap();
        let staging = node.kubelet.join("staging");
        std::fs::create_dir_all(&staging).unwrap();
        let stage = stage_request(&volume, &context, &staging, mount_capability());
        node.csi
            .node()
            .node_stage_volume(stage.clone())
            .await
            .unwrap();
        std::fs::write(staging.join("kept"), "kept").unwrap();
        Some(Self { world, node, stage })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.node.kubelet.join(name)
    }

    pub(crate) async fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), Status> {
        self.node
            .csi
            .node()
            .node_stage_volume(request)
            .await
            .map(drop)
    }

    pub(crate) async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        self.node
            .csi
            .node()
            .node_publish_volume(request)
            .await
            .map(drop)
    }

    pub(crate) async fn unstage(&self, volume: &str, path: &str) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: path.to_owned(),
        };
        self.node
            .csi
            .node()
            .node_unstage_volume(request)
            .await
            .map(drop)
    }

    pub(crate) async fn unpublish(&self, volume: &str, path: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: path.to_owned(),
        };
        self.node
            .csi
            .node()
            .node_unpublish_volume(request)
            .await
            .map(drop)
    }

    pub(crate) async fn stats(&self, volume: &str, path: &str) -> Result<(), Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.to_owned(),
            ..Default::default()
        };
        self.node
            .csi
            .node()
            .node_get_volume_stats(request)
            .await
            .map(drop)
    }

    /// What was staged is staged still, and is taken back.
    pub(crate) async fn end(self) {
        let staging = PathBuf::from(&self.stage.staging_target_path);
        assert_eq!(
            std::fs::read_to_string(staging.join("kept")).unwrap(),
            "kept"
        );
        let below = mounts_below(&self.node.kubelet);
        assert_eq!(below, std::slice::from_ref(&staging));
        self.unstage(&self.stage.volume_id, &self.stage.staging_target_path)
            .await
            .unwrap();
        assert!(mounts_below(&self.node.kubelet).is_empty());
    }
}

pub(crate) fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from);
    points.filter(|point| point.starts_with(folder)).collect()
}

/// Handles that are none.
pub(crate) fn handles() -> Vec<String> {
    let own = format!("vm-{OWNER}-pvc-x");
    let tail = [
        String::new(),
        "/".to_owned(),
        format!("r1/../thin/{own}"),
        format!("r1/pve1/thin/{own},x"),
        format!("r1/pve1/thin/{own}?x"),
        format!("r1/pve1/thin/{own}\n"),
        format!("r1/pve1/thin/vm-{OWNER}%2fx"),
        "vm-100-disk-0".to_owned(),
        "thin".to_owned(),
    ];
    tail.to_vec()
}
