//! What was read in the configs of VMs. A config is read once, and again only when the VM may be another one or its
//! firmware may say something else: both take a start.

use std::collections::BTreeMap;
use std::sync::Arc;

use pve_client::{RunState, VmEntry};
use pve_model::{PveNode, VmId};
use tokio::time::Instant;

use crate::facts::VmFacts;

/// How far two statements of one start may lie apart: each is as old as what the host's pvestatd sent last, every 10 s.
const STALE: u64 = 20;

/// Facts by VM, each with what it was valid for.
#[derive(Debug, Default)]
pub struct FactsCache {
    known: BTreeMap<VmId, Known>,
}

#[derive(Debug)]
struct Known {
    host: PveNode,
    name: Option<String>,
    run: Run,
    /// It had just started when its config was read: a second start right after would look the same.
    young: bool,
    facts: Arc<VmFacts>,
}

/// For how many seconds a VM had been running at an instant.
#[derive(Debug, Clone, Copy)]
struct Run {
    asked: Instant,
    uptime: u64,
}

impl Run {
    fn new(entry: &VmEntry, asked: Instant) -> Self {
        let uptime = entry.uptime.unwrap_or(0);
        Self { asked, uptime }
    }

    /// Whether the VM was started or stopped between this and what was seen `now`.
    fn has_ended(self, now: Self) -> bool {
        let went_by = now.asked.saturating_duration_since(self.asked).as_secs();
        self.uptime == 0
            || now.uptime < self.uptime
            || now.uptime.abs_diff(self.uptime + went_by) > STALE
    }
}

impl FactsCache {
    /// The facts of a VM that is in a list asked for at that instant, unless it is new, moved, renamed or started since.
    pub fn get(&mut self, entry: &VmEntry, asked: Instant) -> Option<Arc<VmFacts>> {
        let known = self.known.get_mut(&entry.vmid)?;
        if known.host != entry.pve_node {
            return None;
        }
        // A host that is down tells neither name nor uptime of its VMs, and none can be made there.
        if entry.state == RunState::Unknown && entry.name.is_none() {
            return Some(Arc::clone(&known.facts));
        }
        if known.name != entry.name {
            return None;
        }
        let run = Run::new(entry, asked);
        // The same number again is what the host sent the last time.
        if run.uptime != known.run.uptime {
            let grown = known.young && run.uptime > STALE;
            if grown || known.run.has_ended(run) {
                return None;
            }
            known.run = run;
        }
        Some(Arc::clone(&known.facts))
    }

    /// Remembers what the config of a VM said that was listed so at that instant.
    pub fn note(&mut self, entry: &VmEntry, asked: Instant, facts: Arc<VmFacts>) {
        let run = Run::new(entry, asked);
        let known = Known {
            host: entry.pve_node.clone(),
            name: entry.name.clone(),
            run,
            young: (1..=STALE).contains(&run.uptime),
            facts,
        };
        self.known.insert(entry.vmid, known);
    }

    /// Forgets the VMs that are not listed any more.
    pub fn keep(&mut self, is_listed: impl Fn(VmId) -> bool) {
        self.known.retain(|vmid, _| is_listed(*vmid));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{entry, facts};

    /// Listed as running for so many seconds.
    fn running(uptime: u64) -> VmEntry {
        VmEntry {
            uptime: Some(uptime),
            ..entry(101, "pve1")
        }
    }

    fn after(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_config_is_read_again_only_when_the_vm_may_be_another_one() {
        let listed = entry(101, "pve1");
        let with = |change: fn(&mut VmEntry)| {
            let mut entry = listed.clone();
            change(&mut entry);
            entry
        };
        let rows: [(&str, VmEntry, bool); 9] = [
            ("nothing changed", listed.clone(), true),
            ("it runs on", with(|e| e.uptime = Some(1060)), true),
            (
                "the host lags behind",
                with(|e| e.uptime = Some(1045)),
                true,
            ),
            ("it was started again", with(|e| e.uptime = Some(3)), false),
            ("it was stopped", with(|e| e.uptime = Some(0)), false),
            (
                "it moved",
                with(|e| e.pve_node = "pve2".parse().unwrap()),
                false,
            ),
            (
                "it has another name",
                with(|e| e.name = Some("x".to_owned())),
                false,
            ),
            (
                "its host is down",
                with(|e| (e.state, e.name, e.uptime) = (RunState::Unknown, None, None)),
                true,
            ),
            ("it has no name yet", with(|e| e.name = None), false),
        ];
        for (sentence, now, known) in rows {
            let mut cache = FactsCache::default();
            cache.note(&listed, after(0), Arc::new(facts(101)));
            let is = cache.get(&now, after(60)).is_some();
            assert_eq!(is, known, "{sentence}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_between_two_lists_is_seen_by_when_it_was() {
        // First and second uptime, a minute apart; whether the config stays known.
        for (first, second, known) in [
            (40, 100, true),
            (40, 90, true),
            (40, 55, false),
            (1000, 1200, false),
            // It may have been started again while it was young.
            (5, 50, false),
            (5, 65, false),
            // An answer of a host whose pvestatd hangs.
            (40, 40, true),
        ] {
            let mut cache = FactsCache::default();
            cache.note(&running(first), after(0), Arc::new(facts(101)));
            let is = cache.get(&running(second), after(60)).is_some();
            assert_eq!(is, known, "{first} {second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_young_vm_is_read_once_more_and_a_stuck_number_hides_no_start() {
        let mut cache = FactsCache::default();
        cache.note(&running(5), after(0), Arc::new(facts(101)));
        assert!(cache.get(&running(15), after(10)).is_some());
        assert!(cache.get(&running(25), after(20)).is_none());
        cache.note(&running(25), after(20), Arc::new(facts(101)));
        // Started again 35 s later; by chance the next list shows the same number.
        assert!(cache.get(&running(25), after(80)).is_some());
        assert!(cache.get(&running(85), after(140)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_that_run_apart_are_no_start() {
        let mut cache = FactsCache::default();
        cache.note(&running(100), after(0), Arc::new(facts(101)));
        for lists in 1..100 {
            let uptime = 100 + lists * 59;
            assert!(cache.get(&running(uptime), after(lists * 60)).is_some());
        }
    }

    #[test]
    fn the_start_of_a_stopped_vm_counts() {
        let mut cache = FactsCache::default();
        let mut stopped = running(0);
        stopped.state = RunState::Stopped;
        cache.note(&stopped, after(0), Arc::new(facts(101)));
        assert!(cache.get(&stopped, after(60)).is_some());
        assert!(cache.get(&running(4), after(120)).is_none());
        cache.keep(|_| false);
        assert!(cache.get(&stopped, after(120)).is_none(), "forgotten");
    }
}
