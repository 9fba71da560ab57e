//! From what PVE's HA stack is told to labels of a VM's Node.
//!
//! Decided by the rules that name the VM, never by the hosts that they name: those say where it may run, not where it
//! runs.

use std::collections::{BTreeMap, BTreeSet};

use pve_client::{HaGroup, HaResource, HaRule, HaRuleKind};
use pve_model::VmId;
use pve_model::topology::{HA_GROUP_PREFIX, HA_STRICT_PREFIX};

use crate::facts::fits_label;

/// Before the name of a rule that PVE 9 made of a group (`HA/Groups.pm` `migrate_groups_to_rules`).
const MIGRATED: &str = "ha-group-";

/// Which rules or groups bind which VMs to hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HaView {
    /// By VM: the names, and whether the VM may run nowhere else.
    bound: BTreeMap<VmId, BTreeMap<String, bool>>,
    unfit: BTreeSet<String>,
}

impl HaView {
    /// The view of `GET /cluster/ha/rules`, on PVE 9.
    pub fn from_rules(rules: &[HaRule]) -> Self {
        let tied = tied(rules);
        let mut view = Self::default();
        for rule in rules.iter().filter(|rule| in_force(rule)) {
            let HaRuleKind::NodeAffinity {
                negative: false,
                strict,
            } = rule.kind
            else {
                continue;
            };
            let mut vms = rule.vms.clone();
            for together in tied.iter().filter(|set| !set.is_disjoint(&rule.vms)) {
                vms.extend(together);
            }
            view.bind(&rule.rule, strict, vms);
        }
        view
    }

    /// The view of `GET /cluster/ha/groups` and `GET /cluster/ha/resources`, on PVE 8. As there, a group that is not
    /// listed binds nothing.
    pub fn from_groups(groups: &[HaGroup], resources: &[HaResource]) -> Self {
        let mut view = Self::default();
        for group in groups {
            let members = resources
                .iter()
                .filter(|resource| resource.group.as_ref() == Some(&group.group));
            let vms = members.filter_map(|resource| resource.vm);
            view.bind(&group.group, group.restricted, vms);
        }
        view
    }

    /// The labels of the VM's Node: one for each rule or group, one more if it may run nowhere else.
    pub fn labels(&self, vm: VmId) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for (name, strict) in self.bound.get(&vm).into_iter().flatten() {
            labels.insert(format!("{HA_GROUP_PREFIX}{name}"), String::new());
            if *strict {
                labels.insert(format!("{HA_STRICT_PREFIX}{name}"), String::new());
            }
        }
        labels
    }

    /// The rules or groups that bind a VM and have a name that no label can have.
    pub fn unfit(&self) -> impl Iterator<Item = &str> {
        self.unfit.iter().map(String::as_str)
    }

    fn bind(&mut self, name: &str, strict: bool, vms: impl IntoIterator<Item = VmId>) {
        let label = name.strip_prefix(MIGRATED).unwrap_or(name);
        for vm in vms {
            if fits_label(label) {
                let names = self.bound.entry(vm).or_default();
                *names.entry(label.to_owned()).or_default() |= strict;
            } else {
                self.unfit.insert(name.to_owned());
            }
        }
    }
}

/// PVE obeys no rule that is switched off or that contradicts another one.
fn in_force(rule: &HaRule) -> bool {
    rule.enabled && rule.feasible
}

/// Disjoint sets of VMs that share a host. The rule of one binds them all (`HA/Rules.pm`, since pve-ha-manager 5.0.4).
fn tied(rules: &[HaRule]) -> Vec<BTreeSet<VmId>> {
    let positive = HaRuleKind::ResourceAffinity { positive: true };
    let mut sets: Vec<BTreeSet<VmId>> = Vec::new();
    for rule in rules
        .iter()
        .filter(|rule| in_force(rule) && rule.kind == positive)
    {
        let (touching, rest): (Vec<_>, Vec<_>) = sets
            .into_iter()
            .partition(|set| !set.is_disjoint(&rule.vms));
        let mut merged = rule.vms.clone();
        merged.extend(touching.into_iter().flatten());
        sets = rest;
        sets.push(merged);
    }
    sets
}

#[cfg(test)]
mod tests;
