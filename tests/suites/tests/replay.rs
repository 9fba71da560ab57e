//! What a real PVE answered to a long list of requests, asked of the simulator again.

#![expect(
    clippy::cast_precision_loss,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use harness::replay::{self, Player};
use serde::Deserialize;

/// An answer that the simulator may give otherwise.
#[derive(Deserialize)]
struct Accepted {
    n: u64,
    reason: String,
}

/// Fewer equal answers, in percent, are a failure whatever their reasons.
const ENOUGH: f64 = 98.0;

#[tokio::test]
async fn the_simulator_answers_as_a_real_pve_did() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = |path: &str| std::fs::read_to_string(here.join(path)).unwrap();
    let record = replay::read(&file("data/answers.jsonl")).unwrap();
    let accepted: Vec<Accepted> =
        serde_json::from_str(&file("data/replay-exceptions.json")).unwrap();
    let accepted: BTreeMap<u64, String> = accepted
        .into_iter()
        .map(|entry| (entry.n, entry.reason))
        .collect();
    assert!(
        accepted.values().all(|reason| reason.len() > 20),
        "each exception has a reason"
    );

    let folder = tempfile::tempdir().unwrap();
    let scenario = here.join("../pve-sim/scenarios/answers.json");
    let mut player = Player::start(&scenario, folder.path()).await.unwrap();
    let differences = player.play(&record).await.unwrap();

    let (all, equal) = (record.len(), record.len() - differences.len());
    let score = 100.0 * equal as f64 / all as f64;
    writeln!(
        std::io::stdout(),
        "replay: {equal} of {all} equal ({score:.1} %)"
    )
    .unwrap();
    let unknown: Vec<String> = differences
        .iter()
        .filter(|found| !accepted.contains_key(&found.n))
        .map(|found| format!("#{} {}", found.n, found.what))
        .collect();
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    let equal_after_all: Vec<&u64> = accepted
        .keys()
        .filter(|n| !differences.iter().any(|found| found.n == **n))
        .collect();
    assert!(
        equal_after_all.is_empty(),
        "no longer exceptions: {equal_after_all:?}"
    );
    assert!(score >= ENOUGH);
}
