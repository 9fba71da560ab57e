//! The log of the cluster file system (`logger.c`): what workers and logins told, numbered per PVE node.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// syslog's numbers.
pub(crate) const INFO: u8 = 6;
pub(crate) const ERROR: u8 = 3;

#[derive(Debug)]
struct Line {
    uid: u64,
    time: u64,
    priority: u8,
    tag: &'static str,
    node: String,
    user: String,
    text: String,
}

/// Oldest first.
#[derive(Debug, Default)]
pub(crate) struct ClusterLog {
    lines: Vec<Line>,
    uids: BTreeMap<String, u64>,
}

/// The pid of the daemon that writes.
const DAEMON: u32 = 74;
/// Lines that are kept; pmxcfs keeps 128 KiB of them.
const KEPT: usize = 1000;

impl ClusterLog {
    /// What pmxcfs writes when it starts on a node.
    pub(crate) fn started(&mut self, node: &str, time: u64) {
        self.add(
            ("cluster", INFO),
            (node, time, "root"),
            "starting cluster log".to_owned(),
        );
    }

    /// A line of pvedaemon.
    pub(crate) fn tell(&mut self, priority: u8, at: (&str, u64, &str), text: String) {
        self.add(("pvedaemon", priority), at, text);
    }

    fn add(
        &mut self,
        (tag, priority): (&'static str, u8),
        (node, time, user): (&str, u64, &str),
        text: String,
    ) {
        let uid = self.uids.entry(node.to_owned()).or_insert(0);
        *uid += 1;
        self.lines.push(Line {
            uid: *uid,
            time,
            priority,
            tag,
            node: node.to_owned(),
            user: user.to_owned(),
            text,
        });
        if self.lines.len() > KEPT {
            self.lines.drain(..KEPT / 2);
        }
    }

    /// The newest lines, newest first; of one user if one is named.
    pub(crate) fn newest(&self, user: Option<&str>, most: usize) -> Value {
        let wanted = self
            .lines
            .iter()
            .rev()
            .filter(|line| user.is_none_or(|user| line.user == user));
        wanted
            .take(most)
            .map(|line| {
                json!({
                    "uid": line.uid, "time": line.time, "pri": line.priority, "tag": line.tag, "pid": DAEMON,
                    "node": line.node, "user": line.user, "msg": line.text, "id": format!("{}:{}", line.uid, line.node),
                })
            })
            .collect()
    }
}
