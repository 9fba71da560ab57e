//! The request log that tests count and read. Holds no secrets.

use std::collections::BTreeMap;

use serde::Serialize;

/// One request to the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// 1, 2, …; never reused, also after a reset.
    pub seq: u64,
    pub method: String,
    /// The endpoint, e.g. `/nodes/{node}/qemu/{vmid}/config`; empty if there is none.
    pub template: String,
    pub path: String,
    /// `user@realm!token`; empty if not authenticated.
    pub caller: String,
    /// 0: the connection ended without an answer.
    pub status: u16,
    pub params: BTreeMap<String, String>,
    /// Milliseconds since the simulator started, on its clock, when the answer was ready.
    pub at_ms: u64,
}

impl Entry {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self {
            seq: 0,
            method: method.to_owned(),
            template: String::new(),
            path: path.to_owned(),
            caller: String::new(),
            status: 0,
            params: BTreeMap::new(),
            at_ms: 0,
        }
    }
}

/// The log with a bound: the oldest half goes when it is full.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    pub(crate) entries: Vec<Entry>,
    next: u64,
}

const MAX_ENTRIES: usize = 100_000;

impl RequestLog {
    pub(crate) fn add(&mut self, mut entry: Entry) {
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.drain(..MAX_ENTRIES / 2);
        }
        self.next += 1;
        entry.seq = self.next;
        self.entries.push(entry);
    }

    /// Number of requests by `METHOD template`.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for entry in &self.entries {
            let shown = if entry.template.is_empty() {
                &entry.path
            } else {
                &entry.template
            };
            *counts
                .entry(format!("{} {shown}", entry.method))
                .or_insert(0) += 1;
        }
        counts
    }
}
