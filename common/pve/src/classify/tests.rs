//! One row a text; the texts are those that PVE 9.2.11 answered, or those of its source where marked.

use super::*;
use crate::error::Effect::{None as Nothing, Possible};
use crate::testing::reply as answer;
use crate::transport::Phase::{NotSent, Sent};

static UPDATE: &Spec = &crate::qemu::UPDATE;
static PENDING: &Spec = &crate::qemu::PENDING;
static ALLOCATE: &Spec = &crate::storage::ALLOCATE;
static DISK: &Spec = &crate::storage::DISK;
static DELETE: &Spec = &crate::storage::DELETE;
static NEXTID: &Spec = &crate::cluster::NEXTID;

fn of_500(spec: &'static Spec, text: &str) -> (String, Effect) {
    let body = serde_json::json!({"data": null, "message": format!("{text}\n")}).to_string();
    let error = reply(spec, &answer(500, text, &body));
    assert_eq!(error.detail, text.trim());
    (error.kind.label().to_owned(), error.effect)
}

#[rustfmt::skip]
static ROWS: &[(&Spec, &str, &str, Effect)] = &[
    (UPDATE, "checksum mismatch (file change by other user?)", "digest_mismatch", Nothing),
    (UPDATE, "failed to update VM 100: checksum mismatch (file change by other user?)", "digest_mismatch", Nothing),
    (UPDATE, "VM is locked (backup)", "locked", Nothing),
    (UPDATE, "failed to update VM 100: VM is locked (migrate)", "locked", Nothing),
    (UPDATE, "failed to update VM 100: 400 Parameter verification failed. scsi2: hotplug problem - VM 100 qmp command 'object-add' failed - attempt to add duplicate property 'throttle-drive-scsi2' to object (type 'container') ", "hotplug_failed", Possible),
    (UPDATE, "failed to update VM 100: 403 Permission check failed (/vms/100, VM.Config.Disk)", "permission_denied", Possible),
    (UPDATE, "Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist", "absent", Nothing),
    (PENDING, "Configuration file 'nodes/pve2/qemu-server/100.conf' does not exist", "absent", Nothing),
    // QemuConfig.pm 45
    (PENDING, "unable to find configuration file for VM 100 on node 'pve1'", "absent", Nothing),
    (UPDATE, "volume 'local:9999/vm-9999-pvc-none.raw' does not exist", "disk_absent", Possible),
    (UPDATE, "no such logical volume vg0/vm-9999-none", "disk_absent", Possible),
    (UPDATE, "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout", "busy", Nothing),
    (ALLOCATE, "can't lock file '/var/lock/pve-manager/pve-storage-local' - got timeout", "busy", Nothing),
    (ALLOCATE, "cfs-lock 'storage-shared-a' error: got lock request timeout", "busy", Nothing),
    // ClusterFS.pm 606
    (ALLOCATE, "'storage-ceph'-locked command timed out - aborting", "busy", Possible),
    (ALLOCATE, "cfs-lock 'storage-shared-a' error: no quorum!", "no_quorum", Nothing),
    (UPDATE, "unable to open file '/etc/pve/nodes/pve1/qemu-server/103.conf.tmp.99' - Permission denied", "no_quorum", Possible),
    (UPDATE, "cluster not ready - no quorum?", "no_quorum", Nothing),
    (PENDING, "hostname lookup 'pve9' failed - failed to get address info for: pve9: Temporary failure in name resolution", "host_unknown", Nothing),
    (PENDING, "no such cluster node 'pve9'", "host_unknown", Nothing),
    (ALLOCATE, "disk image '/var/lib/vz/images/9999/vm-9999-pvc-test.raw' already exists", "already_exists", Nothing),
    (ALLOCATE, "lvcreate 'vg0/vm-9999-pvc-a' error:   Logical Volume \"vm-9999-pvc-a\" already exists in volume group \"vg0\"", "already_exists", Nothing),
    // ZFSPoolPlugin.pm 264, RBDPlugin.pm 704
    (ALLOCATE, "zfs error: cannot create 'tank/vm-9999-a': dataset already exists", "already_exists", Nothing),
    (ALLOCATE, "rbd create 'vm-9999-a' error: rbd: create error: (17) File exists", "already_exists", Nothing),
    (ALLOCATE, "storage 'disabled' is disabled", "storage_unavailable", Nothing),
    (ALLOCATE, "storage 'othernode' is not available on node 'pve1'", "storage_unavailable", Nothing),
    (DISK, "storage 'nosuch' does not exist", "storage_unavailable", Nothing),
    // Storage.pm 1334
    (DISK, "storage 'nfs' is not online", "storage_unavailable", Nothing),
    // LVMPlugin.pm 713, lvcreate
    (ALLOCATE, "not enough free space (4096 < 8192)", "no_space", Nothing),
    (ALLOCATE, "unable to create image: qemu-img: write error: No space left on device", "no_space", Nothing),
    (DISK, "volume_size_info on 'local:9999/vm-9999-pvc-none.raw' failed - no format", "disk_absent", Nothing),
    (DISK, "can't get size of '/dev/vg0/vm-9999-none':   Failed to find logical volume \"vg0/vm-9999-none\"", "disk_absent", Nothing),
    // ZFSPoolPlugin.pm, RBDPlugin.pm
    (DISK, "zfs error: cannot open 'tank/vm-9999-a': dataset does not exist", "disk_absent", Nothing),
    (DISK, "rbd error: rbd: error opening image vm-9999-a: (2) No such file or directory", "disk_absent", Nothing),
    // LVMPlugin.pm, ZFSPoolPlugin.pm 398, RBDPlugin.pm
    (DELETE, "lvremove 'vg0/vm-9999-a' error: Logical volume vg0/vm-9999-a in use.", "busy", Possible),
    (DELETE, "zfs error: cannot destroy 'tank/vm-9999-a': dataset is busy", "busy", Possible),
    (DELETE, "rbd rm 'vm-9999-a' error: rbd: error: image still has watchers", "busy", Possible),
    (UPDATE, "failed to update VM 100: got no worker upid - start worker failed", "task_failed", Possible),
    (ALLOCATE, "unable to parse volume filename 'x'", "other", Possible),
    (PENDING, "got timeout", "other", Nothing),
];

