use csi_proto::csi::v1::{
    VolumeCapability,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use pve_model::topology::{REGION, ZONE};
use tonic::Code;

use super::*;
use crate::error::Rpc;
use Code::{InvalidArgument, Ok};

mod create;

/// What is right, what is expected, and how the plain request is changed.
type Row<E, R> = (&'static str, E, fn(&mut R));

const HANDLE: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
const NODE: &str = "abcdef00-1111-2222-3333-444455556666/104";

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn mount(fs_type: &str, mode: Mode) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        ..MountVolume::default()
    };
    VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

fn block(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

fn term(pairs: &[(&str, &str)]) -> Topology {
    Topology {
        segments: map(pairs),
    }
}

fn good_publish() -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: HANDLE.to_owned(),
        node_id: NODE.to_owned(),
        volume_capability: Some(mount("ext4", Mode::SingleNodeWriter)),
        volume_context: map(&[("storage", "local-lvm"), ("a-later-key", "x")]),
        ..ControllerPublishVolumeRequest::default()
    }
}

fn code<T>(outcome: Result<T, Error>, rpc: Rpc) -> Code {
    outcome.map_or_else(|error| error.code(rpc), |_| Ok)
}

#[test]
fn handles_outside_the_grammar_are_refused_by_every_rpc_that_takes_one() {
    for bad in [
        "",
        "..",
        ".",
        "/",
        "vm-100-disk-0",
        "r1/pve1/local-lvm/..",
        "r1/pve1/local-lvm/",
        "r1/pve1/local-lvm",
        "r1//pve1/local-lvm/vm-9999-pvc-1",
        "r1/pve1/local-lvm/vm-9999-pvc-1,size=1G",
        "r1/pve1/local-lvm/vm-9999-pvc-1?delay=1",
        "r1/pve1/local-lvm/vm-9999-pvc-1\n",
        "r1/pve1/local/9999%2fvm-9999-pvc-1.raw",
        "r1/pve1/local-lvm/pvc-1",
        "a,b",
        "a?b",
        "a\u{0}b",
        "a%2fb",
    ] {
        let volume_id = bad.to_owned();
        let deletion = DeleteVolumeRequest {
            volume_id: volume_id.clone(),
            ..Default::default()
        };
        let publication = ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            ..good_publish()
        };
        let unpublication = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.clone(),
            ..Default::default()
        };
        let question = ValidateVolumeCapabilitiesRequest {
            volume_id,
            volume_capabilities: vec![mount("", Mode::SingleNodeWriter)],
            ..Default::default()
        };
        let codes = [
            code(delete(&deletion), Rpc::DeleteVolume),
            code(publish(&publication), Rpc::ControllerPublishVolume),
            code(unpublish(&unpublication), Rpc::ControllerUnpublishVolume),
            code(confirm(&question), Rpc::ValidateVolumeCapabilities),
        ];
        assert_eq!(codes, [InvalidArgument; 4], "{bad:?}");
    }
}

#[test]
fn a_word_that_was_never_a_handle_names_a_volume_that_does_not_exist() {
    let deletion = DeleteVolumeRequest {
        volume_id: "reallyfakevolumeid".to_owned(),
        ..Default::default()
    };
    assert_eq!(delete(&deletion).unwrap(), Handle::Nothing);
    let publication = ControllerPublishVolumeRequest {
        volume_id: "reallyfakevolumeid".to_owned(),
        ..good_publish()
    };
    assert_eq!(
        code(publish(&publication), Rpc::ControllerPublishVolume),
        Code::NotFound
    );
    let unpublication = ControllerUnpublishVolumeRequest {
        volume_id: "reallyfake".to_owned(),
        ..Default::default()
    };
    assert_eq!(unpublish(&unpublication).unwrap(), None);
}

#[test]
fn what_delete_volume_takes_and_refuses() {
    let plain = DeleteVolumeRequest {
        volume_id: HANDLE.to_owned(),
        ..Default::default()
    };
    assert_eq!(
        delete(&plain).unwrap(),
        Handle::Volume(HANDLE.parse().unwrap())
    );
    let secret = DeleteVolumeRequest {
        secrets: map(&[("k", "v")]),
        ..plain
    };
    assert_eq!(code(delete(&secret), Rpc::DeleteVolume), InvalidArgument);
}

