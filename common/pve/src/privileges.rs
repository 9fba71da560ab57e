//! What PVE asks of the token, endpoint by endpoint. The endpoints' [`Spec`](crate::Spec)s hold it, and the reference is written from
//! them, so that a request and its documentation can't drift apart.

use std::fmt;

use crate::endpoints_of;
use crate::error::{ApiError, ErrorKind};
use crate::request::ApiRequest;

/// Who calls Proxmox VE. Each has a token of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Program {
    /// `pve-csi-controller`.
    Csi,
    /// `pve-ccm`, the cloud-controller-manager.
    Ccm,
}

/// What a privilege is held on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Object {
    /// A guest. A pool gives its role to the guests in it, also to VMIDs that no guest has.
    Vm,
    /// A resource pool itself.
    Pool,
    /// A storage.
    Storage,
    /// The PVE cluster as a whole.
    Cluster,
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
    /// What it lets the program do, in words that follow "to".
    pub purpose: &'static str,
    /// Whether a program does all but that without it: the operator decides.
    pub optional: bool,
    /// The only program that asks for what this shows; none: whoever calls the endpoint.
    pub only: Option<Program>,
    /// What asks for the same before PVE 9, if it is another privilege there.
    pub before_9: Option<&'static str>,
}

impl Object {
    /// The ACL path that PVE checks and names in its refusals.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Vm => "/vms/{vmid}",
            Self::Pool => "/pool/{pool}",
            Self::Storage => "/storage/{storage}",
            Self::Cluster => "/",
        }
    }

    /// The ACL path on which the operator grants it.
    pub const fn granted_on(self) -> &'static str {
        match self {
            Self::Vm | Self::Pool => Self::Pool.path(),
            Self::Storage | Self::Cluster => self.path(),
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
            optional: false,
            only: None,
            before_9: None,
        }
    }

    /// The same where PVE leaves out instead.
    pub(crate) const fn or_left_out(self) -> Self {
        Self {
            lack: Lack::LeftOut,
            ..self
        }
    }

    /// The same where a program can do without.
    pub(crate) const fn or_without(self) -> Self {
        Self {
            optional: true,
            ..self
        }
    }

    /// The same for one program.
    pub(crate) const fn only(self, program: Program) -> Self {
        Self {
            only: Some(program),
            ..self
        }
    }

    /// The same with another privilege before PVE 9.
    pub(crate) const fn before_9(self, privilege: &'static str) -> Self {
        Self {
            before_9: Some(privilege),
            ..self
        }
    }

    /// PVE's name of the privilege in this version.
    pub fn in_version(&self, major: u32) -> &'static str {
        self.before_9
            .filter(|_| major < 9)
            .unwrap_or(self.privilege)
    }

    /// Whether a program that calls the endpoint needs it.
    pub fn is_for(&self, program: Program) -> bool {
        self.only.is_none_or(|only| only == program)
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
    let mut needs: Vec<String> = needed(request).collect();
    needs.dedup();
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
        let key = match right.on {
            Object::Vm => "{vmid}",
            Object::Pool => "{pool}",
            Object::Storage => "{storage}",
            Object::Cluster => return right.to_string(),
        };
        let path = right.on.path();
        let path = match request.names(key) {
            Some(name) => path.replace(key, name),
            None => path.to_owned(),
        };
        format!("{} on {path}", right.privilege)
    })
}

/// A privilege that a program's token is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grant {
    /// The ACL path on which it is granted.
    pub on: &'static str,
    /// PVE's name of it.
    pub privilege: &'static str,
    /// Whether nothing but what is optional needs it.
    pub optional: bool,
}

/// Every privilege that a program's token needs or may have on PVE 9; each once, in order.
pub fn grants(program: Program) -> Vec<Grant> {
    grants_on(program, 9)
}

/// As [`grants`], on that version of PVE: 8, 9.
pub fn grants_on(program: Program, major: u32) -> Vec<Grant> {
    let rights = endpoints_of(program).flat_map(|spec| spec.rights_of(program));
    let mut all: Vec<Grant> = rights
        .map(|right| Grant {
            on: right.on.granted_on(),
            privilege: right.in_version(major),
            optional: right.optional,
        })
        .collect();
    all.sort_unstable();
    // What is not optional stands first.
    all.dedup_by_key(|grant| (grant.on, grant.privilege));
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

    #[test]
    fn each_program_is_granted_what_its_endpoints_need() {
        let named = |program| -> Vec<(&str, &str, bool)> {
            let all = grants(program).into_iter();
            all.map(|grant| (grant.on, grant.privilege, grant.optional))
                .collect()
        };
        let ccm = [
            ("/", "Sys.Audit", true),
            ("/pool/{pool}", "Pool.Audit", false),
            ("/pool/{pool}", "VM.Audit", false),
            ("/pool/{pool}", "VM.GuestAgent.Audit", true),
        ];
        assert_eq!(named(Program::Ccm), ccm);
        let csi = named(Program::Csi);
        assert!(
            csi.contains(&("/storage/{storage}", "Datastore.Audit", false)),
            "{csi:?}"
        );
        assert!(
            csi.iter()
                .all(|(path, _, optional)| *path != "/" && !optional),
            "{csi:?}"
        );
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
        let looked = client.vm_status(&at).await.unwrap_err();
        let needs = "; this needs VM.Audit on /vms/101";
        assert!(looked.detail.ends_with(needs), "{}", looked.detail);
        assert_eq!(looked.detail.matches("VM.Audit").count(), 1);
    }
}
