//! `/nodes/{node}/tasks` (`Tasks.pm`).

use serde_json::{Map, Value, json};

use crate::acl;
use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::tasks::Task;

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/cluster/tasks", |call| Ok(cluster_list(call))),
        now("GET", "/nodes/{node}/tasks", list),
        now("GET", "/nodes/{node}/tasks/{upid}", |_| {
            Ok(json!([{"name": "log"}, {"name": "status"}]).into())
        }),
        now("DELETE", "/nodes/{node}/tasks/{upid}", stop),
        now("GET", "/nodes/{node}/tasks/{upid}/status", status),
        now("GET", "/nodes/{node}/tasks/{upid}/log", log),
    ]
}

/// A user sees the tasks of all own tokens, a token only its own.
fn is_own(call: &Call, task: &Task) -> bool {
    task.who == call.who || (call.who.token.is_none() && task.who.user == call.who.user)
}

fn parses(upid: &str) -> bool {
    let parts: Vec<&str> = upid.split(':').collect();
    let hex = |at: usize| {
        parts
            .get(at)
            .is_some_and(|p| p.len() >= 8 && p.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    parts.len() == 9
        && parts.first() == Some(&"UPID")
        && hex(2)
        && hex(3)
        && hex(4)
        && parts.last() == Some(&"")
}

enum Found {
    Task(Box<Task>),
    Gone,
}

fn find(call: &Call, privilege: &str) -> Result<Found, Fail> {
    let upid = call.text("upid");
    if !parses(upid) {
        return Err(Fail::param("upid", "unable to parse worker upid"));
    }
    let task = call
        .sim
        .tasks()
        .list
        .iter()
        .find(|task| task.upid == upid && !task.vanished)
        .cloned();
    let Some(task) = task else {
        return Ok(Found::Gone);
    };
    if !is_own(call, &task) {
        acl::need_all(
            &call.sim.lock(),
            &call.who,
            &format!("/nodes/{}", call.node()),
            &[privilege],
        )?;
    }
    Ok(Found::Task(Box::new(task)))
}

fn base(task: &Task) -> Map<String, Value> {
    let mut map = super::content::object(&json!({
        "upid": task.upid, "node": task.node, "pid": task.pid, "pstart": task.pstart, "starttime": task.start,
        "type": task.kind, "id": task.id, "user": task.who.user,
    }));
    if let Some(token) = &task.who.token {
        map.insert("tokenid".into(), json!(token));
    }
    map
}

fn status(call: &Call) -> ApiResult {
    let Found::Task(task) = find(call, "Sys.Audit")? else {
        return Err(Fail::param("upid", "no such task"));
    };
    let mut map = base(&task);
    map.insert(
        "status".into(),
        json!(if task.exit.is_some() {
            "stopped"
        } else {
            "running"
        }),
    );
    if let Some(exit) = &task.exit {
        map.insert("exitstatus".into(), json!(exit));
    }
    Ok(Value::Object(map).into())
}

fn log(call: &Call) -> ApiResult {
    let lines = match find(call, "Sys.Audit")? {
        Found::Task(task) => task.log.lines(),
        Found::Gone => vec!["unable to open file - No such file or directory".to_owned()],
    };
    let take = |name: &str, default: usize| {
        call.number(name)
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default)
    };
    let (start, limit) = (take("start", 0), take("limit", 50));
    let rows =
        lines
            .iter()
            .enumerate()
            .skip(start)
            .take(if limit == 0 { usize::MAX } else { limit });
    let data: Value = rows
        .map(|(at, text)| json!({"n": at + 1, "t": text}))
        .collect();
    Ok(Answer {
        data,
        more: Map::from_iter([("total".to_owned(), json!(lines.len()))]),
    })
}

fn stop(call: &Call) -> ApiResult {
    match find(call, "Sys.Modify")? {
        Found::Task(task) => {
            task.stop.cancel();
            Ok(null())
        }
        Found::Gone => Err(Fail::param("upid", "no such task")),
    }
}

/// The end states that a filter lets through (`Tasks.pm`, `pve-task-status-type`).
fn states(call: &Call) -> Result<Vec<String>, Fail> {
    let all = ["ok", "warning", "error", "unknown"].map(str::to_owned);
    if call.flag("errors") {
        return Ok(all[1..].to_vec());
    }
    let Some(text) = call.get("statusfilter") else {
        return Ok(all.to_vec());
    };
    let wanted = text.split([',', ';', ' ']).filter(|item| !item.is_empty());
    wanted
        .map(|item| {
            let name = item.to_lowercase();
            if all.contains(&name) {
                Ok(name)
            } else {
                Err(Fail::param(
                    "statusfilter",
                    format!("invalid format - invalid status '{item}'\n"),
                ))
            }
        })
        .collect()
}

fn state_of(exit: Option<&str>) -> &'static str {
    match exit {
        None | Some("unexpected status") => "unknown",
        Some("OK") => "ok",
        Some(text) if text.starts_with("WARNINGS: ") => "warning",
        Some(_) => "error",
    }
}

