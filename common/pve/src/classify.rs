//! The one table that reads PVE's words: status, message and endpoint → what it means and whether PVE may have acted.
//!
//! PVE tells most failures by status 500 and a text; a failed background task shows the same text as its exit status,
//! or, if it ended within `background_delay`, as `failed to update VM 100: <text>`. Line numbers are those of
//! pve-manager 9.2.11 and its libraries.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::error::{ApiError, Effect, ErrorKind};
use crate::request::{OpClass, Spec};
use crate::transport::{Cause, Reply, TransportError};
use crate::wire;

/// What a text means; the parts that come from the text are cut out of it by [`Meaning::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    AlreadyExists,
    Absent,
    DiskAbsent,
    Locked,
    DigestMismatch,
    PermissionDenied,
    HostUnknown,
    StorageUnavailable,
    NoSpace,
    Busy,
    NoQuorum,
    HotplugFailed,
    NoAgent,
    MigratedToRules,
}

/// Where a row applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Any,
    /// `…/content/{volume}`: what its plugins say of a volume that is not there.
    Volume,
    /// `…/content`, POST: what its plugins say of a volume that is there.
    Allocate,
    /// POST config, or the exit status of its task.
    Update,
    /// `…/agent/…`.
    Agent,
    /// `/cluster/ha/groups`.
    Groups,
}

impl Scope {
    fn holds(self, spec: &Spec) -> bool {
        match self {
            Self::Any => true,
            Self::Volume => spec.name == crate::storage::DISK.name,
            Self::Allocate => spec.name == crate::storage::ALLOCATE.name,
            Self::Update => {
                [crate::qemu::UPDATE.name, crate::task::STATUS.name].contains(&spec.name)
            }
            Self::Agent => spec.name == crate::agent::INTERFACES.name,
            Self::Groups => spec.name == crate::ha::GROUPS.name,
        }
    }
}

/// One row: every part must occur in the text, in this order.
struct Row {
    scope: Scope,
    parts: &'static [&'static str],
    meaning: Meaning,
    /// What a *mutating* request that was answered so may have done.
    effect: Effect,
}

const fn row(
    scope: Scope,
    parts: &'static [&'static str],
    meaning: Meaning,
    effect: Effect,
) -> Row {
    Row {
        scope,
        parts,
        meaning,
        effect,
    }
}

/// Plugin.pm `file_size_info` answers nothing of a file that is not there, and neither of one whose `stat` failed nor of
/// one about which `qemu-img info` said nothing in time; Content.pm has these words for all three.
const NO_FORMAT: &[&str] = &["volume_size_info on '", "' failed - no format"];
/// A `stat` that fails does so at once; `qemu-img` is given seconds.
const AT_ONCE: Duration = Duration::from_secs(2);

