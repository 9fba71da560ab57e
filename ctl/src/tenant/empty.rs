//! Whether a tenant is what its config says, and has no volume any more.

use std::collections::BTreeSet;

use pve_client::{Client, Presence};
use pve_model::{StorageId, VolumeId};
use pve_runtime::config::RegionPolicy;

use super::owner::{self, NAMED, place};
use super::plan::{Mark, PROGRAMS, Plan};
use super::seen::{IMAGES, Seen};
use crate::disks::{Found, Place, Search, owners};
use crate::output::Failure;

/// Refuses tokens that are not this tenant's, and a config that is not.
pub(super) fn belongs(plan: &Plan, seen: &Seen, policy: &RegionPolicy) -> Result<(), Failure> {
    let tenant = plan.tenant.to_string();
    for program in PROGRAMS {
        let Some(token) = seen.token(&plan.user, plan.token(program)) else {
            continue;
        };
        let mark = Mark::read(&token.comment);
        if mark.is_none_or(|mark| mark.tenant != tenant) {
            return Failure::refused(format!(
                "the token {} does not say that it is of {tenant}: what was not set up by pvectl is not taken away by it",
                plan.token_id(program)
            ));
        }
    }
    let owners = owners(policy);
    if let Some(recorded) = owner::recorded(seen, &plan.tenant)?
        && !owners.contains(&recorded)
    {
        return Failure::refused(format!(
            "the tokens say that the owner is {recorded}, which the config does not name"
        ));
    }
    match seen
        .marks()
        .find(|(_, mark)| mark.tenant != tenant && owners.contains(&mark.owner))
    {
        Some((id, mark)) => Failure::refused(format!(
            "the config's owner {} is that of the tenant {} (token {id})",
            mark.owner, mark.tenant
        )),
        None => Ok(()),
    }
}

/// Refuses while there is a volume on these storages, and while that is not known.
pub(super) async fn no_volume(
    storages: &BTreeSet<StorageId>,
    (admin, seen): (&Client, &Seen),
    policy: &RegionPolicy,
) -> Result<(), Failure> {
    let mut search = Search::default();
    for id in storages {
        let place = match seen.storages.get(id) {
            Some(storage) if storage.disabled => {
                search
                    .unseen
                    .push(format!("the storage {id} is switched off"));
                continue;
            }
            // PVE lists no disk of it, whatever it holds.
            Some(storage) if !storage.content.contains(IMAGES) => {
                search
                    .unseen
                    .push(format!("the content of the storage {id} lacks {IMAGES}"));
                continue;
            }
            Some(storage) => place(seen, storage),
            None => Place {
                storage: id.clone(),
                shared: false,
                hosts: Vec::new(),
            },
        };
        search.look(admin, &place, &owners(policy)).await;
    }
    let mut volumes: Vec<String> = search.found.iter().map(Found::describe).collect();
    for volume in &policy.adopted {
        match adopted(admin, seen, volume).await {
            Ok(true) => volumes.push(format!("{volume} (adopted)")),
            Ok(false) => {}
            Err(why) => search
                .unseen
                .push(format!("the adopted volume {volume}: {why}")),
        }
    }
    if !volumes.is_empty() {
        let some: Vec<&str> = volumes.iter().take(NAMED).map(String::as_str).collect();
        return Failure::refused(format!(
            "the tenant has {} volumes: {}; delete them first",
            volumes.len(),
            some.join(", ")
        ));
    }
    if !search.unseen.is_empty() {
        return Failure::refused(format!(
            "it can't be seen whether the tenant has volumes: {}",
            search.unseen.join("; ")
        ));
    }
    Ok(())
}

/// Those of the config, and those on which the tenant's tokens hold rights.
pub(super) fn storages(plan: &Plan, seen: &Seen) -> Result<BTreeSet<StorageId>, Failure> {
    let mut all = plan.storages.clone();
    let tokens = PROGRAMS.map(|program| plan.token_id(program));
    for line in seen
        .acl
        .iter()
        .filter(|line| tokens.contains(&line.subject))
    {
        if let Some(name) = line.path.strip_prefix("/storage/") {
            let id = name
                .parse()
                .map_err(|_| Failure::Failed(format!("{} is no storage", line.path)))?;
            all.insert(id);
        }
    }
    Ok(all)
}

async fn adopted(admin: &Client, seen: &Seen, volume: &VolumeId) -> Result<bool, String> {
    let storage = seen
        .storages
        .get(&volume.storage)
        .ok_or("its storage is not there")?;
    let place = place(seen, storage);
    let at = place.of_volume(volume)?;
    let looked = admin
        .disk(&at, &volume.disk)
        .await
        .map_err(|error| error.to_string())?;
    Ok(matches!(looked, Presence::Present(_)))
}
