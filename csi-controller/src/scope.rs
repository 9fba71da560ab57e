//! Which regions and storages a request may mean, by config alone.

use std::sync::Arc;

use pve_model::{PveNode, Region, StorageId};
use pve_runtime::config::StoragePolicy;

use crate::error::Error;
use crate::region::{Driver, RegionContext};
use crate::validate::CreateRequest;

/// A region and the hosts that are wanted in it, best first; `None` is any host.
pub type Wanted = (Arc<RegionContext>, Vec<Option<PveNode>>);

/// The regions that were asked for, best first, each with its terms.
pub fn regions(
    driver: &Driver,
    storage: &StorageId,
    request: &CreateRequest,
) -> Result<Vec<Wanted>, Error> {
    let mut regions: Vec<Wanted> = Vec::new();
    for place in &request.places {
        let Some(region) = driver.region(&place.region) else {
            continue;
        };
        match regions
            .iter_mut()
            .find(|(known, _)| known.name == region.name)
        {
            Some((_, wanted)) => wanted.push(place.pve_node.clone()),
            None => regions.push((region, vec![place.pve_node.clone()])),
        }
    }
    match (request.places.first(), regions.is_empty()) {
        (Some(place), true) => Err(unknown_region(&place.region)),
        (Some(_), false) => Ok(regions),
        (None, _) => {
            let having = |region: &&Arc<RegionContext>| region.storage_policy(storage).is_some();
            let all = driver.regions().filter(having);
            Ok(all.map(|region| (Arc::clone(region), Vec::new())).collect())
        }
    }
    .and_then(|regions: Vec<Wanted>| {
        if regions.is_empty() {
            return Err(unknown_storage(storage));
        }
        Ok(regions)
    })
}

/// The refusal of a region that is not in the config.
pub fn unknown_region(region: &Region) -> Error {
    let label = pve_model::topology::REGION;
    Error::Invalid(format!("{label}={region} is not a region of this driver"))
}

/// The refusal of a storage that policy does not name.
pub fn unknown_storage(storage: &StorageId) -> Error {
    Error::Invalid(format!(
        "storage {storage} is not one that this cluster may use"
    ))
}

/// The storage's bounds, if it is ours and what is asked for stays below the operator's ceilings.
pub fn allowed<'a>(
    region: &'a RegionContext,
    storage: &StorageId,
    request: &CreateRequest,
) -> Result<&'a StoragePolicy, Error> {
    let limits = region
        .storage_policy(storage)
        .ok_or_else(|| unknown_storage(storage))?;
    let parameters = &request.parameters;
    let refuse = |key: &str, value: &str| {
        Err(Error::Invalid(format!(
            "parameter {key}={value} is not allowed on this storage"
        )))
    };
    if let Some(cache) = parameters.cache
        && !limits.allow.cache(cache)
    {
        return refuse("cache", cache.as_str());
    }
    if let Some(aio) = parameters.aio
        && !limits.allow.aio(aio)
    {
        return refuse("aio", aio.as_str());
    }
    if parameters.backup && !limits.allow.backup {
        return refuse("backup", "true");
    }
    Ok(limits)
}
