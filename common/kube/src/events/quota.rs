//! What was told of late, and whether there is room for more: pure, and of bounded memory however many Nodes there are.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// The same is not told again for so long.
const REST: Duration = Duration::from_hours(1);
/// Most that is remembered; then the oldest is forgotten.
const MEMORY: usize = 20_000;
/// One Event each so long on average.
const PACE: Duration = Duration::from_secs(1);
/// Most at once.
const BURST: u32 = 50;

/// A Node and a reason. Names come from the tenant and may have any length.
pub(super) type Key = u64;

pub(super) struct Quota {
    keys: RandomState,
    told: HashMap<Key, Instant>,
    /// Every key of `told` with its time, oldest first; and some that were given back.
    order: VecDeque<(Instant, Key)>,
    /// When the burst is whole again.
    whole: Instant,
}

// === impl Quota ===

impl Quota {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            keys: RandomState::new(),
            told: HashMap::new(),
            order: VecDeque::new(),
            whole: now,
        }
    }

    /// Counts an Event as told, if it was not told of late and there is room for one more.
    pub(super) fn take(&mut self, uid: &str, reason: &str, now: Instant) -> Option<Key> {
        self.forget(now);
        let key = self.keys.hash_one((uid, reason));
        if self.told.contains_key(&key) {
            return None;
        }
        let whole = self.whole.max(now) + PACE;
        if whole > now + PACE * BURST {
            return None;
        }
        self.whole = whole;
        self.told.insert(key, now);
        self.order.push_back((now, key));
        Some(key)
    }

    /// It was not told after all. Its room is used up, nevertheless.
    pub(super) fn give_back(&mut self, key: Key, at: Instant) {
        if self.told.get(&key) == Some(&at) {
            self.told.remove(&key);
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.order.front()
            && (self.order.len() >= MEMORY || now.duration_since(at) >= REST)
        {
            self.order.pop_front();
            self.give_back(key, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_too_many_is_forgotten_and_memory_is_bounded() {
        let begin = Instant::now();
        let mut quota = Quota::new(begin);
        for second in 0..3 * MEMORY {
            // As if an hour never passed.
            quota.whole = begin;
            let uid = second.to_string();
            assert!(quota.take(&uid, "R", begin).is_some(), "{uid}");
            assert!(quota.order.len() <= MEMORY && quota.told.len() <= MEMORY);
        }
        let last = (3 * MEMORY - 1).to_string();
        assert_eq!(quota.take(&last, "R", begin), None);
        quota.whole = begin;
        assert!(quota.take("0", "R", begin).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_late_does_not_take_a_newer_one_away() {
        let begin = Instant::now();
        let mut quota = Quota::new(begin);
        let key = quota.take("u", "R", begin).unwrap();
        let later = begin + REST;
        assert_eq!(quota.take("u", "R", later), Some(key));
        quota.give_back(key, begin);
        assert_eq!(quota.take("u", "R", later + REST / 2), None);
    }
}
