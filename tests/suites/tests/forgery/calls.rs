//! The controller's RPCs: honest requests, and what a forgery makes of them.

use std::collections::HashMap;
use std::fmt::Debug;

use csi_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest,
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, GetCapacityRequest, TopologyRequirement,
    ValidateVolumeCapabilitiesRequest, VolumeContentSource,
    controller_service_capability::{Type, rpc::Type as Rpc},
    volume_content_source::{self, VolumeSource},
};
use harness::csi::{Csi, create_request, mount_capability, publish_request, topology};
use harness::two_tenants::{OWN, WORKER, bravo};
use harness::world::{REGION, node_id};
use tonic::Status;

use crate::Part;

const SIZE: i64 = 64 << 20;

/// A request of one of the RPCs.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    Create(CreateVolumeRequest),
    Delete(DeleteVolumeRequest),
    Publish(ControllerPublishVolumeRequest),
    Unpublish(ControllerUnpublishVolumeRequest),
    Validate(ValidateVolumeCapabilitiesRequest),
    Capacity(GetCapacityRequest),
    Expand(ControllerExpandVolumeRequest),
}

/// An answer that is no error.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// It was done; the answer as text, and the handle of a new volume.
    Done(String, Option<String>),
    /// "Not so", with a reason.
    Objected(String),
}

/// The volumes of the tenant that honest requests are about.
#[derive(Debug, Clone)]
pub(crate) struct Volumes {
    /// Attached to the worker.
    pub(crate) kept: String,
    /// Attached nowhere.
    pub(crate) spare: String,
}

/// The requests of which one part is forged at a time.
pub(crate) async fn honest(csi: &Csi, volumes: &Volumes) -> Vec<Call> {
    let Volumes { kept, spare } = volumes;
    let own = node_id(WORKER);
    let unpublish = |node: &str| {
        Call::Unpublish(ControllerUnpublishVolumeRequest {
            volume_id: kept.clone(),
            node_id: node.to_owned(),
            ..Default::default()
        })
    };
    let mut calls = vec![
        Call::Create(create_request("pvc-new", SIZE, OWN, (REGION, Some("pve1")))),
        Call::Delete(DeleteVolumeRequest {
            volume_id: spare.clone(),
            ..Default::default()
        }),
        Call::Publish(publish_request(kept, &own, mount_capability())),
        Call::Publish(publish_request(spare, &own, mount_capability())),
        unpublish(&own),
        unpublish(""),
        Call::Validate(ValidateVolumeCapabilitiesRequest {
            volume_id: kept.clone(),
            volume_capabilities: vec![mount_capability()],
            parameters: HashMap::from([("storage".to_owned(), OWN.to_owned())]),
            ..Default::default()
        }),
        Call::Capacity(GetCapacityRequest {
            parameters: HashMap::from([("storage".to_owned(), OWN.to_owned())]),
            accessible_topology: Some(topology(REGION, Some("pve1"))),
            ..Default::default()
        }),
    ];
    if expands(csi).await {
        calls.push(Call::Expand(ControllerExpandVolumeRequest {
            volume_id: kept.clone(),
            capacity_range: Some(CapacityRange {
                required_bytes: 2 * SIZE,
                limit_bytes: 0,
            }),
            volume_capability: Some(mount_capability()),
            ..Default::default()
        }));
    }
    calls
}

/// Requests that name the other tenant's VM; their volume is forged too.
pub(crate) fn to_bravo(volumes: &Volumes) -> Vec<Call> {
    let ids = [node_id(bravo::VMS[0]), "claims-bravo".to_owned()];
    let both = |node: String| {
        let volume_id = volumes.kept.clone();
        [
            Call::Publish(publish_request(&volume_id, &node, mount_capability())),
            Call::Unpublish(ControllerUnpublishVolumeRequest {
                volume_id,
                node_id: node,
                ..Default::default()
            }),
        ]
    };
    ids.into_iter().flat_map(both).collect()
}

