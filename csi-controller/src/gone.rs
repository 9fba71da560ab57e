//! Is a VM gone, or did we lose the right to see it? VMIDs are reused within minutes and PVE leaves out silently what a
//! token may not see, so that "not listed" proves nothing.

use pve_client::VmidState;
use pve_model::{Uuid, VmId};
use pve_runtime::config::Fenced;

use crate::error::Error;
use crate::region::RegionContext;

/// What was found out about a VM that can't be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// Who has the VMID among the VMs that we see.
    pub listed: Listed,
    /// What `nextid?vmid=` said about the VMID.
    pub asked: Option<VmidState>,
    /// What `nextid?vmid=` said about a VM that we see: proves that the question is answered truly.
    pub control: Option<VmidState>,
}

/// Who has the VMID among the VMs that we see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// A VM whose UUID was read and is another one, and no VM that we see has the wanted UUID.
    Stranger,
    /// Nobody.
    Nobody,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The VM does not exist any more.
    Gone,
    /// It exists and we may not see it.
    Invisible,
    /// Nothing follows.
    Unproved(&'static str),
}

/// Weighs the evidence.
pub fn judge(evidence: Evidence) -> Verdict {
    match (evidence.listed, evidence.asked, evidence.control) {
        (Listed::Stranger, _, _)
        | (Listed::Nobody, Some(VmidState::Free), Some(VmidState::Taken)) => Verdict::Gone,
        (Listed::Nobody, Some(VmidState::Taken), _) => Verdict::Invisible,
        (Listed::Nobody, Some(VmidState::Free), Some(VmidState::Free)) => {
            Verdict::Unproved("PVE calls the VMID of a running VM free")
        }
        (Listed::Nobody, Some(VmidState::Free), None) => {
            Verdict::Unproved("no VM is visible that could serve as control question")
        }
        (Listed::Nobody, None, _) => Verdict::Unproved("its VMID is not known"),
    }
}

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
    fn a_vm_is_gone_only_on_positive_proof() {
        use Listed::{Nobody, Stranger};
        use VmidState::{Free, Taken};
        let rows = [
            (
                "its VMID belongs to a VM of another UUID",
                Stranger,
                None,
                None,
                true,
            ),
            (
                "its VMID is free and PVE knows a VM that we know",
                Nobody,
                Some(Free),
                Some(Taken),
                true,
            ),
            (
                "its VMID is taken by what we can't see",
                Nobody,
                Some(Taken),
                Some(Taken),
                false,
            ),
            (
                "PVE calls everything free",
                Nobody,
                Some(Free),
                Some(Free),
                false,
            ),
            (
                "there is nothing to ask the control question with",
                Nobody,
                Some(Free),
                None,
                false,
            ),
            ("its VMID is not known", Nobody, None, None, false),
        ];
        for (sentence, listed, asked, control, gone) in rows {
            let verdict = judge(Evidence {
                listed,
                asked,
                control,
            });
            assert_eq!(verdict == Verdict::Gone, gone, "{sentence}: {verdict:?}");
            assert_eq!(conclude(verdict, None, None).is_ok(), gone, "{sentence}");
        }
    }
}
