//! The heart: state, clock, locks, hardware, tasks, faults and log in one place. Must not know HTTP.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, ClockMode};
use crate::cluster_log::ClusterLog;
use crate::doors::Doors;
use crate::events::Events;
use crate::fail::Fail;
use crate::faults::{Faults, RequestEffect, TaskEffect};
use crate::hardware::Hardware;
use crate::holds::Holds;
use crate::http::tls::Certificates;
use crate::locks::Locks;
use crate::log::{Entry, RequestLog};
use crate::logins::Logins;
use crate::state::{State, Vm, VmNumber};
use crate::stats::Stats;
use crate::tasks::Tasks;
use crate::units;
use crate::workers::Workers;

/// How long things take on the simulator's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    pub attach: Duration,
    pub detach: Duration,
    pub start: Duration,
    pub allocate: Duration,
    pub migrate: Duration,
    /// Of every request, besides what it does.
    pub request: Duration,
}

impl Timing {
    /// Nothing takes time by itself.
    pub const ZERO: Self = Self {
        attach: Duration::ZERO,
        detach: Duration::ZERO,
        start: Duration::ZERO,
        allocate: Duration::ZERO,
        migrate: Duration::ZERO,
        request: Duration::ZERO,
    };
    /// As measured on a real PVE 9.2: attach 0.17 s, detach 2.1 s.
    pub const REAL: Self = Self {
        attach: Duration::from_millis(170),
        detach: Duration::from_millis(2100),
        start: Duration::from_millis(900),
        allocate: Duration::from_millis(30),
        migrate: Duration::from_secs(8),
        request: Duration::ZERO,
    };
    /// As [`Timing::REAL`], with the time that PVE's own processes take for any request.
    pub const HOST: Self = Self {
        request: Duration::from_millis(8),
        ..Self::REAL
    };
}

/// What a simulator is made with.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) clock: ClockMode,
    pub(crate) timing: Timing,
    pub(crate) seed: u64,
}

#[derive(Debug)]
pub(crate) struct Sim {
    pub(crate) clock: Clock,
    pub(crate) timing: Timing,
    pub(crate) hardware: Box<dyn Hardware>,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) doors: Doors,
    pub(crate) events: Events,
    pub(crate) holds: Holds,
    pub(crate) logins: Logins,
    pub(crate) workers: Workers,
    pub(crate) certificates: Certificates,
    state: Mutex<State>,
    tasks: Mutex<Tasks>,
    faults: Mutex<Faults>,
    log: Mutex<RequestLog>,
    cluster_log: Mutex<ClusterLog>,
    stats: Mutex<Stats>,
    random: Mutex<StdRng>,
    pids: AtomicU32,
    pub(crate) locks: Locks,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    pub(crate) fn new(state: State, settings: &Settings, hardware: Box<dyn Hardware>) -> Self {
        let clock = Clock::new(settings.clock);
        let known = Stats::first(&state, clock.now());
        let mut cluster_log = ClusterLog::default();
        for node in state.nodes.keys() {
            cluster_log.started(node, clock.epoch());
        }
        Self {
            clock,
            timing: settings.timing,
            hardware,
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            doors: Doors::default(),
            events: Events::default(),
            holds: Holds::default(),
            logins: Logins::new(settings.seed.to_string()),
            workers: Workers::default(),
            certificates: Certificates::default(),
            state: Mutex::new(state),
            tasks: Mutex::default(),
            faults: Mutex::default(),
            log: Mutex::default(),
            cluster_log: Mutex::new(cluster_log),
            stats: Mutex::new(known),
            random: Mutex::new(StdRng::seed_from_u64(settings.seed)),
            pids: AtomicU32::new(1001),
            locks: Locks::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(crate) fn tasks(&self) -> MutexGuard<'_, Tasks> {
        locked(&self.tasks)
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        locked(&self.faults)
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, RequestLog> {
        locked(&self.log)
    }

    pub(crate) fn cluster_log(&self) -> MutexGuard<'_, ClusterLog> {
        locked(&self.cluster_log)
    }

    pub(crate) fn stats(&self) -> MutexGuard<'_, Stats> {
        locked(&self.stats)
    }

    pub(crate) fn take_fault(&self, method: &str, template: &str) -> Option<RequestEffect> {
        self.faults().take_request(method, template)
    }

    pub(crate) fn take_task_fault(&self, kind: &str, id: &str) -> Option<TaskEffect> {
        self.faults().take_task(kind, id)
    }

    pub(crate) fn log_request(&self, mut entry: Entry, status: u16) {
        entry.status = status;
        entry.at_ms = u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX);
        self.log().add(entry);
    }

    /// The pid of a process that starts now: a worker or a QEMU.
    pub(crate) fn next_pid(&self) -> u32 {
        self.pids.fetch_add(1, Ordering::Relaxed)
    }

    /// Random bytes as lower-case hex.
    pub(crate) fn random_hex(&self, bytes: usize) -> String {
        let mut raw = vec![0; bytes];
        locked(&self.random).fill_bytes(&mut raw);
        units::hex(&raw)
    }

    pub(crate) fn uuid(&self) -> String {
        let hex = self.random_hex(16);
        let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
        format!(
            "{}-{}-4{}-a{}-{}",
            part(0, 8),
            part(8, 12),
            part(13, 16),
            part(17, 20),
            part(20, 32)
        )
    }

    /// Runs code on a VM that is on this PVE node.
    pub(crate) fn with_vm<T>(
        &self,
        node: &str,
        vmid: VmNumber,
        code: impl FnOnce(&mut Vm) -> T,
    ) -> Result<T, Fail> {
        let mut state = self.lock();
        let vm = state
            .vms
            .get_mut(&vmid)
            .filter(|vm| vm.node == node)
            .ok_or_else(|| no_config(node, vmid))?;
        Ok(code(vm))
    }
}

pub(crate) fn no_config(node: &str, vmid: VmNumber) -> Fail {
    Fail::die(format!(
        "Configuration file 'nodes/{node}/qemu-server/{vmid}.conf' does not exist"
    ))
}
