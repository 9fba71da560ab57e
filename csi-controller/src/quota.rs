//! What a quota leaves of a storage. PVE leaves out of its list what the token may not see: an empty list counts only if
//! the token has the right to see the owner's disks.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pve_client::{ApiError, ContentEntry, Effect, ErrorKind, Listing, StorageRef};
use pve_model::{Bytes, PveNode, StorageId, VmId};
use pve_runtime::config::StoragePolicy;
use tokio::time::Instant;

use crate::placement;
use crate::region::RegionContext;

/// How long a right that was seen is believed in. It is asked for only while a list is empty.
const GOOD_FOR: Duration = Duration::from_mins(1);

/// When the right to list an owner's disks on a storage was last seen.
#[derive(Debug, Default)]
pub struct Rights {
    seen: Mutex<BTreeMap<(StorageId, VmId), Instant>>,
}

/// What the quota of a storage leaves beside the owner's disks, except the one (`<storage>:<disk>`) that is asked
/// about; `None` is no bound. One request, up to two more if there are no disks; a node-local storage is counted host by
/// host.
pub async fn left(
    region: &RegionContext,
    host: &PveNode,
    storage: &StorageId,
    (owner, but): (VmId, Option<&str>),
    limits: &StoragePolicy,
) -> Result<Option<Bytes>, ApiError> {
    let at = StorageRef {
        pve_node: host.clone(),
        storage: storage.clone(),
    };
    let disks = region.client.disks_of(&at, owner).await?;
    if disks.entries.is_empty() && disks.undecodable == 0 {
        may_list(region, storage, owner).await?;
    }
    let (used, count) = usage(&disks, but, limits)?;
    Ok(placement::quota_left(limits, used, count))
}

/// Bytes and number of the disks but one.
fn usage(
    disks: &Listing<ContentEntry>,
    but: Option<&str>,
    limits: &StoragePolicy,
) -> Result<(Bytes, usize), ApiError> {
    let mut used = Bytes::ZERO;
    let mut count = disks.undecodable;
    for disk in &disks.entries {
        if but == Some(disk.volid.as_str()) {
            continue;
        }
        count += 1;
        if limits.max_bytes.is_some() {
            let unknown = || error(ErrorKind::Decode, format!("{} has no size", disk.volid));
            let sum = used.checked_add(disk.size.ok_or_else(unknown)?);
            used = sum.unwrap_or(used);
        }
    }
    if limits.max_bytes.is_some() && disks.undecodable > 0 {
        let detail = format!("{} disks can't be read", disks.undecodable);
        return Err(error(ErrorKind::Decode, detail));
    }
    Ok((used, count))
}

async fn may_list(
    region: &RegionContext,
    storage: &StorageId,
    owner: VmId,
) -> Result<(), ApiError> {
    let key = (storage.clone(), owner);
    let seen = region.rights.seen().get(&key).copied();
    if seen.is_some_and(|at| at.elapsed() < GOOD_FOR) {
        return Ok(());
    }
    let path = format!("/storage/{storage}");
    let granted = region.client.permissions(&path).await?;
    let listed = granted.contains("Datastore.Allocate")
        || granted.contains("Datastore.Audit")
            && region
                .client
                .permissions(&format!("/vms/{owner}"))
                .await?
                .contains("VM.Config.Disk");
    if !listed {
        let privilege = "Datastore.Allocate".to_owned();
        let detail = format!(
            "the token may not see the disks on {storage}, so that its quota can't be counted: it needs Datastore.Allocate \
             on {path}"
        );
        return Err(error(
            ErrorKind::PermissionDenied { path, privilege },
            detail,
        ));
    }
    region.rights.seen().insert(key, Instant::now());
    Ok(())
}

fn error(kind: ErrorKind, detail: String) -> ApiError {
    ApiError {
        endpoint: "GET /nodes/{node}/storage/{storage}/content",
        kind,
        effect: Effect::None,
        detail,
    }
}

impl Rights {
    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeMap<(StorageId, VmId), Instant>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, size: Option<u64>) -> ContentEntry {
        ContentEntry {
            volid: format!("local:9999/{name}"),
            owner: None,
            size: size.map(Bytes::new),
            format: None,
            parent: None,
            made: None,
        }
    }

    #[test]
    fn what_has_no_size_or_can_not_be_read_counts_and_is_never_zero_bytes() {
        let bytes = StoragePolicy {
            max_bytes: Some(Bytes::GIB),
            ..StoragePolicy::default()
        };
        let number = StoragePolicy {
            max_volumes: Some(3),
            ..StoragePolicy::default()
        };
        let of = |entries, undecodable| Listing {
            entries,
            undecodable,
        };
        let whole = of(vec![disk("a", Some(5)), disk("b", Some(7))], 0);
        let sizeless = of(vec![disk("a", Some(5)), disk("b", None)], 0);
        let broken = of(vec![disk("a", Some(5))], 1);
        for (sentence, disks, but, limits, expected) in [
            ("two disks", &whole, None, &bytes, Some((12, 2))),
            (
                "but one",
                &whole,
                Some("local:9999/a"),
                &bytes,
                Some((7, 1)),
            ),
            ("no size", &sizeless, None, &bytes, None),
            (
                "no size, its own",
                &sizeless,
                Some("local:9999/b"),
                &bytes,
                Some((5, 1)),
            ),
            (
                "no size, a bound on the number",
                &sizeless,
                None,
                &number,
                Some((0, 2)),
            ),
            ("not readable", &broken, None, &bytes, None),
            (
                "not readable, a bound on the number",
                &broken,
                None,
                &number,
                Some((0, 2)),
            ),
        ] {
            let usage = usage(disks, but, limits).ok();
            let expected = expected.map(|(used, count)| (Bytes::new(used), count));
            assert_eq!(usage, expected, "{sentence}");
        }
    }
}
