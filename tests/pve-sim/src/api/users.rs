//! `/access/users` and the change of ACLs: enough to set up tenants over the API.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::acl;
use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Perm, Route, now, null};
use crate::schema::{Kind, opt, req};
use crate::state::{AclEntry, Token};

pub(super) fn routes() -> Vec<Route> {
    let token_params = [
        opt("privsep", Kind::Bool),
        opt(
            "expire",
            Kind::Int {
                min: 0,
                max: i64::MAX,
            },
        ),
        opt("comment", Kind::Str),
    ];
    let acl_params = [
        req("path", Kind::Str),
        req("roles", Kind::List),
        opt("users", Kind::List),
        opt("groups", Kind::List),
        opt("tokens", Kind::List),
        opt("propagate", Kind::Bool),
        opt("delete", Kind::Bool),
    ];
    let token = "/access/users/{userid}/token/{tokenid}";
    vec![
        now(
            "GET",
            "/access/users",
            Perm::User,
            &[opt("enabled", Kind::Bool), opt("full", Kind::Bool)],
            |call| Ok(users(call)),
        ),
        now(
            "GET",
            "/access/users/{userid}",
            Perm::Custom(may_see_user),
            &[],
            user,
        ),
        now(
            "GET",
            "/access/users/{userid}/token",
            Perm::Custom(may_manage),
            &[],
            tokens,
        ),
        now(
            "POST",
            token,
            Perm::Custom(may_manage),
            &token_params,
            add_token,
        ),
        now("DELETE", token, Perm::Custom(may_manage), &[], remove_token),
        ticket_route(),
        now("PUT", "/access/acl", Perm::User, &acl_params, change_acl),
    ]
}

fn ticket_route() -> Route {
    let ticket_params = [
        req("username", Kind::Str),
        req("password", Kind::Str),
        opt("realm", Kind::Str),
        opt("otp", Kind::Str),
        opt("tfa-challenge", Kind::Str),
        opt("path", Kind::Str),
        opt("privs", Kind::Str),
    ];
    now(
        "POST",
        "/access/ticket",
        Perm::Custom(no_token),
        &ticket_params,
        |_| {
            let message = "authentication failure\n".to_owned();
            Err(Fail::Json {
                status: 401,
                message,
                errors: BTreeMap::new(),
            })
        },
    )
}

/// Users of the scenario have no passwords: every login is refused, and tokens may not even try.
fn no_token(call: &Call) -> Result<(), Fail> {
    match call.who.token {
        None => Ok(()),
        Some(_) => Err(Fail::denied(
            "URI '/access/ticket' not available with API token, need proper ticket.\n",
        )),
    }
}

fn may_see_user(call: &Call) -> Result<(), Fail> {
    let state = call.sim.lock();
    let seen = ["User.Modify", "Sys.Audit"]
        .iter()
        .any(|privilege| acl::has(&state, &call.who, "/access/groups", privilege));
    if seen { Ok(()) } else { Err(Fail::denied("")) }
}

/// The user's own tickets (a token is no user), or User.Modify.
fn may_manage(call: &Call) -> Result<(), Fail> {
    let own = call.who.token.is_none() && call.who.user == call.text("userid");
    if own || acl::has(&call.sim.lock(), &call.who, "/access/groups", "User.Modify") {
        Ok(())
    } else {
        Err(Fail::denied(""))
    }
}

fn users(call: &Call) -> Answer {
    let state = call.sim.lock();
    let all = ["User.Modify", "Sys.Audit"]
        .iter()
        .any(|privilege| acl::has(&state, &call.who, "/access/groups", privilege));
    let own = |id: &str| call.who.token.is_none() && call.who.user == id;
    let visible = state.users.iter().filter(|(id, _)| all || own(id));
    let rows = visible.map(|(id, user)| {
        let realm = id.rsplit_once('@').map_or("pam", |(_, realm)| realm);
        json!({"userid": id, "enable": u8::from(user.enabled), "expire": 0, "realm-type": realm})
    });
    rows.collect::<Value>().into()
}

fn account(call: &Call) -> Result<crate::state::User, Fail> {
    let id = call.text("userid");
    call.sim
        .lock()
        .users
        .get(id)
        .cloned()
        .ok_or_else(|| Fail::die(format!("no such user ('{id}')")))
}

