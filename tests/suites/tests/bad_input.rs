//! Bad input to the RPCs that name a volume: a clear code and message, nothing of other guests or of PVE in it, and PVE
//! untouched.

#![expect(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests fail by panics, and a table is as long as it is"
)]

use std::collections::HashMap;

use csi_proto::csi::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, DeleteVolumeRequest,
    GetCapacityRequest, ValidateVolumeCapabilitiesRequest, VolumeCapability,
    volume_capability::{AccessType, BlockVolume, access_mode::Mode},
};
use harness::csi::{block_capability, capability, mount_capability, publish_request, topology};
use harness::refusals::Refusals;
use harness::truth::Truth;
use harness::world::{FILES, OWNER, REGION, SHARED, THIN, World, node_id, tenant};
use tonic::Code;

use Code::{FailedPrecondition, InvalidArgument, NotFound, PermissionDenied};

const NONE: [String; 0] = [];

/// Another tenant's VM and its root disk.
const STRANGER: u32 = 777;

/// A world with a volume of ours, attached to VM 101, and a VM of somebody else.
async fn world() -> (World, String) {
    let stranger = [
        ("name", "other-tenant"),
        ("scsi0", "thin:vm-777-disk-0,size=1G"),
    ];
    let builder = tenant(&[(101, "pve1"), (102, "pve1"), (103, "pve2")])
        .volume(THIN, Some("pve1"), "vm-777-disk-0", 1 << 30)
        .volume(FILES, Some("pve1"), "100/vm-100-disk-0.raw", 1 << 30)
        .vm_with(STRANGER, "pve1", &stranger, true);
    let world = World::start(builder).await.unwrap();
    let caller = world.caller();
    let volume = caller
        .create("pvc-kept", FILES, Some("pve1"))
        .await
        .unwrap();
    caller.publish(&volume, 101).await.unwrap();
    (world, volume)
}

/// Handles that must never lead anywhere, with the codes that say so.
fn handles() -> Vec<(String, Vec<Code>)> {
    let own = format!("vm-{OWNER}-pvc-x");
    let malformed = [
        String::new(),
        "/".to_owned(),
        "//".to_owned(),
        "r1/pve1/thin".to_owned(),
        "r1/pve1/thin/".to_owned(),
        format!("r1/pve1//{own}"),
        format!("/pve1/thin/{own}"),
        format!("r1/../thin/{own}"),
        format!("r1/pve1/../{own}"),
        "r1/pve1/thin/..".to_owned(),
        format!("r1/pve1/thin/../{own}"),
        format!("r1/pve1/files/{OWNER}/../777/vm-777-disk-0.raw"),
        format!("r1/pve1/thin/{own},size=1G"),
        format!("r1/pve1/thin/{own}?delay=1"),
        format!("r1/pve1/thin/{own}#x"),
        format!("r1/pve1/thin/{own}&force=1"),
        format!("r1/pve1/thin/{own};x"),
        format!("r1/pve1/thin/vm-{OWNER}%2fx"),
        format!("r1/pve1%2f..%2fpve2/thin/{own}"),
        format!("r1/pve1/thin/{own}\n"),
        format!("r1/pve1/thin/{own}\u{0}"),
        format!("r1/pve1/thin/{own}\u{1b}[2J"),
        format!("r1/pve1/thin/vm-{OWNER}-"),
        format!("r1/pve1/thin/vm-{OWNER}-a b"),
        format!("r1/pve1/thin/vm-{OWNER}-ä"),
        format!("r1/pve1/thin/{own}/{own}"),
        format!("r1/pve1/thin/vm-{OWNER}-{}", "a".repeat(5000)),
        "vm-100-disk-0".to_owned(),
        "thin:vm-777-disk-0".to_owned(),
    ];
    let foreign = [
        "r1/pve1/thin/vm-777-disk-0".to_owned(),
        "r1/pve1/thin/vm-100-disk-0".to_owned(),
        "r1/pve1/files/100/vm-100-disk-0.raw".to_owned(),
        format!("r2/pve1/thin/{own}"),
        format!("r1/pve9/thin/{own}"),
        format!("r1/pve1/local/{own}"),
        format!("r1/pve1/thin/vm-{}-pvc-x", OWNER * 10 + 9),
    ];
    let bad = malformed
        .into_iter()
        .map(|handle| (handle, vec![InvalidArgument]));
    let refused = vec![PermissionDenied, InvalidArgument, NotFound];
    bad.chain(foreign.into_iter().map(|handle| (handle, refused.clone())))
        .collect()
}