#[test]
fn texts_of_status_500_mean_what_they_say() {
    for (spec, text, kind, effect) in ROWS {
        assert_eq!(
            of_500(spec, text),
            ((*kind).to_owned(), *effect),
            "{} {text}",
            spec.name
        );
    }
}

#[test]
fn only_a_plugins_own_words_mean_that_a_disk_is_absent() {
    for text in [
        "unable to parse directory volume name 'bogus'",
        "can't get size of '/dev/vg0/vm-9999-a':   Command timed out",
        "volume_size_info on 'local:9999/a.raw' failed - got timeout",
        "storage 'local' is not online",
        "Permission check failed (/storage/local, Datastore.Audit)",
        "rbd error: rbd: error opening pool 'ceph': (2) No such file or directory",
        "rbd error: global_init: unable to open config file: (2) No such file or directory",
        "zfs error: cannot open 'tank': dataset does not exist",
        "zfs error: cannot open 'tank/pve': dataset does not exist",
    ] {
        assert_ne!(of_500(DISK, text).0, "disk_absent", "{text}");
    }
    let words = "volume_size_info on 'local:9999/a.raw' failed - no format";
    assert_eq!(of_500(ALLOCATE, words).0, "other");
    let not_found = reply(DISK, &answer(404, "Not Found", ""));
    assert_eq!(not_found.kind, ErrorKind::Other { status: 404 });
}

#[test]
fn proxies_say_whether_the_host_was_reached() {
    for (status, kind, effect) in [
        (595, ErrorKind::HostUnreachable, Nothing),
        (596, ErrorKind::OutcomeUnknown, Possible),
        (597, ErrorKind::OutcomeUnknown, Possible),
        (599, ErrorKind::OutcomeUnknown, Possible),
        (502, ErrorKind::OutcomeUnknown, Possible),
        (501, ErrorKind::Other { status: 501 }, Nothing),
        (301, ErrorKind::Other { status: 301 }, Possible),
    ] {
        let written = reply(ALLOCATE, &answer(status, "Connection timed out", ""));
        assert_eq!(
            (written.kind, written.effect),
            (kind.clone(), effect),
            "{status}"
        );
        let read = reply(PENDING, &answer(status, "", ""));
        assert_eq!((read.kind, read.effect), (kind, Nothing), "{status}");
    }
}

