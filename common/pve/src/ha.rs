//! What the HA stack is told: rules (PVE 9), groups (PVE 8, and a PVE 9 that has not migrated them), resources.

use std::collections::BTreeSet;

use pve_model::VmId;

use crate::Client;
use crate::error::ApiError;
use crate::privileges::{Object, Program, Right};
use crate::request::{ApiRequest, OpClass, Spec};
use crate::wire::{self, Fields, Listing};

/// `API2/HA/{Rules,Groups,Resources}.pm` ask the same for every list.
const RIGHTS: &[Right] = &[Right::on(
    Object::Cluster,
    "Sys.Audit",
    "label Nodes by HA rules and groups",
)
.only(Program::Ccm)
.or_without()];

pub(crate) static RULES: Spec = Spec {
    name: "GET /cluster/ha/rules",
    class: OpClass::Read,
    rights: RIGHTS,
};
pub(crate) static GROUPS: Spec = Spec {
    name: "GET /cluster/ha/groups",
    class: OpClass::Read,
    rights: RIGHTS,
};
pub(crate) static RESOURCES: Spec = Spec {
    name: "GET /cluster/ha/resources",
    class: OpClass::Read,
    rights: RIGHTS,
};

pub(crate) static ENDPOINTS: [&Spec; 3] = [&RULES, &GROUPS, &RESOURCES];

/// What a rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HaRuleKind {
    /// On which hosts its guests run.
    NodeAffinity {
        /// The rule names the hosts to stay away from.
        negative: bool,
        /// They run nowhere else, not even if none of these hosts is there.
        strict: bool,
    },
    /// Whether its guests share a host.
    ResourceAffinity {
        /// They share one, or they never do.
        positive: bool,
    },
    /// Something that this client doesn't know.
    Other,
}

/// One rule, in force or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaRule {
    /// Its name. Migration names that of a group `ha-group-<group>`.
    pub rule: String,
    /// What it says.
    pub kind: HaRuleKind,
    /// The VMs that it names; containers are left out.
    pub vms: BTreeSet<VmId>,
    /// Whether it is switched on.
    pub enabled: bool,
    /// Whether PVE finds nothing wrong with it; it obeys no rule with errors.
    pub feasible: bool,
}

/// One group of hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaGroup {
    /// Its name.
    pub group: String,
    /// Its guests run nowhere else.
    pub restricted: bool,
}

/// One guest that the HA stack manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaResource {
    /// The VM; none if it is a container, or of a kind that this client doesn't know.
    pub vm: Option<VmId>,
    /// Its group, before migration.
    pub group: Option<String>,
}

impl Client {
    /// `GET /cluster/ha/rules`; `Sys.Audit` on `/`. Disabled and infeasible rules are listed too.
    /// [`ErrorKind::NotImplemented`](crate::ErrorKind::NotImplemented) on PVE 8, which has no rules.
    pub async fn ha_rules(&self) -> Result<Listing<HaRule>, ApiError> {
        let request = ApiRequest::new(&RULES, None, &[]);
        self.call(request, |data| wire::listing(data, rule)).await
    }

    /// `GET /cluster/ha/groups`; `Sys.Audit` on `/`.
    /// [`ErrorKind::MigratedToRules`](crate::ErrorKind::MigratedToRules) on a PVE 9 that has no group (any more).
    pub async fn ha_groups(&self) -> Result<Listing<HaGroup>, ApiError> {
        let request = ApiRequest::new(&GROUPS, None, &[]);
        self.call(request, |data| wire::listing(data, group)).await
    }

    /// `GET /cluster/ha/resources`; `Sys.Audit` on `/`.
    pub async fn ha_resources(&self) -> Result<Listing<HaResource>, ApiError> {
        let request = ApiRequest::new(&RESOURCES, None, &[]);
        self.call(request, |data| wire::listing(data, resource))
            .await
    }
}

pub(crate) fn rule(fields: Fields<'_>) -> Option<HaRule> {
    let kind = kind(fields)?;
    let vms = match fields.text("resources") {
        Some(list) => vms(&list)?,
        None if kind == HaRuleKind::Other => BTreeSet::new(),
        None => return None,
    };
    Some(HaRule {
        rule: fields.text("rule")?,
        kind,
        vms,
        enabled: !fields.optional_flag("disable")?.unwrap_or(false),
        feasible: fields
            .0
            .get("errors")
            .is_none_or(serde_json::Value::is_null),
    })
}

/// `strict` is left out where it is 0 (`HA/Rules.pm` `set_rule_defaults`).
fn kind(fields: Fields<'_>) -> Option<HaRuleKind> {
    let affinity = fields.text("affinity");
    Some(match (fields.text("type")?.as_str(), affinity.as_deref()) {
        ("node-affinity", affinity @ (None | Some("positive" | "negative"))) => {
            HaRuleKind::NodeAffinity {
                negative: affinity == Some("negative"),
                strict: fields.optional_flag("strict")?.unwrap_or(false),
            }
        }
        ("resource-affinity", Some(affinity @ ("positive" | "negative"))) => {
            HaRuleKind::ResourceAffinity {
                positive: affinity == "positive",
            }
        }
        _ => HaRuleKind::Other,
    })
}

/// The VMs of `ct:101,vm:100`.
fn vms(list: &str) -> Option<BTreeSet<VmId>> {
    let ids = list.split([',', ';', ' ']).map(str::trim);
    let vms = ids.filter_map(|sid| sid.strip_prefix("vm:"));
    vms.map(|vmid| vmid.parse().ok()).collect()
}

pub(crate) fn group(fields: Fields<'_>) -> Option<HaGroup> {
    Some(HaGroup {
        group: fields.text("group")?,
        restricted: fields.optional_flag("restricted")?.unwrap_or(false),
    })
}

pub(crate) fn resource(fields: Fields<'_>) -> Option<HaResource> {
    let sid = fields.text("sid")?;
    let vm = match sid.strip_prefix("vm:") {
        Some(vmid) => Some(vmid.parse().ok()?),
        None => None,
    };
    let group = fields.text("group").filter(|group| !group.is_empty());
    Some(HaResource { vm, group })
}

#[cfg(test)]
mod tests;
