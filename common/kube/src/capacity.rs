//! `CSIStorageCapacity` objects that csi-provisioner leaves behind: with `--capacity-ownerref-level=-1` they have no owner, so
//! that nobody collects them, and the scheduler goes on believing them.
//!
//! csi-provisioner makes an object anew as soon as it sees it deleted, once the driver answers `GetCapacity`
//! (`pkg/capacity/capacity.go`, `onCDelete`). So they stay away when it has ended, or while the driver refuses.

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use kube::Client;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::core::Request;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::{RequestError, answer};

/// The driver of an object (external-provisioner `pkg/capacity`, `DriverNameLabel`).
pub const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
/// Who looks after an object (`ManagedByLabel`).
pub const MANAGED_BY_LABEL: &str = "csi.storage.k8s.io/managed-by";
/// The value of [`MANAGED_BY_LABEL`] of a csi-provisioner that serves a whole cluster.
pub const MANAGER: &str = "external-provisioner";

const PAGE: u32 = 250;
/// An object has half a kilobyte.
const PAGE_MAX: usize = 4 << 20;
/// A class has one for each PVE node.
const MOST: usize = 10_000;
const ANSWER: Duration = Duration::from_secs(10);
const PARALLEL: usize = 8;
/// Between two looks whether they are gone. csi-provisioner makes one anew within milliseconds.
const PAUSE: Duration = Duration::from_secs(1);
/// How often they may come back.
const ROUNDS: usize = 5;

/// Why some may be left.
#[derive(Debug, thiserror::Error)]
pub enum CapacityError {
    /// The name can't be the value of a label.
    #[error("{0:?} is no name of a driver that objects can be found by")]
    Driver(String),
    /// The API server does not answer as it should.
    #[error("the CSIStorageCapacity objects: {0}")]
    Request(#[from] RequestError),
    /// There are more than any driver has reason to have.
    #[error("there are more than {MOST} CSIStorageCapacity objects of the driver")]
    TooMany,
    /// Somebody makes them anew.
    #[error(
        "{0} CSIStorageCapacity objects are there again after they were deleted: csi-provisioner is still at work"
    )]
    ComeBack(usize),
    /// The time was over.
    #[error("the time is over before the CSIStorageCapacity objects were gone")]
    Deadline,
}

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Vec<Object>,
}

#[derive(Debug, Default, Deserialize)]
struct PageMeta {
    #[serde(rename = "continue")]
    rest: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Object {
    metadata: Meta,
}

#[derive(Debug, Deserialize)]
struct Meta {
    name: String,
    namespace: String,
    uid: String,
}

/// Deletes the objects of a driver that csi-provisioner manages, in all namespaces, and looks until none is there: how many
/// were deleted. Those of other drivers, and those that others manage, stay. It needs `list` and `delete` on
/// `csistoragecapacities` of the whole cluster.
pub async fn remove_stale(
    client: &Client,
    driver: &str,
    deadline: Instant,
) -> Result<usize, CapacityError> {
    let selector = selector(driver)?;
    let removing = async {
        let mut removed = 0;
        for _ in 0..ROUNDS {
            let found = list(client, &selector).await?;
            if found.is_empty() {
                return Ok(removed);
            }
            removed += delete(client, found).await?;
            sleep(PAUSE).await;
        }
        match list(client, &selector).await?.len() {
            0 => Ok(removed),
            left => Err(CapacityError::ComeBack(left)),
        }
    };
    timeout_at(deadline, removing)
        .await
        .unwrap_or(Err(CapacityError::Deadline))
}

/// What could be read as another selector is no name of a driver: of those objects none is ours.
fn selector(driver: &str) -> Result<String, CapacityError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let named = driver.len() <= 63
        && driver.chars().all(inner)
        && driver.starts_with(|c: char| c.is_ascii_alphanumeric())
        && driver.ends_with(|c: char| c.is_ascii_alphanumeric());
    if !named {
        return Err(CapacityError::Driver(driver.to_owned()));
    }
    Ok(format!(
        "{DRIVER_LABEL}={driver},{MANAGED_BY_LABEL}={MANAGER}"
    ))
}

async fn list(client: &Client, selector: &str) -> Result<Vec<Meta>, CapacityError> {
    let path = Request::new("/apis/storage.k8s.io/v1/csistoragecapacities");
    let mut params = ListParams::default().labels(selector).limit(PAGE);
    let mut all = Vec::new();
    loop {
        let request = path.list(&params).map_err(RequestError::from)?;
        let page: Page = answer(client, request, PAGE_MAX, ANSWER).await?;
        all.extend(page.items.into_iter().map(|object| object.metadata));
        if all.len() > MOST {
            return Err(CapacityError::TooMany);
        }
        match page.metadata.rest.filter(|rest| !rest.is_empty()) {
            Some(rest) => params = params.continue_token(&rest),
            None => return Ok(all),
        }
    }
}

/// How many of them were there and are deleted.
async fn delete(client: &Client, objects: Vec<Meta>) -> Result<usize, RequestError> {
    let mut deleting = stream::iter(objects.into_iter().map(|object| one(client, object)))
        .buffer_unordered(PARALLEL);
    let mut removed = 0;
    while let Some(outcome) = deleting.next().await {
        removed += usize::from(outcome?);
    }
    Ok(removed)
}

async fn one(client: &Client, object: Meta) -> Result<bool, RequestError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !object.namespace.chars().all(plain) {
        // No API server has such a namespace: it would lead to another path.
        return Err(RequestError::Other(0, 0));
    }
    let path = Request::new(format!(
        "/apis/storage.k8s.io/v1/namespaces/{}/csistoragecapacities",
        object.namespace
    ));
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(object.uid),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let request = path.delete(&object.name, &params)?;
    match answer::<IgnoredAny>(client, request, PAGE_MAX, ANSWER).await {
        Ok(_) => Ok(true),
        // Another has deleted it, or made one of that name anew.
        Err(RequestError::Status(404 | 409)) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "capacity_tests.rs"]
mod tests;
