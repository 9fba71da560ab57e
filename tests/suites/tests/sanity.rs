//! csi-sanity of kubernetes-csi/csi-test against the real programs, controller and node plugin together.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

use std::path::Path;
use std::time::Duration;

use harness::process::Process;
use harness::requirements::{loop_devices, noted, peer, skipped};
use harness::truth::Truth;
use harness::world::{FILES, NodePlugin, REGION, SHARED, World, tenant, uuid};
use pve_sim::Builder;
use serde_json::json;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_mins(10);
/// The specs that apply to what is advertised. Fewer would mean that a program stopped advertising something.
const APPLY: u32 = 55;
/// Why csi-sanity may skip a spec: the interface's optional parts that neither program advertises.
const NOT_OFFERED: [&str; 16] = [
    "ControllerGetVolumeHealth",
    "ControllerListVolumeHealth",
    "ControllerModifyVolume",
    "ControllerPublishVolume.readonly field",
    "CreateSnapshot",
    "DeleteSnapshot",
    "GetSnapshot",
    "GroupControllerService",
    "ListSnapshots",
    "ListVolumes",
    "Modify Volume",
    "Modify volume",
    "NodeGetStorageHealth",
    "NodeGetVolumeHealth",
    "Snapshot",
    "Volume Cloning",
];

/// How many of csi-sanity's specs ended in which way.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    ran: u32,
    of: u32,
    passed: u32,
    failed: u32,
    skipped: u32,
}

/// Reads `Ran N of M Specs in …` and `N Passed | N Failed | N Pending | N Skipped`.
fn counts(log: &str) -> Counts {
    let ended = log.lines().find(|line| line.contains(" Passed | "));
    let number_before = |word: &str| {
        let parts = ended.unwrap_or_default().split(" | ");
        parts
            .filter_map(|part| part.strip_suffix(word))
            .find_map(|head| head.split(' ').rev().find_map(|number| number.parse().ok()))
            .unwrap_or_default()
    };
    let ran = log.lines().find_map(|line| line.strip_prefix("Ran "));
    let mut words = ran.unwrap_or_default().split(' ');
    let mut number = || {
        words
            .by_ref()
            .find_map(|word| word.parse().ok())
            .unwrap_or_default()
    };
    Counts {
        ran: number(),
        of: number(),
        passed: number_before("Passed"),
        failed: number_before("Failed"),
        skipped: number_before("Skipped"),
    }
}

#[test]
fn the_summary_of_csi_sanity_is_read() {
    let log = "x\nRan 54 of 92 Specs in 3.210 seconds\nSUCCESS! -- 53 Passed | 1 Failed | 0 Pending | 38 Skipped\n";
    let right = Counts {
        ran: 54,
        of: 92,
        passed: 53,
        failed: 1,
        skipped: 38,
    };
    assert_eq!(counts(log), right);
}

/// Reasons for which a spec was skipped though what it is about is offered.
fn unexpected_skips(log: &str) -> Vec<&str> {
    log.lines()
        .filter_map(|line| line.trim().strip_prefix("[SKIPPED] "))
        .filter(|reason| !reason.starts_with("in ["))
        .filter(|reason| {
            let feature = reason.strip_suffix(" not supported");
            !feature.is_some_and(|feature| NOT_OFFERED.contains(&feature))
        })
        .collect()
}

/// What csi-sanity says of the specs that failed: its whole output is too long for a reader.
fn failures(log: &str) -> String {
    let sections = log.split("------------------------------\n");
    let failed: Vec<&str> = sections
        .filter(|section| section.contains("[FAILED]") || section.contains("• [PANICKED]"))
        .collect();
    failed.join("---\n")
}

#[test]
fn of_csi_sanitys_output_the_failed_specs_are_told() {
    let line = "------------------------------\n";
    let log = format!("a\n{line}• [FAILED] [0.1 seconds]\nwhy\n{line}b\n• [0.1 seconds]\n");
    assert_eq!(failures(&log), "• [FAILED] [0.1 seconds]\nwhy\n");
}

