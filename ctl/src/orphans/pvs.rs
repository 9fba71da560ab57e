//! The tenant's `PersistentVolumes`. The tenant's API server is not ours: what it says is bounded, and an empty answer of it
//! proves nothing.

use std::path::Path;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pve_kube::{Tenant, answer};
use serde::Deserialize;

/// Entries of one answer, answers, and bytes of each. etcd takes objects of 1.5 MiB; those of provisioners have some KiB.
const PAGE: usize = 500;
const MOST_PAGES: usize = 400;
const PAGE_MAX: usize = 32 << 20;
const WITHIN: Duration = Duration::from_secs(30);

/// A `PersistentVolume` of the driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pv {
    /// Its name.
    pub(super) name: String,
    /// What it calls its volume.
    pub(super) handle: String,
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct PageMeta {
    #[serde(rename = "continue", default)]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMeta,
    spec: Spec,
}

#[derive(Deserialize)]
struct ItemMeta {
    name: String,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    csi: Option<Csi>,
}

#[derive(Deserialize)]
struct Csi {
    driver: String,
    #[serde(rename = "volumeHandle")]
    handle: String,
}

/// All of the driver's, or why they are not known.
pub(super) async fn list(kubeconfig: &Path, driver: &str) -> Result<Vec<Pv>, String> {
    let tenant = Tenant::of_kubeconfig(kubeconfig)
        .await
        .map_err(|error| error.to_string())?;
    let client = tenant.client();
    let mut all = Vec::new();
    let mut next = String::new();
    for _ in 0..MOST_PAGES {
        let after = utf8_percent_encode(&next, NON_ALPHANUMERIC);
        let path = format!("/api/v1/persistentvolumes?limit={PAGE}&continue={after}");
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(|error| error.to_string())?;
        let page: Page = answer(&client, request, PAGE_MAX, WITHIN)
            .await
            .map_err(|error| error.to_string())?;
        all.extend(page.items.into_iter().filter_map(|item| {
            let csi = item.spec.csi.filter(|csi| csi.driver == driver)?;
            Some(Pv {
                name: item.metadata.name,
                handle: csi.handle,
            })
        }));
        match page.metadata.next.filter(|next| !next.is_empty()) {
            None => return Ok(all),
            Some(more) => next = more,
        }
    }
    Err(format!(
        "there are more than {} PersistentVolumes",
        PAGE * MOST_PAGES
    ))
}
