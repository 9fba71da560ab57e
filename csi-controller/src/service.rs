//! The RPCs: validate, lock, run the verb in work of its own, answer. Nothing else reads or writes protobuf.

mod protobuf;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use csi_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    controller_server::Controller,
    controller_service_capability::{Rpc as RpcCapability, Type, rpc::Type as RpcType},
    validate_volume_capabilities_response::Confirmed,
};
use pve_client::Presence;
use pve_model::{Bytes, DiskName, NodeId};
use pve_runtime::{Active, KeyedLock, Work, WorkError};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::capacity::{self, Capacity};
use crate::create::{self, Memory};
use crate::delete;
use crate::disk;
use crate::error::{Error, Rpc};
use crate::expand;
use crate::publish;
use crate::refusals::Refusals;
use crate::region::Driver;
use crate::teardown::Teardown;
use crate::unpublish;
use crate::validate::{self, Handle};
use crate::vm::Wanted;

use self::protobuf::{protobuf_size, record, volume, wire};

/// What this controller offers.
const CAPABILITIES: [RpcType; 5] = [
    RpcType::CreateDeleteVolume,
    RpcType::PublishUnpublishVolume,
    RpcType::ExpandVolume,
    RpcType::GetCapacity,
    RpcType::SingleNodeMultiWriter,
];

/// CSI's Controller service.
#[derive(Debug, Clone)]
pub struct ControllerService {
    driver: watch::Receiver<Arc<Driver>>,
    work: Work,
    locks: KeyedLock<String>,
    memory: Memory,
    holders: expand::Memory,
    refusals: Refusals,
    active: Active,
    teardown: Teardown,
}

impl ControllerService {
    /// Serves the newest of `driver`; what it begins runs as `work`. `locks` are per volume.
    pub fn new(driver: watch::Receiver<Arc<Driver>>, work: Work, locks: KeyedLock<String>) -> Self {
        Self {
            driver,
            work,
            locks,
            memory: Memory::default(),
            holders: expand::Memory::default(),
            refusals: Refusals::default(),
            active: Active::always(),
            teardown: Teardown::default(),
        }
    }

    /// The same with refusals counted there.
    #[must_use]
    pub fn counting(mut self, refusals: Refusals) -> Self {
        self.refusals = refusals;
        self
    }

    /// The same that answers only while this process is the active one.
    #[must_use]
    pub fn while_active(mut self, active: Active) -> Self {
        self.active = active;
        self
    }

    /// The same that makes no new volumes while the tenant's volumes are being removed.
    #[must_use]
    pub fn closed_by(mut self, teardown: Teardown) -> Self {
        self.teardown = teardown;
        self
    }

    /// The answer of this process, if it is the active one. One that has lost its turn can't say what became of its work.
    async fn in_turn<T>(
        &self,
        rpc: Rpc,
        op: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<Response<T>, Status> {
        let outcome = if self.active.is() {
            op.await
        } else {
            Err(Error::StandingBy)
        };
        let outcome = outcome.map_err(|error| match error {
            Error::StandingBy => error,
            error if !self.active.is() => {
                tracing::warn!(%error, "failed, and this process is not the active one any more");
                Error::ShuttingDown
            }
            error => error,
        });
        outcome.map(Response::new).map_err(|error| {
            self.refusals.count(&error);
            error.into_status(rpc)
        })
    }

    fn driver(&self) -> Arc<Driver> {
        Arc::clone(&self.driver.borrow())
    }

    /// Runs `op` to its end, alone on its volume, whether or not the caller stays.
    async fn alone<T: Send + 'static>(
        &self,
        disk: &DiskName,
        op: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let guard = self
            .locks
            .try_lock(lock_key(disk))
            .ok_or(Error::Busy("another operation on this volume is in flight"))?;
        let owned = async move {
            let outcome = op.await;
            drop(guard);
            outcome
        };
        self.work
            .spawn_owned(owned)
            .await
            .map_err(|error| match error {
                WorkError::Stopping => Error::ShuttingDown,
                WorkError::Panicked => Error::Internal("the operation panicked".to_owned()),
            })?
    }

    async fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Error> {
        let request = validate::create(request)?;
        let (driver, memory) = (self.driver(), self.memory.clone());
        // The owner is no part of the key: which one it will be depends on the place.
        let owner = any_owner(&driver)?;
        let name = DiskName::for_volume(owner, &request.name, None);
        let context = request.context.clone();
        let teardown = self.teardown.clone();
        let op = async move {
            let closed = teardown.wanted().await;
            create::create(&driver, &memory, &request, closed).await
        };
        let created = self.alone(&name, op).await?;
        record(&created.volume);
        Ok(CreateVolumeResponse {
            volume: Some(volume(created, context)?),
        })
    }

    async fn delete(&self, request: &DeleteVolumeRequest) -> Result<(), Error> {
        let Handle::Volume(volume) = validate::delete(request)? else {
            tracing::info!("the text can't be a handle of this driver: nothing to delete");
            return Ok(());
        };
        record(&volume);
        let region = self.driver().region_of(&volume)?;
        let disk = volume.disk.clone();
        self.alone(&disk, async move { delete::delete(&region, &volume).await })
            .await
    }

