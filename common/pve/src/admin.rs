//! What an operator sets up for a tenant: pools, users, tokens, roles and who holds them where. The controllers call none
//! of it and their tokens may do none of it.

use std::collections::{BTreeMap, BTreeSet};

use pve_model::{PoolId, PveNode, StorageId};
use secrecy::SecretString;

use crate::Client;
use crate::access::PERMISSIONS;
use crate::error::ApiError;
use crate::request::{ApiRequest, OpClass, Spec};
use crate::wire::{self, Fields, Listing};

const fn spec(name: &'static str, class: OpClass) -> Spec {
    Spec {
        name,
        class,
        rights: &[],
    }
}

static POOLS: Spec = spec("GET /pools", OpClass::Read);
static CREATE_POOL: Spec = spec("POST /pools", OpClass::Once);
static DELETE_POOL: Spec = spec("DELETE /pools", OpClass::Converge);
static USERS: Spec = spec("GET /access/users", OpClass::Read);
static CREATE_USER: Spec = spec("POST /access/users", OpClass::Once);
static DELETE_USER: Spec = spec("DELETE /access/users/{userid}", OpClass::Converge);
static CREATE_TOKEN: Spec = spec("POST /access/users/{userid}/token/{tokenid}", OpClass::Once);
static UPDATE_TOKEN: Spec = spec(
    "PUT /access/users/{userid}/token/{tokenid}",
    OpClass::Converge,
);
static DELETE_TOKEN: Spec = spec(
    "DELETE /access/users/{userid}/token/{tokenid}",
    OpClass::Converge,
);
static ROLES: Spec = spec("GET /access/roles", OpClass::Read);
static CREATE_ROLE: Spec = spec("POST /access/roles", OpClass::Once);
static DELETE_ROLE: Spec = spec("DELETE /access/roles/{roleid}", OpClass::Converge);
static ACL: Spec = spec("GET /access/acl", OpClass::Read);
static CHANGE_ACL: Spec = spec("PUT /access/acl", OpClass::Converge);
static STORAGES: Spec = spec("GET /storage", OpClass::Read);

/// Every privilege that is held somewhere, by path.
pub type PermissionsByPath = BTreeMap<String, BTreeSet<String>>;

/// A user and its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PveUser {
    /// `user@realm`.
    pub id: String,
    /// Whether it may log in.
    pub enabled: bool,
    /// What the operator says of it.
    pub comment: String,
    /// The groups that it is in.
    pub groups: Vec<String>,
    /// Its tokens.
    pub tokens: Vec<UserToken>,
}

/// A token as it is listed: PVE tells its secret once, when it makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserToken {
    /// The part behind `!`.
    pub name: String,
    /// Whether it has rights of its own, of which those count that its user has too.
    pub privsep: bool,
    /// When it ends, in seconds since 1970; 0 for never.
    pub expire: u64,
    /// What the operator says of it.
    pub comment: String,
}

/// A line of the access control list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AclEntry {
    /// Where.
    pub path: String,
    /// `user@realm`, `user@realm!token`, or `@group`.
    pub subject: String,
    /// Which role.
    pub role: String,
    /// Whether below it, too.
    pub propagate: bool,
}

/// One role on one path for a user and one of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment<'a> {
    /// Where.
    pub path: &'a str,
    /// Which role.
    pub role: &'a str,
    /// `user@realm` or `user@realm!token`.
    pub subject: &'a str,
    /// Whether below it, too.
    pub propagate: bool,
}

/// A storage as the PVE cluster's configuration has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    /// Its id.
    pub storage: StorageId,
    /// Plugin type: `dir`, `lvmthin`, ….
    pub plugin: String,
    /// What may lie on it.
    pub content: BTreeSet<String>,
    /// The hosts that have it; none: all of them.
    pub pve_nodes: Option<BTreeSet<PveNode>>,
    /// Whether it is switched off.
    pub disabled: bool,
    /// Whether all hosts see the same content.
    pub shared: bool,
}

