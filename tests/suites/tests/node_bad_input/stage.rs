//! NodeStageVolume.

use std::collections::HashMap;
use std::path::Path;

use csi_proto::csi::v1::{
    NodeStageVolumeRequest, VolumeCapability,
    volume_capability::{AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use harness::csi::{capability, mount_capability, stage_request};
use harness::refusals::Refusals;
use harness::world::FILES;
use tonic::Code;

use super::worker::{BAD, NONE, Worker, handles};
use Code::{FailedPrecondition, InvalidArgument, Unavailable};

fn filesystem(fs_type: &str, flags: &[&str]) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        ..Default::default()
    };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

type StageRow = (&'static str, NodeStageVolumeRequest, &'static [Code]);

fn bad_stages(good: &NodeStageVolumeRequest, spare: &Path) -> Vec<StageRow> {
    let with = |change: &dyn Fn(&mut NodeStageVolumeRequest)| {
        let mut request = good.clone();
        request.staging_target_path = spare.display().to_string();
        change(&mut request);
        request
    };
    let context = |key: &str, value: &str| {
        with(&|r| drop(r.publish_context.insert(key.to_owned(), value.to_owned())))
    };
    let capable =
        |capability: VolumeCapability| with(&|r| r.volume_capability = Some(capability.clone()));
    let mode = |mode| capable(capability(AccessType::Block(BlockVolume {}), mode));
    let secrets = HashMap::from([("key".to_owned(), "hunter2".to_owned())]);
    let foreign = &[FailedPrecondition, InvalidArgument];
    vec![
        (
            "no staging path",
            with(&|r| r.staging_target_path.clear()),
            BAD,
        ),
        (
            "a relative staging path",
            with(&|r| r.staging_target_path = "staging".into()),
            BAD,
        ),
        (
            "a staging path with dots",
            with(&|r| r.staging_target_path += "/../x"),
            BAD,
        ),
        ("no capability", with(&|r| r.volume_capability = None), BAD),
        ("ReadWriteMany", mode(Mode::MultiNodeMultiWriter), BAD),
        ("no mode", mode(Mode::Unknown), BAD),
        (
            "a filesystem that is not offered",
            capable(filesystem("ntfs", &[])),
            BAD,
        ),
        (
            "a mount option that opens the node",
            capable(filesystem("ext4", &["suid", "dev", "bind"])),
            BAD,
        ),
        (
            "a mount option with a comma",
            capable(filesystem("ext4", &["noatime,remount"])),
            BAD,
        ),
        ("secrets", with(&|r| r.secrets.clone_from(&secrets)), BAD),
        ("no context", with(&|r| r.publish_context.clear()), BAD),
        (
            "a device that is a path",
            context("DevicePath", "/dev/sda"),
            BAD,
        ),
        (
            "a device with dots",
            context("DevicePath", "/dev/disk/by-id/../../sda"),
            BAD,
        ),
        (
            "the device of another volume",
            context("DevicePath", "/dev/disk/by-id/wwn-0x5000000000000001"),
            foreign,
        ),
        ("a lun that is no number", context("lun", "x"), BAD),
        ("a size that is no number", context("size", "1G"), BAD),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn stage_refuses_what_it_cannot_do() {
    let Some(worker) = Worker::start("stage_refuses_what_it_cannot_do").await else {
        return;
    };
    let mut table = Refusals::new(&worker.world);
    let spare = worker.path("spare");
    std::fs::create_dir_all(&spare).unwrap();
    for (what, request, codes) in bad_stages(&worker.stage, &spare) {
        table.row(what, worker.stage(request).await, codes);
    }
    for handle in handles() {
        let request = NodeStageVolumeRequest {
            volume_id: handle.clone(),
            staging_target_path: spare.display().to_string(),
            ..worker.stage.clone()
        };
        table.row(
            &format!("Stage {handle:?}"),
            worker.stage(request).await,
            BAD,
        );
    }
    let file = worker.path("file");
    std::fs::write(&file, "mine").unwrap();
    let request = NodeStageVolumeRequest {
        staging_target_path: file.display().to_string(),
        ..worker.stage.clone()
    };
    table.row(
        "a staging path that is a file",
        worker.stage(request).await,
        &[FailedPrecondition],
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(table.failures(), NONE);
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_does_not_appear_is_waited_for_and_named() {
    let test = "a_device_that_does_not_appear_is_waited_for_and_named";
    let Some(worker) = Worker::start(test).await else {
        return;
    };
    let caller = worker.world.caller();
    let volume = caller
        .create("pvc-late", FILES, Some("pve1"))
        .await
        .unwrap();
    // Attached elsewhere: this worker will never see it.
    let context = caller.publish(&volume, 102).await.unwrap();
    let staging = worker.path("late");
    std::fs::create_dir_all(&staging).unwrap();
    let request = stage_request(&volume, &context, &staging, mount_capability());
    let mut table = Refusals::new(&worker.world);
    let answer = worker.stage(request).await;
    let wwn = context["DevicePath"].rsplit('-').next().unwrap();
    assert!(
        answer.as_ref().unwrap_err().message().contains(wwn),
        "{answer:?}"
    );
    table.row(
        "a device that does not appear",
        answer,
        &[Unavailable, Code::DeadlineExceeded],
    );
    assert_eq!(table.failures(), NONE);
    worker.end().await;
}
