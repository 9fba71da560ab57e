//! The RPCs: validate, lock, run the verb in work of its own, answer. Nothing else reads or writes protobuf.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use csi_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, Topology, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume,
    controller_server::Controller,
    controller_service_capability::{Rpc as RpcCapability, Type, rpc::Type as RpcType},
    validate_volume_capabilities_response::Confirmed,
};
use pve_client::Presence;
use pve_model::{Bytes, DiskName, NodeId, VolumeId, topology};
use pve_runtime::{KeyedLock, Work, WorkError};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::capacity::{self, Capacity};
use crate::create::{self, Created, Memory};
use crate::delete;
use crate::disk;
use crate::error::{Error, Rpc};
use crate::expand;
use crate::publish;
use crate::refusals::Refusals;
use crate::region::Driver;
use crate::unpublish;
use crate::validate::{self, Handle, Place};
use crate::vm::Wanted;

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
        }
    }

    /// The same with refusals counted there.
    #[must_use]
    pub fn counting(mut self, refusals: Refusals) -> Self {
        self.refusals = refusals;
        self
    }

    fn refuse(&self, error: Error, rpc: Rpc) -> Status {
        self.refusals.count(&error);
        error.into_status(rpc)
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
        let op = async move { create::create(&driver, &memory, &request).await };
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

fn record(volume: &VolumeId) {
    let span = tracing::Span::current();
    span.record("volume.id", tracing::field::display(volume));
    span.record("storage", volume.storage.as_str());
}

fn volume(created: Created, context: HashMap<String, String>) -> Result<Volume, Error> {
    Ok(Volume {
        capacity_bytes: protobuf_size(created.size)?,
        volume_id: created.volume.to_string(),
        volume_context: context,
        content_source: None,
        accessible_topology: created.places.into_iter().map(term).collect(),
    })
}

fn protobuf_size(size: Bytes) -> Result<i64, Error> {
    let too_large = || Error::Contradiction(format!("a disk of {size}"));
    size.to_i64().ok_or_else(too_large)
}

fn term(place: Place) -> Topology {
    let region = (topology::REGION.to_owned(), place.region.to_string());
    let zone = place
        .pve_node
        .map(|host| (topology::ZONE.to_owned(), host.to_string()));
    Topology {
        segments: std::iter::once(region).chain(zone).collect(),
    }
}

/// More than `i64` can say is as good as its maximum.
fn wire(size: Bytes) -> i64 {
    size.to_i64().unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let answer = self.create(request.get_ref()).await;
        answer
            .map(Response::new)
            .map_err(|error| self.refuse(error, Rpc::CreateVolume))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let answer = self.delete(request.get_ref()).await;
        answer
            .map(|()| Response::new(DeleteVolumeResponse {}))
            .map_err(|error| self.refuse(error, Rpc::DeleteVolume))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let answer = self.publish(request.get_ref()).await;
        answer
            .map(|publish_context| {
                Response::new(ControllerPublishVolumeResponse { publish_context })
            })
            .map_err(|error| self.refuse(error, Rpc::ControllerPublishVolume))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let answer = self.unpublish(request.get_ref()).await;
        answer
            .map(|()| Response::new(ControllerUnpublishVolumeResponse {}))
            .map_err(|error| self.refuse(error, Rpc::ControllerUnpublishVolume))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let answer = self.expand(request.get_ref()).await;
        answer
            .map(Response::new)
            .map_err(|error| self.refuse(error, Rpc::ControllerExpandVolume))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let answer = self.confirm(request.get_ref()).await;
        answer
            .map(Response::new)
            .map_err(|error| self.refuse(error, Rpc::ValidateVolumeCapabilities))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let answer = self.capacity(request.get_ref()).await;
        answer
            .map(Response::new)
            .map_err(|error| self.refuse(error, Rpc::GetCapacity))
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: RpcType| ControllerServiceCapability {
            r#type: Some(Type::Rpc(RpcCapability { r#type: rpc.into() })),
        };
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: CAPABILITIES.map(capability).to_vec(),
        }))
    }
}