fn shown(handle: &str) -> String {
    format!("{:?}", handle.chars().take(80).collect::<String>())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_rpc_follows_a_handle_that_is_malformed_or_not_ours() {
    let (world, _) = world().await;
    let caller = world.caller();
    let mut table = Refusals::new(&world);
    for (handle, codes) in handles() {
        let what = shown(&handle);
        table.row(
            &format!("Delete {what}"),
            caller.delete(&handle).await,
            &codes,
        );
        table.row(
            &format!("Publish {what}"),
            caller.publish(&handle, 101).await,
            &codes,
        );
        table.row(
            &format!("Unpublish {what}"),
            caller.unpublish(&handle, 101).await,
            &codes,
        );
        table.row(
            &format!("Unpublish all {what}"),
            caller.unpublish_as(&handle, "").await,
            &codes,
        );
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: handle,
            volume_capabilities: vec![mount_capability()],
            ..Default::default()
        };
        let answer = world
            .csi()
            .controller()
            .validate_volume_capabilities(request)
            .await;
        table.row(&format!("Validate {what}"), answer, &codes);
    }
    assert_eq!(table.failures(), NONE);
}

fn in_mode(mode: Mode) -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), mode)
}

fn secret() -> HashMap<String, String> {
    HashMap::from([("password".to_owned(), "hunter2".to_owned())])
}

/// Only PVE's answer to the write can tell.
const ABSENT: &str = "a volume that is not there";

const NODE: &[Code] = &[
    NotFound,
    PermissionDenied,
    InvalidArgument,
    Code::Unavailable,
    FailedPrecondition,
];
const BAD: &[Code] = &[InvalidArgument];

type PublishRow = (
    &'static str,
    ControllerPublishVolumeRequest,
    &'static [Code],
);

