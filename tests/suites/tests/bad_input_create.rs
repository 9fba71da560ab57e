//! Bad input to CreateVolume: a clear code and message, nothing of other guests or of PVE in it, and PVE untouched.

#![expect(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests fail by panics, and a table is as long as it is"
)]

use std::collections::HashMap;

use csi_proto::csi::v1::{
    CapacityRange, CreateVolumeRequest, VolumeCapability, VolumeContentSource,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use harness::csi::{block_capability, capability, create_request, mount_capability, topology};
use harness::refusals::Refusals;
use harness::truth::Truth;
use harness::world::{REGION, THIN, World, tenant};
use tonic::Code;

use Code::{InvalidArgument, OutOfRange, PermissionDenied};

const NONE: [String; 0] = [];

async fn world() -> World {
    World::start(tenant(&[(101, "pve1"), (102, "pve2")]))
        .await
        .unwrap()
}

fn create() -> CreateVolumeRequest {
    create_request("pvc-bad", 64 << 20, THIN, (REGION, Some("pve1")))
}

fn with(change: impl FnOnce(&mut CreateVolumeRequest)) -> CreateVolumeRequest {
    let mut request = create();
    change(&mut request);
    request
}

fn sized(required_bytes: i64, limit_bytes: i64) -> CreateVolumeRequest {
    let range = CapacityRange {
        required_bytes,
        limit_bytes,
    };
    with(|request| request.capacity_range = Some(range))
}

fn parameter(key: &str, value: &str) -> CreateVolumeRequest {
    with(|request| {
        request.parameters.insert(key.to_owned(), value.to_owned());
    })
}

fn capable(capabilities: Vec<VolumeCapability>) -> CreateVolumeRequest {
    with(|request| request.volume_capabilities = capabilities)
}

fn in_mode(mode: Mode) -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), mode)
}

fn placed(region: &str, zone: &str) -> CreateVolumeRequest {
    create_request("pvc-bad", 64 << 20, THIN, (region, Some(zone)))
}

fn fs(fs_type: &str) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        ..Default::default()
    };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

fn secret() -> HashMap<String, String> {
    HashMap::from([("password".to_owned(), "hunter2".to_owned())])
}

type CreateRow = (&'static str, CreateVolumeRequest, &'static [Code]);

fn bad_creates() -> Vec<CreateRow> {
    const BAD: &[Code] = &[InvalidArgument];
    const RANGE: &[Code] = &[OutOfRange, InvalidArgument];
    let no_mode = VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: None,
    };
    let no_type = VolumeCapability {
        access_type: None,
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    };
    vec![
        ("no name", with(|r| r.name.clear()), BAD),
        (
            "a name of 129 bytes",
            with(|r| r.name = "a".repeat(129)),
            BAD,
        ),
        (
            "a name with a line break",
            with(|r| "a\nb".clone_into(&mut r.name)),
            BAD,
        ),
        ("a size of 0", sized(0, 0), RANGE),
        ("a negative size", sized(-1, 0), RANGE),
        ("a negative limit", sized(1, -1), RANGE),
        ("more than the limit", sized(2 << 20, 1 << 20), RANGE),
        ("no whole MiB below the limit", sized(1, 4096), RANGE),
        ("the largest number", sized(i64::MAX, 0), RANGE),
        (
            "the largest number but one MiB",
            sized(i64::MAX - (1 << 20), i64::MAX),
            RANGE_OR_FULL,
        ),
        (
            "more than the storage has",
            sized(1 << 50, 0),
            &[Code::ResourceExhausted],
        ),
        ("no capability", capable(vec![]), BAD),
        ("no access mode", capable(vec![no_mode]), BAD),
        ("no access type", capable(vec![no_type]), BAD),
        (
            "an unknown mode",
            capable(vec![in_mode(Mode::Unknown)]),
            BAD,
        ),
        (
            "ReadWriteMany",
            capable(vec![in_mode(Mode::MultiNodeMultiWriter)]),
            BAD,
        ),
        (
            "ReadWriteMany beside a good one",
            capable(vec![
                block_capability(),
                in_mode(Mode::MultiNodeMultiWriter),
            ]),
            BAD,
        ),
        (
            "one writer of many",
            capable(vec![in_mode(Mode::MultiNodeSingleWriter)]),
            BAD,
        ),
        (
            "ReadOnlyMany",
            capable(vec![in_mode(Mode::MultiNodeReaderOnly)]),
            BAD,
        ),
        (
            "block and mount",
            capable(vec![block_capability(), mount_capability()]),
            BAD,
        ),
        (
            "a filesystem that is not offered",
            capable(vec![fs("ntfs")]),
            BAD,
        ),
        (
            "a filesystem with an option in it",
            capable(vec![fs("ext4 -F")]),
            BAD,
        ),
        ("no storage", with(|r| r.parameters.clear()), BAD),
        ("an empty storage", parameter("storage", ""), BAD),
        (
            "a storage that is not ours",
            parameter("storage", "local"),
            &[InvalidArgument, PermissionDenied],
        ),
        (
            "a storage with a comma",
            parameter("storage", "thin,size=1"),
            BAD,
        ),
        (
            "a storage with a slash",
            parameter("storage", "../thin"),
            BAD,
        ),
        ("an unknown parameter", parameter("catche", "none"), BAD),
        (
            "a parameter of the wrong case",
            parameter("Storage", "thin"),
            BAD,
        ),
        (
            "a cache mode with an option in it",
            parameter("cache", "none,size=1G"),
            BAD,
        ),
        ("replication", parameter("replicate", "true"), BAD),
        ("secrets", with(|r| r.secrets = secret()), BAD),
        (
            "mutable parameters",
            with(|r| r.mutable_parameters = HashMap::from([("cache".into(), "none".into())])),
            BAD,
        ),
        (
            "a source",
            with(|r| r.volume_content_source = Some(VolumeContentSource::default())),
            BAD,
        ),
        (
            "an unknown region",
            placed("r9", "pve1"),
            &[InvalidArgument, Code::ResourceExhausted],
        ),
        (
            "a PVE node that is not allowed",
            placed(REGION, "pve9"),
            &[InvalidArgument, PermissionDenied, Code::ResourceExhausted],
        ),
        (
            "a PVE node of another form",
            placed(REGION, "pve1/../pve2"),
            BAD,
        ),
        ("a zone without a region", with(zone_only), BAD),
    ]
}

