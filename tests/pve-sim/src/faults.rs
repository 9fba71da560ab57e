//! Rules that make requests and tasks fail, hang or vanish. Must not know endpoints.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fail::Fail;

/// A fault of requests: applies to the `nth` and the following `times - 1` matching requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestFault {
    pub method: String,
    /// Path template as in the request log, e.g. `/nodes/{node}/qemu/{vmid}/config`; `*` for every one.
    pub path: String,
    /// 1 is the next matching request.
    #[serde(default = "one")]
    pub nth: u32,
    #[serde(default = "one")]
    pub times: u32,
    pub effect: RequestEffect,
}

/// What happens to the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RequestEffect {
    /// Answered with this; nothing is done.
    FailBefore { status: u16, message: String },
    /// Done, then answered with this instead of the real answer.
    FailAfter { status: u16, message: String },
    /// The connection ends; nothing is done.
    LostRequest,
    /// Done, then the connection ends without an answer.
    LostReply,
    /// Done after this time on the simulator's clock; beyond 30 s the proxy answers 596 and the work goes on.
    Delay { ms: u64 },
    /// Done once it is let go ([`SimHandle::release`](crate::SimHandle::release)); beyond 30 s as `Delay`.
    Hold,
    /// Done at once, answered once it is let go.
    HoldReply,
    /// Done at once, answered after this time; beyond 30 s the proxy answers 596.
    DelayReply { ms: u64 },
    /// The first lock that it or its worker asks for is not got: 10 s, then the text of that lock.
    LockTimeout,
    /// This happens to the worker that it forks, which is in the list of tasks at once; nothing if it forks none.
    Task(TaskEffect),
}

/// A fault of tasks: applies to the `nth` and the following `times - 1` tasks of that type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskFault {
    /// Worker type: `imgdel`, `qmconfig`, `resize`, …; `*` for every one.
    pub task: String,
    /// Only tasks with this id (`100`, `9999@local`).
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default = "one")]
    pub nth: u32,
    #[serde(default = "one")]
    pub times: u32,
    pub effect: TaskEffect,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TaskEffect {
    /// Ends with this text; nothing is done.
    Fail { text: String },
    /// Done, then ends with this text.
    FailAfter { text: String },
    /// Done, ends `WARNINGS: count`.
    Warn { count: u32 },
    /// Done; the log file is gone afterwards (`no such task`).
    Vanish,
    /// Not done, the worker is killed (`unexpected status`).
    Kill,
    /// Done after this time on the simulator's clock.
    Slow { ms: u64 },
    /// Done once it is let go; it runs until then.
    Hold,
    /// Done, then it runs on until it is let go.
    HoldAfter,
    /// Done, then it runs on for this time.
    SlowAfter { ms: u64 },
    /// Done, the worker is killed before its last line (`unexpected status`).
    KillAfter,
    /// The first lock that it asks for is not got: it runs 10 s, then ends with the text of that lock.
    LockTimeout,
}

fn one() -> u32 {
    1
}

impl RequestEffect {
    pub(crate) fn before(&self) -> Option<Fail> {
        match self {
            Self::FailBefore { status, message } => Some(shaped(*status, message)),
            Self::LostRequest => Some(Fail::Lost),
            _ => None,
        }
    }

    pub(crate) fn after(&self) -> Option<Fail> {
        match self {
            Self::FailAfter { status, message } => Some(shaped(*status, message)),
            Self::LostReply => Some(Fail::Lost),
            _ => None,
        }
    }

    pub(crate) fn delay(&self) -> Option<Duration> {
        match self {
            Self::Delay { ms } => Some(Duration::from_millis(*ms)),
            _ => None,
        }
    }

    pub(crate) fn delay_of_reply(&self) -> Option<Duration> {
        match self {
            Self::DelayReply { ms } => Some(Duration::from_millis(*ms)),
            _ => None,
        }
    }
}

/// 401 and 595 and above have no body, everything else PVE's JSON.
fn shaped(status: u16, message: &str) -> Fail {
    if status == 401 || status >= 595 {
        return Fail::Empty {
            status,
            reason: message.to_owned(),
        };
    }
    Fail::Json {
        status,
        message: format!("{message}\n"),
        errors: BTreeMap::new(),
    }
}

/// All rules in force.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Faults {
    pub(crate) requests: Vec<RequestFault>,
    pub(crate) tasks: Vec<TaskFault>,
    /// Storages whose next deletions find the volume in use, with the number of them.
    pub(crate) busy_storages: BTreeMap<String, u32>,
}

impl Faults {
    /// A rule of its own for all tasks to come, until [`Faults::let_tasks_go`].
    pub(crate) fn hold_tasks(&mut self, kind: Option<&str>) {
        self.tasks.push(TaskFault {
            task: kind.unwrap_or("*").to_owned(),
            id: None,
            nth: 1,
            times: u32::MAX,
            effect: TaskEffect::Hold,
        });
    }

    pub(crate) fn let_tasks_go(&mut self) {
        self.tasks
            .retain(|rule| rule.effect != TaskEffect::Hold || rule.times < u32::MAX / 2);
    }

    pub(crate) fn take_busy(&mut self, storage: &str) -> bool {
        match self.busy_storages.get_mut(storage) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn take_request(&mut self, method: &str, template: &str) -> Option<RequestEffect> {
        let rules = self.requests.iter_mut().filter(|r| {
            (r.method == method || r.method == "*") && (r.path == template || r.path == "*")
        });
        let effect = hit(rules.map(|r| (&mut r.nth, &mut r.times, &r.effect)));
        self.requests.retain(|rule| rule.times > 0);
        effect
    }

    pub(crate) fn take_task(&mut self, kind: &str, id: &str) -> Option<TaskEffect> {
        let rules = self
            .tasks
            .iter_mut()
            .filter(|r| r.task == kind || r.task == "*")
            .filter(|r| r.id.as_ref().is_none_or(|wanted| wanted == id));
        let effect = hit(rules.map(|r| (&mut r.nth, &mut r.times, &r.effect)));
        self.tasks.retain(|rule| rule.times > 0);
        effect
    }
}

/// Counts every matching rule down; the first that is due takes effect.
fn hit<'a, E: Clone + 'a>(
    rules: impl Iterator<Item = (&'a mut u32, &'a mut u32, &'a E)>,
) -> Option<E> {
    let mut effect = None;
    for (nth, times, rule) in rules {
        if *nth > 1 {
            *nth -= 1;
        } else if effect.is_none() && *times > 0 {
            *times -= 1;
            effect = Some(rule.clone());
        }
    }
    effect
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_counts_down_to_its_occurrence_and_then_is_used_up() {
        let mut faults = Faults::default();
        let effect = RequestEffect::LostReply;
        faults.requests.push(RequestFault {
            method: "PUT".into(),
            path: "/a".into(),
            nth: 2,
            times: 2,
            effect: effect.clone(),
        });
        let hits: Vec<bool> = (0..5)
            .map(|_| faults.take_request("PUT", "/a") == Some(effect.clone()))
            .collect();
        assert_eq!(hits, [false, true, true, false, false]);
        assert!(faults.requests.is_empty());
        assert_eq!(faults.take_request("GET", "/a"), None);
    }
}
