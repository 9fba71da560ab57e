//! `/access`: what the caller may do.

use serde_json::{Map, Value, json};

use crate::acl::{self, Privileges, Who};
use crate::fail::{Answer, ApiResult, Fail};
use crate::router::{Call, Perm, Route, now};
use crate::schema::{Kind, opt};

pub(super) fn routes() -> Vec<Route> {
    let params = [opt("userid", Kind::Str), opt("path", Kind::Str)];
    vec![
        now(
            "GET",
            "/access/permissions",
            Perm::User,
            &params,
            permissions,
        ),
        now("GET", "/access/roles/{roleid}", Perm::User, &[], role),
        now("GET", "/access/acl", Perm::User, &[], |call| {
            Ok(list_acl(call))
        }),
    ]
}

fn flags(held: &Privileges) -> Value {
    held.iter()
        .map(|(privilege, propagate)| (privilege.clone(), json!(u8::from(*propagate))))
        .collect::<Map<_, _>>()
        .into()
}

fn permissions(call: &Call) -> ApiResult {
    let state = call.sim.lock();
    let subject = match call.get("userid") {
        None => call.who.clone(),
        Some(id) => {
            let asked = Who::parse(id);
            if asked != call.who && (call.who.token.is_some() || asked.user != call.who.user) {
                acl::need_all(&state, &call.who, "/access", &["Sys.Audit"])?;
            }
            asked
        }
    };
    let map: Map<String, Value> = match call.get("path") {
        Some(path) => Map::from_iter([(
            path.to_owned(),
            flags(&acl::privileges(&state, &subject, path)),
        )]),
        None => acl::effective(&state, &subject)
            .iter()
            .map(|(path, held)| (path.clone(), flags(held)))
            .collect(),
    };
    Ok(Value::Object(map).into())
}

fn role(call: &Call) -> ApiResult {
    let name = call.text("roleid");
    let held = acl::role(&call.sim.lock(), name)
        .ok_or_else(|| Fail::die(format!("role '{name}' does not exist")))?;
    Ok(held
        .into_iter()
        .map(|privilege| (privilege, json!(1)))
        .collect::<Map<_, _>>()
        .into())
    .map(|value: Value| value.into())
}

fn list_acl(call: &Call) -> Answer {
    let state = call.sim.lock();
    let visible = |path: &str| {
        acl::has(&state, &call.who, path, "Permissions.Modify")
            || acl::has(&state, &call.who, "/access", "Sys.Audit")
    };
    let rows = state.acl.iter().filter(|entry| visible(&entry.path)).map(|entry| {
        let (kind, ugid) = match entry.subject.strip_prefix('@') {
            Some(group) => ("group", group),
            None if entry.subject.contains('!') => ("token", entry.subject.as_str()),
            None => ("user", entry.subject.as_str()),
        };
        json!({"path": entry.path, "type": kind, "ugid": ugid, "roleid": entry.role, "propagate": u8::from(entry.propagate)})
    });
    rows.collect::<Value>().into()
}
