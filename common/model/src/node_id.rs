//! The CSI node id: `<uuid>/<vmid>`, and the forms that the former driver wrote into `CSINode` objects.

use std::fmt;
use std::str::FromStr;

use crate::ids::{KubeNode, ParseIdError, Uuid, VmId};

/// What a caller says about a VM. All of it is a hint that has to be proved on PVE.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NodeId {
    /// `<uuid>/<vmid>`, or the UUID alone.
    Vm {
        /// SMBIOS UUID, the identity.
        uuid: Uuid,
        /// Where to look first.
        vmid: Option<VmId>,
    },
    /// `<node>` or `<node>/<vmid>` of the former driver.
    Former {
        /// Name of the Kubernetes Node.
        name: KubeNode,
        /// Where to look first.
        vmid: Option<VmId>,
    },
}

impl FromStr for NodeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (head, vmid) = match text.split_once('/') {
            Some((head, tail)) => (
                head,
                Some(tail.parse().map_err(|_| ParseIdError("node id"))?),
            ),
            None => (text, None),
        };
        if let Ok(uuid) = head.parse() {
            return Ok(Self::Vm { uuid, vmid });
        }
        head.parse()
            .map(|name| Self::Former { name, vmid })
            .map_err(|_| ParseIdError("node id"))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, vmid) = match self {
            Self::Vm { uuid, vmid } => (uuid.as_str(), vmid),
            Self::Former { name, vmid } => (name.as_str(), vmid),
        };
        f.write_str(head)?;
        vmid.map_or(Ok(()), |vmid| write!(f, "/{vmid}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accepted_form_round_trips() {
        for text in [
            "abcdef00-1111-2222-3333-444455556666/104",
            "abcdef00-1111-2222-3333-444455556666",
            "worker-0a",
            "worker-0a.example.test/104",
        ] {
            assert_eq!(text.parse::<NodeId>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for bad in [
            "",
            "/",
            "/104",
            "worker/",
            "worker/99",
            "worker/104/1",
            "a b",
            "..",
            "worker%2f104",
            "w,x",
        ] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad:?}");
        }
    }
}
