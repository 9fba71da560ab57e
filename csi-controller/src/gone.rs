//! Is a VM gone, or did we lose the right to see it? VMIDs are reused within minutes and PVE leaves out silently what a
//! token may not see, so that "not listed" proves nothing.

use pve_model::{Uuid, VmId};
use pve_region::gone::{Evidence, Listed, Verdict, judge};
use pve_runtime::config::Fenced;

use crate::error::Error;
use crate::region::RegionContext;

/// Proves that the VM `vmid`, which is not listed, is gone. `visible` is a VM that is.
pub async fn prove_unlisted(
    region: &RegionContext,
    vmid: Option<VmId>,
    visible: Option<VmId>,
) -> Result<(), Error> {
    let doing = "asking PVE whether the VM still exists";
    let (asked, control) = match vmid {
        Some(vmid) => {
            let states = region.client.vmid_states(vmid, visible).await;
            let (asked, control) = states.map_err(Error::pve(doing))?;
            (Some(asked), control)
        }
        None => (None, None),
    };
    let evidence = Evidence {
        listed: Listed::Nobody,
        asked,
        control,
    };
    let blind = |error| match (error, visible) {
        (Error::VmInvisible(text), None) => {
            let pool = &region.policy.pool;
            Error::VmInvisible(format!(
                "{text}; either the pool has no VM, or the token lacks VM.Audit on /pool/{pool}"
            ))
        }
        (error, _) => error,
    };
    conclude(judge(evidence), vmid, None).map_err(blind)?;
    if let Some(vmid) = vmid {
        region.guests.witness.gone(vmid);
    }
    Ok(())
}

/// As [`prove_unlisted`], of the VM that had this identity: the operator may have stated that it is gone.
pub async fn prove(
    region: &RegionContext,
    (vmid, uuid): (Option<VmId>, Option<&Uuid>),
    visible: Option<VmId>,
) -> Result<(), Error> {
    let Err(error) = prove_unlisted(region, vmid, visible).await else {
        return Ok(());
    };
    let (Error::VmInvisible(text), Some(vmid), Some(uuid)) = (&error, vmid, uuid) else {
        return Err(error);
    };
    let what = Fenced::Gone {
        vmid,
        uuid: uuid.clone(),
    };
    match region.fences.find(&region.name, &what) {
        Some(fence) => {
            region.fences.used(&fence, text);
            Ok(())
        }
        None => Err(Error::VmInvisible(format!(
            "{text}; if it is certainly gone: pvectl fence --gone {what} --region {}",
            region.name
        ))),
    }
}

/// Turns a verdict into the answer of an RPC that would end well if the VM is gone.
pub fn conclude(verdict: Verdict, vmid: Option<VmId>, uuid: Option<&Uuid>) -> Result<(), Error> {
    let who = || {
        let vmid = vmid.map_or_else(|| "of unknown VMID".to_owned(), |vmid| vmid.to_string());
        uuid.map_or_else(
            || format!("VM {vmid}"),
            |uuid| format!("VM {vmid} ({uuid})"),
        )
    };
    match verdict {
        Verdict::Gone => Ok(()),
        Verdict::Invisible => {
            let path = vmid.map_or_else(String::new, |vmid| format!(" on /vms/{vmid}"));
            Err(Error::VmInvisible(format!(
                "{} exists and the token lacks VM.Audit{path}: put the VM back into the pool, or restore the role on the pool",
                who()
            )))
        }
        Verdict::Unproved(why) => Err(Error::VmInvisible(format!("{}: {why}", who()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_vm_that_is_gone_lets_an_rpc_end_well() {
        for (verdict, well) in [
            (Verdict::Gone, true),
            (Verdict::Invisible, false),
            (Verdict::Unproved("nothing is known"), false),
        ] {
            assert_eq!(conclude(verdict, None, None).is_ok(), well, "{verdict:?}");
        }
    }
}
