//! What the guest agent inside a running VM would say. Plain data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The guest's side of `/nodes/{node}/qemu/{vmid}/agent`; it counts only while the VM runs and its config has `agent`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Guest {
    /// The agent does not answer (not installed, stopped, or the guest hangs).
    pub silent: bool,
    /// Results by command (`network-get-interfaces`, `get-osinfo`, …); `{"error": {"class", "desc"}}` is the agent's own refusal.
    /// Commands that are not here have a plain default, or are refused as unknown.
    pub answers: BTreeMap<String, Value>,
    /// What `exec-status` says after `exec` of this command line (words joined by blanks).
    pub programs: BTreeMap<String, Value>,
    pub files: BTreeMap<String, String>,
    /// Command lines that were executed; the agent's pid of the first is 100.
    pub executed: Vec<String>,
}
