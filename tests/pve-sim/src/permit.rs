//! Whether a caller may call an endpoint, by what PVE declares for it (`RPCEnvironment.pm` `check_api2_permissions`). Decided
//! before anything is looked up: who may not, does not learn whether a thing exists.

use std::collections::{BTreeMap, BTreeSet};

use crate::acl::{self, Who};
use crate::endpoints::{Check, Endpoint, Groups};
use crate::fail::Fail;
use crate::older;
use crate::state::State;

type Params = BTreeMap<String, String>;

/// What a check ended with: refused with a text, or (inside an alternative) just not fulfilled.
enum No {
    Denied(String),
    /// Anything else that ends the request: an error of its own.
    Error(Fail),
}

impl From<No> for Fail {
    fn from(no: No) -> Self {
        match no {
            No::Denied(detail) => Self::denied(&detail),
            No::Error(fail) => fail,
        }
    }
}

/// The checks before a request goes on its way: tokens where only tickets may, then the declared permissions.
pub(crate) fn permitted(
    state: &State,
    who: &Who,
    endpoint: &Endpoint,
    shown: &str,
    params: &Params,
) -> Result<(), Fail> {
    if endpoint.notoken && who.token.is_some() {
        return Err(Fail::denied(&format!(
            "URI '{shown}' not available with API token, need proper ticket.\n"
        )));
    }
    let declared = endpoint.perm.as_ref();
    let user = declared.and_then(|perm| perm.user.as_deref());
    if who.user.is_empty() {
        return if user == Some("world") {
            Ok(())
        } else {
            Err(Fail::denied("user != null"))
        };
    }
    if who.is_root() {
        return Ok(());
    }
    let Some(declared) = declared else {
        return Err(Fail::denied("user != root@pam"));
    };
    if user == Some("all") {
        return Ok(());
    }
    let Some(check) = &declared.check else {
        return Err(Fail::denied(""));
    };
    let asked = Asked { state, who, params };
    let check = older::check(&state.version, check);
    asked.check(&check).map_err(Fail::from)
}

struct Asked<'a> {
    state: &'a State,
    who: &'a Who,
    params: &'a Params,
}

impl Asked<'_> {
    fn check(&self, check: &Check) -> Result<(), No> {
        match check {
            Check::And(all) => all.iter().try_for_each(|one| self.check(one)),
            Check::Or(any) => any
                .iter()
                .any(|one| self.check(one).is_ok())
                .then_some(())
                .ok_or_else(|| No::Denied(String::new())),
            Check::Perm {
                path,
                privileges,
                any,
                needs,
            } => {
                if needs
                    .as_ref()
                    .is_some_and(|name| !self.params.contains_key(name))
                {
                    return Err(No::Denied(String::new()));
                }
                self.held(&self.filled(path), privileges, *any)
            }
            Check::UserGroup { privileges, groups } => self.user_group(privileges, *groups),
            Check::OneSelf => {
                self.known_user()?;
                if self.who.token.is_none() && self.who.user == self.text("userid") {
                    Ok(())
                } else {
                    Err(No::Denied(String::new()))
                }
            }
            Check::Realm => {
                let realm = realm(self.text("userid"))?;
                let path = format!("/access/realm/{realm}");
                self.held(&path, &["Realm.AllocateUser".to_owned()], false)
            }
            Check::Modify { path } => {
                let path = self.filled(path);
                if path.is_empty() {
                    return Err(No::Denied(String::new()));
                }
                let mut wanted = vec!["Permissions.Modify".to_owned()];
                wanted.extend(acl::modify_too(&path).map(str::to_owned));
                self.held(&path, &wanted, true)
            }
        }
    }

    fn text(&self, name: &str) -> &str {
        self.params
            .get(name)
            .map(String::as_str)
            .unwrap_or_default()
    }

    /// The path with its parameters; empty if it is none (`normalize_path`): nobody holds anything there.
    fn filled(&self, template: &str) -> String {
        let mut path = String::new();
        for (at, part) in template.split(['{', '}']).enumerate() {
            path.push_str(if at % 2 == 1 { self.text(part) } else { part });
        }
        acl::normal_path(&path).unwrap_or_default()
    }

    fn held(&self, path: &str, wanted: &[String], any: bool) -> Result<(), No> {
        let held = if path.is_empty() {
            acl::Privileges::new()
        } else {
            acl::privileges(self.state, self.who, path)
        };
        let missing = wanted
            .iter()
            .find(|privilege| !held.contains_key(*privilege));
        match missing {
            None => Ok(()),
            Some(_) if any && wanted.iter().any(|privilege| held.contains_key(privilege)) => Ok(()),
            Some(_) if any => Err(No::Denied(format!("{path}, {}", wanted.join("|")))),
            Some(missing) => Err(No::Denied(format!("{path}, {missing}"))),
        }
    }

    fn known_user(&self) -> Result<(), No> {
        let user = self.text("userid");
        if self.state.users.contains_key(user) {
            Ok(())
        } else {
            Err(No::Error(Fail::die(format!("no such user ('{user}')"))))
        }
    }

    /// Rights on all groups are rights on all users; else those on a group that the user is in, or shall be put in.
    fn user_group(&self, privileges: &[String], groups: Groups) -> Result<(), No> {
        if groups != Groups::Create {
            self.known_user()?;
        }
        if self.held("/access/groups", privileges, true).is_ok() {
            return Ok(());
        }
        let mine: BTreeSet<&String> = self
            .state
            .groups
            .keys()
            .filter(|group| {
                self.held(&format!("/access/groups/{group}"), privileges, true)
                    .is_ok()
            })
            .collect();
        if groups != Groups::Ignored {
            let wanted = privileges.join("|");
            let asked: Vec<String> = crate::schema::list(self.text("groups"));
            if asked.is_empty() {
                return Err(No::Denied(format!("/access/groups, {wanted}")));
            }
            if let Some(other) = asked.iter().find(|group| !mine.contains(group)) {
                return Err(No::Denied(format!("/access/groups/{other}, {wanted}")));
            }
        }
        let user = self.text("userid");
        let member = |group: &&String| {
            let members = self.state.groups.get(*group);
            members.is_some_and(|members| members.contains(user))
        };
        if groups == Groups::Create || mine.into_iter().any(|group| member(&group)) {
            Ok(())
        } else {
            Err(No::Denied(String::new()))
        }
    }
}

/// The realm of a user id; PVE's `verify_username` ends the request if it is none.
fn realm(user: &str) -> Result<&str, No> {
    crate::formats::user(user)
        .map(|()| user.rsplit_once('@').map_or("", |(_, realm)| realm))
        .map_err(|text| No::Error(Fail::die(text.trim_end_matches('\n'))))
}
