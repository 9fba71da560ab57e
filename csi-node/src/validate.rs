//! From the messages of the Node service to requests of this crate. Whatever passes here is of its grammar.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use csi_proto::csi::v1::volume_capability::AccessType;
use csi_proto::csi::v1::volume_capability::access_mode::Mode;
use csi_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use pve_model::handoff::PublishContext;
use pve_model::params::Parameters;
use pve_model::size::Bytes;
use pve_model::volume_id::VolumeId;

use crate::device::Wanted;
use crate::error::Error;
use crate::expand::{ExpandRequest, ExpandUsage};
use crate::filesystem::FormatOptions;
use crate::host::Access;
use crate::mountopts::MountOptions;
use crate::publish::{Places, PublishRequest, PublishUsage};
use crate::stage::{EXT4, StageRequest, StageUsage};
use crate::volume::StatsRequest;

/// `PATH_MAX` of Linux.
const PATH_MAX: usize = 4096;
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 1024..=65536;
const INODE_SIZES: std::ops::RangeInclusive<u32> = 128..=65536;

/// A volume at a path: what is left of NodeUnstage and NodeUnpublish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAt {
    /// Which volume.
    pub volume: VolumeId,
    /// Where; absolute.
    pub path: PathBuf,
}

/// Checks NodeStageVolume.
pub fn stage(request: &NodeStageVolumeRequest) -> Result<StageRequest, Error> {
    let volume = volume(&request.volume_id)?;
    let staging = path("staging_target_path", &request.staging_target_path)?;
    let capability = capability(request.volume_capability.as_ref())?;
    no_secrets(&request.secrets)?;
    let parameters = parameters(&request.volume_context)?;
    let wanted = wanted(&volume, &request.publish_context)?;
    let usage = match capability.mount {
        None => StageUsage::Block,
        Some(options) => StageUsage::Mount {
            options,
            format: format_options(&parameters)?,
        },
    };
    Ok(StageRequest {
        volume,
        wanted,
        staging,
        usage,
    })
}

/// Checks NodePublishVolume.
pub fn publish(request: &NodePublishVolumeRequest) -> Result<PublishRequest, Error> {
    let volume = volume(&request.volume_id)?;
    let target = path("target_path", &request.target_path)?;
    let staging = path("staging_target_path", &request.staging_target_path)?;
    let capability = capability(request.volume_capability.as_ref())?;
    no_secrets(&request.secrets)?;
    parameters(&request.volume_context)?;
    let wanted = wanted(&volume, &request.publish_context)?;
    if target == staging {
        return Err(Error::invalid(
            "target_path must differ from staging_target_path",
        ));
    }
    let mounted_read_only = capability
        .mount
        .as_ref()
        .is_some_and(|options| options.access() == Access::ReadOnly);
    let read_only = request.readonly || mounted_read_only || capability.access == Access::ReadOnly;
    Ok(PublishRequest {
        volume,
        wanted,
        staging,
        target,
        usage: match capability.mount {
            None => PublishUsage::Block,
            Some(_) => PublishUsage::Mount,
        },
        access: if read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        },
        places: capability.places,
    })
}

/// Checks NodeUnstageVolume.
pub fn unstage(request: &NodeUnstageVolumeRequest) -> Result<VolumeAt, Error> {
    Ok(VolumeAt {
        volume: volume(&request.volume_id)?,
        path: path("staging_target_path", &request.staging_target_path)?,
    })
}

/// Checks NodeUnpublishVolume.
pub fn unpublish(request: &NodeUnpublishVolumeRequest) -> Result<VolumeAt, Error> {
    Ok(VolumeAt {
        volume: volume(&request.volume_id)?,
        path: path("target_path", &request.target_path)?,
    })
}

/// Checks NodeGetVolumeStats. What can't be a volume of ours, or a place of one, is not there (CSI 1.12,
/// "NodeGetVolumeStats Errors").
pub fn stats(request: &NodeGetVolumeStatsRequest) -> Result<StatsRequest, Error> {
    filled("volume_id", &request.volume_id)?;
    filled("volume_path", &request.volume_path)?;
    let absent = |_| Error::VolumeNotFound;
    Ok(StatsRequest {
        volume: volume(&request.volume_id).map_err(absent)?,
        path: path("volume_path", &request.volume_path).map_err(absent)?,
        staging: staging(&request.staging_target_path)?,
    })
}

/// Checks NodeExpandVolume. What can't be a volume of ours, or a place of one, is not there (CSI 1.12,
/// "NodeExpandVolume Errors").
pub fn expand(request: &NodeExpandVolumeRequest) -> Result<ExpandRequest, Error> {
    filled("volume_id", &request.volume_id)?;
    filled("volume_path", &request.volume_path)?;
    no_secrets(&request.secrets)?;
    let (required, limit) = sizes(request.capacity_range.as_ref())?;
    let usage = request.volume_capability.as_ref().and_then(|capability| {
        Some(match capability.access_type.as_ref()? {
            AccessType::Block(_) => ExpandUsage::Block,
            AccessType::Mount(_) => ExpandUsage::Mount,
        })
    });
    let absent = |_| Error::VolumeNotFound;
    Ok(ExpandRequest {
        volume: volume(&request.volume_id).map_err(absent)?,
        path: path("volume_path", &request.volume_path).map_err(absent)?,
        staging: staging(&request.staging_target_path)?,
        required,
        limit,
        usage,
    })
}

