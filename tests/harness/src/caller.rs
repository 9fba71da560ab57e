//! What the sidecars ask of the controller, in the words of a test: one call for each RPC of a volume's life.

use std::collections::HashMap;
use std::time::Duration;

use csi_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, Volume,
    VolumeCapability,
};
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::csi::{Csi, create_request, mount_capability, publish_request};
use crate::world::{REGION, node_id};

/// Size of the disks that tests make where the size is not the point: 64 MiB.
pub const SIZE: i64 = 64 << 20;

/// A sidecar's calls over one controller's socket.
#[derive(Debug, Clone)]
pub struct Caller {
    csi: Csi,
}

impl Caller {
    /// Calls over these clients.
    pub fn new(csi: Csi) -> Self {
        Self { csi }
    }

    /// CreateVolume of 64 MiB on `storage`, on the PVE node `zone` or, on shared storage, anywhere in the region.
    pub async fn create(
        &self,
        name: &str,
        storage: &str,
        zone: Option<&str>,
    ) -> Result<String, Status> {
        let request = create_request(name, SIZE, storage, (REGION, zone));
        self.create_as(request).await.map(|volume| volume.volume_id)
    }

    /// CreateVolume.
    pub async fn create_as(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        let answer = self.csi.controller().create_volume(request).await?;
        answer
            .into_inner()
            .volume
            .ok_or_else(|| Status::internal("no volume in the answer"))
    }

    /// ControllerPublishVolume as ext4 to a VM by its full node id.
    pub async fn publish(
        &self,
        volume_id: &str,
        vmid: u32,
    ) -> Result<HashMap<String, String>, Status> {
        self.publish_as(volume_id, &node_id(vmid), mount_capability())
            .await
    }

    /// ControllerPublishVolume.
    pub async fn publish_as(
        &self,
        volume_id: &str,
        node_id: &str,
        capability: VolumeCapability,
    ) -> Result<HashMap<String, String>, Status> {
        let request = publish_request(volume_id, node_id, capability);
        let answer = self
            .csi
            .controller()
            .controller_publish_volume(request)
            .await?;
        Ok(answer.into_inner().publish_context)
    }

    /// ControllerUnpublishVolume from a VM by its full node id.
    pub async fn unpublish(&self, volume_id: &str, vmid: u32) -> Result<(), Status> {
        self.unpublish_as(volume_id, &node_id(vmid)).await
    }

    /// ControllerUnpublishVolume; an empty node id means from everywhere.
    pub async fn unpublish_as(&self, volume_id: &str, node_id: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            node_id: node_id.to_owned(),
            ..Default::default()
        };
        self.csi
            .controller()
            .controller_unpublish_volume(request)
            .await
            .map(drop)
    }

    /// `ControllerExpandVolume` of an ext4 volume to at least that many bytes: its capacity afterwards.
    pub async fn expand(&self, volume_id: &str, bytes: i64) -> Result<i64, Status> {
        let request = ControllerExpandVolumeRequest {
            volume_id: volume_id.to_owned(),
            capacity_range: Some(CapacityRange {
                required_bytes: bytes,
                limit_bytes: 0,
            }),
            volume_capability: Some(mount_capability()),
            ..Default::default()
        };
        self.expand_as(request)
            .await
            .map(|answer| answer.capacity_bytes)
    }

    /// `ControllerExpandVolume`.
    pub async fn expand_as(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let answer = self
            .csi
            .controller()
            .controller_expand_volume(request)
            .await?;
        Ok(answer.into_inner())
    }

    /// DeleteVolume.
    pub async fn delete(&self, volume_id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest {
            volume_id: volume_id.to_owned(),
            ..Default::default()
        };
        self.csi.controller().delete_volume(request).await.map(drop)
    }
}

/// Calls again after each error, as the sidecars do, with short pauses; the last error once `limit` is over.
pub async fn until_ok<T>(
    limit: Duration,
    mut call: impl AsyncFnMut() -> Result<T, Status>,
) -> Result<T, Status> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(50);
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(status) if Instant::now() >= deadline => return Err(status),
            Err(_) => sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
