//! What proves that a VM is gone. VMIDs are reused within minutes and PVE leaves out silently what a token may not see, so
//! that "not listed" proves nothing.

use pve_client::VmidState;

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
        }
    }
}
