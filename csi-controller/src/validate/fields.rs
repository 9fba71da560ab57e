//! The fields that several RPCs share.

use std::collections::HashMap;

use csi_proto::csi::v1::{
    CapacityRange, Topology, VolumeCapability,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};
use pve_model::{Bytes, NodeId, PveNode, Region, topology};

use super::{DEFAULT_SIZE, Handle, Place, SizeRange};
use crate::error::Error;

/// CSI, "Size Limits": a string field has at most 128 bytes.
const STRING_MAX: usize = 128;
/// Keys that external-provisioner adds for itself (`--extra-create-metadata`).
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";
/// More terms than a tenant cluster has hosts: a bound against a hostile API server.
const MAX_TERMS: usize = 4096;

/// Which capabilities are asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modes {
    /// Those of a volume to be made.
    Offered,
    /// Those of a PV that is there already: the node plugin knows which filesystems it can mount.
    Existing,
}

fn invalid<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::Invalid(text.into()))
}

/// Secrets of the controller's RPCs would be read with the tenant's rights and sent to us for no purpose.
pub(super) fn no_secrets(secrets: &HashMap<String, String>) -> Result<(), Error> {
    if secrets.is_empty() {
        Ok(())
    } else {
        invalid("secrets are not accepted by this controller")
    }
}

pub(super) fn no_mutable_parameters(parameters: &HashMap<String, String>) -> Result<(), Error> {
    if parameters.is_empty() {
        Ok(())
    } else {
        invalid("mutable_parameters are not supported")
    }
}

pub(super) fn name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return invalid("name is required");
    }
    if name.len() > STRING_MAX {
        return invalid("name is longer than 128 bytes");
    }
    if name.chars().any(char::is_control) {
        return invalid("name has control characters");
    }
    Ok(())
}

/// `vm-…` and `base-…` alone are names of PVE, which somebody may have meant.
pub(super) fn handle(text: &str) -> Result<Handle, Error> {
    if text.is_empty() {
        return invalid("volume_id is required");
    }
    let word = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !text.starts_with("vm-")
        && !text.starts_with("base-");
    if word {
        return Ok(Handle::Nothing);
    }
    text.parse()
        .map(Handle::Volume)
        .map_err(|error| Error::Invalid(error.to_string()))
}

pub(super) fn node_id(text: &str) -> Result<NodeId, Error> {
    if text.is_empty() {
        return invalid("node_id is required");
    }
    text.parse()
        .map_err(|_| Error::Invalid("malformed node_id".to_owned()))
}

pub(super) fn capabilities(all: &[VolumeCapability], modes: Modes) -> Result<(), Error> {
    if all.is_empty() {
        return invalid("volume_capabilities is required");
    }
    let (mut block, mut mount) = (false, false);
    for capability in all {
        match &capability.access_type {
            None => return invalid("a volume capability needs an access_type: block or mount"),
            Some(AccessType::Block(_)) => block = true,
            Some(AccessType::Mount(wanted)) => {
                mount = true;
                filesystem(wanted, modes)?;
            }
        }
        access_mode(capability)?;
    }
    if block && mount {
        return invalid("one volume can't be both block and mount");
    }
    Ok(())
}

fn filesystem(mount: &MountVolume, modes: Modes) -> Result<(), Error> {
    if modes == Modes::Offered && !matches!(mount.fs_type.as_str(), "" | "ext4") {
        return invalid("fs_type is not supported; use ext4");
    }
    if mount.volume_mount_group.is_empty() {
        Ok(())
    } else {
        invalid("volume_mount_group is not supported")
    }
}

fn access_mode(capability: &VolumeCapability) -> Result<(), Error> {
    let mode = capability.access_mode.as_ref().map(AccessMode::mode);
    match mode {
        None | Some(Mode::Unknown) => invalid("a volume capability needs an access_mode"),
        Some(
            Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter,
        ) => Ok(()),
        Some(
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter,
        ) => invalid(
            "a volume can be used by one Node at a time: access modes ReadWriteMany and ReadOnlyMany are not supported",
        ),
    }
}

/// PVE is told whole MiB, rounded up: a bare number would be KiB (`Content.pm`, `size`).
pub(super) fn size(range: Option<&CapacityRange>) -> Result<SizeRange, Error> {
    let Some(range) = range else {
        return Ok(SizeRange {
            wanted: DEFAULT_SIZE,
            least: Bytes::ZERO,
            most: None,
        });
    };
    let bytes = |count| {
        Bytes::try_from(count).map_err(|_| Error::Invalid("capacity_range is negative".to_owned()))
    };
    let (required, limit) = (bytes(range.required_bytes)?, bytes(range.limit_bytes)?);
    let most = (limit > Bytes::ZERO).then_some(limit);
    if required == Bytes::ZERO && most.is_none() {
        return invalid("capacity_range names no size");
    }
    if most.is_some_and(|most| required > most) {
        return invalid("capacity_range requires more than its limit");
    }
    let wanted = match (required, most) {
        (Bytes::ZERO, Some(most)) => DEFAULT_SIZE.min(round_down(most)),
        _ => required
            .round_up(Bytes::MIB)
            .filter(|size| size.to_i64().is_some())
            .ok_or_else(|| Error::OutOfRange("the size is too large".to_owned()))?,
    };
    if wanted == Bytes::ZERO || most.is_some_and(|most| wanted > most) {
        return Err(Error::OutOfRange(
            "sizes are whole MiB, and none lies between the required size and the limit".to_owned(),
        ));
    }
    Ok(SizeRange {
        wanted,
        least: required,
        most,
    })
}

fn round_down(size: Bytes) -> Bytes {
    Bytes::new(size.get() - size.get() % Bytes::MIB.get())
}

/// CSI: `preferred` is a subset of `requisite` where both are given; each place once, best first.
pub(super) fn places(preferred: &[Topology], requisite: &[Topology]) -> Result<Vec<Place>, Error> {
    if preferred.len() + requisite.len() > MAX_TERMS {
        return invalid("accessibility_requirements has too many terms");
    }
    let mut places: Vec<Place> = Vec::new();
    for topology in preferred.iter().chain(requisite) {
        let place = place(topology)?;
        if !places.contains(&place) {
            places.push(place);
        }
    }
    Ok(places)
}

pub(super) fn place(term: &Topology) -> Result<Place, Error> {
    let (mut region, mut pve_node) = (None, None);
    for (key, value) in &term.segments {
        match key.as_str() {
            topology::REGION => region = Some(label::<Region>(topology::REGION, value)?),
            topology::ZONE => pve_node = Some(label::<PveNode>(topology::ZONE, value)?),
            _ => return invalid("a topology term has a key that is not this driver's"),
        }
    }
    match region {
        Some(region) => Ok(Place { region, pve_node }),
        None => invalid(format!("a topology term needs {}", topology::REGION)),
    }
}

fn label<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, Error> {
    value
        .parse()
        .map_err(|_| Error::Invalid(format!("{key} has a malformed value")))
}

/// What becomes the volume context: the class's parameters as they were given.
pub(super) fn context(parameters: &HashMap<String, String>) -> HashMap<String, String> {
    parameters
        .iter()
        .filter(|(key, _)| !key.starts_with(SIDECAR_PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
