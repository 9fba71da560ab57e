//! Whether the owner's number is the tenant's alone: no guest has it, no other tenant, and no disk unless it is already
//! this tenant's.

use std::collections::BTreeSet;

use pve_client::{Client, StorageConfig, VmidState};
use pve_model::{PveNode, VmId};
use pve_region::gone::{self, Evidence, Listed, Verdict};

use super::plan::{Plan, Tenant};
use super::seen::{IMAGES, Seen};
use crate::disks::{Found, Place, Search};
use crate::output::Failure;

/// How many disks a refusal names.
pub(crate) const NAMED: usize = 10;

/// The number that the tenant's tokens were made with.
pub(crate) fn recorded(seen: &Seen, tenant: &Tenant) -> Result<Option<VmId>, Failure> {
    let tenant = tenant.to_string();
    let own = seen.marks().filter(|(_, mark)| mark.tenant == tenant);
    let numbers: BTreeSet<VmId> = own.map(|(_, mark)| mark.owner).collect();
    if numbers.len() > 1 {
        return Failure::refused(format!(
            "the tokens of {tenant} name different owners: {numbers:?}"
        ));
    }
    Ok(numbers.first().copied())
}

/// Refuses a number that is not the tenant's alone, or of which that can't be seen.
pub(crate) async fn check(plan: &Plan, admin: &Client, seen: &Seen) -> Result<(), Failure> {
    let owner = plan.owner;
    let recorded = recorded(seen, &plan.tenant)?;
    if let Some(number) = recorded.filter(|number| *number != owner) {
        return Failure::refused(format!(
            "the owner of {} is {number}, and its disks are named after it: say --owner {number}",
            plan.tenant
        ));
    }
    let tenant = plan.tenant.to_string();
    let other = seen
        .marks()
        .find(|(_, mark)| mark.owner == owner && mark.tenant != tenant);
    if let Some((id, mark)) = other {
        return Failure::refused(format!(
            "{owner} is the owner of the tenant {} (token {id}): say --owner and another number",
            mark.tenant
        ));
    }
    free(admin, seen, owner).await?;
    if recorded.is_some() {
        return Ok(());
    }
    let mut search = Search::default();
    for storage in seen.storages.values() {
        if !storage.disabled && storage.content.contains(IMAGES) {
            search
                .look(admin, &place(seen, storage), &[owner].into())
                .await;
        }
    }
    if !search.found.is_empty() {
        let disks = search.found.iter().take(NAMED).map(Found::describe);
        return Failure::refused(format!(
            "{} disks are named after {owner} already, and no token says that they are this tenant's: {}; say --owner and another \
             number",
            search.found.len(),
            disks.collect::<Vec<_>>().join(", ")
        ));
    }
    complete(&search, owner)
}

fn complete(search: &Search, owner: VmId) -> Result<(), Failure> {
    if search.unseen.is_empty() {
        return Ok(());
    }
    Failure::refused(format!(
        "it can't be seen whether there are disks of {owner}: {}",
        search.unseen.join("; ")
    ))
}

/// Where a storage is.
pub(crate) fn place(seen: &Seen, storage: &StorageConfig) -> Place {
    let on = |host: &PveNode| {
        storage
            .pve_nodes
            .as_ref()
            .is_none_or(|hosts| hosts.contains(host))
    };
    let hosts = seen
        .hosts
        .iter()
        .map(|host| &host.pve_node)
        .filter(|host| on(host));
    Place {
        storage: storage.storage.clone(),
        shared: storage.shared,
        hosts: hosts.map(|host| (host.clone(), seen.is_up(host))).collect(),
    }
}

/// Refuses a number that a guest has.
async fn free(admin: &Client, seen: &Seen, owner: VmId) -> Result<(), Failure> {
    if seen.guests.iter().any(|guest| guest.vmid == owner) {
        return taken(owner);
    }
    let control = seen.guests.first().map(|guest| guest.vmid);
    let (asked, said) = admin.vmid_states(owner, control).await?;
    if control.is_none() && asked == VmidState::Free {
        // All guests may be seen, and there are none: there is nothing to ask the control question with, nor is it needed.
        return Ok(());
    }
    let evidence = Evidence {
        listed: Listed::Nobody,
        asked: Some(asked),
        control: said,
    };
    match gone::judge(evidence) {
        Verdict::Gone => Ok(()),
        Verdict::Invisible => taken(owner),
        Verdict::Unproved(why) => {
            Failure::refused(format!("whether a guest has {owner} is not known: {why}"))
        }
    }
}

fn taken<T>(owner: VmId) -> Result<T, Failure> {
    Failure::refused(format!(
        "a guest has the number {owner}: say --owner and one that none has"
    ))
}
