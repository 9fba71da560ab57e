//! `/cluster/ha/groups` (`API2/HA/Groups.pm`): on PVE 8, and on a 9 that has some which are not migrated to rules yet.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::state::State;
use crate::units;

pub(super) fn routes() -> Vec<Route> {
    let base = "/cluster/ha/groups";
    let one = "/cluster/ha/groups/{group}";
    vec![
        now("GET", base, list),
        now("POST", base, create),
        now("GET", one, get),
        now("PUT", one, update),
        now("DELETE", one, delete),
    ]
}

/// Refuses where groups are no more, also where there never were any.
fn served(state: &State, what: &str) -> Result<(), Fail> {
    if state.groups_are_gone() {
        return Err(Fail::die(format!(
            "cannot {what}: ha groups have been migrated to rules"
        )));
    }
    Ok(())
}

fn row(state: &State, group: &str, options: &BTreeMap<String, String>) -> Value {
    let mut map = Map::new();
    for (key, text) in options {
        let flag = ["restricted", "nofailback"].contains(&key.as_str());
        let value = if flag {
            json!(u8::from(text == "1"))
        } else {
            json!(text)
        };
        map.insert(key.clone(), value);
    }
    map.insert("group".into(), json!(group));
    map.insert("type".into(), json!("group"));
    let all = format!("{:?}", state.ha.groups);
    let digest = units::hex(&Sha1::digest(all.as_bytes()));
    map.insert("digest".into(), json!(digest));
    Value::Object(map)
}

fn list(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    served(&state, "index groups")?;
    let groups = state.ha.groups.iter();
    let rows = groups.map(|(group, options)| row(&state, group, options));
    Ok(rows.collect::<Value>().into())
}

fn no_group(group: &str) -> Fail {
    Fail::die(format!("no such ha group '{group}'"))
}

fn get(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    served(&state, "read group")?;
    let group = call.text("group");
    let found = state.ha.groups.get(group);
    let options = found.ok_or_else(|| no_group(group))?;
    Ok(row(&state, group, options).into())
}

fn given(call: &Call) -> BTreeMap<String, String> {
    let keys = ["nodes", "restricted", "nofailback", "comment"];
    let pairs = keys
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), call.get(key)?.to_owned())));
    pairs.collect()
}

fn create(call: &Call) -> ApiResult {
    let mut state = call.sim.lock();
    served(&state, "create group")?;
    let group = call.text("group");
    if state.ha.groups.contains_key(group) {
        return Err(Fail::die(format!(
            "create ha group failed: ha group ID '{group}' already defined"
        )));
    }
    state.ha.groups.insert(group.to_owned(), given(call));
    Ok(null())
}

fn update(call: &Call) -> ApiResult {
    let mut state = call.sim.lock();
    served(&state, "update group")?;
    let group = call.text("group");
    let found = state.ha.groups.get_mut(group);
    let options = found.ok_or_else(|| no_group(group).within("update ha group failed"))?;
    options.extend(given(call));
    for key in crate::schema::list(call.text("delete")) {
        match key.as_str() {
            "restricted" | "nofailback" | "comment" => drop(options.remove(&key)),
            other => {
                let text = format!("unable to delete required option '{other}'");
                return Err(Fail::die(text).within("update ha group failed"));
            }
        }
    }
    Ok(null())
}

fn delete(call: &Call) -> ApiResult {
    let mut state = call.sim.lock();
    served(&state, "delete group")?;
    let group = call.text("group");
    let mut resources = state.ha.resources.iter();
    let user = resources.find(|(_, options)| options.get("group").is_some_and(|of| of == group));
    if let Some((sid, _)) = user {
        let text = format!("ha group is used by service '{sid}'");
        return Err(Fail::die(text).within("delete ha group failed"));
    }
    state.ha.groups.remove(group);
    Ok(null())
}
