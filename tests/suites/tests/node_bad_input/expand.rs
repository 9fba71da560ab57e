//! NodeExpandVolume.

use csi_proto::csi::v1::{CapacityRange, NodeExpandVolumeRequest};
use harness::csi::block_capability;
use harness::refusals::Refusals;
use harness::world::{FILES, OWNER, REGION};
use tonic::Code;

use super::worker::{BAD, NONE, Worker, handles};
use Code::{FailedPrecondition, InvalidArgument, NotFound, OutOfRange};

#[tokio::test(flavor = "multi_thread")]
async fn expand_refuses_what_it_cannot_do() {
    let Some(worker) = Worker::start("expand_refuses_what_it_cannot_do").await else {
        return;
    };
    let mut table = Refusals::new(&worker.world);
    let good = NodeExpandVolumeRequest {
        volume_id: worker.stage.volume_id.clone(),
        volume_path: worker.stage.staging_target_path.clone(),
        ..Default::default()
    };
    let with = |change: &dyn Fn(&mut NodeExpandVolumeRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    let sized = |required_bytes, limit_bytes| {
        with(&|r| {
            r.capacity_range = Some(CapacityRange {
                required_bytes,
                limit_bytes,
            });
        })
    };
    let absent = format!("{REGION}/pve1/{FILES}/{OWNER}/vm-{OWNER}-pvc-absent.raw");
    let plain = worker.path("plain");
    std::fs::create_dir(&plain).unwrap();
    let plain = plain.display().to_string();
    let rows: Vec<(&str, NodeExpandVolumeRequest, &[Code])> = vec![
        ("no path", with(&|r| r.volume_path.clear()), BAD),
        (
            "a relative path",
            with(&|r| r.volume_path = "x".into()),
            &[NotFound],
        ),
        (
            "a path with dots",
            with(&|r| r.volume_path += "/../x"),
            &[NotFound],
        ),
        (
            "a path outside",
            with(&|r| r.volume_path = "/etc".into()),
            &[FailedPrecondition],
        ),
        (
            "a plain folder",
            with(&|r| r.volume_path.clone_from(&plain)),
            &[FailedPrecondition],
        ),
        (
            "another volume",
            with(&|r| r.volume_id.clone_from(&absent)),
            &[FailedPrecondition],
        ),
        (
            "a relative staging path",
            with(&|r| r.staging_target_path = "x".into()),
            BAD,
        ),
        (
            "a staging path that is none",
            with(&|r| r.staging_target_path.clone_from(&plain)),
            &[FailedPrecondition],
        ),
        (
            "secrets",
            with(&|r| drop(r.secrets.insert("passphrase".into(), "hush".into()))),
            BAD,
        ),
        (
            "a raw device where a file system is",
            with(&|r| r.volume_capability = Some(block_capability())),
            &[FailedPrecondition],
        ),
        ("a negative size", sized(-1, 0), BAD),
        ("more than its limit", sized(2 << 20, 1 << 20), BAD),
        ("a limit below its size", sized(0, 1 << 20), &[OutOfRange]),
    ];
    let mut client = worker.node.csi.node();
    for (what, request, codes) in rows {
        let answer = client.node_expand_volume(request).await.map(drop);
        table.row(what, answer, codes);
    }
    for handle in handles() {
        let request = with(&|r| r.volume_id.clone_from(&handle));
        let answer = client.node_expand_volume(request).await.map(drop);
        table.row(
            &format!("Expand {handle:?}"),
            answer,
            &[InvalidArgument, NotFound],
        );
    }
    assert_eq!(table.failures(), NONE);
    worker.end().await;
}