fn row(id: &str, token: &Token) -> Value {
    let mut map = Map::new();
    map.insert("tokenid".into(), json!(id));
    map.insert("privsep".into(), json!(u8::from(token.privsep)));
    map.insert("expire".into(), json!(token.expire));
    if let Some(comment) = &token.comment {
        map.insert("comment".into(), json!(comment));
    }
    Value::Object(map)
}

fn user(call: &Call) -> ApiResult {
    let account = account(call)?;
    let tokens: Map<String, Value> = account
        .tokens
        .iter()
        .map(|(id, token)| (id.clone(), row(id, token)))
        .collect();
    let state = call.sim.lock();
    let groups: Vec<&String> = state
        .groups
        .iter()
        .filter(|(_, m)| m.contains(call.text("userid")))
        .map(|(name, _)| name)
        .collect();
    Ok(json!({"enable": u8::from(account.enabled), "expire": 0, "groups": groups, "tokens": tokens}).into())
}

fn tokens(call: &Call) -> ApiResult {
    let rows = account(call)?.tokens;
    Ok(rows
        .iter()
        .map(|(id, token)| row(id, token))
        .collect::<Value>()
        .into())
}

fn add_token(call: &Call) -> ApiResult {
    let (user, id) = (call.text("userid"), call.text("tokenid"));
    account(call)?;
    let secret = call.sim.uuid();
    let token = Token {
        secret: secret.clone(),
        privsep: call.get("privsep") != Some("0"),
        expire: call.number("expire").unwrap_or(0),
        comment: call.get("comment").map(str::to_owned),
    };
    let mut info = Map::new();
    info.insert(
        "privsep".into(),
        json!(if token.privsep { "1" } else { "0" }),
    );
    if let Some(comment) = &token.comment {
        info.insert("comment".into(), json!(comment));
    }
    let mut state = call.sim.lock();
    let tokens = state.users.get_mut(user).map(|account| &mut account.tokens);
    if let Some(tokens) = tokens {
        if tokens.contains_key(id) {
            return Err(Fail::param("tokenid", "Token already exists."));
        }
        tokens.insert(id.to_owned(), token);
    }
    Ok(json!({"full-tokenid": format!("{user}!{id}"), "info": info, "value": secret}).into())
}

fn remove_token(call: &Call) -> ApiResult {
    let (user, id) = (call.text("userid"), call.text("tokenid"));
    let mut state = call.sim.lock();
    let removed = state
        .users
        .get_mut(user)
        .and_then(|account| account.tokens.remove(id));
    let subject = format!("{user}!{id}");
    state.acl.retain(|entry| entry.subject != subject);
    removed
        .map(|_| null())
        .ok_or_else(|| Fail::die(format!("no such token '{id}' for user '{user}'")))
}

fn change_acl(call: &Call) -> ApiResult {
    let path = call.text("path");
    let list = |name: &str| -> Vec<String> {
        let text = call.get(name).unwrap_or_default();
        text.split([',', ';', ' '])
            .filter(|item| !item.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let mut state = call.sim.lock();
    acl::need_all(&state, &call.who, path, &["Permissions.Modify"])?;
    if !acl::is_acl_path(path) {
        return Err(Fail::param("path", format!("invalid ACL path '{path}'")));
    }
    let failed = |text: String| Fail::die(format!("ACL update failed: {text}"));
    let mut subjects = list("users");
    subjects.extend(list("tokens"));
    subjects.extend(list("groups").iter().map(|group| format!("@{group}")));
    for role in list("roles") {
        if acl::role(&state, &role).is_none() {
            return Err(failed(format!("role '{role}' does not exist")));
        }
        for subject in &subjects {
            state.acl.retain(|entry| {
                entry.path != path || entry.subject != *subject || entry.role != role
            });
            if !call.flag("delete") {
                let propagate = call.get("propagate") != Some("0");
                state.acl.push(AclEntry {
                    path: path.to_owned(),
                    subject: subject.clone(),
                    role: role.clone(),
                    propagate,
                });
            }
        }
    }
    Ok(null())
}
