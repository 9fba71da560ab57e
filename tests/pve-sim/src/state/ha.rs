//! What the HA stack is told to manage, and what it says of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ha {
    /// Options by resource id (`vm:100`), as given.
    pub resources: BTreeMap<String, BTreeMap<String, String>>,
    /// Options by name of the group, as given: `nodes`, `restricted`, `nofailback`, `comment`. PVE 8, or a 9 that has not migrated
    /// them to rules.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, BTreeMap<String, String>>,
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
    /// What PVE finds wrong with it by option, beside what is found here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, Vec<String>>,
}

impl Ha {
    /// The rules, with those that PVE makes of groups (`HA/Groups.pm` `migrate_groups_to_rules`): one of each that has resources.
    pub(crate) fn all_rules(&self) -> Vec<HaRule> {
        let made = self.groups.iter().map(|(group, options)| {
            let members = self
                .resources
                .iter()
                .filter(|(_, of)| of.get("group") == Some(group));
            HaRule {
                rule: format!("ha-group-{group}"),
                kind: "node-affinity".to_owned(),
                resources: members.map(|(sid, _)| sid.clone()).collect(),
                options: migrated(group, options),
                errors: BTreeMap::new(),
            }
        });
        let made = made.filter(|rule| !rule.resources.is_empty());
        self.rules.iter().cloned().chain(made).collect()
    }

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

/// A group's options as those of a rule.
fn migrated(group: &str, options: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut made = BTreeMap::new();
    for (from, to) in [
        ("nodes", "nodes"),
        ("restricted", "strict"),
        ("comment", "comment"),
    ] {
        if let Some(text) = options.get(from) {
            made.insert(to.to_owned(), text.clone());
        }
    }
    made.entry("comment".to_owned())
        .or_insert_with(|| format!("Generated from HA group '{group}'."));
    made
}

impl super::State {
    /// Whether `/cluster/ha/groups` refuses: PVE 9 without any group, migrated or never made.
    pub(crate) fn groups_are_gone(&self) -> bool {
        self.version.major() >= 9 && self.ha.groups.is_empty()
    }
}
