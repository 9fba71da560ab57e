use csi_proto::csi::v1::{CapacityRange, TopologyRequirement, VolumeContentSource};

use super::*;
use Code::OutOfRange;
use Mode::{
    MultiNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter, SingleNodeMultiWriter,
    SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter, Unknown,
};

const GIB: i64 = 1 << 30;

fn plain() -> CreateVolumeRequest {
    let place = term(&[(REGION, "r1"), (ZONE, "pve1")]);
    CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: GIB,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![mount("ext4", SingleNodeWriter)],
        parameters: map(&[
            ("storage", "local-lvm"),
            ("csi.storage.k8s.io/pvc/name", "data"),
        ]),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![place.clone()],
            preferred: vec![place],
        }),
        ..CreateVolumeRequest::default()
    }
}

fn sized(required_bytes: i64, limit_bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        capacity_range: Some(CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        ..plain()
    }
}

fn named(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        ..plain()
    }
}

fn used(volume_capabilities: Vec<VolumeCapability>) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_capabilities,
        ..plain()
    }
}

fn with_class(pairs: &[(&str, &str)]) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: map(pairs),
        ..plain()
    }
}

fn placed(requisite: Vec<Topology>) -> CreateVolumeRequest {
    let wanted = TopologyRequirement {
        requisite,
        preferred: Vec::new(),
    };
    CreateVolumeRequest {
        accessibility_requirements: Some(wanted),
        ..plain()
    }
}

fn check(rows: Vec<(&str, Code, CreateVolumeRequest)>) {
    for (sentence, expected, request) in rows {
        assert_eq!(
            code(create(&request), Rpc::CreateVolume),
            expected,
            "{sentence}"
        );
    }
}

#[test]
fn names_are_1_to_128_bytes_without_control_characters() {
    check(vec![
        ("a plain request", Ok, plain()),
        ("no name", InvalidArgument, named("")),
        ("128 bytes", Ok, named(&"a".repeat(128))),
        ("129 bytes", InvalidArgument, named(&"a".repeat(129))),
        ("a control character", InvalidArgument, named("pvc\n1")),
        (
            "characters that PVE does not take",
            Ok,
            named("pvc 1/../\u{e4}"),
        ),
    ]);
}

#[test]
fn sizes_that_cannot_be_made_are_refused() {
    let unsaid = CreateVolumeRequest {
        capacity_range: None,
        ..plain()
    };
    check(vec![
        ("no size at all", Ok, unsaid),
        ("0", InvalidArgument, sized(0, 0)),
        ("1 byte", Ok, sized(1, 0)),
        ("a limit alone", Ok, sized(0, GIB)),
        (
            "1 byte, and no whole MiB within the limit",
            OutOfRange,
            sized(1, 1000),
        ),
        (
            "a limit alone that is below 1 MiB",
            OutOfRange,
            sized(0, 1000),
        ),
        (
            "a limit below the rounded size",
            OutOfRange,
            sized(1_500_000_001, 1_500_000_002),
        ),
        ("more than the limit", InvalidArgument, sized(2, 1)),
        ("a negative size", InvalidArgument, sized(-1, 0)),
        ("a negative limit", InvalidArgument, sized(0, -1)),
        (
            "a size that rounds beyond i64",
            OutOfRange,
            sized(i64::MAX, 0),
        ),
    ]);
}

