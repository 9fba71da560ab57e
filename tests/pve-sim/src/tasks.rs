//! Worker tasks: UPIDs, running, end states, logs (`RESTEnv.pm`, `UPID.pm`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::acl::Who;
use crate::carried;
use crate::cluster_log::{ERROR, INFO};
use crate::fail::Fail;
use crate::faults::TaskEffect;
use crate::sim::Sim;

/// A worker, running or ended.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) upid: String,
    pub(crate) node: String,
    pub(crate) pid: u32,
    pub(crate) pstart: u64,
    pub(crate) start: u64,
    pub(crate) kind: String,
    pub(crate) id: String,
    pub(crate) who: Who,
    /// `None` while it runs.
    pub(crate) exit: Option<String>,
    pub(crate) end: u64,
    /// The how-manieth to end: the order of the archive.
    pub(crate) ended_as: usize,
    pub(crate) log: TaskLog,
    /// Its log file is gone.
    pub(crate) vanished: bool,
    /// Somebody stops it.
    pub(crate) stop: CancellationToken,
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
pub(crate) struct Tasks {
    pub(crate) list: Vec<Task>,
    ends: usize,
}

/// What a worker writes its lines to.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskLog(Arc<Mutex<Vec<String>>>);

impl TaskLog {
    pub(crate) fn line(&self, text: impl Into<String>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text.into());
    }

    /// What is in the log file by now, of a running worker too.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// What a task is: where it runs, its worker type and id.
#[derive(Debug, Clone)]
pub(crate) struct TaskKind {
    pub(crate) node: String,
    pub(crate) kind: &'static str,
    pub(crate) id: String,
}

/// Starts a worker and returns its UPID. It is in the list of tasks from here on, also while it is slow or waits for a lock
/// (`RESTEnvironment.pm` `fork_worker` registers it before anything else).
pub(crate) fn fork<F, W>(sim: &Arc<Sim>, who: &Who, what: &TaskKind, work: F) -> String
where
    F: FnOnce(TaskLog) -> W + Send + 'static,
    W: Future<Output = Result<(), Fail>> + Send + 'static,
{
    let log = TaskLog::default();
    let (upid, pid, stop) = register(sim, who, what, log.clone());
    let given = carried::take_task().or_else(|| sim.take_task_fault(what.kind, &what.id));
    let lock = carried::take_lock() || given == Some(TaskEffect::LockTimeout);
    let (sim, name) = (sim.clone(), upid.clone());
    let worker = carried::Carried::worker(pid, log.clone(), lock);
    sim.tracker
        .clone()
        .spawn(carried::scope(worker, async move {
            let effect = given.as_ref();
            let result = tokio::select! {
                biased;
                // The signal handler of a worker (`RESTEnvironment.pm`).
                () = stop.cancelled() => Err("received interrupt".to_owned()),
                result = perform(&sim, &name, effect, work(log.clone())) => result,
            };
            finish(&sim, &name, result, effect);
        }));
    upid
}

/// The work with what its rule does to it.
async fn perform(
    sim: &Sim,
    upid: &str,
    effect: Option<&TaskEffect>,
    work: impl Future<Output = Result<(), Fail>>,
) -> Result<(), String> {
    match effect {
        Some(TaskEffect::Slow { ms }) => sim.clock.sleep(Duration::from_millis(*ms)).await,
        Some(TaskEffect::Hold) => sim.holds.stand(upid).await,
        Some(TaskEffect::Fail { text }) => return Err(text.clone()),
        Some(TaskEffect::Kill) => return Err(KILLED.to_owned()),
        _ => {}
    }
    let result = work.await.map_err(|fail| fail.exit_text());
    match effect {
        Some(TaskEffect::SlowAfter { ms }) => sim.clock.sleep(Duration::from_millis(*ms)).await,
        Some(TaskEffect::HoldAfter) => sim.holds.stand(upid).await,
        Some(TaskEffect::KillAfter) => return Err(KILLED.to_owned()),
        Some(TaskEffect::FailAfter { text }) => return result.and(Err(text.clone())),
        _ => {}
    }
    result
}

/// What PVE says of a worker that wrote no last line.
const KILLED: &str = "unexpected status";

fn register(
    sim: &Sim,
    who: &Who,
    what: &TaskKind,
    log: TaskLog,
) -> (String, u32, CancellationToken) {
    let start = sim.clock.epoch();
    let pid = sim.next_pid();
    let pstart = 457_000 + u64::from(pid) * 17;
    let upid = format!(
        "UPID:{}:{pid:08X}:{pstart:08X}:{start:08X}:{}:{}:{}:",
        what.node,
        what.kind,
        what.id,
        who.id()
    );
    let at = (what.node.as_str(), start, who.id());
    sim.cluster_log()
        .tell(INFO, (at.0, at.1, &at.2), format!("starting task {upid}"));
    let stop = CancellationToken::new();
    sim.tasks().list.push(Task {
        upid: upid.clone(),
        node: what.node.clone(),
        pid,
        pstart,
        start,
        kind: what.kind.to_owned(),
        id: what.id.clone(),
        who: who.clone(),
        exit: None,
        end: 0,
        ended_as: 0,
        log,
        vanished: false,
        stop: stop.clone(),
        ended: watch::Sender::new(false),
    });
    (upid, pid, stop)
}

fn finish(sim: &Sim, upid: &str, result: Result<(), String>, effect: Option<&TaskEffect>) {
    let now = sim.clock.epoch();
    let mut tasks = sim.tasks();
    tasks.ends += 1;
    let ends = tasks.ends;
    let Some(task) = tasks.list.iter_mut().find(|task| task.upid == upid) else {
        return;
    };
    let lines = task.log.lines();
    let warned = lines
        .iter()
        .filter(|line| line.starts_with("WARN: "))
        .count();
    let exit = match (result, effect) {
        (Ok(()), Some(TaskEffect::Warn { count })) => format!("WARNINGS: {count}"),
        (Ok(()), _) if warned > 0 => format!("WARNINGS: {warned}"),
        (Err(text), _) => text,
        (Ok(()), _) => "OK".to_owned(),
    };
    match exit.as_str() {
        "OK" => task.log.line("TASK OK"),
        KILLED => {}
        text if text.starts_with("WARNINGS: ") => task.log.line(format!("TASK {text}")),
        text => task.log.line(format!("TASK ERROR: {text}")),
    }
    let priority = if succeeded(&exit) { INFO } else { ERROR };
    sim.cluster_log().tell(
        priority,
        (&task.node, now, &task.who.id()),
        format!("end task {upid} {exit}"),
    );
    task.vanished = matches!(effect, Some(TaskEffect::Vanish));
    task.exit = Some(exit);
    (task.end, task.ended_as) = (now, ends);
    task.ended.send_replace(true);
}

/// Waits up to `delay` for the end: PVE's `background_delay` and `delay`. `None`: still running.
pub(crate) async fn wait(sim: &Sim, upid: &str, delay: Duration) -> Option<String> {
    let mut ended = sim
        .tasks()
        .list
        .iter()
        .find(|task| task.upid == upid)?
        .ended
        .subscribe();
    tokio::select! {
        biased;
        done = ended.wait_for(|done| *done) => done.is_ok(),
        () = sim.clock.sleep(delay) => false,
    };
    sim.tasks()
        .list
        .iter()
        .find(|task| task.upid == upid)?
        .exit
        .clone()
}

/// Whether an end state counts as success.
pub(crate) fn succeeded(exit: &str) -> bool {
    exit == "OK" || exit.starts_with("WARNINGS: ")
}
