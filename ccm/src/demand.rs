//! Polls beside the regular ones: whoever waits for a VM that is not known yet may ask for one, and all of them together
//! get few. The tenant can register as many Nodes as it likes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::bucket::Bucket;

/// Polls that may follow each other at once after a quiet time.
const BURST: u32 = 8;
/// One more after each of these.
const REFILL: Duration = Duration::from_secs(10);
/// At least between two of them: those who ask at the same time share one.
const APART: Duration = Duration::from_millis(500);

/// Asks one poller to poll before its time.
#[derive(Debug)]
pub struct Demand {
    wanted: Notify,
    bucket: Mutex<Bucket>,
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            wanted: Notify::new(),
            bucket: Mutex::new(Bucket::new(BURST, REFILL)),
        }
    }
}

impl Demand {
    /// Asks for a poll. It may come late or, if the regular one is earlier, not at all.
    pub fn ask(&self) {
        self.wanted.notify_one();
    }

    /// Waits until a poll was asked for and may be.
    pub async fn next(&self) {
        self.wanted.notified().await;
        sleep(APART).await;
        while let Err(wait) = self.take(Instant::now()) {
            sleep(wait).await;
        }
    }

    fn take(&self, now: Instant) -> Result<(), Duration> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn however_often_polls_are_asked_for_few_come() {
        let demand = Demand::default();
        let begin = Instant::now();
        let mut polls = 0;
        while begin.elapsed() < Duration::from_mins(10) {
            demand.ask();
            demand.ask();
            demand.next().await;
            polls += 1;
        }
        assert!((60..=70).contains(&polls), "{polls} in ten minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_quiet_time_the_first_one_comes_at_once() {
        let demand = Demand::default();
        for _ in 0..20 {
            demand.ask();
            demand.next().await;
        }
        sleep(Duration::from_mins(5)).await;
        let begin = Instant::now();
        for _ in 0..BURST {
            demand.ask();
            demand.next().await;
        }
        assert_eq!(begin.elapsed(), APART * BURST);
    }
}