/// Running workers in the order in which they began, with the whole token id as their user, then ended ones, the last to end
/// first (the file `active` and the index read backwards). A token sees exactly its own.
fn list(call: &Call) -> ApiResult {
    let node = call.node();
    let audit = acl::has(
        &call.sim.lock(),
        &call.who,
        &format!("/nodes/{node}"),
        "Sys.Audit",
    );
    let states = states(call)?;
    let tasks = call.sim.tasks();
    let source = call.get("source").unwrap_or("archive");
    let wanted = |task: &&Task| {
        let alive = task.exit.is_none();
        let user = if alive {
            task.who.id()
        } else {
            task.who.user.clone()
        };
        let own = if alive {
            task.who.id() == call.who.id()
        } else {
            is_own(call, task)
        };
        let holds = |part: &str| user.to_lowercase().contains(&part.to_lowercase());
        task.node == node
            && matches!(
                (source, alive),
                ("all", _) | ("active", true) | ("archive", false)
            )
            && (audit || own)
            && call.get("vmid").is_none_or(|vmid| vmid == task.id)
            && call.get("typefilter").is_none_or(|kind| kind == task.kind)
            && call.get("userfilter").is_none_or(holds)
            && call.number("since").is_none_or(|since| task.start >= since)
            && call.number("until").is_none_or(|until| task.start <= until)
            && states
                .iter()
                .any(|state| *state == state_of(task.exit.as_deref()))
    };
    let mut found: Vec<&Task> = tasks.list.iter().filter(wanted).collect();
    found.sort_by_key(|task| (task.exit.is_some(), std::cmp::Reverse(task.ended_as)));
    let total = found.len();
    let take = |name: &str, default: usize| {
        call.number(name)
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default)
    };
    let rows = found
        .into_iter()
        .skip(take("start", 0))
        .take(take("limit", 50))
        .map(list_row);
    let count = (total > 0).then(|| ("total".to_owned(), json!(total)));
    Ok(Answer {
        data: rows.collect(),
        more: count.into_iter().collect(),
    })
}

fn list_row(task: &Task) -> Value {
    let mut map = base(task);
    if let Some(exit) = &task.exit {
        map.insert("status".into(), json!(exit));
        map.insert("endtime".into(), json!(task.end));
    } else {
        map.insert("status".into(), json!("RUNNING"));
        map.insert("user".into(), json!(task.who.id()));
        map.remove("tokenid");
    }
    Value::Object(map)
}

/// `/cluster/tasks`: compares the user with the full token id, so that a token sees its own tasks only with Sys.Audit on `/`.
fn cluster_list(call: &Call) -> Answer {
    let audit = acl::has(&call.sim.lock(), &call.who, "/", "Sys.Audit");
    let tasks = call.sim.tasks();
    let mut rows = Vec::new();
    for task in tasks
        .list
        .iter()
        .rev()
        .filter(|task| audit || task.who.user == call.who.id())
    {
        let mut map = base(task);
        map.remove("pid");
        map.remove("pstart");
        if let Some(exit) = &task.exit {
            map.insert("status".into(), json!(exit));
            map.insert("endtime".into(), json!(task.end));
            map.insert(
                "saved".into(),
                if rows.is_empty() {
                    json!(1)
                } else {
                    json!("1")
                },
            );
        }
        rows.push(Value::Object(map));
    }
    Value::Array(rows).into()
}
