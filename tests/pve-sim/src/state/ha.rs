//! What the HA stack is told to manage, and what it says of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ha {
    /// Options by resource id (`vm:100`), as given.
    pub resources: BTreeMap<String, BTreeMap<String, String>>,
    /// In the order of the config file.
    pub rules: Vec<HaRule>,
    /// The daemons of the HA stack run: it acts on what it has.
    pub running: bool,
    /// What the manager says of a resource while it is about it (`fence`, `request_stop`, …); else it is as asked for.
    pub services: BTreeMap<String, String>,
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
    /// Whether the HA stack decides where and whether this VM runs.
    pub(crate) fn manages(&self, vmid: super::VmNumber) -> bool {
        let options = self.resources.get(&format!("vm:{vmid}"));
        options.is_some_and(|options| options.get("state").is_none_or(|asked| asked != "ignored"))
    }

    /// Takes a resource away, also out of the rules; rules without any are dropped.
    pub(crate) fn forget(&mut self, sid: &str) -> bool {
        for rule in &mut self.rules {
            rule.resources.retain(|other| other != sid);
        }
        self.rules.retain(|rule| !rule.resources.is_empty());
        self.services.remove(sid);
        self.resources.remove(sid).is_some()
    }
}
