//! Whole lives with something going wrong at every step.

use harness::sweep::{lives, tally};

const LANES: usize = 6;
const SEEDS: u64 = 24;

#[tokio::test(flavor = "multi_thread")]
async fn lives_in_which_every_step_goes_wrong_end_as_all_others() {
    let tally = tally::in_lanes(LANES, 1..=SEEDS, lives::live)
        .await
        .unwrap();
    tally.verdict(&format!("steps of {SEEDS} lives, seeds 1 to {SEEDS}"));
}