const RANGE_OR_FULL: &[Code] = &[OutOfRange, InvalidArgument, Code::ResourceExhausted];

fn zone_only(request: &mut CreateVolumeRequest) {
    let mut term = topology(REGION, Some("pve1"));
    term.segments.remove("topology.kubernetes.io/region");
    let wanted = request.accessibility_requirements.as_mut().unwrap();
    wanted.requisite = vec![term.clone()];
    wanted.preferred = vec![term];
}

#[tokio::test(flavor = "multi_thread")]
async fn create_refuses_what_it_cannot_do_and_makes_nothing() {
    let world = world().await;
    let caller = world.caller();
    let mut table = Refusals::new(&world);
    for (what, request, codes) in bad_creates() {
        table.row(what, caller.create_as(request).await, codes);
    }
    assert_eq!(table.failures(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_parameter_is_answered_with_the_nearest_known_one() {
    let world = world().await;
    let status = world
        .caller()
        .create_as(parameter("catche", "none"))
        .await
        .unwrap_err();
    assert!(status.message().contains("\"catche\""), "{status:?}");
    assert!(status.message().contains("\"cache\""), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_one_byte_gets_a_whole_unit() {
    let world = world().await;
    let volume = world.caller().create_as(sized(1, 0)).await.unwrap();
    assert!(volume.capacity_bytes >= 1 << 20, "{volume:?}");
    let size = Truth::of(&world.sim).size(&volume.volume_id).unwrap();
    assert_eq!(i64::try_from(size).unwrap(), volume.capacity_bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_in_another_size_is_refused_and_the_disk_stays() {
    let world = world().await;
    let caller = world.caller();
    let first = caller.create_as(create()).await.unwrap();
    let mut table = Refusals::new(&world);
    let larger = caller.create_as(sized(1 << 30, 0)).await;
    let smaller = caller.create_as(sized(1 << 20, 2 << 20)).await;
    // PVE is asked to allocate and answers that the name is taken: that is the look.
    table.row_after_a_write("a larger one", larger, &[Code::AlreadyExists]);
    table.row_after_a_write("a smaller one", smaller, &[Code::AlreadyExists]);
    assert_eq!(table.failures(), NONE);
    assert_eq!(Truth::of(&world.sim).size(&first.volume_id), Some(64 << 20));
}
