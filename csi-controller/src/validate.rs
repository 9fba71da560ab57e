//! Protobuf in, domain requests out: the only file that reads raw requests. Whatever it lets through is within every
//! grammar and limit that needs no look at PVE. A refusal touches nothing.

mod expand;
mod fields;

use std::collections::HashMap;

use csi_proto::csi::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, GetCapacityRequest, Topology, ValidateVolumeCapabilitiesRequest,
};
use pve_model::{Bytes, NodeId, Parameters, PveNode, Region, VolumeId};

use crate::error::Error;
pub use expand::{ExpandRequest, expand};
use fields::Modes;

/// What a volume gets when the caller names no size: that of the former driver.
pub const DEFAULT_SIZE: Bytes = Bytes::new(10 << 30);

/// CreateVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRequest {
    /// The caller's name for the volume; 1 to 128 bytes without control characters.
    pub name: String,
    /// How big.
    pub size: SizeRange,
    /// What the `StorageClass` asks for; `storage` is there.
    pub parameters: Parameters,
    /// The same as text, without the sidecars' own keys: what becomes the volume context.
    pub context: HashMap<String, String>,
    /// Where it has to be reachable, best first; empty means anywhere.
    pub places: Vec<Place>,
}

/// The sizes that satisfy a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRange {
    /// What a new disk gets: whole MiB, the unit that PVE is told.
    pub wanted: Bytes,
    /// Fewer bytes never satisfy.
    pub least: Bytes,
    /// More bytes never satisfy.
    pub most: Option<Bytes>,
}

/// A term of a topology: a region, or one PVE node of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Which PVE cluster.
    pub region: Region,
    /// Which host; none means any.
    pub pve_node: Option<PveNode>,
}

/// What a caller gave as volume id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handle {
    /// A well-formed handle.
    Volume(VolumeId),
    /// One word of letters, digits and `-`: no handle of ours ever looked like it, so there is no such volume.
    Nothing,
}

/// ControllerPublishVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// To which VM.
    pub node: NodeId,
    /// The context of the PV, read leniently.
    pub parameters: Parameters,
    /// Whether the workload asked for read-only; the disk is then attached so.
    pub readonly: bool,
}

/// ControllerUnpublishVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpublishRequest {
    /// Which volume.
    pub volume: VolumeId,
    /// From which VM; none means from all of them.
    pub node: Option<NodeId>,
}

/// ValidateVolumeCapabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfirmRequest {
    /// Which volume.
    pub volume: Handle,
    /// Why the answer is "no", for the person who asked; none means "yes" if the volume exists.
    pub objection: Option<String>,
}

/// GetCapacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapacityRequest {
    /// Parameters of the class; none means every storage of the policy.
    pub parameters: Option<Parameters>,
    /// Where; none means everywhere.
    pub place: Option<Place>,
}

/// CreateVolume.
pub fn create(request: &CreateVolumeRequest) -> Result<CreateRequest, Error> {
    fields::no_secrets(&request.secrets)?;
    fields::name(&request.name)?;
    fields::capabilities(&request.volume_capabilities, Modes::Offered)?;
    if request.volume_content_source.is_some() {
        return invalid("volume_content_source is not supported: only empty volumes can be made");
    }
    fields::no_mutable_parameters(&request.mutable_parameters)?;
    let parameters = strict(&request.parameters)?;
    let places = match &request.accessibility_requirements {
        None => Vec::new(),
        Some(wanted) => fields::places(&wanted.preferred, &wanted.requisite)?,
    };
    Ok(CreateRequest {
        name: request.name.clone(),
        size: fields::size(request.capacity_range.as_ref())?,
        parameters,
        context: fields::context(&request.parameters),
        places,
    })
}

/// DeleteVolume.
pub fn delete(request: &DeleteVolumeRequest) -> Result<Handle, Error> {
    fields::no_secrets(&request.secrets)?;
    fields::handle(&request.volume_id)
}