#[test]
fn a_privilege_that_is_missing_is_named() {
    let denied = |text: &str| reply(DISK, &answer(403, text, "")).kind;
    let kind = |path: &str, privilege: &str| ErrorKind::PermissionDenied {
        path: path.to_owned(),
        privilege: privilege.to_owned(),
    };
    assert_eq!(
        denied("Permission check failed (/storage/thin, Datastore.Audit|Datastore.AllocateSpace)"),
        kind("/storage/thin", "Datastore.Audit|Datastore.AllocateSpace")
    );
    assert_eq!(
        denied("Permission check failed (user != root@pam)"),
        kind("", "user != root@pam")
    );
    assert_eq!(denied("Permission check failed"), kind("", ""));
    let unauthenticated = reply(DISK, &answer(401, "Authentication failed!", ""));
    assert_eq!(unauthenticated.kind, ErrorKind::Unauthenticated);
    assert_eq!(unauthenticated.detail, "Authentication failed!");
}

#[test]
fn a_refused_parameter_is_named_and_a_failed_hotplug_is_none() {
    let body = r#"{"data":null,"message":"Parameter verification failed.\n","errors":{"size":"value does not match the regex pattern"}}"#;
    let refused = reply(
        ALLOCATE,
        &answer(400, "Parameter verification failed.", body),
    );
    assert_eq!(refused.effect, Nothing);
    assert_eq!(
        refused.detail,
        "size: value does not match the regex pattern"
    );
    assert!(matches!(refused.kind, ErrorKind::Invalid(fields) if fields.contains_key("size")));

    let body = r#"{"message":"Parameter verification failed.\n","errors":{"scsi1":"hotplug problem - error on hot-unplugging device 'virtioscsi1' - still busy in guest?\n"},"data":null}"#;
    let failed = reply(UPDATE, &answer(400, "Parameter verification failed.", body));
    assert_eq!(failed.effect, Possible);
    assert_eq!(
        failed.kind,
        ErrorKind::HotplugFailed {
            slot: "scsi1".to_owned(),
            text: "error on hot-unplugging device 'virtioscsi1' - still busy in guest?".to_owned(),
        }
    );
}

#[test]
fn a_failed_task_is_read_by_the_same_table() {
    let text = "400 Parameter verification failed. scsi2: hotplug problem - VM 100 qmp command 'object-add' failed - attempt to add duplicate property 'throttle-drive-scsi2' to object (type 'container') ";
    let error = ApiError::of_task(text);
    assert!(
        matches!(&error.kind, ErrorKind::HotplugFailed { slot, text } if slot == "scsi2" && text.ends_with("'container')")),
        "{error:?}"
    );
    assert_eq!(error.effect, Possible);
    assert_eq!(
        ApiError::of_task("VM is locked (backup)").kind,
        ErrorKind::Locked
    );
    let other = ApiError::of_task("migration aborted");
    assert_eq!(
        (other.kind, other.effect),
        (ErrorKind::TaskFailed, Possible)
    );
}

#[test]
fn a_vmid_that_is_taken_is_known_by_nextid_alone() {
    let body = r#"{"errors":{"vmid":"VM 100 already exists"},"data":null,"message":"Parameter verification failed.\n"}"#;
    let taken = answer(400, "Parameter verification failed.", body);
    assert_eq!(reply(NEXTID, &taken).kind, ErrorKind::AlreadyExists);
    assert!(matches!(
        reply(ALLOCATE, &taken).kind,
        ErrorKind::Invalid(_)
    ));
}

#[test]
fn older_servers_say_it_in_the_reason_phrase_only() {
    let error = reply(
        UPDATE,
        &answer(500, "VM is locked (snapshot)", r#"{"data":null}"#),
    );
    assert_eq!(
        (error.kind, error.detail.as_str()),
        (ErrorKind::Locked, "VM is locked (snapshot)")
    );
}

#[test]
fn a_write_without_an_answer_may_have_happened() {
    let lost = |phase, cause| TransportError::new(phase, cause, "");
    for (error, kind, effect) in [
        (
            lost(NotSent, Cause::Connect),
            ErrorKind::Unreachable,
            Nothing,
        ),
        (lost(Sent, Cause::Wire), ErrorKind::OutcomeUnknown, Possible),
        (
            lost(Sent, Cause::TimedOut),
            ErrorKind::OutcomeUnknown,
            Possible,
        ),
        (lost(Sent, Cause::TooLarge), ErrorKind::Decode, Possible),
        (lost(NotSent, Cause::Queue), ErrorKind::Throttled, Nothing),
        (
            lost(NotSent, Cause::Refused),
            ErrorKind::Unauthenticated,
            Nothing,
        ),
    ] {
        let written = no_answer(ALLOCATE, error.clone());
        assert_eq!((written.kind, written.effect), (kind, effect), "{error:?}");
        assert_eq!(no_answer(PENDING, error).effect, Nothing);
    }
}
