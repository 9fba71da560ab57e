//! The controller dies at every request of every RPC: before PVE does it, after, much before, and in its task.

use harness::sweep::{Rpc, death, tally};

const LANES: usize = 6;

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_request_leaves_nothing_half_done() {
    let jobs = Rpc::LIFE.into_iter().flat_map(death::all);
    let tally = tally::in_lanes(LANES, jobs, death::sweep).await.unwrap();
    tally.verdict("deaths of the controller");
}
