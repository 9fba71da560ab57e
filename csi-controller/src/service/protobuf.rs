//! What answers are made of.

use std::collections::HashMap;

use csi_proto::csi::v1::{Topology, Volume};
use pve_model::{Bytes, VolumeId, topology};

use crate::create::Created;
use crate::error::Error;
use crate::validate::Place;

/// What a request is about, for its log lines.
pub(super) fn record(volume: &VolumeId) {
    let span = tracing::Span::current();
    span.record("volume.id", tracing::field::display(volume));
    span.record("storage", volume.storage.as_str());
}

/// A volume as the provisioner writes it into a PV.
pub(super) fn volume(created: Created, context: HashMap<String, String>) -> Result<Volume, Error> {
    Ok(Volume {
        capacity_bytes: protobuf_size(created.size)?,
        volume_id: created.volume.to_string(),
        volume_context: context,
        content_source: None,
        accessible_topology: created.places.into_iter().map(term).collect(),
    })
}

/// A size that is there.
pub(super) fn protobuf_size(size: Bytes) -> Result<i64, Error> {
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
pub(super) fn wire(size: Bytes) -> i64 {
    size.to_i64().unwrap_or(i64::MAX)
}
