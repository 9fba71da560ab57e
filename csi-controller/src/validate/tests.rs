use csi_proto::csi::v1::{
    CapacityRange, TopologyRequirement, VolumeCapability, VolumeContentSource,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use pve_model::topology::{REGION, ZONE};
use tonic::Code;

use super::*;
use crate::error::Rpc;

const HANDLE: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
const NODE: &str = "abcdef00-1111-2222-3333-444455556666/104";
const MAX: i64 = i64::MAX;

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn mount(fs_type: &str, mode: Mode) -> VolumeCapability {
    let mount = MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() };
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
    Topology { segments: map(pairs) }
}

fn range(required_bytes: i64, limit_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes })
}

fn good_create() -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        capacity_range: range(1 << 30, 0),
        volume_capabilities: vec![mount("ext4", Mode::SingleNodeWriter)],
        parameters: map(&[("storage", "local-lvm"), ("csi.storage.k8s.io/pvc/name", "data")]),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![term(&[(REGION, "r1"), (ZONE, "pve1")])],
            preferred: vec![term(&[(REGION, "r1"), (ZONE, "pve1")])],
        }),
        ..CreateVolumeRequest::default()
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
    outcome.map_or_else(|error| error.code(rpc), |_| Code::Ok)
}

#[test]
fn what_create_volume_takes_and_refuses() {
    use Code::{InvalidArgument, Ok, OutOfRange};
    type Change = fn(&mut CreateVolumeRequest);
    let rows: [(&str, Code, Change); 45] = [
        ("a plain request is taken", Ok, |_| {}),
        ("a name is required", InvalidArgument, |r| r.name.clear()),
        ("a name of 128 bytes is taken", Ok, |r| r.name = "a".repeat(128)),
        ("a longer name is refused", InvalidArgument, |r| r.name = "a".repeat(129)),
        ("control characters in a name are refused", InvalidArgument, |r| r.name = "pvc\n1".to_owned()),
        ("no size at all is taken", Ok, |r| r.capacity_range = None),
        ("a size of 0 is refused", InvalidArgument, |r| r.capacity_range = range(0, 0)),
        ("1 byte is taken", Ok, |r| r.capacity_range = range(1, 0)),
        ("a limit alone is taken", Ok, |r| r.capacity_range = range(0, 1 << 30)),
        ("a limit below 1 MiB can't be met", OutOfRange, |r| r.capacity_range = range(1, 1000)),
        ("a limit below 1 MiB alone can't be met", OutOfRange, |r| r.capacity_range = range(0, 1000)),
        ("a limit below the rounded size can't be met", OutOfRange, |r| {
            r.capacity_range = range(1_500_000_001, 1_500_000_002);
        }),
        ("more than the limit is refused", InvalidArgument, |r| r.capacity_range = range(2, 1)),
        ("negative sizes are refused", InvalidArgument, |r| r.capacity_range = range(-1, 0)),
        ("negative limits are refused", InvalidArgument, |r| r.capacity_range = range(0, -1)),
        ("a size that rounds beyond i64 is refused", OutOfRange, |r| r.capacity_range = range(MAX, 0)),
        ("a capability is required", InvalidArgument, |r| r.volume_capabilities.clear()),
        ("raw block is taken", Ok, |r| r.volume_capabilities = vec![block(Mode::SingleNodeWriter)]),
        ("block and mount at once are refused", InvalidArgument, |r| {
            r.volume_capabilities.push(block(Mode::SingleNodeWriter));
        }),
        ("no access type is refused", InvalidArgument, |r| r.volume_capabilities[0].access_type = None),
        ("no access mode is refused", InvalidArgument, |r| r.volume_capabilities[0].access_mode = None),
        ("an unknown access mode is refused", InvalidArgument, |r| {
            r.volume_capabilities[0].access_mode = Some(AccessMode { mode: 99 });
        }),
        ("the mode UNKNOWN is refused", InvalidArgument, |r| r.volume_capabilities = vec![mount("", Mode::Unknown)]),
        ("RWOP is taken", Ok, |r| r.volume_capabilities = vec![mount("", Mode::SingleNodeSingleWriter)]),
        ("RWO with several writers is taken", Ok, |r| r.volume_capabilities = vec![mount("", Mode::SingleNodeMultiWriter)]),
        ("a single reader is taken", Ok, |r| r.volume_capabilities = vec![mount("", Mode::SingleNodeReaderOnly)]),
        ("ROX is refused", InvalidArgument, |r| r.volume_capabilities = vec![mount("", Mode::MultiNodeReaderOnly)]),
        ("RWX is refused", InvalidArgument, |r| r.volume_capabilities = vec![mount("", Mode::MultiNodeMultiWriter)]),
        ("RWX block is refused", InvalidArgument, |r| r.volume_capabilities = vec![block(Mode::MultiNodeMultiWriter)]),
        ("one writer and many readers are refused", InvalidArgument, |r| {
            r.volume_capabilities = vec![mount("", Mode::MultiNodeSingleWriter)];
        }),
        ("a second capability that can't be is refused", InvalidArgument, |r| {
            r.volume_capabilities.push(mount("", Mode::MultiNodeMultiWriter));
        }),
        ("xfs is refused", InvalidArgument, |r| r.volume_capabilities = vec![mount("xfs", Mode::SingleNodeWriter)]),
        ("a volume mount group is refused", InvalidArgument, |r| {
            let mount = MountVolume { volume_mount_group: "1000".to_owned(), ..MountVolume::default() };
            r.volume_capabilities[0].access_type = Some(AccessType::Mount(mount));
        }),
        ("secrets are refused", InvalidArgument, |r| r.secrets = map(&[("k", "v")])),
        ("a content source is refused", InvalidArgument, |r| {
            r.volume_content_source = Some(VolumeContentSource::default());
        }),
        ("mutable parameters are refused", InvalidArgument, |r| r.mutable_parameters = map(&[("backup", "true")])),
        ("an unknown parameter is refused", InvalidArgument, |r| {
            r.parameters.insert("catche".to_owned(), "none".to_owned());
        }),
        ("the storage is required", InvalidArgument, |r| r.parameters = map(&[])),
        ("a storage outside its grammar is refused", InvalidArgument, |r| r.parameters = map(&[("storage", "../x")])),
        ("no topology is taken", Ok, |r| r.accessibility_requirements = None),
        ("an empty topology is taken", Ok, |r| {
            r.accessibility_requirements = Some(TopologyRequirement::default());
        }),
        ("a term without our keys is refused", InvalidArgument, |r| {
            r.accessibility_requirements.as_mut().unwrap().requisite = vec![term(&[])];
        }),
        ("a term with foreign keys is refused", InvalidArgument, |r| {
            r.accessibility_requirements.as_mut().unwrap().requisite = vec![term(&[(REGION, "r1"), ("rack", "7")])];
        }),
        ("a zone without a region is refused", InvalidArgument, |r| {
            r.accessibility_requirements.as_mut().unwrap().requisite = vec![term(&[(ZONE, "pve1")])];
        }),
        ("a zone that can't be a host is refused", InvalidArgument, |r| {
            r.accessibility_requirements.as_mut().unwrap().requisite = vec![term(&[(REGION, "r1"), (ZONE, "a/b")])];
        }),
    ];
    for (sentence, expected, change) in rows {
        let mut request = good_create();
        change(&mut request);
        assert_eq!(code(create(&request), Rpc::CreateVolume), expected, "{sentence}");
    }
}