impl Client {
    /// `GET /pools`; those with `Pool.Audit`: id and comment.
    pub async fn pools(&self) -> Result<Listing<(PoolId, String)>, ApiError> {
        let request = ApiRequest::new(&POOLS, None, &[]);
        let row = |fields: Fields<'_>| {
            let comment = fields.text("comment").unwrap_or_default();
            Some((fields.id("poolid")?, comment))
        };
        self.call(request, |data| wire::listing(data, row)).await
    }

    /// `POST /pools`; `Pool.Allocate` on the pool.
    pub async fn create_pool(&self, pool: &PoolId, comment: &str) -> Result<(), ApiError> {
        let request = ApiRequest::new(&CREATE_POOL, None, &[])
            .with("poolid", pool.as_str())
            .with("comment", comment);
        self.call(request, |_| Ok(())).await
    }

    /// `DELETE /pools`; `Pool.Allocate` on the pool. PVE refuses one that has members.
    pub async fn delete_pool(&self, pool: &PoolId) -> Result<(), ApiError> {
        let request = ApiRequest::new(&DELETE_POOL, None, &[]).with("poolid", pool.as_str());
        self.call(request, |_| Ok(())).await
    }

    /// `GET /access/users?full=1`; all of them with `User.Modify` or `Sys.Audit` on `/access/groups`.
    pub async fn users(&self) -> Result<Listing<PveUser>, ApiError> {
        let request = ApiRequest::new(&USERS, None, &[]).with("full", "1");
        self.call(request, |data| wire::listing(data, user)).await
    }

    /// `POST /access/users`; `Realm.AllocateUser` on the realm and `User.Modify`. The user has no password.
    pub async fn create_user(&self, id: &str, comment: &str) -> Result<(), ApiError> {
        let request = ApiRequest::new(&CREATE_USER, None, &[])
            .with("userid", id)
            .with("comment", comment);
        self.call(request, |_| Ok(())).await
    }

    /// `DELETE /access/users/{userid}`; as for its creation. Its tokens and its rights go with it.
    pub async fn delete_user(&self, id: &str) -> Result<(), ApiError> {
        let request = ApiRequest::new(&DELETE_USER, None, &[id]);
        self.call(request, |_| Ok(())).await
    }

    /// `POST /access/users/{userid}/token/{tokenid}`; `User.Modify` on a group of the user. With separated privileges:
    /// it may do nothing yet. The secret, which PVE tells this once.
    pub async fn create_token(
        &self,
        user: &str,
        name: &str,
        comment: &str,
    ) -> Result<SecretString, ApiError> {
        let request = ApiRequest::new(&CREATE_TOKEN, None, &[user, name])
            .with("privsep", "1")
            .with("comment", comment);
        self.call(request, |data| {
            let secret = Fields::of(data)?.text("value").ok_or("no value")?;
            Ok(SecretString::from(secret))
        })
        .await
    }

    /// `PUT /access/users/{userid}/token/{tokenid}`; as for its creation: what is said of it.
    pub async fn describe_token(
        &self,
        user: &str,
        name: &str,
        comment: &str,
    ) -> Result<(), ApiError> {
        let request = ApiRequest::new(&UPDATE_TOKEN, None, &[user, name]).with("comment", comment);
        self.call(request, |_| Ok(())).await
    }

    /// `DELETE /access/users/{userid}/token/{tokenid}`; as for its creation. Its rights go with it.
    pub async fn delete_token(&self, user: &str, name: &str) -> Result<(), ApiError> {
        let request = ApiRequest::new(&DELETE_TOKEN, None, &[user, name]);
        self.call(request, |_| Ok(())).await
    }

    /// `GET /access/roles`; no privilege: the roles with their privileges.
    pub async fn roles(&self) -> Result<Listing<(String, BTreeSet<String>)>, ApiError> {
        let request = ApiRequest::new(&ROLES, None, &[]);
        let row = |fields: Fields<'_>| {
            let privileges = fields.text("privs").unwrap_or_default();
            Some((fields.text("roleid")?, words(&privileges)))
        };
        self.call(request, |data| wire::listing(data, row)).await
    }

    /// `POST /access/roles`; `Sys.Modify` on `/access`.
    pub async fn create_role(&self, role: &str, privileges: &str) -> Result<(), ApiError> {
        let request = ApiRequest::new(&CREATE_ROLE, None, &[])
            .with("roleid", role)
            .with("privs", privileges);
        self.call(request, |_| Ok(())).await
    }

    /// `DELETE /access/roles/{roleid}`; `Sys.Modify` on `/access`. PVE doesn't ask whether it is in use.
    pub async fn delete_role(&self, role: &str) -> Result<(), ApiError> {
        let request = ApiRequest::new(&DELETE_ROLE, None, &[role]);
        self.call(request, |_| Ok(())).await
    }

    /// `GET /access/acl`; all of it with `Sys.Audit` on `/access`, else what the caller may change.
    pub async fn acl(&self) -> Result<Listing<AclEntry>, ApiError> {
        let request = ApiRequest::new(&ACL, None, &[]);
        self.call(request, |data| wire::listing(data, acl_entry))
            .await
    }

    /// `PUT /access/acl`; `Permissions.Modify` on the path.
    pub async fn grant(&self, what: Assignment<'_>) -> Result<(), ApiError> {
        let propagate = if what.propagate { "1" } else { "0" };
        let request = change(what).with("propagate", propagate);
        self.call(request, |_| Ok(())).await
    }

    /// `PUT /access/acl` with `delete`; `Permissions.Modify` on the path. What is not granted counts as taken away.
    pub async fn take_away(&self, what: Assignment<'_>) -> Result<(), ApiError> {
        let request = change(what).with("delete", "1");
        self.call(request, |_| Ok(())).await
    }

    /// `GET /access/permissions`; no privilege for oneself, `Sys.Audit` on `/access` for others. PVE tells of the top of
    /// the tree, of every path of the access control list and of every member of a pool.
    pub async fn all_permissions(&self, of: Option<&str>) -> Result<PermissionsByPath, ApiError> {
        let mut request = ApiRequest::new(&PERMISSIONS, None, &[]);
        if let Some(of) = of {
            request = request.with("userid", of);
        }
        self.call(request, |data| {
            let mut all = PermissionsByPath::new();
            for (path, held) in Fields::of(data)?.0 {
                let held = held.as_object().ok_or("a path without privileges")?;
                all.insert(path.clone(), held.keys().cloned().collect());
            }
            Ok(all)
        })
        .await
    }

    /// `GET /storage`; those with `Datastore.Audit` or `Datastore.AllocateSpace`.
    pub async fn storage_configs(&self) -> Result<Listing<StorageConfig>, ApiError> {
        let request = ApiRequest::new(&STORAGES, None, &[]);
        self.call(request, |data| wire::listing(data, storage))
            .await
    }
}

