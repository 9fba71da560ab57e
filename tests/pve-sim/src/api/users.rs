//! `/access/users` and their API tokens (`API2/User.pm`).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::acl;
use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::schema;
use crate::state::{State, Token, User};

/// What is kept as it was given.
const DETAILS: &[&str] = &["firstname", "lastname", "email", "comment", "keys"];

pub(super) fn routes() -> Vec<Route> {
    let (user, tokens) = ("/access/users/{userid}", "/access/users/{userid}/token");
    let token = "/access/users/{userid}/token/{tokenid}";
    vec![
        now("GET", "/access/users", |call| Ok(list(call))),
        now("POST", "/access/users", create),
        now("GET", user, get),
        now("PUT", user, update),
        now("DELETE", user, |call| Ok(delete(call))),
        now("GET", tokens, list_tokens),
        now("GET", token, |call| {
            with_token(call, |id, token| row(id, token, Named::No))
        }),
        now("POST", token, add_token),
        now("PUT", token, update_token),
        now("DELETE", token, remove_token),
    ]
}

/// Realms that a PVE without configuration knows.
pub(super) fn realm_type(realm: &str) -> Option<&'static str> {
    ["pam", "pve"].into_iter().find(|known| *known == realm)
}

fn no_user(id: &str) -> Fail {
    Fail::die(format!("no such user ('{id}')"))
}

fn groups_of<'a>(state: &'a State, user: &str) -> Vec<&'a str> {
    let of = state
        .groups
        .iter()
        .filter(|(_, members)| members.contains(user));
    of.map(|(name, _)| name.as_str()).collect()
}

/// What is set of a user; unset values do not show.
fn data(user: &User) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("enable".into(), json!(u8::from(user.enabled)));
    map.insert("expire".into(), json!(user.expire));
    let details = user.details.iter().filter(|(_, text)| !text.is_empty());
    map.extend(details.map(|(key, text)| (key.clone(), json!(text))));
    map
}

fn list(call: &Call) -> Answer {
    let state = call.sim.lock();
    let held = |path: &str| {
        let held = acl::privileges(&state, &call.who, path);
        held.contains_key("User.Modify") || held.contains_key("Sys.Audit")
    };
    let all = held("/access/groups");
    let known: BTreeSet<&String> = state
        .groups
        .iter()
        .filter(|(name, _)| held(&format!("/access/groups/{name}")))
        .flat_map(|(_, members)| members)
        .collect();
    let own = |id: &str| call.who.token.is_none() && call.who.user == id;
    let wanted = call.get("enabled").map(|flag| flag == "1");
    let rows = state
        .users
        .iter()
        .filter(|(id, _)| all || own(id) || known.contains(id))
        .filter(|(_, user)| wanted.is_none_or(|wanted| wanted == user.enabled))
        .map(|(id, user)| {
            let mut map = data(user);
            if call.flag("full") {
                map.insert("groups".into(), json!(groups_of(&state, id).join(",")));
                if !user.tokens.is_empty() {
                    let tokens = user
                        .tokens
                        .iter()
                        .map(|(id, token)| row(id, token, Named::Yes));
                    map.insert("tokens".into(), tokens.collect());
                }
            }
            let realm = id.rsplit_once('@').map_or("", |(_, realm)| realm);
            map.extend(realm_type(realm).map(|kind| ("realm-type".to_owned(), json!(kind))));
            map.insert("userid".into(), json!(id));
            Value::Object(map)
        });
    rows.collect::<Value>().into()
}

fn get(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let id = call.text("userid");
    let user = state.users.get(id).ok_or_else(|| no_user(id))?;
    let mut map = data(user);
    map.insert("groups".into(), json!(groups_of(&state, id)));
    let tokens: Map<String, Value> = user
        .tokens
        .iter()
        .map(|(id, token)| (id.clone(), row(id, token, Named::No)))
        .collect();
    let tokens = if tokens.is_empty() {
        Value::Null
    } else {
        tokens.into()
    };
    map.insert("tokens".into(), tokens);
    Ok(Value::Object(map).into())
}

/// Puts a user into groups; all of them must exist.
fn join(state: &mut State, user: &str, groups: &str) -> Result<(), Fail> {
    for group in schema::list(groups) {
        let members = state.groups.get_mut(&group);
        let members = members.ok_or_else(|| Fail::die(format!("no such group '{group}'")))?;
        members.insert(user.to_owned());
    }
    Ok(())
}

fn set(call: &Call, user: &mut User) {
    if let Some(flag) = call.get("enable") {
        user.enabled = flag == "1";
    }
    if let Some(expire) = call.number("expire") {
        user.expire = expire;
    }
    for key in DETAILS {
        if let Some(text) = call.get(key) {
            user.details.insert((*key).to_owned(), text.to_owned());
        }
    }
}

fn create(call: &Call) -> ApiResult {
    let id = call.text("userid");
    let failed = |fail: Fail| fail.within("create user failed");
    let mut state = call.sim.lock();
    if state.users.contains_key(id) {
        return Err(failed(Fail::die(format!("user '{id}' already exists"))));
    }
    let realm = id.rsplit_once('@').map_or("", |(_, realm)| realm);
    let mut user = User::default();
    if let Some(password) = call.get("password") {
        realm_type(realm)
            .ok_or_else(|| failed(Fail::die(format!("auth domain '{realm}' does not exist"))))?;
        user.password = Some(password.to_owned());
    }
    set(call, &mut user);
    let mut changed = state.clone();
    join(&mut changed, id, call.text("groups")).map_err(failed)?;
    changed.users.insert(id.to_owned(), user);
    *state = changed;
    Ok(null())
}