/// First match wins.
#[rustfmt::skip]
static TABLE: &[Row] = &[
    // QemuServer.pm 4892: the change stays pending.
    row(Scope::Any, &["hotplug problem - "], Meaning::HotplugFailed, Effect::Possible),
    // RPCEnvironment.pm 291; inside a task `403 Permission check failed (…)`, after earlier options were written.
    row(Scope::Any, &["Permission check failed"], Meaning::PermissionDenied, Effect::Possible),
    // Qemu.pm 2209, 2255: before the fork and under the lock, both before any write.
    row(Scope::Any, &["checksum mismatch (file change by other user?)"], Meaning::DigestMismatch, Effect::None),
    // AbstractConfig.pm 336: checked together with the digest.
    row(Scope::Any, &["VM is locked ("], Meaning::Locked, Effect::None),
    // AbstractConfig.pm 57, QemuConfig.pm 45: the config is loaded before anything is written.
    row(Scope::Any, &["Configuration file '", "' does not exist"], Meaning::Absent, Effect::None),
    row(Scope::Any, &["unable to find configuration file for VM "], Meaning::Absent, Effect::None),
    // Tools.pm 203 (flock of a VM or of a local storage) and Cluster.pm (pmxcfs) 606: the work had not begun.
    row(Scope::Any, &["can't lock file '", "' - got timeout"], Meaning::Busy, Effect::None),
    row(Scope::Any, &["cfs-lock '", "' error: no quorum!"], Meaning::NoQuorum, Effect::None),
    row(Scope::Any, &["cfs-lock '", "' error: got lock request timeout"], Meaning::Busy, Effect::None),
    // Cluster.pm (pmxcfs) 606: the work was cut off after 60 s, half done.
    row(Scope::Any, &["'-locked command timed out - aborting"], Meaning::Busy, Effect::Possible),
    row(Scope::Any, &["cluster not ready - no quorum?"], Meaning::NoQuorum, Effect::None),
    // pmxcfs is read-only: running.md 13g, 13i; a resize has grown the volume by then.
    row(Scope::Any, &["unable to open file '/etc/pve/", "' - Permission denied"], Meaning::NoQuorum, Effect::Possible),
    // AnyEvent.pm/HTTPServer.pm 182: nobody was asked.
    row(Scope::Any, &["hostname lookup '", "' failed"], Meaning::HostUnknown, Effect::None),
    row(Scope::Any, &["no such cluster node '"], Meaning::HostUnknown, Effect::None),
    // Plugin.pm 1049, LVMPlugin.pm 693, ZFSPoolPlugin.pm 264, RBDPlugin.pm 704.
    row(Scope::Allocate, &["disk image '", "' already exists"], Meaning::AlreadyExists, Effect::None),
    row(Scope::Allocate, &["Logical Volume \"", "\" already exists in volume group"], Meaning::AlreadyExists, Effect::None),
    row(Scope::Allocate, &["dataset already exists"], Meaning::AlreadyExists, Effect::None),
    row(Scope::Allocate, &["(17) File exists"], Meaning::AlreadyExists, Effect::None),
    // Plugin.pm volume_size_info, LVMPlugin.pm, ZFSPoolPlugin.pm, RBDPlugin.pm: of a volume that is not there.
    row(Scope::Volume, NO_FORMAT, Meaning::DiskAbsent, Effect::None),
    row(Scope::Volume, &["Failed to find logical volume \""], Meaning::DiskAbsent, Effect::None),
    // Of the volume, not of the dataset or pool that the storage is.
    row(Scope::Volume, &["cannot open '", "/vm-", "': dataset does not exist"], Meaning::DiskAbsent, Effect::None),
    row(Scope::Volume, &["error opening image vm-", ": (2) No such file"], Meaning::DiskAbsent, Effect::None),
    // Qemu.pm create_disks: activation of the volume to attach; `delete` in the same request is done by then.
    row(Scope::Update, &["volume '", "' does not exist"], Meaning::DiskAbsent, Effect::Possible),
    row(Scope::Update, &["no such logical volume "], Meaning::DiskAbsent, Effect::Possible),
    // LVMPlugin.pm 713; lvcreate, zfs, qemu-img (which removes what it began: Plugin.pm 1085).
    row(Scope::Any, &["not enough free space"], Meaning::NoSpace, Effect::None),
    row(Scope::Any, &["insufficient free space"], Meaning::NoSpace, Effect::None),
    row(Scope::Any, &["out of space"], Meaning::NoSpace, Effect::None),
    row(Scope::Any, &["No space left on device"], Meaning::NoSpace, Effect::None),
    row(Scope::Any, &["Disk quota exceeded"], Meaning::NoSpace, Effect::None),
    // Storage.pm 252, 1334: before the plugin is asked.
    row(Scope::Any, &["storage '", "' does not exist"], Meaning::StorageUnavailable, Effect::None),
    row(Scope::Any, &["storage '", "' is disabled"], Meaning::StorageUnavailable, Effect::None),
    row(Scope::Any, &["storage '", "' is not available on node '"], Meaning::StorageUnavailable, Effect::None),
    row(Scope::Any, &["storage '", "' is not online"], Meaning::StorageUnavailable, Effect::None),
    row(Scope::Any, &["connection check for storage '", "' failed"], Meaning::StorageUnavailable, Effect::None),
    // LVMPlugin.pm, ZFSPoolPlugin.pm 398, RBDPlugin.pm: a backend that refuses to remove what is open.
    row(Scope::Any, &["Logical volume ", " in use."], Meaning::Busy, Effect::Possible),
    row(Scope::Any, &["dataset is busy"], Meaning::Busy, Effect::Possible),
    row(Scope::Any, &["image still has watchers"], Meaning::Busy, Effect::Possible),
    // QemuServer/Agent.pm 109, QMPClient.pm: nobody answers inside the guest.
    row(Scope::Agent, &["No QEMU guest agent configured"], Meaning::NoAgent, Effect::None),
    row(Scope::Agent, &["QEMU guest agent is not running"], Meaning::NoAgent, Effect::None),
    row(Scope::Agent, &["VM ", " is not running"], Meaning::NoAgent, Effect::None),
    row(Scope::Agent, &["VM ", " qga command '", "' failed - "], Meaning::NoAgent, Effect::None),
    // API2/HA/Groups.pm 60: also where there never was a group.
    row(Scope::Groups, &["ha groups have been migrated to rules"], Meaning::MigratedToRules, Effect::None),
];