#[test]
fn sizes_are_whole_mib_rounded_up_and_never_less_than_required() {
    let wanted = |required, limit| {
        let request = CreateVolumeRequest { capacity_range: range(required, limit), ..good_create() };
        create(&request).unwrap().size
    };
    let gib = 1 << 30;
    for (required, limit, expected) in [
        (1, 0, 1 << 20),
        (gib, 0, 1 << 30),
        (gib + 1, 0, (1 << 30) + (1 << 20)),
        (1_500_000_001, 0, 1431 << 20),
        (0, gib, 1 << 30),
        (0, 20 * gib, 10 << 30),
        (gib, gib, 1 << 30),
        (0, gib + 5, 1 << 30),
    ] {
        let size = wanted(required, limit);
        assert_eq!(size.wanted.get(), expected, "{required}..{limit}");
        assert!(size.wanted >= size.least && size.most.is_none_or(|most| size.wanted <= most));
    }
    let request = CreateVolumeRequest { capacity_range: None, ..good_create() };
    assert_eq!(create(&request).unwrap().size.wanted, DEFAULT_SIZE);
}

#[test]
fn the_volume_context_holds_the_class_and_nothing_of_the_sidecars() {
    assert_eq!(create(&good_create()).unwrap().context, map(&[("storage", "local-lvm")]));
}