fn change(what: Assignment<'_>) -> ApiRequest {
    let kind = if what.subject.contains('!') {
        "tokens"
    } else {
        "users"
    };
    ApiRequest::new(&CHANGE_ACL, None, &[])
        .with("path", what.path)
        .with("roles", what.role)
        .with(kind, what.subject)
}

fn words(list: &str) -> BTreeSet<String> {
    let words = list.split([',', ' ', ';']).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn user(fields: Fields<'_>) -> Option<PveUser> {
    let tokens = match fields.0.get("tokens") {
        None => Vec::new(),
        Some(list) => {
            let list = wire::listing(list, token).ok()?;
            (list.undecodable == 0).then_some(list.entries)?
        }
    };
    let groups = fields.text("groups").unwrap_or_default();
    Some(PveUser {
        id: fields.text("userid")?,
        enabled: fields.optional_flag("enable")?.unwrap_or(true),
        comment: fields.text("comment").unwrap_or_default(),
        groups: words(&groups).into_iter().collect(),
        tokens,
    })
}

fn token(fields: Fields<'_>) -> Option<UserToken> {
    Some(UserToken {
        name: fields.text("tokenid")?,
        privsep: fields.optional_flag("privsep")?.unwrap_or(true),
        expire: fields.number("expire").unwrap_or(0),
        comment: fields.text("comment").unwrap_or_default(),
    })
}

fn acl_entry(fields: Fields<'_>) -> Option<AclEntry> {
    let name = fields.text("ugid")?;
    let subject = match fields.text("type")?.as_str() {
        "group" => format!("@{name}"),
        "user" | "token" => name,
        _ => return None,
    };
    Some(AclEntry {
        path: fields.text("path")?,
        subject,
        role: fields.text("roleid")?,
        propagate: fields.optional_flag("propagate")?.unwrap_or(true),
    })
}

fn storage(fields: Fields<'_>) -> Option<StorageConfig> {
    let pve_nodes = match fields.text("nodes") {
        None => None,
        Some(list) => {
            let names = words(&list);
            let parsed: Result<BTreeSet<PveNode>, _> =
                names.iter().map(|name| name.parse()).collect();
            Some(parsed.ok()?)
        }
    };
    Some(StorageConfig {
        storage: fields.id("storage")?,
        plugin: fields.text("type").unwrap_or_default(),
        content: words(&fields.text("content").unwrap_or_default()),
        pve_nodes,
        disabled: fields.optional_flag("disable")?.unwrap_or(false),
        shared: fields.optional_flag("shared")?.unwrap_or(false),
    })
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