fn matches(text: &str, parts: &[&str]) -> bool {
    let mut rest = text;
    parts.iter().all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

impl Meaning {
    fn kind(self, text: &str) -> ErrorKind {
        match self {
            Self::AlreadyExists => ErrorKind::AlreadyExists,
            Self::Absent => ErrorKind::Absent,
            Self::DiskAbsent => ErrorKind::DiskAbsent,
            Self::Locked => ErrorKind::Locked,
            Self::DigestMismatch => ErrorKind::DigestMismatch,
            Self::PermissionDenied => permission(text),
            Self::HostUnknown => ErrorKind::HostUnknown,
            Self::StorageUnavailable => ErrorKind::StorageUnavailable,
            Self::NoSpace => ErrorKind::NoSpace,
            Self::Busy => ErrorKind::Busy,
            Self::NoQuorum => ErrorKind::NoQuorum,
            Self::HotplugFailed => hotplug(text),
            Self::NoAgent => ErrorKind::NoAgent,
            Self::MigratedToRules => ErrorKind::MigratedToRules,
        }
    }
}

/// `Permission check failed (/vms/100, VM.Audit)`; without parentheses for `or` checks (`RPCEnvironment.pm` 473).
fn permission(text: &str) -> ErrorKind {
    let inner = text
        .split_once("Permission check failed (")
        .and_then(|(_, rest)| rest.split_once(')'))
        .map_or("", |(inner, _)| inner);
    let (path, privilege) = inner.split_once(", ").unwrap_or(("", inner));
    ErrorKind::PermissionDenied {
        path: path.to_owned(),
        privilege: privilege.to_owned(),
    }
}

/// `scsi1: hotplug problem - <text>`, as exit status with the head `400 Parameter verification failed. `.
fn hotplug(text: &str) -> ErrorKind {
    let (head, words) = text.split_once("hotplug problem - ").unwrap_or(("", text));
    let slot = head
        .trim_end()
        .trim_end_matches(':')
        .rsplit(' ')
        .next()
        .unwrap_or_default();
    ErrorKind::HotplugFailed {
        slot: slot.to_owned(),
        text: words.trim().to_owned(),
    }
}

/// An answer that is no success.
pub(crate) fn reply(spec: &'static Spec, reply: &Reply) -> ApiError {
    let (message, errors) = words(reply);
    let possible = may_have_acted(spec);
    let (kind, effect) = match reply.status {
        401 => (ErrorKind::Unauthenticated, Effect::None),
        // Permissions and schema are checked before the code runs (RESTHandler.pm; api.md 1.2), hotplug is not.
        403 => (permission(&message), Effect::None),
        400 => return invalid(spec, errors, &message),
        // AnyEvent.pm 832: 595 is a failed connect of the proxy, the others came after it.
        595 => (ErrorKind::HostUnreachable, Effect::None),
        596 | 597 | 599 | 502..=504 => (ErrorKind::OutcomeUnknown, possible),
        // HTTPServer.pm 148: no such path or method in this version.
        501 if matches(&message, &["Method '", "' not implemented"]) => {
            (ErrorKind::NotImplemented, Effect::None)
        }
        // No such path or method, a content type that PVE doesn't take (AnyEvent.pm 56, 1711).
        501 | 506 => (
            ErrorKind::Other {
                status: reply.status,
            },
            Effect::None,
        ),
        status => return failure(spec, &message, ErrorKind::Other { status }),
    };
    ApiError::new(spec, kind, effect, message)
}

/// What a look at a disk found out that failed after `took`: a slow answer without words is none about the disk.
pub(crate) fn unless_slow(mut error: ApiError, took: Duration) -> ApiError {
    if took >= AT_ONCE && matches(&error.detail, NO_FORMAT) {
        error.kind = ErrorKind::StorageUnavailable;
    }
    error
}

/// A request without an answer.
pub(crate) fn no_answer(spec: &'static Spec, error: TransportError) -> ApiError {
    let (kind, effect) = match error.cause {
        Cause::Connect => (ErrorKind::Unreachable, Effect::None),
        Cause::Queue | Cause::Inactive => (ErrorKind::Throttled, Effect::None),
        Cause::Refused => (ErrorKind::Unauthenticated, Effect::None),
        Cause::Wire | Cause::TimedOut => (ErrorKind::OutcomeUnknown, may_have_acted(spec)),
        Cause::TooLarge => (ErrorKind::Decode, may_have_acted(spec)),
    };
    ApiError::new(spec, kind, effect, error.detail)
}

/// A success whose content is not what the endpoint answers.
pub(crate) fn undecodable(spec: &'static Spec, reason: String) -> ApiError {
    ApiError::new(spec, ErrorKind::Decode, may_have_acted(spec), reason)
}

fn may_have_acted(spec: &Spec) -> Effect {
    match spec.class {
        OpClass::Read => Effect::None,
        OpClass::Converge | OpClass::Once => Effect::Possible,
    }
}

/// The exit status of a failed task.
pub(crate) fn exit(spec: &'static Spec, text: &str) -> ApiError {
    let mut error = failure(spec, text.trim(), ErrorKind::TaskFailed);
    if error.kind == ErrorKind::TaskFailed {
        error.effect = Effect::Possible;
    }
    error
}

fn failure(spec: &'static Spec, text: &str, otherwise: ErrorKind) -> ApiError {
    let background = text.starts_with("failed to update VM ");
    let found = TABLE
        .iter()
        .find(|row| row.scope.holds(spec) && matches(text, row.parts));
    let (kind, effect) = match found {
        Some(row) => (row.meaning.kind(text), row.effect),
        None if background => (ErrorKind::TaskFailed, Effect::Possible),
        None => (otherwise, Effect::Possible),
    };
    let reads = spec.class == OpClass::Read && spec.name != crate::task::STATUS.name;
    let effect = if reads { Effect::None } else { effect };
    ApiError::new(spec, kind, effect, text)
}

fn invalid(spec: &'static Spec, errors: BTreeMap<String, String>, message: &str) -> ApiError {
    let texts: Vec<String> = errors
        .iter()
        .map(|(key, text)| format!("{key}: {}", text.trim()))
        .collect();
    let detail = if texts.is_empty() {
        message.to_owned()
    } else {
        texts.join("; ")
    };
    if let Some(text) = texts
        .iter()
        .find(|text| text.contains("hotplug problem - "))
    {
        return ApiError::new(spec, hotplug(text), Effect::Possible, detail);
    }
    // Cluster.pm 1012: `nextid` says so of any guest, visible or not.
    let taken = errors
        .get("vmid")
        .is_some_and(|text| text.trim().ends_with("already exists"));
    let kind = if taken && spec.name == crate::cluster::NEXTID.name {
        ErrorKind::AlreadyExists
    } else {
        ErrorKind::Invalid(errors)
    };
    ApiError::new(spec, kind, Effect::None, detail)
}

/// PVE's words: `message` of the body (pve-http-server ≥ 5.2.0), a plain-text body, or the reason phrase.
fn words(reply: &Reply) -> (String, BTreeMap<String, String>) {
    let body: Option<Value> = serde_json::from_slice(&reply.body).ok();
    let object = body.as_ref().and_then(Value::as_object);
    let message = object
        .and_then(|object| object.get("message"))
        .and_then(Value::as_str)
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map_or_else(|| reply.reason.clone(), str::to_owned);
    let errors = object
        .and_then(|object| object.get("errors"))
        .and_then(Value::as_object)
        .map(|errors| {
            let pair = |(key, text): (&String, &Value)| Some((key.clone(), wire::scalar(text)?));
            errors.iter().filter_map(pair).collect()
        })
        .unwrap_or_default();
    (message, errors)
}

#[cfg(test)]
mod tests;
