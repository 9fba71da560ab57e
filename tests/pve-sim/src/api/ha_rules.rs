//! `/cluster/ha/rules`: where resources may run (`API2/HA/Rules.pm`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::state::{HaRule, State};
use crate::units;

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
    let rules = state.ha.all_rules();
    let found = rules.iter().enumerate().filter(|(_, rule)| wanted(rule));
    found
        .map(|(at, rule)| row(&rules, at, rule))
        .collect::<Value>()
        .into()
}

/// A rule's line, with its place in the file.
fn row(rules: &[HaRule], at: usize, rule: &HaRule) -> Value {
    let mut map = Map::new();
    for (key, text) in &rule.options {
        let value = match key.as_str() {
            "strict" | "disable" => json!(u8::from(text == "1")),
            "nodes" => json!(nodes(text)),
            _ => json!(text),
        };
        map.insert(key.clone(), value);
    }
    let resources: BTreeSet<&str> = rule.resources.iter().map(String::as_str).collect();
    let resources: Vec<&str> = resources.into_iter().collect();
    map.insert("rule".into(), json!(rule.rule));
    map.insert("type".into(), json!(rule.kind));
    map.insert("resources".into(), json!(resources.join(",")));
    map.insert("order".into(), json!(at + 1));
    let errors = errors(rules, rule);
    if !errors.is_empty() {
        map.insert("errors".into(), json!(errors));
    }
    let digest = Sha1::digest(format!("{rules:?}").as_bytes());
    map.insert("digest".into(), json!(units::hex(&digest)));
    Value::Object(map)
}

/// In order of their names, without priorities of 0 (`NodeAffinity.pm` `encode_plugin_value`).
fn nodes(text: &str) -> String {
    let items = text.split([',', ' ']).filter(|item| !item.is_empty());
    let named: BTreeMap<&str, &str> = items
        .map(|item| item.split_once(':').unwrap_or((item, "0")))
        .collect();
    let shown = named.into_iter().map(|(name, priority)| match priority {
        "0" => name.to_owned(),
        _ => format!("{name}:{priority}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// What makes a rule infeasible, by option (`HA/Rules.pm` `check_feasibility`): rules that are switched off count for nothing.
fn errors(rules: &[HaRule], rule: &HaRule) -> BTreeMap<String, Vec<String>> {
    let mut found = rule.errors.clone();
    let on = |rule: &HaRule| rule.options.get("disable").is_none_or(|text| text != "1");
    if !on(rule) {
        return BTreeMap::new();
    }
    let mut texts = Vec::new();
    if rule.kind == "resource-affinity" {
        if rule.resources.len() < 2 {
            texts.push("rule is ineffective as there are less than two resources".to_owned());
        }
    } else {
        let others = rules
            .iter()
            .filter(|other| other.rule != rule.rule && other.kind == rule.kind && on(other));
        let taken: BTreeSet<&String> = others.flat_map(|other| &other.resources).collect();
        let shared: BTreeSet<&String> = rule.resources.iter().collect();
        texts.extend(
            shared.intersection(&taken).map(|sid| {
                format!("resource '{sid}' is already used in another node affinity rule")
            }),
        );
    }
    if !texts.is_empty() {
        found
            .entry("resources".to_owned())
            .or_default()
            .extend(texts);
    }
    found
}

fn get(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let name = call.text("rule");
    let rules = state.ha.all_rules();
    let found = rules.iter().enumerate().find(|(_, rule)| rule.rule == name);
    let (at, rule) = found.ok_or_else(|| Fail::die(format!("no such ha rule '{name}'")))?;
    Ok(row(&rules, at, rule).into())
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
    let mut rules = state.ha.all_rules();
    rules.retain(|other| other.rule != rule.rule);
    rules.push(rule.clone());
    let found = errors(&rules, rule);
    if found.is_empty() {
        return Ok(());
    }
    let mut text = format!("400 Rule '{}' is invalid.", rule.rule);
    for (option, texts) in found {
        text.extend(["\n", &option, ": ", &texts.join(", ")]);
    }
    Err(text)
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