fn bad_publishes(volume: &str) -> Vec<PublishRow> {
    let good = || publish_request(volume, &node_id(101), mount_capability());
    let to = |node_id: &str| publish_request(volume, node_id, mount_capability());
    let with = |change: fn(&mut ControllerPublishVolumeRequest)| {
        let mut request = good();
        change(&mut request);
        request
    };
    let absent = format!("{REGION}/pve1/{THIN}/vm-{OWNER}-pvc-absent");
    let context = |key: &str, value: &str| {
        let mut request = good();
        request
            .volume_context
            .insert(key.to_owned(), value.to_owned());
        request
    };
    let capable = |capability| publish_request(volume, &node_id(101), capability);
    vec![
        ("no node", to(""), BAD),
        ("a node with a comma", to("a,b"), BAD),
        ("a node with dots", to(".."), BAD),
        (
            "a node of a wrong VMID",
            to("00000000-0000-4000-a000-000000000101/x"),
            BAD,
        ),
        ("a node that does not exist", to(&node_id(999)), &[NotFound]),
        ("a VM outside the pool", to(&node_id(STRANGER)), NODE),
        (
            "a VM outside the pool, by name",
            to("other-tenant/777"),
            NODE,
        ),
        (
            "a VM on another host",
            to(&node_id(103)),
            &[FailedPrecondition],
        ),
        (
            "a VM while another has the volume",
            to(&node_id(102)),
            &[FailedPrecondition],
        ),
        ("no capability", with(|r| r.volume_capability = None), BAD),
        (
            "ReadWriteMany",
            capable(in_mode(Mode::MultiNodeMultiWriter)),
            BAD,
        ),
        ("secrets", with(|r| r.secrets = secret()), BAD),
        (
            "a cache mode with an option in it",
            context("cache", "none,file=x"),
            BAD,
        ),
        (
            "a number with an option in it",
            context("diskIOPS", "1,size=1G"),
            BAD,
        ),
        (
            ABSENT,
            publish_request(&absent, &node_id(102), mount_capability()),
            &[NotFound],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_refuses_what_it_cannot_do_before_it_writes() {
    let (world, volume) = world().await;
    let mut table = Refusals::new(&world);
    for (what, request, codes) in bad_publishes(&volume) {
        let answer = world
            .csi()
            .controller()
            .controller_publish_volume(request)
            .await;
        if what == ABSENT {
            table.row_after_a_write(what, answer, codes);
        } else {
            table.row(what, answer, codes);
        }
    }
    assert_eq!(table.failures(), NONE);
    assert_eq!(Truth::of(&world.sim).slots(101, &volume).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unpublish_refuses_what_it_cannot_do_and_detaches_nothing() {
    let (world, volume) = world().await;
    let mut table = Refusals::new(&world);
    for (what, node_id) in [
        ("a node with a comma", "a,b"),
        ("a node with dots", "../101"),
        ("a node of a wrong VMID", "worker/12"),
        ("a node with a line break", "worker\n"),
    ] {
        let answer = world.caller().unpublish_as(&volume, node_id).await;
        table.row(what, answer, &[InvalidArgument]);
    }
    let stranger = world.caller().unpublish(&volume, STRANGER).await;
    table.row(
        "a VM outside the pool",
        stranger,
        &[PermissionDenied, Code::Unavailable, FailedPrecondition],
    );
    let request = ControllerUnpublishVolumeRequest {
        volume_id: volume.clone(),
        node_id: node_id(101),
        secrets: secret(),
    };
    let answer = world
        .csi()
        .controller()
        .controller_unpublish_volume(request)
        .await;
    table.row("secrets", answer, &[InvalidArgument]);
    assert_eq!(table.failures(), NONE);
    assert_eq!(Truth::of(&world.sim).slots(101, &volume).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_refuses_what_it_cannot_do_and_frees_nothing() {
    let (world, volume) = world().await;
    let mut table = Refusals::new(&world);
    let attached = world.caller().delete(&volume).await;
    table.row("an attached volume", attached, &[FailedPrecondition]);
    let request = DeleteVolumeRequest {
        volume_id: volume,
        secrets: secret(),
    };
    let answer = world.csi().controller().delete_volume(request).await;
    table.row("secrets", answer, &[InvalidArgument]);
    assert_eq!(table.failures(), NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn validate_refuses_bad_requests_and_confirms_no_mode_that_would_fail() {
    let (world, volume) = world().await;
    let ask = async |volume_id: &str, capabilities: Vec<VolumeCapability>| {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.to_owned(),
            volume_capabilities: capabilities,
            ..Default::default()
        };
        let answer = world
            .csi()
            .controller()
            .validate_volume_capabilities(request)
            .await;
        answer.map(|answer| answer.into_inner().confirmed.is_some())
    };
    let mut table = Refusals::new(&world);
    table.row(
        "no volume",
        ask("", vec![mount_capability()]).await,
        &[InvalidArgument],
    );
    table.row(
        "no capability",
        ask(&volume, vec![]).await,
        &[InvalidArgument],
    );
    let absent = format!("{REGION}/pve1/{THIN}/vm-{OWNER}-pvc-absent");
    table.row(
        "no such volume",
        ask(&absent, vec![mount_capability()]).await,
        &[NotFound],
    );
    assert_eq!(table.failures(), NONE);
    assert!(ask(&volume, vec![mount_capability()]).await.unwrap());
    assert!(ask(&volume, vec![block_capability()]).await.unwrap());
    assert!(
        !ask(&volume, vec![in_mode(Mode::MultiNodeMultiWriter)])
            .await
            .unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn capacity_refuses_bad_requests_and_counts_only_what_is_ours() {
    let (world, _) = world().await;
    let ask = async |storage: &str, zone: Option<&str>| {
        let request = GetCapacityRequest {
            parameters: HashMap::from([("storage".to_owned(), storage.to_owned())]),
            accessible_topology: Some(topology(REGION, zone)),
            ..Default::default()
        };
        let answer = world.csi().controller().get_capacity(request).await;
        answer.map(|answer| answer.into_inner().available_capacity)
    };
    let mut table = Refusals::new(&world);
    table.row(
        "a storage with a slash",
        ask("../thin", Some("pve1")).await,
        &[InvalidArgument],
    );
    table.row(
        "a zone with a slash",
        ask(THIN, Some("../pve1")).await,
        &[InvalidArgument],
    );
    let request = GetCapacityRequest {
        parameters: HashMap::from([("storge".to_owned(), THIN.to_owned())]),
        ..Default::default()
    };
    let answer = world.csi().controller().get_capacity(request).await;
    table.row("an unknown parameter", answer, &[InvalidArgument]);
    assert_eq!(table.failures(), NONE);
    assert!(ask(THIN, Some("pve1")).await.unwrap() > 1 << 30);
    assert!(ask(SHARED, None).await.unwrap() > 1 << 30);
}
