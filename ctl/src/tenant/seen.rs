//! What the PVE cluster has already. Everything in it is complete: what can't be read, or may not be seen, is a refusal.

use std::collections::{BTreeMap, BTreeSet};

use pve_client::{
    AclEntry, Client, HostState, Listing, NodeEntry, PveUser, StorageConfig, UserToken, VmEntry,
};
use pve_model::{PoolId, StorageId};

use super::plan::{Mark, Plan, Role, Tenant};
use crate::output::Failure;

/// Without these, lists leave out what may be there.
const SIGHT: [(&str, &str); 3] = [
    ("/access", "Sys.Audit"),
    ("/access/groups", "User.Modify"),
    ("/vms", "VM.Audit"),
];
/// What PVE lets a storage hold the disks of VMs by.
pub(crate) const IMAGES: &str = "images";

/// What there is.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The version of PVE: 8, 9.
    pub(crate) major: u32,
    /// Pools with what is said of them.
    pub(crate) pools: BTreeMap<PoolId, String>,
    /// Users with their tokens.
    pub(crate) users: Vec<PveUser>,
    /// Roles with their privileges.
    pub(crate) roles: BTreeMap<String, BTreeSet<String>>,
    /// Who holds which role where.
    pub(crate) acl: Vec<AclEntry>,
    /// Storages.
    pub(crate) storages: BTreeMap<StorageId, StorageConfig>,
    /// Hosts.
    pub(crate) hosts: Vec<NodeEntry>,
    /// Guests.
    pub(crate) guests: Vec<VmEntry>,
}

impl Seen {
    /// Reads all of it.
    pub(crate) async fn read(
        admin: &Client,
        pool: &PoolId,
        storages: &BTreeSet<StorageId>,
    ) -> Result<Self, Failure> {
        may_see(admin, pool, storages).await?;
        let version = admin.version().await?.release;
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.parse().ok());
        let Some(major) = major else {
            return Failure::failed("the version of Proxmox VE can't be read");
        };
        let storages = all("storages", admin.storage_configs().await?)?.into_iter();
        Ok(Self {
            major,
            pools: all("pools", admin.pools().await?)?.into_iter().collect(),
            users: all("users", admin.users().await?)?,
            roles: all("roles", admin.roles().await?)?.into_iter().collect(),
            acl: all("access control list", admin.acl().await?)?,
            storages: storages
                .map(|storage| (storage.storage.clone(), storage))
                .collect(),
            hosts: all("hosts", admin.pve_nodes().await?)?,
            guests: all("guests", admin.vms().await?)?,
        })
    }

    /// The token of that name.
    pub(crate) fn token(&self, user: &str, name: &str) -> Option<&UserToken> {
        let user = self.user(user)?;
        user.tokens.iter().find(|token| token.name == name)
    }

    /// The user of that name.
    pub(crate) fn user(&self, id: &str) -> Option<&PveUser> {
        self.users.iter().find(|user| user.id == id)
    }

    /// Every token that says whose it is: its full id and what it says.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (String, Mark)> {
        let tokens = self.users.iter().flat_map(|user| {
            let id = |token: &UserToken| format!("{}!{}", user.id, token.name);
            user.tokens
                .iter()
                .map(move |token| (id(token), &token.comment))
        });
        tokens.filter_map(|(id, comment)| Some((id, Mark::read(comment)?)))
    }

    /// Whether that host is a member that is up.
    pub(crate) fn is_up(&self, host: &pve_model::PveNode) -> bool {
        let found = self.hosts.iter().find(|entry| entry.pve_node == *host);
        found.is_some_and(|entry| entry.state == HostState::Online)
    }

    /// Refuses what names hosts and storages that can't serve.
    pub(crate) fn serves(&self, plan: &Plan) -> Result<(), Failure> {
        let known: BTreeSet<_> = self.hosts.iter().map(|host| &host.pve_node).collect();
        if let Some(host) = plan.pve_nodes.iter().find(|host| !known.contains(host)) {
            return Failure::refused(format!("the PVE cluster has no host {host}"));
        }
        for id in &plan.storages {
            let Some(storage) = self.storages.get(id) else {
                return Failure::refused(format!("the PVE cluster has no storage {id}"));
            };
            if storage.disabled {
                return Failure::refused(format!("the storage {id} is switched off"));
            }
            if !storage.content.contains(IMAGES) {
                return Failure::refused(format!(
                    "the storage {id} is not for disks of VMs: its content lacks {IMAGES}, so that no list shows them"
                ));
            }
            let there = |host| {
                storage
                    .pve_nodes
                    .as_ref()
                    .is_none_or(|on| on.contains(host))
            };
            if !plan.pve_nodes.iter().any(there) {
                return Failure::refused(format!("none of the hosts has the storage {id}"));
            }
        }
        Ok(())
    }

    /// Refuses roles of the same names that hold something else: others may have them.
    pub(crate) fn role_fits(&self, role: &Role) -> Result<(), Failure> {
        match self.roles.get(&role.name) {
            Some(held) if *held != role.privileges => Failure::refused(format!(
                "the role {} holds {} and is to hold {}: give --role-prefix a word of your own, or change the role if nobody else \
                 has it",
                role.name,
                list(held),
                list(&role.privileges)
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a storage that another tenant's token has rights on: whoever holds `Datastore.Allocate` there may take
    /// every disk on it.
    pub(crate) fn alone_on(
        &self,
        storages: &BTreeSet<StorageId>,
        tenant: &Tenant,
    ) -> Result<(), Failure> {
        let tenant = tenant.to_string();
        for (id, mark) in self.marks().filter(|(_, mark)| mark.tenant != tenant) {
            let path = |storage: &StorageId| format!("/storage/{storage}");
            let shared = |storage: &&StorageId| {
                let path = path(storage);
                self.acl
                    .iter()
                    .any(|line| line.subject == id && line.path == path)
            };
            if let Some(storage) = storages.iter().find(shared) {
                return Failure::refused(format!(
                    "the tenant {} has rights on the storage {storage}, and each of the two could take the other's disks: give each \
                     a storage of its own, or say --share-storage",
                    mark.tenant
                ));
            }
        }
        Ok(())
    }
}

/// What separates names in a text.
pub(crate) fn list<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<T> = names.into_iter().collect();
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    names.join(", ")
}

fn all<T>(what: &str, listing: Listing<T>) -> Result<Vec<T>, Failure> {
    match listing.undecodable {
        0 => Ok(listing.entries),
        some => Failure::failed(format!(
            "{some} entries of the list of {what} can't be read"
        )),
    }
}

/// Fails where PVE would leave something out of its lists without a word.
async fn may_see(
    admin: &Client,
    pool: &PoolId,
    storages: &BTreeSet<StorageId>,
) -> Result<(), Failure> {
    let fixed = SIGHT.map(|(path, privilege)| (path.to_owned(), privilege));
    let on_storages = storages.iter();
    let on_storages = on_storages.map(|id| (format!("/storage/{id}"), "Datastore.Allocate"));
    let wanted = fixed
        .into_iter()
        .chain([(format!("/pool/{pool}"), "Pool.Audit")])
        .chain([("/storage".to_owned(), "Datastore.Allocate")])
        .chain(on_storages);
    for (path, privilege) in wanted {
        if !admin.permissions(&path).await?.contains(privilege) {
            return Failure::refused(format!(
                "not all can be seen with these rights: {privilege} on {path} is missing"
            ));
        }
    }
    Ok(())
}
