//! In which order the regions are tried: what is remembered goes before what is asked for.

use pve_client::Presence;
use pve_model::StorageId;

use super::{Memory, STILL_AT_WORK, unseen};
use crate::disk;
use crate::error::Error;
use crate::pins::Pin;
use crate::region::{Driver, RegionContext};
use crate::scope::{self, Wanted};
use crate::validate::CreateRequest;

/// The regions that were asked for, the one where an earlier call may have made the disk first, and alone while it may
/// still come.
pub(super) async fn pinned_first(
    driver: &Driver,
    memory: &Memory,
    storage: &StorageId,
    request: &CreateRequest,
) -> Result<Vec<Wanted>, Error> {
    let mut regions = scope::regions(driver, storage, request)?;
    let Some(pin) = memory.pins.get(&request.name) else {
        return Ok(regions);
    };
    let name = &pin.volume.region;
    if regions.iter().any(|(region, _)| region.name == *name) {
        regions.sort_by_key(|(region, _)| region.name != *name);
        if pin.may_still_come() {
            regions.truncate(1);
        }
    } else if let Some(region) = driver.region(name) {
        not_elsewhere(&region, &pin).await?;
    }
    Ok(regions)
}

/// Refuses to make the disk while there is one, or may come one, in a region that is not asked for any more.
async fn not_elsewhere(region: &RegionContext, pin: &Pin) -> Result<(), Error> {
    match disk::look_closely(region, &pin.volume).await {
        Ok(Presence::Present(_)) => Err(Error::Exists(
            "a volume of this name exists in another region".to_owned(),
        )),
        Ok(Presence::Absent) if pin.may_still_come() => Err(Error::Busy(STILL_AT_WORK)),
        Ok(Presence::Absent) => Ok(()),
        Err(source) => Err(unseen("looking for the disk of an earlier request")(source)),
    }
}
