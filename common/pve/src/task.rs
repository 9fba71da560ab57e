//! PVE's background tasks: their names, and waiting for one.
//!
//! **Guarantees:** [`Client::wait_task`] returns at the deadline at the latest, polls after 100 ms and then ever more
//! seldom up to 2 s, and never takes a task of which it does not know the end as ended.
//! **Assumptions:** the same token asks that started the task: PVE shows it to nobody else.
//! **Errors:** those of the poll, always with [`Effect::Possible`], as the task may go on.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pve_model::PveNode;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::Client;
use crate::classify;
use crate::error::{ApiError, Effect, ErrorKind};
use crate::request::{ApiRequest, OpClass, Spec};
use crate::wire::{self, Fields};

pub(crate) static STATUS: Spec = Spec {
    name: "GET /nodes/{node}/tasks/{upid}/status",
    class: OpClass::Read,
    // A task can be read by the token that started it.
    rights: &[],
};

pub(crate) static ENDPOINTS: [&Spec; 1] = [&STATUS];

const FIRST_POLL: Duration = Duration::from_millis(100);
const SLOWEST_POLL: Duration = Duration::from_secs(2);

/// A text that is not a task's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a task id")]
pub struct ParseUpidError;

/// A task's name, `UPID:<node>:<pid>:<pstart>:<starttime>:<type>:<id>:<user[!token]>:` (`UPID.pm` 18).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Upid {
    text: String,
    pve_node: PveNode,
    kind: String,
    id: String,
}

impl Upid {
    /// The host on which it runs, the only one that knows it.
    pub fn pve_node(&self) -> &PveNode {
        &self.pve_node
    }

    /// What it does: `qmconfig`, `imgdel`, `resize`, ….
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// To what: a VMID, `9999@local-lvm`, or nothing.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl FromStr for Upid {
    type Err = ParseUpidError;

    fn from_str(text: &str) -> Result<Self, ParseUpidError> {
        let hex = |t: &str, lengths: std::ops::RangeInclusive<usize>| {
            lengths.contains(&t.len()) && t.bytes().all(|b| b.is_ascii_hexdigit())
        };
        let word = |t: &str| t.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        let parts: Vec<&str> = text.split(':').collect();
        match parts.as_slice() {
            ["UPID", node, pid, pstart, start, kind, id, user, ""]
                if hex(pid, 8..=8)
                    && hex(pstart, 8..=9)
                    && hex(start, 8..=8)
                    && [kind, id, user].into_iter().all(|part| word(part))
                    && !kind.is_empty()
                    && !user.is_empty() =>
            {
                Ok(Self {
                    text: text.to_owned(),
                    pve_node: node.parse().map_err(|_| ParseUpidError)?,
                    kind: (*kind).to_owned(),
                    id: (*id).to_owned(),
                })
            }
            _ => Err(ParseUpidError),
        }
    }
}

impl fmt::Display for Upid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a call with `delay` or `background_delay` came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// It is done, with success.
    Done,
    /// It still runs.
    Running(Upid),
}

impl Started {
    pub(crate) fn read(data: &Value) -> Result<Self, String> {
        match data {
            Value::Null => Ok(Self::Done),
            Value::String(text) => text
                .parse()
                .map(Self::Running)
                .map_err(|error: ParseUpidError| error.to_string()),
            _ => Err("neither null nor a task id".to_owned()),
        }
    }
}

/// How a task ended, if it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskOutcome {
    /// `OK`.
    Ok,
    /// `WARNINGS: n`, a success.
    Warnings(u32),
    /// It failed, in PVE's words; [`ApiError::of_task`] reads them.
    Failed(String),
    /// It ended, and nobody knows how: its process vanished, or PVE forgot it.
    Unknown,
    /// The deadline came first.
    StillRunning,
}

impl TaskOutcome {
    /// From `exitstatus` (`UPID.pm` 70): `unexpected status` and an unreadable log say nothing about the work.
    fn of_exit(text: &str) -> Self {
        let warnings = text
            .strip_prefix("WARNINGS: ")
            .and_then(|n| n.trim().parse().ok());
        match (text, warnings) {
            ("OK", _) => Self::Ok,
            (_, Some(count)) => Self::Warnings(count),
            ("" | "unexpected status", _) => Self::Unknown,
            _ if text.starts_with("unable to ") && text.contains("task log") => Self::Unknown,
            _ => Self::Failed(text.to_owned()),
        }
    }

