//! Every request of every RPC goes wrong once, in every way; the sidecar calls again; what comes of it is the same as
//! ever.

#![expect(clippy::unwrap_used, reason = "tests fail by panics")]

use harness::sweep::{Fault, Rpc, Tally, fault, single, tally};

/// Worlds at the same time: most of a case is waiting.
const LANES: usize = 8;

async fn swept(rpc: Rpc, then: Rpc, which: fn(&Fault) -> bool) -> Tally {
    let jobs = fault::all(rpc).into_iter().filter(which);
    let jobs = jobs.map(|fault| single::Job { rpc, fault, then });
    tally::in_lanes(LANES, jobs, single::sweep).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_create_may_go_wrong() {
    let tally = swept(Rpc::Create, Rpc::Create, |_| true).await;
    tally.verdict("faults of CreateVolume");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_publish_may_go_wrong() {
    let tally = swept(Rpc::Publish, Rpc::Publish, |_| true).await;
    tally.verdict("faults of ControllerPublishVolume");
}

/// The Pod is deleted while its volume is being attached: the attacher detaches what it never saw attached.
#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_a_publish_that_is_given_up_may_go_wrong() {
    let tally = swept(Rpc::Publish, Rpc::Unpublish, |fault| !fault.silences()).await;
    tally.verdict("faults of ControllerPublishVolume, then ControllerUnpublishVolume");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_expand_may_go_wrong() {
    let tally = swept(Rpc::Expand, Rpc::Expand, |_| true).await;
    tally.verdict("faults of ControllerExpandVolume");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_unpublish_may_go_wrong() {
    let tally = swept(Rpc::Unpublish, Rpc::Unpublish, |_| true).await;
    tally.verdict("faults of ControllerUnpublishVolume");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_of_delete_may_go_wrong() {
    let tally = swept(Rpc::Delete, Rpc::Delete, |_| true).await;
    tally.verdict("faults of DeleteVolume");
}