/// What is required and what is allowed, where the range says so: 0 is "not said".
fn sizes(range: Option<&CapacityRange>) -> Result<(Option<Bytes>, Option<Bytes>), Error> {
    let Some(range) = range else {
        return Ok((None, None));
    };
    let size = |bytes: i64| match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(Bytes::new(bytes))),
        Err(_) => Err(Error::invalid("capacity_range is negative")),
    };
    let (required, limit) = (size(range.required_bytes)?, size(range.limit_bytes)?);
    if required.is_some_and(|required| limit.is_some_and(|limit| required > limit)) {
        return Err(Error::invalid(
            "capacity_range requires more than its limit",
        ));
    }
    Ok((required, limit))
}

struct Capability {
    /// None: as a raw device.
    mount: Option<MountOptions>,
    access: Access,
    places: Places,
}

fn capability(capability: Option<&VolumeCapability>) -> Result<Capability, Error> {
    let missing = || Error::invalid("volume_capability is required");
    let capability = capability.ok_or_else(missing)?;
    let mode = capability
        .access_mode
        .as_ref()
        .map(csi_proto::csi::v1::volume_capability::AccessMode::mode);
    let access = match mode {
        None | Some(Mode::Unknown) => return Err(Error::invalid("an access mode is required")),
        Some(
            Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter,
        ) => Access::ReadWrite,
        Some(Mode::SingleNodeReaderOnly) => Access::ReadOnly,
        Some(
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter,
        ) => {
            return Err(Error::invalid(
                "a volume can be used on one node at a time only",
            ));
        }
    };
    let places = match mode {
        Some(Mode::SingleNodeSingleWriter) => Places::One,
        _ => Places::Any,
    };
    let mount = match capability.access_type.as_ref() {
        None => {
            return Err(Error::invalid(
                "an access type, block or mount, is required",
            ));
        }
        Some(AccessType::Block(_)) => None,
        Some(AccessType::Mount(mount)) => {
            if !matches!(mount.fs_type.as_str(), "" | EXT4) {
                return Err(Error::invalid("the only file system type is ext4"));
            }
            if !mount.volume_mount_group.is_empty() {
                return Err(Error::invalid("volume_mount_group is not offered"));
            }
            let options = MountOptions::parse(&mount.mount_flags);
            Some(options.map_err(|error| Error::invalid(error.to_string()))?)
        }
    };
    Ok(Capability {
        mount,
        access,
        places,
    })
}

fn filled(field: &str, value: &str) -> Result<(), Error> {
    if value.is_empty() {
        return Err(Error::invalid(format!("{field} is required")));
    }
    Ok(())
}

fn volume(handle: &str) -> Result<VolumeId, Error> {
    filled("volume_id", handle)?;
    handle
        .parse()
        .map_err(|error: pve_model::volume_id::ParseVolumeIdError| {
            Error::invalid(error.to_string())
        })
}

/// Absolute, without `..`, in its shortest spelling.
fn path(field: &str, text: &str) -> Result<PathBuf, Error> {
    filled(field, text)?;
    let path = Path::new(text);
    let plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain || path.parent().is_none() {
        return Err(Error::invalid(format!(
            "{field} must be an absolute path without dots"
        )));
    }
    if text.len() > PATH_MAX || text.contains('\0') {
        return Err(Error::invalid(format!("{field} is not a path")));
    }
    Ok(path.components().collect())
}

/// A staging path that need not be said.
fn staging(text: &str) -> Result<Option<PathBuf>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    path("staging_target_path", text).map(Some)
}

fn no_secrets(secrets: &HashMap<String, String>) -> Result<(), Error> {
    if secrets.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(
        "secrets are not used by this driver and are refused",
    ))
}

fn parameters(context: &HashMap<String, String>) -> Result<Parameters, Error> {
    let (parameters, ignored) =
        Parameters::lenient(context).map_err(|error| Error::invalid(error.to_string()))?;
    if ignored > 0 {
        tracing::debug!(ignored, "keys of the volume context that are not ours");
    }
    Ok(parameters)
}

fn wanted(volume: &VolumeId, context: &HashMap<String, String>) -> Result<Wanted, Error> {
    let context = PublishContext::from_map(context)
        .map_err(|error| Error::invalid(format!("publish_context: {error}")))?;
    Wanted::new(volume, &context)
}

fn format_options(parameters: &Parameters) -> Result<FormatOptions, Error> {
    let within = |value: Option<u32>, range: std::ops::RangeInclusive<u32>| {
        value.is_none_or(|value| range.contains(&value))
    };
    if !within(parameters.block_size, BLOCK_SIZES) || !within(parameters.inode_size, INODE_SIZES) {
        return Err(Error::invalid(
            "blockSize or inodeSize is not one that ext4 has",
        ));
    }
    Ok(FormatOptions {
        block_size: parameters.block_size,
        inode_size: parameters.inode_size,
    })
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
