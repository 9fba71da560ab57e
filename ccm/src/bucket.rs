//! So many at once after a quiet time, and then one in each period.

use std::time::Duration;

use tokio::time::Instant;

/// What is left of an allowance.
#[derive(Debug)]
pub struct Bucket {
    burst: u32,
    refill: Duration,
    left: u32,
    since: Instant,
}

impl Bucket {
    /// `burst` at once, and one more after each `refill`.
    pub fn new(burst: u32, refill: Duration) -> Self {
        Self {
            burst,
            refill,
            left: burst,
            since: Instant::now(),
        }
    }

    /// Takes one, or says how long the next one takes.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        if self.left(now) == 0 {
            return Err(self.refill.saturating_sub(now.duration_since(self.since)));
        }
        self.left -= 1;
        Ok(())
    }

    /// How many could be taken at once.
    pub fn left(&mut self, now: Instant) -> u32 {
        while self.left < self.burst && now.duration_since(self.since) >= self.refill {
            self.left += 1;
            self.since += self.refill;
        }
        if self.left == self.burst {
            self.since = now;
        }
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn five_go_at_once_and_then_one_each_ten_seconds() {
        let mut bucket = Bucket::new(5, Duration::from_secs(10));
        let mut taken = Vec::new();
        for second in 0..61 {
            while bucket.take(Instant::now()).is_ok() {
                taken.push(second);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(taken, [0, 0, 0, 0, 0, 10, 20, 30, 40, 50, 60]);
        tokio::time::advance(Duration::from_secs(1000)).await;
        for _ in 0..5 {
            assert!(bucket.take(Instant::now()).is_ok());
        }
        let wait = bucket.take(Instant::now());
        assert_eq!(
            wait,
            Err(Duration::from_secs(10)),
            "no more than the burst is saved"
        );
    }
}
