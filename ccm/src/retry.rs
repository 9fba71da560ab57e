//! When to look again at Nodes that could not be served: later each time, so that Nodes of no VM cost little.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(5);
/// How long a Node needs no write until it counts as new.
const CALM: Duration = Duration::from_mins(1);

/// Names and when they are due.
#[derive(Debug, Default)]
pub struct Retries {
    waiting: BTreeMap<String, Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    tries: u32,
    due: Instant,
}

impl Retries {
    /// The earliest instant at which one is due.
    pub fn next(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.due).min()
    }

    /// Whether it is due, or does not wait at all.
    pub fn is_due(&self, name: &str, now: Instant) -> bool {
        self.waiting
            .get(name)
            .is_none_or(|waiting| waiting.due <= now)
    }

    /// Those that are due.
    pub fn due(&self, now: Instant) -> Vec<String> {
        let due = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.due <= now);
        due.map(|(name, _)| name.clone()).collect()
    }

    /// It is to be looked at again, later than the last time; returns how often it was.
    pub fn again(&mut self, name: &str, now: Instant) -> u32 {
        let tries = self.waiting.get(name).map_or(0, |waiting| waiting.tries) + 1;
        let due = now + pause(tries);
        self.waiting.insert(name.to_owned(), Waiting { tries, due });
        tries
    }

    /// It is to be looked at again at that instant, which does not count as a try.
    pub fn at(&mut self, name: &str, due: Instant) {
        let tries = self.waiting.get(name).map_or(0, |waiting| waiting.tries);
        self.waiting.insert(name.to_owned(), Waiting { tries, due });
    }

    /// It was served.
    pub fn done(&mut self, name: &str) {
        self.waiting.remove(name);
    }

    /// Forgets the others.
    pub fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.waiting.retain(|name, _| is_kept(name));
    }
}

/// How soon a Node may be written again: later each time that it has to be soon after the last. Somebody who undoes what is
/// written, be it the tenant or a webhook of it, has it written less and less often.
#[derive(Debug, Default)]
pub struct Paces(Retries);

impl Paces {
    /// It was written.
    pub fn wrote(&mut self, name: &str, now: Instant) {
        self.0.again(name, now);
    }

    /// When it may be written, if not now.
    pub fn due(&self, name: &str, now: Instant) -> Option<Instant> {
        let waiting = self.0.waiting.get(name)?;
        (waiting.due > now).then_some(waiting.due)
    }

    /// It needs no write: if that lasts, it counts as new.
    pub fn calm(&mut self, name: &str, now: Instant) {
        let is_calm = |waiting: &Waiting| now > waiting.due + CALM;
        if self.0.waiting.get(name).is_some_and(is_calm) {
            self.0.done(name);
        }
    }

    /// Forgets those that needed no write for long.
    pub fn expire(&mut self, now: Instant) {
        self.0
            .waiting
            .retain(|_, waiting| now <= waiting.due + CALM);
    }

    /// The next instant at which one may be written, of those that are to come.
    pub fn next(&self) -> Option<Instant> {
        let now = Instant::now();
        let due = self.0.waiting.values().map(|waiting| waiting.due);
        due.filter(|due| *due > now).min()
    }

    /// It is no more.
    pub fn forget(&mut self, name: &str) {
        self.0.done(name);
    }

    /// Forgets the others.
    pub fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.keep(is_kept);
    }
}

/// How long to wait after so many vain tries; not at all after none.
pub(crate) fn pause(tries: u32) -> Duration {
    let doubled = |tries: u32| FIRST.saturating_mul(1 << tries.min(16));
    tries
        .checked_sub(1)
        .map_or(Duration::ZERO, doubled)
        .min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_undoes_what_is_written_has_it_written_less_and_less_often() {
        let mut paces = Paces::default();
        let begin = Instant::now();
        let mut writes = 0;
        while begin.elapsed() < Duration::from_hours(1) {
            if paces.due("a", Instant::now()).is_none() {
                paces.wrote("a", Instant::now());
                writes += 1;
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!((15..=22).contains(&writes), "{writes} in an hour");
        paces.calm("a", Instant::now());
        assert!(paces.due("a", Instant::now()).is_some(), "not calm yet");
        tokio::time::advance(Duration::from_mins(10)).await;
        paces.calm("a", Instant::now());
        paces.wrote("a", Instant::now());
        let due = paces.due("a", Instant::now()).unwrap();
        assert_eq!(due - Instant::now(), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_grow_to_five_minutes_and_begin_anew_after_success() {
        let mut retries = Retries::default();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let now = Instant::now();
            retries.again("a", now);
            pauses.push((retries.next().unwrap() - now).as_secs());
            assert!(!retries.is_due("a", now));
            tokio::time::advance(Duration::from_secs(*pauses.last().unwrap())).await;
            assert_eq!(retries.due(Instant::now()), ["a"]);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        retries.done("a");
        assert!(retries.is_due("a", Instant::now()));
        assert_eq!(retries.again("a", Instant::now()), 1);
        retries.keep(|name| name == "b");
        assert_eq!(retries.next(), None);
    }
}