fn update(call: &Call) -> ApiResult {
    let id = call.text("userid");
    let mut state = call.sim.lock();
    let mut changed = state.clone();
    if call.get("groups").is_some() && !call.flag("append") {
        changed.groups.values_mut().for_each(|members| {
            members.remove(id);
        });
    }
    join(&mut changed, id, call.text("groups"))
        .map_err(|fail| fail.within("update user failed"))?;
    let user = changed
        .users
        .get_mut(id)
        .ok_or_else(|| no_user(id).within("update user failed"))?;
    set(call, user);
    *state = changed;
    Ok(null())
}

fn delete(call: &Call) -> Answer {
    let id = call.text("userid");
    let mut state = call.sim.lock();
    state.users.remove(id);
    state.groups.values_mut().for_each(|members| {
        members.remove(id);
    });
    let tokens = format!("{id}!");
    state
        .acl
        .retain(|entry| entry.subject != id && !entry.subject.starts_with(&tokens));
    null()
}

/// Whether a token's row names it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Yes,
    No,
}

fn row(id: &str, token: &Token, named: Named) -> Value {
    let mut map = Map::new();
    if named == Named::Yes {
        map.insert("tokenid".into(), json!(id));
    }
    map.insert("privsep".into(), json!(u8::from(token.privsep)));
    map.insert("expire".into(), json!(token.expire));
    if let Some(comment) = &token.comment {
        map.insert("comment".into(), json!(comment));
    }
    Value::Object(map)
}

fn list_tokens(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let id = call.text("userid");
    let user = state.users.get(id).ok_or_else(|| no_user(id))?;
    let rows = user
        .tokens
        .iter()
        .map(|(id, token)| row(id, token, Named::Yes));
    Ok(rows.collect::<Value>().into())
}

/// `check_token_exist`, then the code.
fn with_token<T: Into<Answer>>(call: &Call, code: impl FnOnce(&str, &mut Token) -> T) -> ApiResult {
    let (user, id) = (call.text("userid"), call.text("tokenid"));
    let mut state = call.sim.lock();
    let account = state.users.get_mut(user).ok_or_else(|| no_user(user))?;
    let token = account.tokens.get_mut(id);
    let token =
        token.ok_or_else(|| Fail::die(format!("no such token '{id}' for user '{user}'")))?;
    Ok(code(id, token).into())
}

fn add_token(call: &Call) -> ApiResult {
    let (user, id) = (call.text("userid"), call.text("tokenid"));
    let secret = call.sim.uuid();
    let mut state = call.sim.lock();
    let account = state.users.get_mut(user).ok_or_else(|| no_user(user))?;
    if account.tokens.contains_key(id) {
        return Err(Fail::param("tokenid", "Token already exists."));
    }
    let comment = call.get("comment").filter(|text| !text.is_empty());
    let token = Token {
        secret: secret.clone(),
        privsep: call.get("privsep") != Some("0"),
        expire: call.number("expire").unwrap_or(0),
        comment: comment.map(str::to_owned),
    };
    account.tokens.insert(id.to_owned(), token);
    // What was given comes back as it was given: as text.
    let mut info = Map::new();
    let privsep = call.get("privsep").map_or(json!(1), |flag| json!(flag));
    info.insert("privsep".into(), privsep);
    info.extend(
        call.get("expire")
            .map(|time| ("expire".to_owned(), json!(time))),
    );
    info.extend(comment.map(|text| ("comment".to_owned(), json!(text))));
    Ok(json!({"full-tokenid": format!("{user}!{id}"), "info": info, "value": secret}).into())
}

fn update_token(call: &Call) -> ApiResult {
    let deleted = schema::list(call.text("delete"));
    let secret = call.flag("regenerate").then(|| call.sim.uuid());
    let unknown = deleted.iter().find(|key| *key != "comment").cloned();
    let full = format!("{}!{}", call.text("userid"), call.text("tokenid"));
    with_token(call, |id, token| {
        if unknown.is_some() {
            return Value::Null;
        }
        if let Some(flag) = call.get("privsep") {
            token.privsep = flag == "1";
        }
        if let Some(expire) = call.number("expire") {
            token.expire = expire;
        }
        if let Some(text) = call.get("comment") {
            token.comment = Some(text.to_owned());
        }
        let empty = token.comment.as_deref() == Some("");
        if empty || deleted.iter().any(|key| key == "comment") {
            token.comment = None;
        }
        let mut shown = row(id, token, Named::No);
        if let Some(map) = shown.as_object_mut() {
            for key in ["privsep", "expire"] {
                map.extend(call.get(key).map(|text| (key.to_owned(), json!(text))));
            }
            if let Some(secret) = &secret {
                token.secret.clone_from(secret);
                map.insert("value".into(), json!(secret));
                map.insert("full-tokenid".into(), json!(full));
            }
        }
        shown
    })
    .and_then(|answer| match &unknown {
        Some(key) => Err(Fail::param("delete", format!("unknown option '{key}'"))
            .within("updating token info failed")),
        None => Ok(answer),
    })
}

/// Lines of the list for a token that is gone are dropped when PVE reads them next.
fn remove_token(call: &Call) -> ApiResult {
    let (user, id) = (call.text("userid"), call.text("tokenid"));
    with_token(call, |_, _| Value::Null)?;
    let mut state = call.sim.lock();
    if let Some(account) = state.users.get_mut(user) {
        account.tokens.remove(id);
    }
    let subject = format!("{user}!{id}");
    state.acl.retain(|entry| entry.subject != subject);
    Ok(null())
}
