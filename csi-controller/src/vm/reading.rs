//! A VM that was found by reading many: it was not locked then.

use pve_client::{VmEntry, VmPending};

use super::{Pinned, admit, unique};
use crate::error::Error;
use crate::holders::Term;
use crate::region::RegionContext;

/// Locks a VM and proves it by what was read of it before. It may have changed since: whatever is written has to carry the
/// digest of that reading. No request.
pub async fn pin_read(
    region: &RegionContext,
    (guest, pending): (VmEntry, VmPending),
    term: Term,
) -> Result<Pinned, Error> {
    let lock = region.guests.lock_vm(guest.vmid, term.deadline).await?;
    admit(&region.policy, &guest, &pending)?;
    let Some(uuid) = pending.smbios_uuid() else {
        return Err(Error::Unsupported {
            tenant: "the virtual machine that has the volume can't be recognised; ask the operator of Proxmox VE",
            detail: format!("VM {} has no SMBIOS UUID", guest.vmid),
        });
    };
    unique(region, &guest, &uuid)?;
    let span = tracing::Span::current();
    span.record("vm.id", guest.vmid.get());
    span.record("pve.node", guest.pve_node.as_str());
    Ok(Pinned {
        guest,
        uuid,
        pending,
        _lock: lock,
    })
}
