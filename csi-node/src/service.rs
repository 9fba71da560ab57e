//! The Identity and Node services: check, lock, work, answer.
//!
//! It knows the order of things and no device. Work runs in a task of its own that owns the volume's lock: a caller
//! that goes away, or a system call that hangs, never lets a second one in.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::csi::v1::identity_server::Identity;
use csi_proto::csi::v1::node_server::Node;
use csi_proto::csi::v1::node_service_capability::{self, rpc};
use csi_proto::csi::v1::plugin_capability::service as plugin_service;
use csi_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, NodeExpandVolumeRequest, NodeExpandVolumeResponse,
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest,
    NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
    PluginCapability, ProbeRequest, ProbeResponse, Topology, VolumeCondition, VolumeUsage,
    plugin_capability, volume_usage,
};
use pve_model::topology::{REGION, ZONE};
use pve_model::volume_id::VolumeId;
use pve_runtime::{KeyedLock, Work};
use tonic::{Request, Response, Status};

use crate::error::Error;
use crate::host::{Amount, Host};
use crate::topology::NodeObject;
use crate::volume::{Room, Stats};
use crate::{expand, publish, stage, topology, validate, volume};

/// The kubelet gives an RPC two minutes (`pkg/volume/csi: csiTimeout`); work that takes longer goes on, and the
/// next call is told so.
const ANSWER_WITHIN: Duration = Duration::from_secs(110);
/// The kubelet asks for statistics each minute, of every volume in turn.
const STATS_WITHIN: Duration = Duration::from_secs(10);

type Answer<T> = Result<Response<T>, Status>;

/// Both services. Clones share everything.
#[derive(Debug, Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: String,
    host: Arc<dyn Host>,
    node: NodeObject,
    work: Work,
    volumes: KeyedLock<VolumeId>,
    measured: KeyedLock<PathBuf>,
}

// === impl Service ===

impl Service {
    /// Services under the driver's name.
    pub fn new(driver: String, host: Arc<dyn Host>, node: NodeObject, work: Work) -> Self {
        let inner = Inner {
            driver,
            host,
            node,
            work,
            volumes: KeyedLock::default(),
            measured: KeyedLock::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Runs `op` to its end under the volume's lock, and answers after [`ANSWER_WITHIN`] at the latest.
    async fn exclusively<T, F, O>(&self, volume: VolumeId, op: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(Arc<dyn Host>) -> O + Send + 'static,
        O: Future<Output = Result<T, Error>> + Send,
    {
        let guard = self.inner.volumes.try_lock(volume).ok_or(Error::Busy)?;
        let host = Arc::clone(&self.inner.host);
        let owned = async move {
            let result = op(host).await;
            drop(guard);
            result
        };
        self.answer(owned, ANSWER_WITHIN).await
    }

    async fn answer<T, O>(&self, op: O, within: Duration) -> Result<T, Error>
    where
        T: Send + 'static,
        O: Future<Output = Result<T, Error>> + Send + 'static,
    {
        match tokio::time::timeout(within, self.inner.work.spawn_owned(op)).await {
            Ok(result) => result?,
            Err(_) => Err(Error::StillWorking(within)),
        }
    }

    async fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<Stats, Error> {
        let wanted = validate::stats(request)?;
        let guard = self
            .inner
            .measured
            .try_lock(wanted.path.clone())
            .ok_or(Error::Busy)?;
        let host = Arc::clone(&self.inner.host);
        let owned = async move {
            let result = volume::stats(host.as_ref(), &wanted).await;
            drop(guard);
            result
        };
        self.answer(owned, STATS_WITHIN).await
    }
}

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Answer<GetPluginInfoResponse> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.inner.driver.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        let services = [
            plugin_service::Type::ControllerService,
            plugin_service::Type::VolumeAccessibilityConstraints,
        ];
        let capability = |service: plugin_service::Type| PluginCapability {
            r#type: Some(plugin_capability::Type::Service(
                plugin_capability::Service {
                    r#type: service.into(),
                },
            )),
        };
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: services.map(capability).into(),
        }))
    }

    /// Always ready: what the plugin waits for is no reason to restart it.
    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        let request = validate::stage(request.get_ref())?;
        let volume = request.volume.clone();
        self.exclusively(volume, async move |host| {
            stage::stage(host.as_ref(), &request).await
        })
        .await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let at = validate::unstage(request.get_ref())?;
        let volume = at.volume.clone();
        self.exclusively(volume, async move |host| {
            stage::unstage(host.as_ref(), &at.volume, &at.path).await
        })
        .await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let request = validate::publish(request.get_ref())?;
        let volume = request.volume.clone();
        self.exclusively(volume, async move |host| {
            publish::publish(host.as_ref(), &request).await
        })
        .await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let at = validate::unpublish(request.get_ref())?;
        let volume = at.volume.clone();
        self.exclusively(volume, async move |host| {
            publish::unpublish(host.as_ref(), &at.volume, &at.path).await
        })
        .await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let stats = self.stats(request.get_ref()).await?;
        Ok(Response::new(stats_response(&stats)))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        let request = validate::expand(request.get_ref())?;
        let volume = request.volume.clone();
        let size = self
            .exclusively(volume, async move |host| {
                expand::expand(host.as_ref(), &request).await
            })
            .await?;
        Ok(Response::new(NodeExpandVolumeResponse {
            capacity_bytes: count(size.get()),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let kinds = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::VolumeCondition,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let capability = |kind: rpc::Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(
                node_service_capability::Rpc {
                    r#type: kind.into(),
                },
            )),
        };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: kinds.map(capability).into(),
        }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        let object = self.inner.node.get().await?;
        let facts = topology::facts(&object, self.inner.host.as_ref()).await?;
        let segments = [
            (REGION, facts.region.to_string()),
            (ZONE, facts.zone.to_string()),
        ];
        Ok(Response::new(NodeGetInfoResponse {
            node_id: facts.node_id.to_string(),
            max_volumes_per_node: facts.attach_limit.into(),
            accessible_topology: Some(Topology {
                segments: segments.map(|(key, value)| (key.to_owned(), value)).into(),
            }),
        }))
    }
}

fn stats_response(stats: &Stats) -> NodeGetVolumeStatsResponse {
    let usage = match stats.room {
        Room::Filesystem(usage) => vec![
            amount(usage.bytes, volume_usage::Unit::Bytes),
            amount(usage.inodes, volume_usage::Unit::Inodes),
        ],
        Room::Device(size) => {
            let total = Amount {
                total: size,
                used: 0,
                available: 0,
            };
            vec![amount(total, volume_usage::Unit::Bytes)]
        }
        Room::Unknown => Vec::new(),
    };
    NodeGetVolumeStatsResponse {
        usage,
        volume_condition: Some(VolumeCondition {
            abnormal: stats.trouble.is_some(),
            message: stats.trouble.unwrap_or("the volume is well").to_owned(),
        }),
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn amount(amount: Amount, unit: volume_usage::Unit) -> VolumeUsage {
    VolumeUsage {
        available: count(amount.available),
        total: count(amount.total),
        used: count(amount.used),
        unit: unit.into(),
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