    /// The outcome's name in metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warnings(_) => "warnings",
            Self::Failed(_) => "failed",
            Self::Unknown => "unknown",
            Self::StillRunning => "still_running",
        }
    }
}

impl ApiError {
    /// The error that a failed task means: its exit status, read by the same table as an answer of status 500.
    pub fn of_task(exit: &str) -> Self {
        classify::exit(&STATUS, exit)
    }
}

impl Client {
    /// `GET /nodes/{node}/tasks/{upid}/status` until the task ends or `deadline` comes; no privilege for tasks that
    /// this very token started.
    pub async fn wait_task(&self, upid: &Upid, deadline: Instant) -> Result<TaskOutcome, ApiError> {
        let begin = Instant::now();
        let outcome = self.poll_until_end(upid, deadline).await;
        let label = outcome.as_ref().map_or("error", TaskOutcome::label);
        self.metrics().task(upid.kind(), label, begin.elapsed());
        outcome
    }

    async fn poll_until_end(
        &self,
        upid: &Upid,
        deadline: Instant,
    ) -> Result<TaskOutcome, ApiError> {
        let mut pause = FIRST_POLL;
        loop {
            let next = Instant::now() + pause;
            if next > deadline {
                sleep_until(deadline).await;
                return Ok(TaskOutcome::StillRunning);
            }
            sleep_until(next).await;
            match timeout_at(deadline, self.task_status(upid)).await {
                Err(_) => return Ok(TaskOutcome::StillRunning),
                Ok(Err(error)) => return gone_or_error(error),
                Ok(Ok(Some(outcome))) => return Ok(outcome),
                Ok(Ok(None)) => pause = (pause * 3 / 2).min(SLOWEST_POLL),
            }
        }
    }

    async fn task_status(&self, upid: &Upid) -> Result<Option<TaskOutcome>, ApiError> {
        let text = upid.to_string();
        let segments = [upid.pve_node.as_str(), text.as_str()];
        let request = ApiRequest::new(&STATUS, Some(&upid.pve_node), &segments);
        self.call(request, task_state).await
    }
}

pub(crate) fn task_state(data: &Value) -> Result<Option<TaskOutcome>, String> {
    let fields = Fields::of(data)?;
    match fields.text("status").as_deref() {
        Some("running") => Ok(None),
        Some("stopped") => {
            let exit = data.get("exitstatus").and_then(wire::scalar);
            Ok(Some(TaskOutcome::of_exit(&exit.unwrap_or_default())))
        }
        _ => Err("a task is neither running nor stopped".to_owned()),
    }
}

