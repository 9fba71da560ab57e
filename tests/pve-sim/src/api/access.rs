//! `/access/permissions`, `/access/acl`: what the caller may do, and who may do what (`API2/ACL.pm`, `API2/AccessControl.pm`).

use serde_json::{Map, Value, json};

use crate::acl::{self, Privileges, Who};
use crate::fail::{Answer, ApiResult, Fail};
use crate::roles;
use crate::router::{Call, Route, now, null};
use crate::schema;
use crate::state::{AclEntry, State};

pub(super) fn routes() -> Vec<Route> {
    vec![
        now("GET", "/access/permissions", permissions),
        now("GET", "/access/acl", |call| Ok(list_acl(call))),
        now("PUT", "/access/acl", change_acl),
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

fn list_acl(call: &Call) -> Answer {
    let state = call.sim.lock();
    let audits = acl::has(&state, &call.who, "/access", "Sys.Audit");
    let visible = |path: &str| audits || acl::may_modify(&state, &call.who, path);
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

/// One change of the list: these roles on a path for these subjects.
struct Change {
    path: String,
    roles: Vec<String>,
    /// In the order in which PVE takes them: groups, users, tokens.
    subjects: Vec<String>,
    propagate: bool,
    delete: bool,
}

fn change_acl(call: &Call) -> ApiResult {
    let whose = ["users", "groups", "tokens"];
    if whose.iter().all(|name| call.text(name).is_empty()) {
        let text = "either 'users', 'groups' or 'tokens' is required.";
        return Err(Fail::params(
            whose.map(|name| (name.to_owned(), text.to_owned())).into(),
        ));
    }
    let named = |name: &str| schema::list(call.text(name));
    let groups = named("groups").into_iter().map(|group| format!("@{group}"));
    let subjects: Vec<String> = groups
        .chain(named("users"))
        .chain(named("tokens"))
        .collect();
    let change = Change {
        path: acl::normal_path(call.text("path")).unwrap_or_default(),
        roles: named("roles"),
        subjects,
        propagate: call.get("propagate") != Some("0"),
        delete: call.flag("delete"),
    };
    if change.path.is_empty() || (!change.delete && !acl::is_acl_path(&change.path)) {
        let path = call.text("path");
        return Err(Fail::param("path", format!("invalid ACL path '{path}'")));
    }
    let mut state = call.sim.lock();
    // All or nothing: PVE writes the file once, at the end.
    let mut changed = state.acl.clone();
    for role in &change.roles {
        change
            .apply(&state, &call.who, role, &mut changed)
            .map_err(|fail| fail.within("ACL update failed"))?;
    }
    state.acl = changed;
    Ok(null())
}

impl Change {
    fn apply(
        &self,
        state: &State,
        who: &Who,
        role: &str,
        list: &mut Vec<AclEntry>,
    ) -> Result<(), Fail> {
        let privileges = roles::privileges(state, role)
            .ok_or_else(|| Fail::die(format!("role '{role}' does not exist")))?;
        let held = acl::privileges(state, who, &self.path);
        if !held.contains_key("Permissions.Modify") {
            self.hand_out(role, &privileges, &held)?;
        }
        for subject in &self.subjects {
            exists(state, subject)?;
            list.retain(|entry| {
                entry.path != self.path || entry.subject != *subject || entry.role != role
            });
            if !self.delete {
                list.push(AclEntry {
                    path: self.path.clone(),
                    subject: subject.clone(),
                    role: role.to_owned(),
                    propagate: self.propagate,
                });
            }
        }
        Ok(())
    }

    /// Without `Permissions.Modify` one may hand out only what one has.
    fn hand_out(
        &self,
        role: &str,
        privileges: &std::collections::BTreeSet<String>,
        held: &Privileges,
    ) -> Result<(), Fail> {
        let verb = if self.delete { "remove" } else { "add" };
        let refuse = |with: &str, more: &str| {
            let text =
                format!("Cannot {verb} role '{role}'{with} - requires 'Permissions.Modify'{more}");
            Err(Fail::param("role", text))
        };
        for privilege in privileges {
            match held.get(privilege) {
                None => return refuse("", " or superset of privileges."),
                Some(false) if self.propagate && !self.delete => {
                    return refuse(
                        " with propagation",
                        " or propagated superset of privileges.",
                    );
                }
                Some(_) => {}
            }
        }
        if role == "NoAccess" {
            refuse("", "")
        } else {
            Ok(())
        }
    }
}

/// Whether there is such a user, group or token; the error is PVE's.
fn exists(state: &State, subject: &str) -> Result<(), Fail> {
    let (known, text) = if let Some(group) = subject.strip_prefix('@') {
        (
            state.groups.contains_key(group),
            format!("group '{group}' does not exist"),
        )
    } else if let Some((user, token)) = subject.split_once('!') {
        let account = state.users.get(user);
        let account = account.ok_or_else(|| Fail::die(format!("no such user ('{user}')")))?;
        (
            account.tokens.contains_key(token),
            format!("no such token '{token}' for user '{user}'"),
        )
    } else {
        (
            state.users.contains_key(subject),
            format!("user '{subject}' does not exist"),
        )
    };
    if known { Ok(()) } else { Err(Fail::die(text)) }
}
