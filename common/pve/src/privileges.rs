//! What PVE asks of the token, endpoint by endpoint. The endpoints' [`Spec`]s hold it, and the reference is written from
//! them, so that a request and its documentation can't drift apart.

use std::fmt;

use crate::request::Spec;

/// What a privilege is held on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Object {
    /// A guest. A pool gives its role to the guests in it, also to VMIDs that no guest has.
    Vm,
    /// A resource pool itself.
    Pool,
    /// A storage.
    Storage,
}

/// What PVE does for a token that lacks a privilege.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lack {
    /// It refuses the request, or the task that came of it, and names path and privilege.
    Refused,
    /// It leaves out what the token may not see, without a word.
    LeftOut,
}

/// A privilege that an endpoint asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Right {
    /// On what.
    pub on: Object,
    /// PVE's name of it.
    pub privilege: &'static str,
    /// What happens without it.
    pub lack: Lack,
    /// What it lets the driver do, in words that follow "to".
    pub purpose: &'static str,
}

impl Object {
    /// The ACL path that PVE checks and names in its refusals.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Vm => "/vms/{vmid}",
            Self::Pool => "/pool/{pool}",
            Self::Storage => "/storage/{storage}",
        }
    }

    /// The ACL path on which the operator grants it.
    pub const fn granted_on(self) -> &'static str {
        match self {
            Self::Vm | Self::Pool => Self::Pool.path(),
            Self::Storage => Self::Storage.path(),
        }
    }
}

impl Right {
    /// A privilege without which PVE refuses.
    pub(crate) const fn on(on: Object, privilege: &'static str, purpose: &'static str) -> Self {
        Self {
            on,
            privilege,
            lack: Lack::Refused,
            purpose,
        }
    }

    /// The same where PVE leaves out instead.
    pub(crate) const fn or_left_out(self) -> Self {
        Self {
            lack: Lack::LeftOut,
            ..self
        }
    }
}

/// `<privilege> on <path>`.
impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.privilege, self.on.path())
    }
}

/// Every privilege that a token needs, with the path on which it is granted; each once, in order.
pub fn grants(endpoints: impl Iterator<Item = &'static Spec>) -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<_> = endpoints
        .flat_map(|spec| spec.rights)
        .map(|right| (right.on.granted_on(), right.privilege))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}
