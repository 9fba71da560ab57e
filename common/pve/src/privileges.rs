//! What PVE asks of the token, endpoint by endpoint. The endpoints' [`Spec`]s hold it, and the reference is written from
//! them, so that a request and its documentation can't drift apart.

use std::fmt;

use crate::error::{ApiError, ErrorKind};
use crate::request::{ApiRequest, Spec};

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

/// A refusal with what the request needs. Where one of several privileges would do, PVE names the last that it looked for,
/// which may be on an object that the operator never granted anything on.
pub(crate) fn explained(error: ApiError, request: &ApiRequest) -> ApiError {
    let needs: Vec<String> = needed(request).collect();
    if needs.is_empty() || !matches!(error.kind, ErrorKind::PermissionDenied { .. }) {
        return error;
    }
    let detail = format!("{}; this needs {}", error.detail, needs.join(" and "));
    ApiError { detail, ..error }
}

/// `<privilege> on <path>` for what a request is refused without, with the names that it holds.
fn needed(request: &ApiRequest) -> impl Iterator<Item = String> {
    let rights = request.spec.rights.iter();
    let refused = rights.filter(|right| right.lack == Lack::Refused);
    refused.map(|right| {
        let (key, path) = match right.on {
            Object::Vm => ("{vmid}", right.on.path()),
            Object::Pool => ("{pool}", right.on.path()),
            Object::Storage => ("{storage}", right.on.path()),
        };
        let path = match request.names(key) {
            Some(name) => path.replace(key, name),
            None => path.to_owned(),
        };
        format!("{} on {path}", right.privilege)
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{client, reply};
    use crate::{ConfigChange, StorageRef, VmRef};

    fn denied(path: &str, privilege: &str) -> crate::transport::Reply {
        let message = format!("Permission check failed ({path}, {privilege})\\n");
        let body = format!(r#"{{"data":null,"message":"{message}"}}"#);
        reply(403, "Permission check failed", &body)
    }

    #[tokio::test]
    async fn a_refusal_says_what_the_request_needs_whatever_pve_looked_for_last() {
        let client = client(|_| Ok(denied("/vms/9999", "VM.Config.Disk")));
        let at = StorageRef {
            pve_node: "pve1".parse().unwrap(),
            storage: "fast".parse().unwrap(),
        };
        let disk = "vm-9999-pvc-1".parse().unwrap();
        let looked = client.disk(&at, &disk).await.unwrap_err();
        let needs = "this needs Datastore.Allocate on /storage/fast";
        assert!(looked.detail.ends_with(needs), "{}", looked.detail);
        let kind = ErrorKind::PermissionDenied {
            path: "/vms/9999".to_owned(),
            privilege: "VM.Config.Disk".to_owned(),
        };
        assert_eq!(looked.kind, kind);
        let at = VmRef {
            pve_node: "pve1".parse().unwrap(),
            vmid: "101".parse().unwrap(),
        };
        let change = ConfigChange {
            set: vec![("scsi1".to_owned(), "fast:vm-9999-pvc-1,ssd=1".to_owned())],
            ..ConfigChange::default()
        };
        let attached = client.update_vm(&at, &change).await.unwrap_err();
        let needs = "this needs VM.Config.Disk on /vms/101 and Datastore.Allocate on /storage/fast";
        assert!(attached.detail.ends_with(needs), "{}", attached.detail);
    }
}