#[test]
fn preferred_places_come_first_and_each_once() {
    let place = |host: &str| Place {
        region: "r1".parse().unwrap(),
        pve_node: Some(host.parse().unwrap()),
    };
    let mut request = good_create();
    request.accessibility_requirements = Some(TopologyRequirement {
        preferred: vec![term(&[(REGION, "r1"), (ZONE, "pve2")])],
        requisite: vec![term(&[(REGION, "r1"), (ZONE, "pve1")]), term(&[(REGION, "r1"), (ZONE, "pve2")])],
    });
    assert_eq!(create(&request).unwrap().places, [place("pve2"), place("pve1")]);
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
        let deletion = DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
        let publication = ControllerPublishVolumeRequest { volume_id: volume_id.clone(), ..good_publish() };
        let unpublication = ControllerUnpublishVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
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
        assert_eq!(codes, [Code::InvalidArgument; 4], "{bad:?}");
    }
}

#[test]
fn a_word_that_was_never_a_handle_names_a_volume_that_does_not_exist() {
    let deletion = DeleteVolumeRequest { volume_id: "reallyfakevolumeid".to_owned(), ..Default::default() };
    assert_eq!(delete(&deletion).unwrap(), Handle::Nothing);
    let publication = ControllerPublishVolumeRequest { volume_id: "reallyfakevolumeid".to_owned(), ..good_publish() };
    assert_eq!(code(publish(&publication), Rpc::ControllerPublishVolume), Code::NotFound);
    let unpublication = ControllerUnpublishVolumeRequest { volume_id: "reallyfake".to_owned(), ..Default::default() };
    assert_eq!(unpublish(&unpublication).unwrap(), None);
}

#[test]
fn what_delete_volume_takes_and_refuses() {
    let plain = DeleteVolumeRequest { volume_id: HANDLE.to_owned(), ..Default::default() };
    assert_eq!(delete(&plain).unwrap(), Handle::Volume(HANDLE.parse().unwrap()));
    let secret = DeleteVolumeRequest { secrets: map(&[("k", "v")]), ..plain };
    assert_eq!(code(delete(&secret), Rpc::DeleteVolume), Code::InvalidArgument);
}

#[test]
fn what_controller_publish_takes_and_refuses() {
    use Code::{InvalidArgument, Ok};
    type Change = fn(&mut ControllerPublishVolumeRequest);
    let rows: [(&str, Code, Change); 13] = [
        ("a plain request is taken", Ok, |_| {}),
        ("a node is required", InvalidArgument, |r| r.node_id.clear()),
        ("a malformed node is refused", InvalidArgument, |r| r.node_id = "a/b/c".to_owned()),
        ("a node of the former driver is taken", Ok, |r| r.node_id = "worker-a".to_owned()),
        ("a capability is required", InvalidArgument, |r| r.volume_capability = None),
        ("RWX is refused", InvalidArgument, |r| {
            r.volume_capability = Some(mount("", Mode::MultiNodeMultiWriter));
        }),
        ("a PV of another filesystem is the node's to judge", Ok, |r| {
            r.volume_capability = Some(mount("xfs", Mode::SingleNodeWriter));
        }),
        ("no access type is refused", InvalidArgument, |r| {
            r.volume_capability.as_mut().unwrap().access_type = None;
        }),
        ("secrets are refused", InvalidArgument, |r| r.secrets = map(&[("k", "v")])),
        ("read-only is taken", Ok, |r| r.readonly = true),
        ("no context is taken", Ok, |r| r.volume_context.clear()),
        ("keys of later versions are ignored", Ok, |r| {
            r.volume_context.insert("resizeRequired".to_owned(), "1".to_owned());
        }),
        ("values are held to their grammar", InvalidArgument, |r| {
            r.volume_context.insert("cache".to_owned(), "none,size=1G".to_owned());
        }),
    ];
    for (sentence, expected, change) in rows {
        let mut request = good_publish();
        change(&mut request);
        assert_eq!(code(publish(&request), Rpc::ControllerPublishVolume), expected, "{sentence}");
    }
}