#[test]
fn sizes_are_whole_mib_rounded_up_and_never_less_than_required() {
    for (required, limit, expected) in [
        (1, 0, 1 << 20),
        (GIB, 0, 1 << 30),
        (GIB + 1, 0, (1 << 30) + (1 << 20)),
        (1_500_000_001, 0, 1431 << 20),
        (0, GIB, 1 << 30),
        (0, 20 * GIB, 10 << 30),
        (GIB, GIB, 1 << 30),
        (0, GIB + 5, 1 << 30),
    ] {
        let size = create(&sized(required, limit)).unwrap().size;
        assert_eq!(size.wanted.get(), expected, "{required}..{limit}");
        assert!(size.wanted >= size.least && size.most.is_none_or(|most| size.wanted <= most));
    }
    let unsaid = CreateVolumeRequest {
        capacity_range: None,
        ..plain()
    };
    assert_eq!(create(&unsaid).unwrap().size.wanted, DEFAULT_SIZE);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn a_volume_is_for_one_node_at_a_time_and_either_block_or_ext4() {
    let bare = VolumeCapability::default();
    let mut modeless = mount("", SingleNodeWriter);
    modeless.access_mode = None;
    let mut odd = mount("", SingleNodeWriter);
    odd.access_mode = Some(AccessMode { mode: 99 });
    let mut grouped = mount("", SingleNodeWriter);
    grouped.access_type = Some(AccessType::Mount(MountVolume {
        volume_mount_group: "1000".to_owned(),
        ..MountVolume::default()
    }));
    let both = vec![mount("", SingleNodeWriter), block(SingleNodeWriter)];
    let second = vec![block(SingleNodeWriter), block(MultiNodeMultiWriter)];
    check(vec![
        ("no capability", InvalidArgument, used(vec![])),
        ("an empty capability", InvalidArgument, used(vec![bare])),
        ("no access mode", InvalidArgument, used(vec![modeless])),
        (
            "an access mode of a later CSI",
            InvalidArgument,
            used(vec![odd]),
        ),
        (
            "the mode UNKNOWN",
            InvalidArgument,
            used(vec![mount("", Unknown)]),
        ),
        ("block", Ok, used(vec![block(SingleNodeWriter)])),
        ("block and mount", InvalidArgument, used(both)),
        (
            "no filesystem named",
            Ok,
            used(vec![mount("", SingleNodeWriter)]),
        ),
        (
            "xfs",
            InvalidArgument,
            used(vec![mount("xfs", SingleNodeWriter)]),
        ),
        ("a volume mount group", InvalidArgument, used(vec![grouped])),
        ("RWOP", Ok, used(vec![mount("", SingleNodeSingleWriter)])),
        ("RWO", Ok, used(vec![mount("", SingleNodeMultiWriter)])),
        (
            "a single reader",
            Ok,
            used(vec![mount("", SingleNodeReaderOnly)]),
        ),
        (
            "ROX",
            InvalidArgument,
            used(vec![mount("", MultiNodeReaderOnly)]),
        ),
        (
            "RWX",
            InvalidArgument,
            used(vec![mount("", MultiNodeMultiWriter)]),
        ),
        (
            "RWX block",
            InvalidArgument,
            used(vec![block(MultiNodeMultiWriter)]),
        ),
        (
            "one writer, many readers",
            InvalidArgument,
            used(vec![block(MultiNodeSingleWriter)]),
        ),
        ("RWX as second capability", InvalidArgument, used(second)),
    ]);
}

#[test]
fn what_is_not_offered_or_not_known_is_refused_instead_of_ignored() {
    let secret = CreateVolumeRequest {
        secrets: map(&[("k", "v")]),
        ..plain()
    };
    let copied = CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource::default()),
        ..plain()
    };
    let mutable = CreateVolumeRequest {
        mutable_parameters: map(&[("backup", "true")]),
        ..plain()
    };
    let unknown = with_class(&[("storage", "local-lvm"), ("catche", "none")]);
    assert!(create(&unknown).unwrap_err().tenant().contains("\"cache\""));
    check(vec![
        ("secrets", InvalidArgument, secret),
        ("a content source", InvalidArgument, copied),
        ("mutable parameters", InvalidArgument, mutable),
        ("an unknown parameter", InvalidArgument, unknown),
        ("no storage", InvalidArgument, with_class(&[])),
        (
            "a storage outside its grammar",
            InvalidArgument,
            with_class(&[("storage", "../x")]),
        ),
        (
            "replication",
            InvalidArgument,
            with_class(&[("storage", "zfs"), ("replicate", "true")]),
        ),
    ]);
}

#[test]
fn terms_of_a_topology_are_ours_or_refused() {
    let anywhere = CreateVolumeRequest {
        accessibility_requirements: None,
        ..plain()
    };
    let rack = term(&[(REGION, "r1"), ("rack", "7")]);
    let good = term(&[(REGION, "r1"), (ZONE, "pve1")]);
    check(vec![
        ("no topology", Ok, anywhere),
        ("an empty one", Ok, placed(vec![])),
        ("a region", Ok, placed(vec![term(&[(REGION, "r1")])])),
        (
            "a term without keys",
            InvalidArgument,
            placed(vec![term(&[])]),
        ),
        ("a foreign key", InvalidArgument, placed(vec![rack])),
        (
            "a zone without a region",
            InvalidArgument,
            placed(vec![term(&[(ZONE, "pve1")])]),
        ),
        (
            "a zone that can't be a host",
            InvalidArgument,
            placed(vec![term(&[(REGION, "r1"), (ZONE, "a/b")])]),
        ),
        (
            "a good term and a bad one",
            InvalidArgument,
            placed(vec![good, term(&[])]),
        ),
    ]);
}

#[test]
fn the_volume_context_holds_the_class_and_nothing_of_the_sidecars() {
    let context = create(&plain()).unwrap().context;
    assert_eq!(context, map(&[("storage", "local-lvm")]));
}

#[test]
fn preferred_places_come_first_and_each_once() {
    let place = |host: &str| Place {
        region: "r1".parse().unwrap(),
        pve_node: Some(host.parse().unwrap()),
    };
    let at = |host: &str| term(&[(REGION, "r1"), (ZONE, host)]);
    let mut request = placed(vec![at("pve1"), at("pve2")]);
    if let Some(wanted) = &mut request.accessibility_requirements {
        wanted.preferred = vec![at("pve2")];
    }
    let places = create(&request).unwrap().places;
    assert_eq!(places, [place("pve2"), place("pve1")]);
}
