//! CSI's Identity service. `Probe` never depends on PVE: an outage there must not restart a pod.

use csi_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
    identity_server::Identity,
    plugin_capability::{
        Service, Type, VolumeExpansion, service::Type as ServiceType,
        volume_expansion::Type as ExpansionType,
    },
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// Who we are, and whether we are the active controller.
#[derive(Debug, Clone)]
pub struct IdentityService {
    name: String,
    active: watch::Receiver<bool>,
}

impl IdentityService {
    /// A driver of that name. Until `active` is true the sidecars wait, without exiting.
    pub fn new(name: String, active: watch::Receiver<bool>) -> Self {
        Self { name, active }
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let offered = [
            ServiceType::ControllerService,
            ServiceType::VolumeAccessibilityConstraints,
        ];
        let services = offered.map(|service| {
            Type::Service(Service {
                r#type: service.into(),
            })
        });
        let online = Type::VolumeExpansion(VolumeExpansion {
            r#type: ExpansionType::Online.into(),
        });
        let capabilities = services.into_iter().chain([online]);
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: capabilities
                .map(|offer| PluginCapability {
                    r#type: Some(offer),
                })
                .collect(),
        }))
    }

    async fn probe(
        &self,
        _request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        let ready = *self.active.borrow();
        Ok(Response::new(ProbeResponse { ready: Some(ready) }))
    }
}