async fn expands(csi: &Csi) -> bool {
    let request = ControllerGetCapabilitiesRequest {};
    let answer = csi.controller().controller_get_capabilities(request).await;
    let capabilities = answer.unwrap().into_inner().capabilities.into_iter();
    capabilities
        .filter_map(|capability| capability.r#type)
        .any(|Type::Rpc(rpc)| rpc.r#type() == Rpc::ExpandVolume)
}

fn done<T: Debug>(answer: tonic::Response<T>) -> Answer {
    Answer::Done(format!("{:?}", answer.into_inner()), None)
}

impl Call {
    /// The name of the RPC.
    pub(crate) fn rpc(&self) -> &'static str {
        match self {
            Self::Create(_) => "Create",
            Self::Delete(_) => "Delete",
            Self::Publish(_) => "Publish",
            Self::Unpublish(_) => "Unpublish",
            Self::Validate(_) => "Validate",
            Self::Capacity(_) => "GetCapacity",
            Self::Expand(_) => "Expand",
        }
    }

    /// The same with the forgery in it; none if the RPC has no such field.
    pub(crate) fn forged(&self, part: &Part) -> Option<Self> {
        let mut call = self.clone();
        let fits = match part {
            Part::Volume(text) => set(call.volume(), text),
            Part::Node(text) => set(call.node(), text),
            Part::Name(text) => match &mut call {
                Self::Create(request) => set(Some(&mut request.name), text),
                _ => false,
            },
            Part::Entry(key, value) => insert(call.entries(), key, value),
            Part::Secret(key, value) => insert(call.secrets(), key, value),
            Part::Mutable(key, value) => insert(call.mutable(), key, value),
            Part::Places(places) => call.place(places),
            Part::Source(volume) => match &mut call {
                Self::Create(request) => {
                    let source = VolumeSource {
                        volume_id: volume.clone(),
                    };
                    request.volume_content_source = Some(VolumeContentSource {
                        r#type: Some(volume_content_source::Type::Volume(source)),
                    });
                    true
                }
                _ => false,
            },
        };
        fits.then_some(call)
    }

    fn volume(&mut self) -> Option<&mut String> {
        match self {
            Self::Delete(request) => Some(&mut request.volume_id),
            Self::Publish(request) => Some(&mut request.volume_id),
            Self::Unpublish(request) => Some(&mut request.volume_id),
            Self::Validate(request) => Some(&mut request.volume_id),
            Self::Expand(request) => Some(&mut request.volume_id),
            Self::Create(_) | Self::Capacity(_) => None,
        }
    }

    /// Of a request that names a Node already.
    fn node(&mut self) -> Option<&mut String> {
        match self {
            Self::Publish(request) => Some(&mut request.node_id),
            Self::Unpublish(request) => Some(&mut request.node_id),
            _ => None,
        }
        .filter(|node| !node.is_empty())
    }

    fn entries(&mut self) -> Option<&mut HashMap<String, String>> {
        match self {
            Self::Create(request) => Some(&mut request.parameters),
            Self::Publish(request) => Some(&mut request.volume_context),
            Self::Validate(request) => Some(&mut request.parameters),
            Self::Capacity(request) => Some(&mut request.parameters),
            Self::Delete(_) | Self::Unpublish(_) | Self::Expand(_) => None,
        }
    }

    fn secrets(&mut self) -> Option<&mut HashMap<String, String>> {
        match self {
            Self::Create(request) => Some(&mut request.secrets),
            Self::Delete(request) => Some(&mut request.secrets),
            Self::Publish(request) => Some(&mut request.secrets),
            Self::Unpublish(request) => Some(&mut request.secrets),
            Self::Validate(request) => Some(&mut request.secrets),
            Self::Expand(request) => Some(&mut request.secrets),
            Self::Capacity(_) => None,
        }
    }

    fn mutable(&mut self) -> Option<&mut HashMap<String, String>> {
        match self {
            Self::Create(request) => Some(&mut request.mutable_parameters),
            Self::Validate(request) => Some(&mut request.mutable_parameters),
            _ => None,
        }
    }

    fn place(&mut self, places: &[(String, Option<String>)]) -> bool {
        let mut terms = places
            .iter()
            .map(|(region, zone)| topology(region, zone.as_deref()));
        match self {
            Self::Create(request) => {
                let terms: Vec<_> = terms.collect();
                request.accessibility_requirements = Some(TopologyRequirement {
                    requisite: terms.clone(),
                    preferred: terms,
                });
                true
            }
            Self::Capacity(request) if places.len() == 1 => {
                request.accessible_topology = terms.next();
                true
            }
            _ => false,
        }
    }

    /// Sends it.
    pub(crate) async fn send(&self, csi: &Csi) -> Result<Answer, Status> {
        let mut controller = csi.controller();
        match self.clone() {
            Self::Create(request) => {
                let answer = controller.create_volume(request).await?.into_inner();
                let text = format!("{answer:?}");
                Ok(Answer::Done(
                    text,
                    answer.volume.map(|volume| volume.volume_id),
                ))
            }
            Self::Delete(request) => controller.delete_volume(request).await.map(done),
            Self::Publish(request) => controller
                .controller_publish_volume(request)
                .await
                .map(done),
            Self::Unpublish(request) => controller
                .controller_unpublish_volume(request)
                .await
                .map(done),
            Self::Validate(request) => {
                let answer = controller.validate_volume_capabilities(request).await?;
                let answer = answer.into_inner();
                // What it confirms, it repeats.
                Ok(match answer.confirmed {
                    Some(_) => Answer::Done(answer.message, None),
                    None => Answer::Objected(answer.message),
                })
            }
            Self::Capacity(request) => controller.get_capacity(request).await.map(done),
            Self::Expand(request) => controller.controller_expand_volume(request).await.map(done),
        }
    }
}

fn set(field: Option<&mut String>, text: &str) -> bool {
    field.is_some_and(|field| {
        text.clone_into(field);
        true
    })
}

fn insert(map: Option<&mut HashMap<String, String>>, key: &str, value: &str) -> bool {
    map.is_some_and(|map| {
        map.insert(key.to_owned(), value.to_owned());
        true
    })
}
