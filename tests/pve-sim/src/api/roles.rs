//! `/access/roles` and `/access/groups` (`API2/Role.pm`, `API2/Group.pm`).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::acl;
use crate::fail::{Answer, ApiResult, Fail};
use crate::older;
use crate::roles;
use crate::router::{Call, Route, now, null};
use crate::schema;
use crate::state::State;

pub(super) fn routes() -> Vec<Route> {
    let (role, group) = ("/access/roles/{roleid}", "/access/groups/{groupid}");
    vec![
        now("GET", "/access/roles", |call| Ok(list_roles(call))),
        now("POST", "/access/roles", create_role),
        now("GET", role, get_role),
        now("PUT", role, update_role),
        now("DELETE", role, delete_role),
        now("GET", "/access/groups", |call| Ok(list_groups(call))),
        now("POST", "/access/groups", create_group),
        now("GET", group, get_group),
        now("PUT", group, update_group),
        now("DELETE", group, delete_group),
    ]
}

fn list_roles(call: &Call) -> Answer {
    let state = call.sim.lock();
    let mut names = roles::built_in_names();
    names.extend(state.roles.keys().cloned());
    let row = |name: &String| {
        let privileges: Vec<String> = roles::privileges(&state, name)
            .unwrap_or_default()
            .into_iter()
            .collect();
        let special = u8::from(roles::built_in(name).is_some());
        json!({"roleid": name, "privs": privileges.join(","), "special": special})
    };
    names.iter().map(row).collect::<Value>().into()
}

fn get_role(call: &Call) -> ApiResult {
    let name = call.text("roleid");
    let held = roles::privileges(&call.sim.lock(), name).ok_or_else(|| no_role(name))?;
    let map: Map<String, Value> = held
        .into_iter()
        .map(|privilege| (privilege, json!(1)))
        .collect();
    Ok(Value::Object(map).into())
}

fn no_role(name: &str) -> Fail {
    Fail::die(format!("role '{name}' does not exist"))
}

/// What the schema of this version takes for privileges.
fn known(call: &Call) -> Result<Vec<String>, Fail> {
    let privileges = schema::list(call.text("privs"));
    let version = call.sim.lock().version.clone();
    let unknown = |name: &&String| !older::has_privilege(&version, name);
    match privileges.iter().find(unknown) {
        Some(name) => Err(Fail::param(
            "privs",
            format!("invalid format - invalid privilege '{name}'\n"),
        )),
        None => Ok(privileges),
    }
}

fn create_role(call: &Call) -> ApiResult {
    let name = call.text("roleid");
    let privileges = known(call)?;
    if name.to_ascii_lowercase().starts_with("pve") {
        let text = "cannot use role ID starting with the (case-insensitive) 'PVE' namespace";
        return Err(Fail::param("roleid", text));
    }
    let mut state = call.sim.lock();
    if roles::privileges(&state, name).is_some() {
        return Err(Fail::die(format!(
            "create role failed: role '{name}' already exists"
        )));
    }
    state
        .roles
        .insert(name.to_owned(), privileges.into_iter().collect());
    Ok(null())
}

fn changeable(name: &str, what: &str) -> Result<(), Fail> {
    if roles::built_in(name).is_some() {
        return Err(Fail::die(format!(
            "auto-generated role '{name}' cannot be {what}"
        )));
    }
    Ok(())
}

fn update_role(call: &Call) -> ApiResult {
    let name = call.text("roleid");
    let privileges = known(call)?;
    changeable(name, "modified")?;
    let mut state = call.sim.lock();
    let role = state
        .roles
        .get_mut(name)
        .ok_or_else(|| no_role(name).within("update role failed"))?;
    if !call.flag("append") {
        role.clear();
    }
    role.extend(privileges);
    Ok(null())
}

fn delete_role(call: &Call) -> ApiResult {
    let name = call.text("roleid");
    changeable(name, "deleted")?;
    let removed = call.sim.lock().roles.remove(name);
    removed
        .map(|_| null())
        .ok_or_else(|| no_role(name).within("delete role failed"))
}

fn no_group(name: &str) -> Fail {
    Fail::die(format!("group '{name}' does not exist"))
}

fn list_groups(call: &Call) -> Answer {
    let state = call.sim.lock();
    let sees = |name: &str| {
        let held = acl::privileges(&state, &call.who, &format!("/access/groups/{name}"));
        ["User.Modify", "Sys.Audit", "Group.Allocate"]
            .iter()
            .any(|p| held.contains_key(*p))
    };
    let rows = state
        .groups
        .iter()
        .filter(|(name, _)| sees(name))
        .map(|(name, members)| {
            let users: Vec<&str> = members.iter().map(String::as_str).collect();
            let row = json!({"groupid": name, "users": users.join(",")});
            with_comment(&state, name, row)
        });
    rows.collect::<Value>().into()
}

fn with_comment(state: &State, name: &str, mut row: Value) -> Value {
    if let (Some(comment), Some(map)) = (state.group_comments.get(name), row.as_object_mut()) {
        map.insert("comment".into(), json!(comment));
    }
    row
}

fn set_comment(state: &mut State, name: &str, comment: Option<&str>) {
    match comment {
        // A comment is kept in a line of a file: an empty one is none.
        Some("") => state.group_comments.remove(name),
        Some(text) => state
            .group_comments
            .insert(name.to_owned(), text.to_owned()),
        None => None,
    };
}

fn create_group(call: &Call) -> ApiResult {
    let name = call.text("groupid");
    let mut state = call.sim.lock();
    if state.groups.contains_key(name) {
        return Err(Fail::die(format!(
            "create group failed: group '{name}' already exists"
        )));
    }
    state.groups.insert(name.to_owned(), BTreeSet::new());
    set_comment(&mut state, name, call.get("comment"));
    Ok(null())
}

fn get_group(call: &Call) -> ApiResult {
    let name = call.text("groupid");
    let state = call.sim.lock();
    let members = state.groups.get(name).ok_or_else(|| no_group(name))?;
    Ok(with_comment(&state, name, json!({"members": members})).into())
}

fn update_group(call: &Call) -> ApiResult {
    let name = call.text("groupid");
    let mut state = call.sim.lock();
    if !state.groups.contains_key(name) {
        return Err(no_group(name).within("update group failed"));
    }
    set_comment(&mut state, name, call.get("comment"));
    Ok(null())
}

fn delete_group(call: &Call) -> ApiResult {
    let name = call.text("groupid");
    let mut state = call.sim.lock();
    if state.groups.remove(name).is_none() {
        return Err(no_group(name).within("delete group failed"));
    }
    state.group_comments.remove(name);
    let subject = format!("@{name}");
    state.acl.retain(|entry| entry.subject != subject);
    Ok(null())
}
