//! `/cluster/ha/rules`: where resources may run (`API2/HA/Rules.pm`).

use serde_json::Value;

use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::state::{HaRule, State};

pub(super) fn routes() -> Vec<Route> {
    let base = "/cluster/ha/rules";
    let one = "/cluster/ha/rules/{rule}";
    vec![
        now("GET", base, |call| Ok(list(call))),
        now("POST", base, create),
        now("GET", one, get),
        now("PUT", one, update),
        now("DELETE", one, |call| {
            call.sim
                .lock()
                .ha
                .rules
                .retain(|rule| rule.rule != call.text("rule"));
            Ok(null())
        }),
    ]
}

fn list(call: &Call) -> Answer {
    let state = call.sim.lock();
    let wanted = |rule: &HaRule| {
        call.get("type").is_none_or(|kind| kind == rule.kind)
            && call
                .get("resource")
                .is_none_or(|sid| rule.resources.iter().any(|other| other == sid))
    };
    let found = state
        .ha
        .rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| wanted(rule));
    found
        .map(|(at, rule)| super::ha::rule_row(&state, at, rule))
        .collect::<Value>()
        .into()
}

fn get(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let name = call.text("rule");
    let found = state
        .ha
        .rules
        .iter()
        .enumerate()
        .find(|(_, rule)| rule.rule == name);
    let (at, rule) = found.ok_or_else(|| Fail::die(format!("no such ha rule '{name}'")))?;
    Ok(super::ha::rule_row(&state, at, rule).into())
}

/// Puts the request's options into the rule.
fn fill(call: &Call, rule: &mut HaRule) {
    if let Some(list) = call.get("resources") {
        rule.resources = list
            .split([',', ' '])
            .filter(|sid| !sid.is_empty())
            .map(str::to_owned)
            .collect();
    }
    for key in call.get("delete").unwrap_or_default().split(',') {
        rule.options.remove(key);
    }
    for key in ["nodes", "strict", "affinity", "disable", "comment"] {
        if let Some(text) = call.get(key) {
            rule.options.insert(key.to_owned(), text.to_owned());
        }
    }
}

/// What makes a rule unusable, after `create ha rule failed: `.
fn check(state: &State, rule: &HaRule) -> Result<(), String> {
    let unmanaged: Vec<&str> = rule
        .resources
        .iter()
        .filter(|sid| !state.ha.resources.contains_key(*sid))
        .map(String::as_str)
        .collect();
    if !unmanaged.is_empty() {
        return Err(format!(
            "cannot use unmanaged resource(s) {}.",
            unmanaged.join(", ")
        ));
    }
    let nodes = rule
        .options
        .get("nodes")
        .map(String::as_str)
        .unwrap_or_default();
    let names = nodes
        .split(',')
        .filter_map(|item| item.split(':').next())
        .filter(|name| !name.is_empty());
    let missing: Vec<&str> = names
        .filter(|name| !state.nodes.contains_key(*name))
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "cannot use non-existent node(s) {}.",
            missing.join(", ")
        ));
    }
    let invalid = |text: String| {
        Err(format!(
            "400 Rule '{}' is invalid.\nresources: {text}",
            rule.rule
        ))
    };
    if rule.kind == "resource-affinity" {
        let few = rule.resources.len() < 2;
        return if few {
            invalid("rule is ineffective as there are less than two resources".to_owned())
        } else {
            Ok(())
        };
    }
    let others = state
        .ha
        .rules
        .iter()
        .filter(|other| other.rule != rule.rule && other.kind == rule.kind);
    match others
        .flat_map(|other| &other.resources)
        .find(|sid| rule.resources.contains(sid))
    {
        Some(sid) => invalid(format!(
            "resource '{sid}' is already used in another node affinity rule"
        )),
        None => Ok(()),
    }
}

fn create(call: &Call) -> ApiResult {
    let failed = |text: String| Fail::die(format!("create ha rule failed: {text}"));
    let mut state = call.sim.lock();
    let mut rule = HaRule {
        rule: call.text("rule").to_owned(),
        kind: call.text("type").to_owned(),
        ..HaRule::default()
    };
    fill(call, &mut rule);
    if state.ha.rules.iter().any(|other| other.rule == rule.rule) {
        return Err(failed(format!("HA rule '{}' already defined", rule.rule)));
    }
    check(&state, &rule).map_err(failed)?;
    state.ha.rules.push(rule);
    Ok(null())
}

fn update(call: &Call) -> ApiResult {
    let failed = |text: String| Fail::die(format!("update ha rule failed: {text}"));
    let mut state = call.sim.lock();
    let name = call.text("rule");
    let at = state.ha.rules.iter().position(|rule| rule.rule == name);
    let mut rule = at
        .and_then(|at| state.ha.rules.get(at))
        .cloned()
        .ok_or_else(|| failed(format!("no such ha rule '{name}'")))?;
    fill(call, &mut rule);
    check(&state, &rule).map_err(failed)?;
    if let Some(slot) = at.and_then(|at| state.ha.rules.get_mut(at)) {
        *slot = rule;
    }
    Ok(null())
}