#[test]
fn what_controller_publish_takes_and_refuses() {
    let rows: [Row<Code, ControllerPublishVolumeRequest>; 13] = [
        ("a plain request is taken", Ok, |_| {}),
        ("a node is required", InvalidArgument, |r| r.node_id.clear()),
        ("a malformed node is refused", InvalidArgument, |r| {
            r.node_id = "a/b/c".to_owned();
        }),
        ("a node of the former driver is taken", Ok, |r| {
            r.node_id = "worker-a".to_owned();
        }),
        ("a capability is required", InvalidArgument, |r| {
            r.volume_capability = None;
        }),
        ("RWX is refused", InvalidArgument, |r| {
            r.volume_capability = Some(mount("", Mode::MultiNodeMultiWriter));
        }),
        (
            "a PV of another filesystem is the node's to judge",
            Ok,
            |r| {
                r.volume_capability = Some(mount("xfs", Mode::SingleNodeWriter));
            },
        ),
        ("no access type is refused", InvalidArgument, |r| {
            r.volume_capability.as_mut().unwrap().access_type = None;
        }),
        ("secrets are refused", InvalidArgument, |r| {
            r.secrets = map(&[("k", "v")]);
        }),
        ("read-only is taken", Ok, |r| r.readonly = true),
        ("no context is taken", Ok, |r| r.volume_context.clear()),
        ("keys of later versions are ignored", Ok, |r| {
            r.volume_context
                .insert("resizeRequired".to_owned(), "1".to_owned());
        }),
        ("values are held to their grammar", InvalidArgument, |r| {
            r.volume_context
                .insert("cache".to_owned(), "none,size=1G".to_owned());
        }),
    ];
    for (sentence, expected, change) in rows {
        let mut request = good_publish();
        change(&mut request);
        assert_eq!(
            code(publish(&request), Rpc::ControllerPublishVolume),
            expected,
            "{sentence}"
        );
    }
}

#[test]
fn what_controller_unpublish_takes_and_refuses() {
    let plain = ControllerUnpublishVolumeRequest {
        volume_id: HANDLE.to_owned(),
        node_id: NODE.to_owned(),
        ..Default::default()
    };
    let node =
        |request: &ControllerUnpublishVolumeRequest| unpublish(request).unwrap().unwrap().node;
    assert_eq!(node(&plain), Some(NODE.parse().unwrap()));
    let everywhere = ControllerUnpublishVolumeRequest {
        node_id: String::new(),
        ..plain.clone()
    };
    assert_eq!(node(&everywhere), None, "no node means all of them");
    for bad in [
        ControllerUnpublishVolumeRequest {
            node_id: "a b".to_owned(),
            ..plain.clone()
        },
        ControllerUnpublishVolumeRequest {
            secrets: map(&[("k", "v")]),
            ..plain
        },
    ] {
        assert_eq!(
            code(unpublish(&bad), Rpc::ControllerUnpublishVolume),
            InvalidArgument
        );
    }
}

#[test]
fn what_validate_volume_capabilities_confirms() {
    let plain = ValidateVolumeCapabilitiesRequest {
        volume_id: HANDLE.to_owned(),
        volume_capabilities: vec![mount("ext4", Mode::SingleNodeWriter)],
        ..Default::default()
    };
    let rows: [Row<bool, ValidateVolumeCapabilitiesRequest>; 7] = [
        ("what can be done", true, |_| {}),
        ("RWX", false, |r| {
            r.volume_capabilities = vec![mount("", Mode::MultiNodeMultiWriter)];
        }),
        ("block and mount", false, |r| {
            r.volume_capabilities.push(block(Mode::SingleNodeWriter));
        }),
        ("parameters that are known", true, |r| {
            r.parameters = map(&[("storage", "local-lvm")]);
        }),
        ("parameters that are not", false, |r| {
            r.parameters = map(&[("storage", "local-lvm"), ("x", "y")]);
        }),
        ("parameters of another storage", false, |r| {
            r.parameters = map(&[("storage", "other")]);
        }),
        ("mutable parameters", false, |r| {
            r.mutable_parameters = map(&[("backup", "true")]);
        }),
    ];
    for (sentence, confirmed, change) in rows {
        let mut request = plain.clone();
        change(&mut request);
        assert_eq!(
            confirm(&request).unwrap().objection.is_none(),
            confirmed,
            "{sentence}"
        );
    }
    for bad in [
        ValidateVolumeCapabilitiesRequest {
            volume_capabilities: vec![],
            ..plain.clone()
        },
        ValidateVolumeCapabilitiesRequest {
            secrets: map(&[("k", "v")]),
            ..plain
        },
    ] {
        assert_eq!(
            code(confirm(&bad), Rpc::ValidateVolumeCapabilities),
            InvalidArgument
        );
    }
}

#[test]
fn what_get_capacity_takes_and_refuses() {
    let rows: [Row<Code, GetCapacityRequest>; 7] = [
        ("nothing at all is taken", Ok, |_| {}),
        ("a class is taken", Ok, |r| {
            r.parameters = map(&[("storage", "local")]);
        }),
        ("a class without storage is refused", InvalidArgument, |r| {
            r.parameters = map(&[("ssd", "true")]);
        }),
        ("an unknown parameter is refused", InvalidArgument, |r| {
            r.parameters = map(&[("storage", "local"), ("x", "y")]);
        }),
        ("a place is taken", Ok, |r| {
            r.accessible_topology = Some(term(&[(REGION, "r1"), (ZONE, "pve1")]));
        }),
        (
            "a place without our keys is refused",
            InvalidArgument,
            |r| r.accessible_topology = Some(term(&[])),
        ),
        ("RWX is refused", InvalidArgument, |r| {
            r.volume_capabilities = vec![mount("", Mode::MultiNodeMultiWriter)];
        }),
    ];
    for (sentence, expected, change) in rows {
        let mut request = GetCapacityRequest::default();
        change(&mut request);
        assert_eq!(
            code(capacity(&request), Rpc::GetCapacity),
            expected,
            "{sentence}"
        );
    }
}
