//! What the HA stack is told to manage; the stack itself is not simulated.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ha {
    /// Options by resource id (`vm:100`), as given.
    pub resources: BTreeMap<String, BTreeMap<String, String>>,
    /// In the order of the config file.
    pub rules: Vec<HaRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HaRule {
    pub rule: String,
    /// `node-affinity` or `resource-affinity`.
    #[serde(rename = "type")]
    pub kind: String,
    pub resources: Vec<String>,
    /// `nodes`, `strict`, `affinity`, `disable`, `comment`.
    pub options: BTreeMap<String, String>,
}

impl Ha {
    /// Takes a resource away, also out of the rules; rules without any are dropped.
    pub(crate) fn forget(&mut self, sid: &str) -> bool {
        for rule in &mut self.rules {
            rule.resources.retain(|other| other != sid);
        }
        self.rules.retain(|rule| !rule.resources.is_empty());
        self.resources.remove(sid).is_some()
    }
}