/// ControllerPublishVolume.
pub fn publish(request: &ControllerPublishVolumeRequest) -> Result<PublishRequest, Error> {
    fields::no_secrets(&request.secrets)?;
    let volume = fields::handle(&request.volume_id)?;
    let node = fields::node_id(&request.node_id)?;
    let capability = request.volume_capability.as_ref().map(std::slice::from_ref);
    fields::capabilities(capability.unwrap_or_default(), Modes::Existing)?;
    let (parameters, ignored) = Parameters::lenient(&request.volume_context)
        .map_err(|error| Error::Invalid(format!("volume_context: {error}")))?;
    if ignored > 0 {
        tracing::debug!(ignored, "unknown keys in the volume context");
    }
    Ok(PublishRequest {
        volume: existing(volume)?,
        node,
        parameters,
        readonly: request.readonly,
    })
}

/// ControllerUnpublishVolume. A handle that can't be one is attached nowhere: `None`.
pub fn unpublish(
    request: &ControllerUnpublishVolumeRequest,
) -> Result<Option<UnpublishRequest>, Error> {
    fields::no_secrets(&request.secrets)?;
    let node = match request.node_id.as_str() {
        "" => None,
        text => Some(fields::node_id(text)?),
    };
    Ok(match fields::handle(&request.volume_id)? {
        Handle::Volume(volume) => Some(UnpublishRequest { volume, node }),
        Handle::Nothing => None,
    })
}

/// ValidateVolumeCapabilities.
pub fn confirm(request: &ValidateVolumeCapabilitiesRequest) -> Result<ConfirmRequest, Error> {
    fields::no_secrets(&request.secrets)?;
    let volume = fields::handle(&request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return invalid("volume_capabilities is required");
    }
    let objection = fields::capabilities(&request.volume_capabilities, Modes::Offered)
        .and_then(|()| class(&request.parameters))
        .and_then(|class| same_storage(&volume, class.as_ref()))
        .and_then(|()| fields::no_mutable_parameters(&request.mutable_parameters))
        .err()
        .map(|error| error.tenant().to_owned());
    Ok(ConfirmRequest { volume, objection })
}

/// GetCapacity.
pub fn capacity(request: &GetCapacityRequest) -> Result<CapacityRequest, Error> {
    if !request.volume_capabilities.is_empty() {
        fields::capabilities(&request.volume_capabilities, Modes::Offered)?;
    }
    let parameters = class(&request.parameters)?;
    let place = request
        .accessible_topology
        .as_ref()
        .map(|topology: &Topology| fields::place(topology))
        .transpose()?;
    Ok(CapacityRequest { parameters, place })
}

/// The volume of an RPC that needs one to be there.
pub fn existing(handle: Handle) -> Result<VolumeId, Error> {
    match handle {
        Handle::Volume(volume) => Ok(volume),
        Handle::Nothing => Err(Error::UnknownVolume),
    }
}

/// A class that means another storage is not the class of the volume.
fn same_storage(volume: &Handle, class: Option<&Parameters>) -> Result<(), Error> {
    let wanted = class.and_then(|class| class.storage.as_ref());
    match (volume, wanted) {
        (Handle::Volume(volume), Some(wanted)) if volume.storage != *wanted => {
            invalid("the volume lies on another storage than the parameters name")
        }
        _ => Ok(()),
    }
}

/// The parameters of a class, where a caller may leave them out altogether.
fn class(parameters: &HashMap<String, String>) -> Result<Option<Parameters>, Error> {
    if parameters.is_empty() {
        return Ok(None);
    }
    strict(parameters).map(Some)
}

fn strict(parameters: &HashMap<String, String>) -> Result<Parameters, Error> {
    Parameters::strict(parameters).map_err(|error| Error::Invalid(error.to_string()))
}

fn invalid<T>(text: &str) -> Result<T, Error> {
    Err(Error::Invalid(text.to_owned()))
}

#[cfg(test)]
mod tests;