/// PVE forgets tasks when it rotates their logs: 400 `upid: no such task` (`Tasks.pm` 453).
fn gone_or_error(error: ApiError) -> Result<TaskOutcome, ApiError> {
    match &error.kind {
        ErrorKind::Invalid(fields)
            if fields
                .get("upid")
                .is_some_and(|text| text.trim() == "no such task") =>
        {
            Ok(TaskOutcome::Unknown)
        }
        _ => Err(ApiError {
            effect: Effect::Possible,
            ..error
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{client, reply};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const UPID: &str = "UPID:pve1:000000CE:0006F6CC:6B0E05DA:imgdel:9999@local:root@pam!full:";

    fn upid() -> Upid {
        UPID.parse().unwrap()
    }

    /// A client of a PVE on which the task ends so, this long from now; and the number of polls.
    fn ends(exit: &'static str, takes: Duration) -> (Client, Arc<AtomicUsize>) {
        let polls = Arc::new(AtomicUsize::new(0));
        let (counted, end) = (Arc::clone(&polls), Instant::now() + takes);
        let client = client(move |request| {
            assert_eq!(
                request.uri().path(),
                format!(
                    "/api2/json/nodes/pve1/tasks/{}/status",
                    UPID.replace(':', "%3A")
                        .replace('@', "%40")
                        .replace('!', "%21")
                )
            );
            counted.fetch_add(1, Ordering::Relaxed);
            let state = if Instant::now() < end {
                r#"{"data":{"status":"running"}}"#.to_owned()
            } else {
                format!(r#"{{"data":{{"status":"stopped","exitstatus":"{exit}"}}}}"#)
            };
            Ok(reply(200, "OK", &state))
        });
        (client, polls)
    }

    async fn wait(client: &Client, limit: Duration) -> (Result<TaskOutcome, ApiError>, Duration) {
        let begin = Instant::now();
        let outcome = client.wait_task(&upid(), begin + limit).await;
        (outcome, begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_task_is_not_waited_for_much_longer_than_it_takes() {
        let (client, _) = ends("OK", Duration::from_millis(200));
        let (outcome, took) = wait(&client, Duration::from_mins(1)).await;
        assert_eq!(outcome, Ok(TaskOutcome::Ok));
        assert!(took < Duration::from_millis(400), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_task_is_asked_for_seldom() {
        let (client, polls) = ends("OK", Duration::from_mins(1));
        let (outcome, took) = wait(&client, Duration::from_mins(2)).await;
        assert_eq!(outcome, Ok(TaskOutcome::Ok));
        assert!(took < Duration::from_millis(62_100), "{took:?}");
        let polls = polls.load(Ordering::Relaxed);
        assert!((30..45).contains(&polls), "{polls}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_is_kept_and_no_verdict() {
        let (client, _) = ends("OK", Duration::from_mins(10));
        let (outcome, took) = wait(&client, Duration::from_secs(5)).await;
        assert_eq!(outcome, Ok(TaskOutcome::StillRunning));
        assert_eq!(took.as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn ends_are_told_apart() {
        let failed = "lvremove 'vg0/vm-9999-a' error: Logical volume vg0/vm-9999-a in use.";
        for (exit, outcome) in [
            ("OK", TaskOutcome::Ok),
            ("WARNINGS: 2", TaskOutcome::Warnings(2)),
            ("unexpected status", TaskOutcome::Unknown),
            ("", TaskOutcome::Unknown),
            (
                "unable to get last line from task log - x",
                TaskOutcome::Unknown,
            ),
            (failed, TaskOutcome::Failed(failed.to_owned())),
            ("ok", TaskOutcome::Failed("ok".to_owned())),
        ] {
            let (client, _) = ends(exit, Duration::ZERO);
            let (seen, _) = wait(&client, Duration::from_secs(5)).await;
            assert_eq!(seen, Ok(outcome), "{exit}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_pve_forgot_ended_nobody_knows_how() {
        let gone = r#"{"data":null,"message":"Parameter verification failed.\n","errors":{"upid":"no such task"}}"#;
        let forgets = client(move |_| Ok(reply(400, "Parameter verification failed.", gone)));
        let (outcome, _) = wait(&forgets, Duration::from_secs(5)).await;
        assert_eq!(outcome, Ok(TaskOutcome::Unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_is_lost_during_the_wait_leaves_the_effect_open() {
        let dead = client(|_| Ok(reply(595, "No route to host", "")));
        let (outcome, _) = wait(&dead, Duration::from_mins(1)).await;
        let error = outcome.unwrap_err();
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::HostUnreachable, Effect::Possible)
        );
    }

    #[test]
    fn task_ids_are_read_as_pve_writes_them() {
        let read = upid();
        assert_eq!(read.to_string(), UPID);
        assert_eq!(
            (read.pve_node().as_str(), read.kind(), read.id()),
            ("pve1", "imgdel", "9999@local")
        );
        let ticket = "UPID:pve1:000000CE:10006F6CC:6B0E05DA:imgdel::root@pam:";
        assert_eq!(ticket.parse::<Upid>().unwrap().id(), "");
        for bad in [
            "",
            "UPID:bogus",
            "UPID:pve1:000000CE:0006F6CC:6B0E05DA:imgdel:9999@local:root@pam!full",
            "UPID:pve1:000000CE:0006F6CC:6B0E05DA:imgdel:9999@local:root@pam!full:x",
            "UPID:pve1:CE:0006F6CC:6B0E05DA:imgdel:9999@local:root@pam!full:",
            "UPID:..:000000CE:0006F6CC:6B0E05DA:imgdel:9999@local:root@pam!full:",
            "UPID:pve1:000000CE:0006F6CC:6B0E05DA:img/del:9999@local:root@pam!full:",
            "UPID:pve1:000000CE:0006F6CC:6B0E05DA::9999@local:root@pam!full:",
        ] {
            assert!(bad.parse::<Upid>().is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}", tail in "[0-9A-Z:a-z@!]{0,60}") {
            for text in [text, format!("UPID:pve1:{tail}")] {
                if let Ok(read) = text.parse::<Upid>() {
                    proptest::prop_assert_eq!(read.to_string(), text);
                }
            }
        }
    }
}