/// Runs csi-sanity on both sockets and gives its output back.
async fn run(world: &World, kubelet: &Path, storage: &str, access: &str) -> String {
    let folder = world.folder().join("sanity");
    std::fs::create_dir_all(&folder).unwrap();
    let parameters = folder.join("parameters.yaml");
    std::fs::write(&parameters, format!("storage: {storage}\n")).unwrap();
    let program = peer("sanity", "csi-sanity").unwrap();
    let arguments = [
        "--ginkgo.no-color".to_owned(),
        "--ginkgo.v".to_owned(),
        format!("--csi.endpoint=unix:{}", kubelet.join("csi.sock").display()),
        format!(
            "--csi.controllerendpoint=unix:{}",
            world.controller_socket().display()
        ),
        format!("--csi.testvolumeparameters={}", parameters.display()),
        "--csi.testvolumesize=67108864".to_owned(),
        // It wants volumes to grow that no VM has, which Proxmox VE can't do: it gets the size that they have.
        "--csi.testvolumeexpandsize=67108864".to_owned(),
        "--csi.testnodevolumeattachlimit".to_owned(),
        format!("--csi.testvolumeaccesstype={access}"),
        format!("--csi.stagingdir={}", kubelet.join("staging").display()),
        format!("--csi.mountdir={}", kubelet.join("mount").display()),
    ];
    let mut process = Process::start("csi-sanity", &program, &arguments, &folder).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while process.ended().unwrap().is_none() {
        assert!(
            Instant::now() < deadline,
            "csi-sanity did not end:\n{}",
            process.log()
        );
        sleep(Duration::from_millis(50)).await;
    }
    process.log()
}

/// One VM with a boot disk: 30 slots are left.
fn cluster() -> Builder {
    let options = [
        ("name", "worker-101"),
        ("scsihw", "virtio-scsi-single"),
        ("scsi0", "files:101/vm-101-disk-0.raw,size=64M"),
        ("boot", "order=scsi0"),
    ];
    tenant(&[(101, "pve1")])
        .volume(FILES, Some("pve1"), "101/vm-101-disk-0.raw", 64 << 20)
        .vm_with(101, "pve1", &options, true)
}

/// The Node's own limit is what the VM can really take, so that the spec about it tells the truth.
fn all_slots_are_offered(node: &NodePlugin) {
    let labels = [
        ("topology.kubernetes.io/region", REGION),
        ("topology.kubernetes.io/zone", "pve1"),
        ("csi.proxmox.sinextra.dev/max-volume-attachments", "30"),
    ];
    let annotations = [("proxmox.sinextra.dev/instance-id", "101")];
    node.kube
        .set_node(&node.name, &uuid(101), &labels, &annotations);
}

async fn passes(name: &str, storage: &str, access: &str) {
    if let Err(reason) = loop_devices().and_then(|()| peer("sanity", "csi-sanity").map(drop)) {
        return skipped(name, &reason);
    }
    let mut world = World::start_with_loop_devices(cluster()).await.unwrap();
    if storage != SHARED {
        // csi-sanity asks for volumes anywhere: anywhere has to be where the VM is.
        let mut config = world.config();
        config["regions"]["r1"]["nodes"] = json!(["pve1"]);
        world.controller.take().unwrap().stop().await.unwrap();
        world.start_controller_with(&config).await.unwrap();
    }
    let node = world.start_node(101, Some("pve1")).await.unwrap();
    all_slots_are_offered(&node);
    let log = run(&world, &node.kubelet, storage, access).await;
    let counts = counts(&log);
    noted(&format!("csi-sanity, {access} on {storage}: {counts:?}"));
    assert_eq!(counts.failed, 0, "{}", failures(&log));
    assert_eq!(counts.passed, counts.ran, "{}", failures(&log));
    assert_eq!(unexpected_skips(&log), [""; 0]);
    assert!(counts.ran >= APPLY, "{log}");
    let truth = Truth::of(&world.sim);
    assert!(truth.disks().is_empty(), "{truth:?}");
    assert!(truth.violations().is_empty(), "{truth:?}");
    assert_eq!(world.leaks().unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn csi_sanity_passes_with_filesystems_on_local_storage() {
    passes(
        "csi_sanity_passes_with_filesystems_on_local_storage",
        FILES,
        "mount",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn csi_sanity_passes_with_raw_blocks_on_shared_storage() {
    passes(
        "csi_sanity_passes_with_raw_blocks_on_shared_storage",
        SHARED,
        "block",
    )
    .await;
}