    async fn publish(
        &self,
        request: &ControllerPublishVolumeRequest,
    ) -> Result<HashMap<String, String>, Error> {
        let request = validate::publish(request)?;
        record(&request.volume);
        let region = self.driver().region_of(&request.volume)?;
        let disk = request.volume.disk.clone();
        let holders = self.holders.clone();
        let op = async move {
            let context = publish::publish(&region, &request).await?;
            if let NodeId::Vm { uuid, vmid } = request.node {
                holders.held(&request.volume, Wanted { uuid, vmid });
            }
            Ok(context)
        };
        Ok(self.alone(&disk, op).await?.to_map())
    }

    async fn unpublish(&self, request: &ControllerUnpublishVolumeRequest) -> Result<(), Error> {
        let Some(request) = validate::unpublish(request)? else {
            tracing::info!("the text can't be a handle of this driver: nothing to detach");
            return Ok(());
        };
        record(&request.volume);
        let region = self.driver().region_of(&request.volume)?;
        let disk = request.volume.disk.clone();
        let holders = self.holders.clone();
        let op = async move {
            unpublish::unpublish(&region, &request).await?;
            holders.released(&request.volume);
            Ok(())
        };
        self.alone(&disk, op).await
    }

    async fn expand(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Error> {
        let request = validate::expand(request)?;
        record(&request.volume);
        let region = self.driver().region_of(&request.volume)?;
        let disk = request.volume.disk.clone();
        let memories = expand::Memories {
            volumes: self.holders.clone(),
            quotas: self.memory.clone(),
        };
        let op = async move { expand::expand(&region, &memories, &request).await };
        let size = self.alone(&disk, op).await?;
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: protobuf_size(size)?,
            // Of a raw block device, too: the node plugin says whether its kernel has seen the new size.
            node_expansion_required: true,
        })
    }

    async fn confirm(
        &self,
        raw: &ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Error> {
        let request = validate::confirm(raw)?;
        let volume = validate::existing(request.volume)?;
        record(&volume);
        let region = self.driver().region_of(&volume)?;
        let looked = disk::look(&region, &volume)
            .await
            .map_err(Error::pve("looking for the disk"))?;
        if looked == Presence::Absent {
            return Err(Error::UnknownVolume);
        }
        let confirmed = request.objection.is_none().then(|| Confirmed {
            volume_context: raw.volume_context.clone(),
            volume_capabilities: raw.volume_capabilities.clone(),
            parameters: raw.parameters.clone(),
            mutable_parameters: raw.mutable_parameters.clone(),
        });
        Ok(ValidateVolumeCapabilitiesResponse {
            confirmed,
            message: request.objection.unwrap_or_default(),
        })
    }

    async fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Error> {
        let request = validate::capacity(request)?;
        if self.teardown.wanted().await {
            // At an error csi-provisioner makes no object anew that was deleted; it would tell the scheduler of room.
            return Err(Error::Closed);
        }
        let driver = self.driver();
        let Capacity { available, largest } = capacity::capacity(&driver, &request).await?;
        Ok(GetCapacityResponse {
            available_capacity: wire(available),
            maximum_volume_size: largest.map(wire),
            minimum_volume_size: Some(wire(Bytes::MIB)),
        })
    }
}

/// The part of a disk's name that the CSI name decides, so that Create and Delete of one volume exclude each other.
fn lock_key(disk: &DiskName) -> String {
    let file = disk.file_name();
    let stem = file.split('.').next().unwrap_or_default();
    stem.splitn(3, '-').nth(2).unwrap_or(stem).to_owned()
}

fn any_owner(driver: &Driver) -> Result<pve_model::VmId, Error> {
    driver
        .regions()
        .flat_map(|region| {
            let owners = &region.policy.owners;
            owners
                .default
                .iter()
                .chain(owners.per_node.values())
                .copied()
        })
        .next()
        .ok_or(Error::Unsupported {
            tenant: "no owner is configured for volumes; ask the operator of Proxmox VE",
            detail: "owners is empty in every region".to_owned(),
        })
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let op = Box::pin(self.create(request.get_ref()));
        self.in_turn(Rpc::CreateVolume, op).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let op = Box::pin(async {
            self.delete(request.get_ref())
                .await
                .map(|()| DeleteVolumeResponse {})
        });
        self.in_turn(Rpc::DeleteVolume, op).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let op = Box::pin(async {
            self.publish(request.get_ref())
                .await
                .map(|publish_context| ControllerPublishVolumeResponse { publish_context })
        });
        self.in_turn(Rpc::ControllerPublishVolume, op).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let op = Box::pin(async {
            self.unpublish(request.get_ref())
                .await
                .map(|()| ControllerUnpublishVolumeResponse {})
        });
        self.in_turn(Rpc::ControllerUnpublishVolume, op).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let op = Box::pin(self.expand(request.get_ref()));
        self.in_turn(Rpc::ControllerExpandVolume, op).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let op = Box::pin(self.confirm(request.get_ref()));
        self.in_turn(Rpc::ValidateVolumeCapabilities, op).await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let op = Box::pin(self.capacity(request.get_ref()));
        self.in_turn(Rpc::GetCapacity, op).await
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: RpcType| ControllerServiceCapability {
            r#type: Some(Type::Rpc(RpcCapability { r#type: rpc.into() })),
        };
        let answer = ControllerGetCapabilitiesResponse {
            capabilities: CAPABILITIES.map(capability).to_vec(),
        };
        self.in_turn(
            Rpc::ValidateVolumeCapabilities,
            std::future::ready(Ok(answer)),
        )
        .await
    }
}
