//! NodePublishVolume and the RPCs that take back or look.

use std::path::Path;

use csi_proto::csi::v1::{
    NodePublishVolumeRequest,
    volume_capability::{AccessType, BlockVolume, access_mode::Mode},
};
use harness::csi::{block_capability, capability, node_publish_request};
use harness::refusals::Refusals;
use harness::world::{FILES, OWNER, REGION};
use tonic::Code;

use super::worker::{BAD, NONE, Worker, handles};
use Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound};

#[tokio::test(flavor = "multi_thread")]
async fn publish_refuses_what_it_cannot_do() {
    let Some(worker) = Worker::start("publish_refuses_what_it_cannot_do").await else {
        return;
    };
    let mut table = Refusals::new(&worker.world);
    let good = node_publish_request(&worker.stage, &worker.path("target"));
    let with = |change: &dyn Fn(&mut NodePublishVolumeRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    let (file, full) = (worker.path("file"), worker.path("full"));
    std::fs::write(&file, "mine").unwrap();
    std::fs::create_dir_all(full.join("sub")).unwrap();
    let at = |path: &Path| with(&|r| r.target_path = path.display().to_string());
    let unstaged = worker.path("unstaged");
    std::fs::create_dir_all(&unstaged).unwrap();
    let rows: Vec<(&str, NodePublishVolumeRequest, &[Code])> = vec![
        ("no target", with(&|r| r.target_path.clear()), BAD),
        (
            "a relative target",
            with(&|r| r.target_path = "target".into()),
            BAD,
        ),
        (
            "a target with dots",
            with(&|r| r.target_path += "/../../x"),
            BAD,
        ),
        (
            "no staging path",
            with(&|r| r.staging_target_path.clear()),
            &[InvalidArgument, FailedPrecondition],
        ),
        (
            "a staging path where nothing is staged",
            with(&|r| r.staging_target_path = unstaged.display().to_string()),
            &[FailedPrecondition],
        ),
        (
            "the staging path as target",
            with(&|r| r.target_path.clone_from(&r.staging_target_path)),
            BAD,
        ),
        ("no capability", with(&|r| r.volume_capability = None), BAD),
        (
            "ReadWriteMany",
            with(&|r| {
                r.volume_capability = Some(capability(
                    AccessType::Block(BlockVolume {}),
                    Mode::MultiNodeMultiWriter,
                ));
            }),
            BAD,
        ),
        ("a target that is a file", at(&file), &[FailedPrecondition]),
        (
            "a block target that is a directory",
            with(&|r| {
                r.volume_capability = Some(block_capability());
                r.target_path = full.display().to_string();
            }),
            &[FailedPrecondition],
        ),
        (
            "a block target that is a file with content",
            with(&|r| {
                r.volume_capability = Some(block_capability());
                r.target_path = file.display().to_string();
            }),
            &[FailedPrecondition],
        ),
    ];
    for (what, request, codes) in rows {
        table.row(what, worker.publish(request).await, codes);
    }
    for handle in handles() {
        let request = with(&|r| r.volume_id.clone_from(&handle));
        table.row(
            &format!("Publish {handle:?}"),
            worker.publish(request).await,
            BAD,
        );
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert!(full.join("sub").is_dir());
    assert_eq!(table.failures(), NONE);
    worker.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unstage_unpublish_and_stats_refuse_what_is_not_a_place_of_a_volume() {
    let test = "unstage_unpublish_and_stats_refuse_what_is_not_a_place_of_a_volume";
    let Some(worker) = Worker::start(test).await else {
        return;
    };
    let mut table = Refusals::new(&worker.world);
    let (volume, file, full) = (
        worker.stage.volume_id.clone(),
        worker.path("file"),
        worker.path("full"),
    );
    std::fs::write(&file, "mine").unwrap();
    std::fs::create_dir_all(full.join("sub")).unwrap();
    let target = worker.path("t").display().to_string();
    for handle in handles() {
        table.row(
            &format!("Unstage {handle:?}"),
            worker.unstage(&handle, &target).await,
            BAD,
        );
        table.row(
            &format!("Unpublish {handle:?}"),
            worker.unpublish(&handle, &target).await,
            BAD,
        );
        let stats = worker.stats(&handle, &target).await;
        table.row(
            &format!("Stats {handle:?}"),
            stats,
            &[InvalidArgument, NotFound],
        );
    }
    for path in ["", "relative", "/a/../b"] {
        table.row(
            &format!("Unstage at {path:?}"),
            worker.unstage(&volume, path).await,
            BAD,
        );
        table.row(
            &format!("Unpublish at {path:?}"),
            worker.unpublish(&volume, path).await,
            BAD,
        );
        let stats = worker.stats(&volume, path).await;
        table.row(
            &format!("Stats at {path:?}"),
            stats,
            &[InvalidArgument, NotFound],
        );
    }
    let codes = &[FailedPrecondition, AlreadyExists, InvalidArgument];
    for path in [&file, &full] {
        let answer = worker.unpublish(&volume, &path.display().to_string()).await;
        table.row(&format!("Unpublish {}", path.display()), answer, codes);
    }
    let missing = worker.path("missing").display().to_string();
    table.row(
        "Stats of a missing path",
        worker.stats(&volume, &missing).await,
        &[NotFound],
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert!(full.join("sub").is_dir());
    assert_eq!(table.failures(), NONE);
    worker.end().await;
}

/// A volume of the region that this worker does not have at all.
#[tokio::test(flavor = "multi_thread")]
async fn unstage_and_unpublish_of_what_is_nowhere_succeed() {
    let test = "unstage_and_unpublish_of_what_is_nowhere_succeed";
    let Some(worker) = Worker::start(test).await else {
        return;
    };
    let absent = format!("{REGION}/pve1/{FILES}/{OWNER}/vm-{OWNER}-pvc-absent.raw");
    let missing = worker.path("missing").display().to_string();
    worker.unpublish(&absent, &missing).await.unwrap();
    worker.unstage(&absent, &missing).await.unwrap();
    worker.end().await;
}
