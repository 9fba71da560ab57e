//! The simulator's clock: real time (optionally sped up, and movable), or stepped time that only moves when told.
//! Must not know what is timed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Seconds since 1970 at which a stepped clock starts, so that UPIDs and times repeat from run to run.
const STEPPED_START: u64 = 1_796_081_127;

/// How time passes inside the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockMode {
    /// Time passes by itself, `speed` times as fast as the host's.
    Real { speed: u32 },
    /// Time stands until [`Clock::advance`].
    Stepped,
}

#[derive(Debug)]
pub(crate) struct Clock {
    mode: ClockMode,
    started: Instant,
    wall_start: u64,
    moved: Mutex<Duration>,
    changed: Notify,
}

impl Clock {
    pub(crate) fn new(mode: ClockMode) -> Self {
        let wall_start = match mode {
            ClockMode::Real { .. } => {
                u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(STEPPED_START)
            }
            ClockMode::Stepped => STEPPED_START,
        };
        Self {
            mode,
            started: Instant::now(),
            wall_start,
            moved: Mutex::new(Duration::ZERO),
            changed: Notify::new(),
        }
    }

    /// Time since the simulator started.
    pub(crate) fn now(&self) -> Duration {
        let moved = *self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        match self.mode {
            ClockMode::Real { speed } => moved + self.started.elapsed() * speed.max(1),
            ClockMode::Stepped => moved,
        }
    }

    /// Seconds since 1970.
    pub(crate) fn epoch(&self) -> u64 {
        self.wall_start + self.now().as_secs()
    }

    pub(crate) fn mode(&self) -> ClockMode {
        self.mode
    }

    pub(crate) fn advance(&self, by: Duration) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) += by;
        self.changed.notify_waiters();
    }

    /// Returns once `time` has passed on this clock.
    pub(crate) async fn sleep(&self, time: Duration) {
        let target = self.now() + time;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let now = self.now();
            if now >= target {
                return;
            }
            match self.mode {
                ClockMode::Real { speed } => {
                    let rest = target.saturating_sub(now) / speed.max(1) + Duration::from_micros(1);
                    tokio::select! { () = tokio::time::sleep(rest) => {}, () = changed => {} }
                }
                ClockMode::Stepped => changed.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stepped_clock_wakes_a_sleeper_only_when_it_is_moved_far_enough() {
        let clock = std::sync::Arc::new(Clock::new(ClockMode::Stepped));
        let other = clock.clone();
        let sleeper = tokio::spawn(async move { other.sleep(Duration::from_secs(10)).await });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(9));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
        assert_eq!(clock.epoch(), STEPPED_START + 10);
    }
}
