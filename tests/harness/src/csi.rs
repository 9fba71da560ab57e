//! The CSI services of a program, called over its socket as a sidecar or the kubelet would.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use csi_proto::csi::v1::{
    CapacityRange, ControllerPublishVolumeRequest, CreateVolumeRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, ProbeRequest, Topology, TopologyRequirement, VolumeCapability,
    controller_client::ControllerClient,
    identity_client::IdentityClient,
    node_client::NodeClient,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::process::Process;

/// How long a program has until it serves.
const START: Duration = Duration::from_secs(15);

/// Clients of one socket. They connect when they are first used, and again after a restart.
#[derive(Debug, Clone)]
pub struct Csi {
    channel: Channel,
}

impl Csi {
    /// Clients of the socket at `path`.
    pub fn at(path: &Path) -> Self {
        let path: PathBuf = path.to_owned();
        let connector = service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The authority is not looked at on a Unix socket, but HTTP/2 wants one.
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Self { channel }
    }

    /// Waits until `process` serves its socket; fails at once, with the end of its log, if it ends first.
    pub async fn served_by(&self, process: &mut Process) -> Result<()> {
        let probe = async || self.identity().probe(ProbeRequest {}).await.is_ok();
        process.ready(START, probe).await
    }

    /// The Identity service.
    pub fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    /// The Controller service.
    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    /// The Node service.
    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }
}

/// `ReadWriteOnce`, as ext4.
pub fn mount_capability() -> VolumeCapability {
    capability(
        AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            ..Default::default()
        }),
        Mode::SingleNodeWriter,
    )
}

/// `ReadWriteOnce`, as a raw block device.
pub fn block_capability() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter)
}

/// Any access type in any mode.
pub fn capability(access_type: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// A request for `bytes` on `storage`, in a region and, where given, on one PVE node.
pub fn create_request(
    name: &str,
    bytes: i64,
    storage: &str,
    place: (&str, Option<&str>),
) -> CreateVolumeRequest {
    let topology = topology(place.0, place.1);
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: bytes,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![mount_capability()],
        parameters: HashMap::from([("storage".to_owned(), storage.to_owned())]),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![topology.clone()],
            preferred: vec![topology],
        }),
        ..Default::default()
    }
}

/// Region and, where given, zone.
pub fn topology(region: &str, zone: Option<&str>) -> Topology {
    let region = (
        "topology.kubernetes.io/region".to_owned(),
        region.to_owned(),
    );
    let zone = zone.map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone.to_owned()));
    Topology {
        segments: [Some(region), zone].into_iter().flatten().collect(),
    }
}

/// A request to attach `volume_id` to the VM that `node_id` names.
pub fn publish_request(
    volume_id: &str,
    node_id: &str,
    capability: VolumeCapability,
) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id: node_id.to_owned(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// What the kubelet sends after an attach.
pub fn stage_request(
    volume_id: &str,
    publish_context: &HashMap<String, String>,
    staging: &Path,
    capability: VolumeCapability,
) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: volume_id.to_owned(),
        publish_context: publish_context.clone(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// What the kubelet sends for each Pod after a stage.
pub fn node_publish_request(
    stage: &NodeStageVolumeRequest,
    target: &Path,
) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: stage.volume_id.clone(),
        publish_context: stage.publish_context.clone(),
        staging_target_path: stage.staging_target_path.clone(),
        target_path: target.display().to_string(),
        volume_capability: stage.volume_capability.clone(),
        ..Default::default()
    }
}
