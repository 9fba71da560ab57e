//! One holder per key, for keys that come and go.
//!
//! Guarantees: guards are owned and release wherever they are dropped; waiters of a key are served
//! in order of arrival; a key without holder and waiters takes no memory.
//! Assumptions: nothing awaits while it holds the inner map's lock, so that one is a plain mutex.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Waiters of one key beyond which nobody may queue.
const MAX_WAITERS: usize = 256;

/// Locks by key. Clones share the locks.
pub struct KeyedLock<K: Eq + Hash + Clone> {
    shared: Arc<Shared<K>>,
}

/// Possession of a key until it is dropped.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard<K: Eq + Hash + Clone> {
    // Dropped before the ticket, so that the entry outlives its permit.
    _permit: OwnedSemaphorePermit,
    ticket: Ticket<K>,
}

/// Why a lock was not had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The deadline passed while others held it.
    #[error("other work on the same object did not end in time")]
    Deadline,
    /// Too many wait already.
    #[error("too much work waits for the same object")]
    Full,
}

struct Shared<K> {
    entries: Mutex<HashMap<K, Entry>>,
    conflicts: Counter,
}

struct Entry {
    semaphore: Arc<Semaphore>,
    users: usize,
}

/// Membership among a key's users: keeps the entry alive.
struct Ticket<K: Eq + Hash + Clone> {
    shared: Arc<Shared<K>>,
    key: K,
}

// === impl KeyedLock ===

impl<K: Eq + Hash + Clone> KeyedLock<K> {
    /// No key is held. `conflicts` counts refused and late locks.
    pub fn new(conflicts: Counter) -> Self {
        let shared = Shared {
            entries: Mutex::new(HashMap::new()),
            conflicts,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Takes `key` if nobody has it or waits for it.
    pub fn try_lock(&self, key: K) -> Option<Guard<K>> {
        let taken = self.enter(key, 1).and_then(|(ticket, semaphore)| {
            let permit = semaphore.try_acquire_owned().ok()?;
            Some(Guard {
                _permit: permit,
                ticket,
            })
        });
        if taken.is_none() {
            self.shared.conflicts.inc();
        }
        taken
    }

    /// Queues for `key` until `deadline`.
    pub async fn lock_until(&self, key: K, deadline: Instant) -> Result<Guard<K>, LockError> {
        let Some((ticket, semaphore)) = self.enter(key, MAX_WAITERS) else {
            self.shared.conflicts.inc();
            return Err(LockError::Full);
        };
        // The semaphore is never closed: no permit means that the deadline passed.
        let permit = tokio::time::timeout_at(deadline, semaphore.acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            self.shared.conflicts.inc();
            return Err(LockError::Deadline);
        };
        Ok(Guard {
            _permit: permit,
            ticket,
        })
    }

    /// How many keys are held or waited for.
    pub fn len(&self) -> usize {
        self.shared.entries().len()
    }

    /// Whether no key is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn enter(&self, key: K, most: usize) -> Option<(Ticket<K>, Arc<Semaphore>)> {
        let mut entries = self.shared.entries();
        let entry = entries.entry(key.clone()).or_insert_with(|| Entry {
            semaphore: Arc::new(Semaphore::new(1)),
            users: 0,
        });
        if entry.users >= most {
            return None;
        }
        entry.users += 1;
        let ticket = Ticket {
            shared: Arc::clone(&self.shared),
            key,
        };
        Some((ticket, Arc::clone(&entry.semaphore)))
    }
}

impl<K: Eq + Hash + Clone> Default for KeyedLock<K> {
    fn default() -> Self {
        Self::new(Counter::default())
    }
}

impl<K: Eq + Hash + Clone> Clone for KeyedLock<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: Eq + Hash + Clone> fmt::Debug for KeyedLock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLock")
            .field("keys", &self.len())
            .finish()
    }
}

// === impl Guard ===

impl<K: Eq + Hash + Clone> Guard<K> {
    /// The key that is held.
    pub fn key(&self) -> &K {
        &self.ticket.key
    }
}

impl<K: Eq + Hash + Clone + fmt::Debug> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", self.key())
            .finish_non_exhaustive()
    }
}

// === impl Shared, Ticket ===

impl<K> Shared<K> {
    fn entries(&self) -> MutexGuard<'_, HashMap<K, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Drop for Ticket<K> {
    fn drop(&mut self) {
        let mut entries = self.shared.entries();
        if let Some(entry) = entries.get_mut(&self.key) {
            entry.users -= 1;
            if entry.users == 0 {
                entries.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[tokio::test]
    async fn a_held_key_conflicts_and_another_key_does_not() {
        let conflicts = Counter::default();
        let locks = KeyedLock::new(conflicts.clone());
        let held = locks.try_lock("a").unwrap();
        assert!(locks.try_lock("a").is_none());
        assert_eq!(conflicts.get(), 1);
        assert!(locks.try_lock("b").is_some());
        drop(held);
        assert!(locks.try_lock("a").is_some());
        assert_eq!(conflicts.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_dropped_in_another_task_lets_the_waiter_in() {
        let locks = KeyedLock::default();
        let held = locks.try_lock(7).unwrap();
        let begun = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(held);
        });
        let guard = locks.lock_until(7, soon()).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
        assert_eq!(*guard.key(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_gives_up_at_its_deadline_and_leaves_nothing_behind() {
        let locks = KeyedLock::default();
        let held = locks.try_lock(7).unwrap();
        let begun = Instant::now();
        let late = locks.lock_until(7, soon()).await;
        assert_eq!(late.unwrap_err(), LockError::Deadline);
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
        drop(held);
        assert!(locks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_are_served_in_order_of_arrival() {
        let locks = KeyedLock::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let held = locks.try_lock(()).unwrap();
        let mut waiters = Vec::new();
        for number in 0..10 {
            let (locks, order) = (locks.clone(), Arc::clone(&order));
            waiters.push(tokio::spawn(async move {
                let _guard = locks.lock_until((), soon()).await.unwrap();
                order.lock().unwrap().push(number);
            }));
            tokio::task::yield_now().await;
        }
        drop(held);
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn no_key_stays_when_its_last_user_is_gone() {
        let locks = KeyedLock::default();
        for key in 0..1000 {
            drop(locks.try_lock(key).unwrap());
        }
        let held = locks.try_lock(1).unwrap();
        let waiter = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock_until(1, soon()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert_eq!(locks.len(), 1);
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        drop(held);
        assert!(locks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_of_a_key_is_bounded() {
        let locks = KeyedLock::default();
        let _held = locks.try_lock(1).unwrap();
        let waiters: Vec<_> = (1..MAX_WAITERS)
            .map(|_| Box::pin(locks.lock_until(1, soon())))
            .collect();
        let all = futures_util::future::join_all(waiters);
        let (full, late) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                locks.lock_until(1, soon()).await.unwrap_err()
            },
            all
        );
        assert_eq!(full, LockError::Full);
        assert!(late.iter().all(|l| matches!(l, Err(LockError::Deadline))));
    }
}