#[test]
fn what_controller_unpublish_takes_and_refuses() {
    let plain = ControllerUnpublishVolumeRequest {
        volume_id: HANDLE.to_owned(),
        node_id: NODE.to_owned(),
        ..Default::default()
    };
    let node = |request: &ControllerUnpublishVolumeRequest| unpublish(request).unwrap().unwrap().node;
    assert_eq!(node(&plain), Some(NODE.parse().unwrap()));
    let everywhere = ControllerUnpublishVolumeRequest { node_id: String::new(), ..plain.clone() };
    assert_eq!(node(&everywhere), None, "no node means all of them");
    for bad in [
        ControllerUnpublishVolumeRequest { node_id: "a b".to_owned(), ..plain.clone() },
        ControllerUnpublishVolumeRequest { secrets: map(&[("k", "v")]), ..plain },
    ] {
        assert_eq!(code(unpublish(&bad), Rpc::ControllerUnpublishVolume), Code::InvalidArgument);
    }
}

#[test]
fn what_validate_volume_capabilities_confirms() {
    let plain = ValidateVolumeCapabilitiesRequest {
        volume_id: HANDLE.to_owned(),
        volume_capabilities: vec![mount("ext4", Mode::SingleNodeWriter)],
        ..Default::default()
    };
    type Change = fn(&mut ValidateVolumeCapabilitiesRequest);
    let rows: [(&str, bool, Change); 6] = [
        ("what can be done", true, |_| {}),
        ("RWX", false, |r| r.volume_capabilities = vec![mount("", Mode::MultiNodeMultiWriter)]),
        ("block and mount", false, |r| r.volume_capabilities.push(block(Mode::SingleNodeWriter))),
        ("parameters that are known", true, |r| r.parameters = map(&[("storage", "local")])),
        ("parameters that are not", false, |r| r.parameters = map(&[("storage", "local"), ("x", "y")])),
        ("mutable parameters", false, |r| r.mutable_parameters = map(&[("backup", "true")])),
    ];
    for (sentence, confirmed, change) in rows {
        let mut request = plain.clone();
        change(&mut request);
        assert_eq!(confirm(&request).unwrap().objection.is_none(), confirmed, "{sentence}");
    }
    for bad in [
        ValidateVolumeCapabilitiesRequest { volume_capabilities: vec![], ..plain.clone() },
        ValidateVolumeCapabilitiesRequest { secrets: map(&[("k", "v")]), ..plain },
    ] {
        assert_eq!(code(confirm(&bad), Rpc::ValidateVolumeCapabilities), Code::InvalidArgument);
    }
}

#[test]
fn what_get_capacity_takes_and_refuses() {
    use Code::{InvalidArgument, Ok};
    type Change = fn(&mut GetCapacityRequest);
    let rows: [(&str, Code, Change); 7] = [
        ("nothing at all is taken", Ok, |_| {}),
        ("a class is taken", Ok, |r| r.parameters = map(&[("storage", "local")])),
        ("a class without storage is refused", InvalidArgument, |r| r.parameters = map(&[("ssd", "true")])),
        ("an unknown parameter is refused", InvalidArgument, |r| {
            r.parameters = map(&[("storage", "local"), ("x", "y")]);
        }),
        ("a place is taken", Ok, |r| r.accessible_topology = Some(term(&[(REGION, "r1"), (ZONE, "pve1")]))),
        ("a place without our keys is refused", InvalidArgument, |r| r.accessible_topology = Some(term(&[]))),
        ("RWX is refused", InvalidArgument, |r| {
            r.volume_capabilities = vec![mount("", Mode::MultiNodeMultiWriter)];
        }),
    ];
    for (sentence, expected, change) in rows {
        let mut request = GetCapacityRequest::default();
        change(&mut request);
        assert_eq!(code(capacity(&request), Rpc::GetCapacity), expected, "{sentence}");
    }
}
