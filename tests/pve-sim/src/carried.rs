//! What a request carries to wherever its work is done, worker tasks included: what its rule does to the worker and to the locks,
//! the pid that PVE's texts show, and the log that the work writes to. Must not know endpoints.

use std::sync::{Arc, Mutex, PoisonError};

use crate::faults::{RequestEffect, TaskEffect};
use crate::tasks::TaskLog;

tokio::task_local! {
    static CARRIED: Arc<Carried>;
}

/// The load of one request or worker.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// For the first worker that is forked.
    task: Mutex<Option<TaskEffect>>,
    /// The first lock asked for is not got.
    lock: Mutex<bool>,
    /// The worker's process; 0: one of pvedaemon's.
    pid: u32,
    log: TaskLog,
}

impl Carried {
    /// Of a request, which has no log of its own.
    pub(crate) fn request(effect: Option<&RequestEffect>) -> Self {
        let task = match effect {
            Some(RequestEffect::Task(effect)) => Some(effect.clone()),
            _ => None,
        };
        Self {
            task: Mutex::new(task),
            lock: Mutex::new(effect == Some(&RequestEffect::LockTimeout)),
            pid: 0,
            log: TaskLog::default(),
        }
    }

    pub(crate) fn worker(pid: u32, log: TaskLog, lock: bool) -> Self {
        Self {
            task: Mutex::default(),
            lock: Mutex::new(lock),
            pid,
            log,
        }
    }
}

/// Runs code with a load.
pub(crate) async fn scope<F: Future>(load: Carried, code: F) -> F::Output {
    CARRIED.scope(Arc::new(load), code).await
}

fn take<T: Default>(of: impl FnOnce(&Carried) -> &Mutex<T>) -> T {
    CARRIED
        .try_with(|load| {
            std::mem::take(&mut *of(load).lock().unwrap_or_else(PoisonError::into_inner))
        })
        .unwrap_or_default()
}

/// What the request's rule does to its worker; the first worker gets it.
pub(crate) fn take_task() -> Option<TaskEffect> {
    take(|load| &load.task)
}

/// Whether the lock that is asked for now is not got; once.
pub(crate) fn take_lock() -> bool {
    take(|load| &load.lock)
}

/// The process that does the work, as PVE's texts show it.
pub(crate) fn pid() -> u32 {
    let of_worker = CARRIED.try_with(|load| load.pid).unwrap_or_default();
    if of_worker == 0 { PVEDAEMON } else { of_worker }
}

/// Whether a worker does this.
pub(crate) fn in_worker() -> bool {
    CARRIED.try_with(|load| load.pid).unwrap_or_default() != 0
}

/// One of pvedaemon's processes.
const PVEDAEMON: u32 = 100;

/// Writes a line to the worker's log.
pub(crate) fn log_line(text: &str) {
    if let Ok(log) = CARRIED.try_with(|load| load.log.clone()) {
        log.line(text);
    }
}
