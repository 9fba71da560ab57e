//! The tasks of a host that this token has started.

use pve_model::PveNode;
use serde_json::Value;

use crate::Client;
use crate::error::ApiError;
use crate::request::{ApiRequest, OpClass, Spec};
use crate::task::Upid;
use crate::wire::{self, Fields, Listing};

pub(crate) static TASKS: Spec = Spec {
    name: "GET /nodes/{node}/tasks",
    class: OpClass::Read,
    // A token sees the tasks that it started.
    rights: &[],
};

pub(crate) static ENDPOINTS: [&Spec; 1] = [&TASKS];

/// How many are asked for, newest first.
pub const MOST_TASKS: usize = 100;

/// One task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEntry {
    /// Its name.
    pub upid: Upid,
    /// When it began, in seconds of the host's clock.
    pub started: u64,
    /// When it ended, by the same clock; none while it runs.
    pub ended: Option<u64>,
}

impl Client {
    /// `GET /nodes/{node}/tasks?source=all`: the newest [`MOST_TASKS`] that this very token has started on the host, running
    /// ones included. A worker is in the list from the moment at which PVE's daemon took the request (`RESTEnvironment.pm`,
    /// `fork_worker`), also while it waits for a lock. No privilege for own tasks; those of other tokens are left out.
    pub async fn own_tasks(&self, host: &PveNode) -> Result<Listing<TaskEntry>, ApiError> {
        let request = ApiRequest::new(&TASKS, Some(host), &[host.as_str()])
            .with("source", "all")
            .with("limit", MOST_TASKS.to_string());
        self.call(request, tasks).await
    }
}

fn tasks(data: &Value) -> Result<Listing<TaskEntry>, String> {
    wire::listing(data, entry)
}

pub(crate) fn entry(fields: Fields<'_>) -> Option<TaskEntry> {
    let ended = match fields.text("endtime") {
        None => None,
        Some(_) => Some(fields.number("endtime")?),
    };
    Some(TaskEntry {
        upid: fields.id("upid")?,
        started: fields.number("starttime")?,
        ended,
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{client, reply};

    #[tokio::test]
    async fn running_tasks_have_no_end_and_what_can_not_be_read_is_counted() {
        let client = client(|request| {
            let target = request.uri().path_and_query().unwrap().as_str();
            assert_eq!(target, "/api2/json/nodes/pve1/tasks?source=all&limit=100");
            let upid =
                |start: &str| format!("UPID:pve1:000000CE:0006F6CC:{start}:qmconfig:100:a@pve!b:");
            let body = format!(
                r#"{{"data":[{{"upid":"{}","starttime":"1796081115","status":"RUNNING"}},
                    {{"upid":"{}","starttime":1796081114,"endtime":1796081116,"status":"OK"}},
                    {{"upid":"{}","starttime":1796081114,"endtime":"soon"}},{{"upid":"x","starttime":1}}]}}"#,
                upid("6B0E05DB"),
                upid("6B0E05DA"),
                upid("6B0E05DA")
            );
            Ok(reply(200, "OK", &body))
        });
        let list = client.own_tasks(&"pve1".parse().unwrap()).await.unwrap();
        let times: Vec<_> = list.entries.iter().map(|t| (t.started, t.ended)).collect();
        assert_eq!(
            times,
            [(1_796_081_115, None), (1_796_081_114, Some(1_796_081_116))]
        );
        assert_eq!(list.undecodable, 2);
    }
}
