//! `/access/ticket`, `/access/password`, `/access/domains`: users who log in (`API2/AccessControl.pm`, `API2/Domains.pm`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::acl::{self, Who};
use crate::auth;
use crate::cluster_log::INFO;
use crate::fail::{ApiResult, Fail};
use crate::router::{Call, Route, now, null};
use crate::schema;
use crate::state::State;

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/access/ticket", |_| Ok(null())),
        now("POST", "/access/ticket", login),
        now("PUT", "/access/password", change_password),
        now("GET", "/access/domains", |_| Ok(domains().into())),
        now("GET", "/access/domains/{realm}", domain),
        now("GET", "/access/tfa", |_| Ok(json!([]).into())),
    ]
}

const REALMS: [(&str, &str); 2] = [
    ("pam", "Linux PAM standard authentication"),
    ("pve", "Proxmox VE authentication server"),
];

fn domains() -> Value {
    let row = |(realm, comment): &(&str, &str)| json!({"realm": realm, "type": realm, "comment": comment});
    REALMS.iter().map(row).collect()
}

fn domain(call: &Call) -> ApiResult {
    let realm = call.text("realm");
    let (kind, comment) = REALMS
        .iter()
        .find(|(name, _)| *name == realm)
        .ok_or_else(|| Fail::die(format!("domain '{realm}' does not exist")))?;
    // The digest of an empty file.
    let digest = "da39a3ee5e6b4b0d3255bfef95601890afd80709";
    Ok(json!({"type": kind, "comment": comment, "digest": digest}).into())
}

/// Every refusal has the same text, so that nobody learns which users there are.
fn login(call: &Call) -> ApiResult {
    let mut name = call.text("username").to_owned();
    if let Some(realm) = call.get("realm") {
        name = format!("{name}@{realm}");
    }
    let refused = || Fail::Json {
        status: 401,
        message: "authentication failure\n".to_owned(),
        errors: BTreeMap::new(),
    };
    let user = auth::login(&call.sim, &name, call.text("password")).ok_or_else(refused)?;
    let who = Who {
        user: user.clone(),
        token: None,
    };
    let now = call.sim.clock.epoch();
    let mut answer = Map::new();
    answer.insert("username".into(), json!(user));
    let state = call.sim.lock();
    if let (Some(path), Some(privileges)) = (call.get("path"), call.get("privs")) {
        let held = acl::privileges(&state, &who, path);
        if !schema::list(privileges)
            .iter()
            .all(|privilege| held.contains_key(privilege))
        {
            return Err(refused());
        }
    } else {
        answer.insert("ticket".into(), json!(call.sim.logins.ticket(&user, now)));
        let token = call.sim.logins.csrf_token(&user, now);
        answer.insert("CSRFPreventionToken".into(), json!(token));
    }
    answer.insert("cap".into(), capabilities(&state, &who));
    if state.nodes.len() > 1 && acl::has(&state, &who, "/", "Sys.Audit") {
        answer.insert("clustername".into(), json!("sim"));
    }
    drop(state);
    let text = format!("successful auth for user '{user}'");
    call.sim
        .cluster_log()
        .tell(INFO, (&call.here, now, "root@pam"), text);
    Ok(Value::Object(answer).into())
}

/// What the web interface may offer: privileges by the part of the tree where they are held (`compute_api_permission`).
fn capabilities(state: &State, who: &Who) -> Value {
    let parts: [(&str, &[&str]); 7] = [
        ("vms", &["VM.", "Permissions.Modify"]),
        ("access", &["User.", "Group.", "Permissions.Modify"]),
        ("storage", &["Datastore.", "Permissions.Modify"]),
        ("nodes", &["Sys.", "Permissions.Modify"]),
        ("sdn", &["SDN.", "Permissions.Modify"]),
        ("dc", &["Sys.Audit", "Sys.Modify", "SDN."]),
        ("mapping", &["Mapping.", "Permissions.Modify"]),
    ];
    let mut found: BTreeMap<&str, BTreeSet<String>> = parts
        .iter()
        .map(|(part, _)| (*part, BTreeSet::new()))
        .collect();
    let top = [
        "/",
        "/nodes",
        "/access/groups",
        "/vms",
        "/storage",
        "/sdn",
        "/mapping",
    ];
    let mut paths: BTreeSet<&str> = top.into();
    paths.extend(state.acl.iter().map(|entry| entry.path.as_str()));
    for path in paths {
        let first = path
            .split('/')
            .nth(1)
            .filter(|part| !part.is_empty())
            .unwrap_or("dc");
        for privilege in acl::privileges(state, who, path).into_keys() {
            let of_pool = |part: &str| ["vms", "storage"].contains(&part) && first == "pool";
            for (part, prefixes) in parts {
                let fits = prefixes.iter().any(|prefix| privilege.starts_with(prefix));
                if fits
                    && (part == first || of_pool(part))
                    && let Some(set) = found.get_mut(part)
                {
                    set.insert(privilege.clone());
                }
            }
        }
    }
    let flags = |set: BTreeSet<String>| -> Map<String, Value> {
        set.into_iter()
            .map(|privilege| (privilege, json!(1)))
            .collect()
    };
    found
        .into_iter()
        .map(|(part, set)| (part.to_owned(), flags(set).into()))
        .collect::<Map<_, _>>()
        .into()
}

fn change_password(call: &Call) -> ApiResult {
    let id = call.text("userid");
    let realm = id.rsplit_once('@').map_or("", |(_, realm)| realm);
    super::users::realm_type(realm)
        .ok_or_else(|| Fail::die(format!("auth domain '{realm}' does not exist")))?;
    let own = || {
        auth::login(
            &call.sim,
            &call.who.user,
            call.text("confirmation-password"),
        )
    };
    if !call.who.is_root() && own().is_none() {
        return Err(Fail::Json {
            status: 401,
            message: "authentication failure\n".to_owned(),
            errors: BTreeMap::new(),
        });
    }
    match call.sim.lock().users.get_mut(id) {
        Some(user) => user.password = Some(call.text("password").to_owned()),
        None => return Err(Fail::die(format!("no such user ('{id}')"))),
    }
    Ok(null())
}
