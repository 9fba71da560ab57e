//! How many cases were tried, and which of them went wrong.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use futures_util::future::join_all;

use super::Lane;
use crate::requirements::noted;

/// Cases and failures of one test.
#[derive(Debug, Default)]
pub struct Tally {
    /// Cases that met their fault.
    pub cases: usize,
    /// What went wrong, a line each.
    pub failures: Vec<String>,
}

impl Tally {
    /// One case went wrong.
    #[expect(clippy::print_stderr, reason = "for who runs the test alone")]
    pub fn fail(&mut self, what: String) {
        eprintln!("{what}");
        self.failures.push(what);
    }

    /// Adds another one.
    pub fn add(&mut self, other: Self) {
        self.cases += other.cases;
        self.failures.extend(other.failures);
    }

    /// Prints the figure, also in the summary of `make test`.
    ///
    /// # Panics
    /// If a case failed, or none was tried.
    #[expect(clippy::panic, reason = "the outcome of a test")]
    pub fn verdict(self, what: &str) {
        noted(&format!("sweep: {what}: {} cases", self.cases));
        assert!(self.cases > 0, "{what}: no case met its fault");
        if !self.failures.is_empty() {
            let list = self.failures.join("\n  ");
            panic!(
                "{what}: {} of {} cases failed:\n  {list}",
                self.failures.len(),
                self.cases
            );
        }
    }
}

/// Works through `jobs` on `lanes` worlds at the same time. A world in which a job failed is given up for a new one.
pub async fn in_lanes<J: Send>(
    lanes: usize,
    jobs: impl IntoIterator<Item = J>,
    work: impl AsyncFn(&mut Lane, J) -> Tally,
) -> Result<Tally> {
    let jobs: Mutex<VecDeque<J>> = Mutex::new(jobs.into_iter().collect());
    let next = || {
        let mut jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.pop_front()
    };
    let lane = async |number: usize| -> Result<Tally> {
        let mut tally = Tally::default();
        let mut lane = None;
        while let Some(job) = next() {
            let mut now = match lane.take() {
                Some(lane) => lane,
                None => Lane::new(number).await?,
            };
            let done = work(&mut now, job).await;
            if done.failures.is_empty() {
                lane = Some(now);
            }
            tally.add(done);
        }
        if let Some(lane) = lane {
            let leaks = lane.world.leaks()?;
            ensure!(leaks.is_empty(), "the token's secret was logged: {leaks:?}");
        }
        Ok(tally)
    };
    let mut all = Tally::default();
    for tally in join_all((0..lanes).map(lane)).await {
        all.add(tally?);
    }
    Ok(all)
}
