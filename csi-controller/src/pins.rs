//! Which volumes this process may have made without having seen it.
//!
//! **Guarantees:** between the first byte of an allocation and its seen outcome, the name stays pinned to the place,
//! so that a retry goes there and nowhere else.
//! **Assumptions:** after a restart nothing is pinned; `create` then relies on the order of candidates alone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pve_model::VolumeId;
use tokio::time::Instant;

/// PVE ends an allocation within this time: 30 s of its proxy, 10 s for the storage's lock, the command itself.
const UNSETTLED_FOR: Duration = Duration::from_mins(2);
/// More than a provisioner has in flight; beyond it the oldest names are given up.
const MOST: usize = 10_000;

/// Names whose disk may exist.
#[derive(Debug, Default)]
pub struct Pins {
    names: Mutex<HashMap<String, Pin>>,
}

/// Where a name's disk may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The volume that was asked for.
    pub volume: VolumeId,
    since: Instant,
}

impl Pin {
    /// Whether the allocation may still be at work although the disk is not there.
    pub fn may_still_come(&self) -> bool {
        self.since.elapsed() < UNSETTLED_FOR
    }
}

impl Pins {
    /// The pin of a name.
    pub fn get(&self, name: &str) -> Option<Pin> {
        self.names().get(name).cloned()
    }

    /// Pins a name from now on.
    pub fn set(&self, name: &str, volume: VolumeId) {
        let mut names = self.names();
        if names.len() >= MOST
            && let Some(oldest) = oldest(&names)
        {
            names.remove(&oldest);
        }
        let since = Instant::now();
        names.insert(name.to_owned(), Pin { volume, since });
    }

    /// Pins a name as it was pinned before.
    pub fn restore(&self, name: &str, pin: Pin) {
        self.names().insert(name.to_owned(), pin);
    }

    /// The outcome was seen.
    pub fn clear(&self, name: &str) {
        self.names().remove(name);
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, Pin>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn oldest(names: &HashMap<String, Pin>) -> Option<String> {
    names
        .iter()
        .min_by_key(|(_, pin)| pin.since)
        .map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> VolumeId {
        "r1/pve1/local-lvm/vm-9999-pvc-1".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_allocation_that_was_not_seen_to_end_is_waited_for_and_not_for_ever() {
        let pins = Pins::default();
        pins.set("pvc-1", volume());
        assert!(pins.get("pvc-1").unwrap().may_still_come());
        tokio::time::advance(UNSETTLED_FOR).await;
        assert!(!pins.get("pvc-1").unwrap().may_still_come());
        pins.clear("pvc-1");
        assert_eq!(pins.get("pvc-1"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_pins_is_bounded_and_the_oldest_goes_first() {
        let pins = Pins::default();
        pins.set("oldest", volume());
        for n in 0..MOST {
            tokio::time::advance(Duration::from_millis(1)).await;
            pins.set(&n.to_string(), volume());
        }
        assert_eq!(pins.get("oldest"), None);
        assert!(pins.get("0").is_some());
    }
}
