//! Worker tasks: UPIDs, running, end states, logs (`RESTEnv.pm`, `UPID.pm`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::acl::Who;
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
    pub(crate) log: Vec<String>,
    /// Its log file is gone.
    pub(crate) vanished: bool,
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
pub(crate) struct Tasks {
    pub(crate) list: Vec<Task>,
    forks: u32,
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

    fn lines(&self) -> Vec<String> {
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

/// Starts a worker and returns its UPID.
pub(crate) fn fork<F, W>(sim: &Arc<Sim>, who: &Who, what: &TaskKind, work: F) -> String
where
    F: FnOnce(TaskLog) -> W + Send + 'static,
    W: Future<Output = Result<(), Fail>> + Send + 'static,
{
    let upid = register(sim, who, what);
    let effect = sim.take_task_fault(what.kind, &what.id);
    let (sim, name) = (sim.clone(), upid.clone());
    sim.tracker.clone().spawn(async move {
        let log = TaskLog::default();
        if let Some(TaskEffect::Slow { ms }) = effect {
            sim.clock.sleep(Duration::from_millis(ms)).await;
        }
        if let Some(TaskEffect::Hold) = effect {
            sim.holds.stand(&name).await;
        }
        let result = match &effect {
            Some(TaskEffect::Fail { text }) => Err(text.clone()),
            Some(TaskEffect::Kill) => Err("unexpected status".to_owned()),
            _ => work(log.clone()).await.map_err(|fail| fail.exit_text()),
        };
        finish(&sim, &name, result, effect.as_ref(), log.lines());
    });
    upid
}

fn register(sim: &Sim, who: &Who, what: &TaskKind) -> String {
    let start = sim.clock.epoch();
    let mut tasks = sim.tasks();
    tasks.forks += 1;
    let pid = 1000 + tasks.forks;
    let pstart = 457_000 + u64::from(tasks.forks) * 17;
    let upid = format!(
        "UPID:{}:{pid:08X}:{pstart:08X}:{start:08X}:{}:{}:{}:",
        what.node,
        what.kind,
        what.id,
        who.id()
    );
    tasks.list.push(Task {
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
        log: Vec::new(),
        vanished: false,
        ended: watch::Sender::new(false),
    });
    upid
}

fn finish(
    sim: &Sim,
    upid: &str,
    result: Result<(), String>,
    effect: Option<&TaskEffect>,
    mut log: Vec<String>,
) {
    let now = sim.clock.epoch();
    let mut tasks = sim.tasks();
    let Some(task) = tasks.list.iter_mut().find(|task| task.upid == upid) else {
        return;
    };
    let exit = match (result, effect) {
        (Ok(()), Some(TaskEffect::Warn { count })) => format!("WARNINGS: {count}"),
        (Ok(()), Some(TaskEffect::FailAfter { text })) => text.clone(),
        (Err(text), _) => text,
        (Ok(()), _) => "OK".to_owned(),
    };
    match exit.as_str() {
        "OK" => log.push("TASK OK".to_owned()),
        "unexpected status" => {}
        text if text.starts_with("WARNINGS: ") => log.push(format!("TASK {text}")),
        text => log.push(format!("TASK ERROR: {text}")),
    }
    task.vanished = matches!(effect, Some(TaskEffect::Vanish));
    task.log = log;
    task.exit = Some(exit);
    task.end = now;
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
