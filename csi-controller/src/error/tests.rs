use std::collections::BTreeMap;
use std::fmt::Write;

use super::*;
use pve_client::ErrorKind;

const RPCS: [Rpc; 7] = [
    Rpc::CreateVolume,
    Rpc::DeleteVolume,
    Rpc::ControllerPublishVolume,
    Rpc::ControllerUnpublishVolume,
    Rpc::ControllerExpandVolume,
    Rpc::ValidateVolumeCapabilities,
    Rpc::GetCapacity,
];

fn kinds() -> Vec<ErrorKind> {
    vec![
        ErrorKind::AlreadyExists,
        ErrorKind::Absent,
        ErrorKind::DiskAbsent,
        ErrorKind::Locked,
        ErrorKind::DigestMismatch,
        ErrorKind::PermissionDenied {
            path: "/storage/secret-name".to_owned(),
            privilege: "Datastore.Allocate".to_owned(),
        },
        ErrorKind::Unauthenticated,
        ErrorKind::Invalid(BTreeMap::new()),
        ErrorKind::HostUnreachable,
        ErrorKind::HostUnknown,
        ErrorKind::OutcomeUnknown,
        ErrorKind::Unreachable,
        ErrorKind::StorageUnavailable,
        ErrorKind::NoSpace,
        ErrorKind::Busy,
        ErrorKind::NoQuorum,
        ErrorKind::HotplugFailed {
            slot: "scsi1".to_owned(),
            text: "secret-text".to_owned(),
        },
        ErrorKind::NoAgent,
        ErrorKind::NotImplemented,
        ErrorKind::MigratedToRules,
        ErrorKind::TaskFailed,
        ErrorKind::Decode,
        ErrorKind::Throttled,
        ErrorKind::Other { status: 500 },
    ]
}

fn answer(kind: ErrorKind, effect: Effect) -> ApiError {
    ApiError {
        endpoint: "GET /secret",
        kind,
        effect,
        detail: "secret detail".to_owned(),
    }
}

/// One of each variant, those with a cause for each cause and effect.
#[expect(clippy::too_many_lines, reason = "one table")]
fn every() -> Vec<Error> {
    let text = || "secret detail".to_owned();
    let mut all = vec![
        Error::Invalid("shown".to_owned()),
        Error::OutOfRange("shown".to_owned()),
        Error::UnknownVolume,
        Error::UnknownNode(text()),
        Error::VmInvisible(text()),
        Error::Exists("shown".to_owned()),
        Error::Busy("shown"),
        Error::ShuttingDown,
        Error::StandingBy,
        Error::Closed,
        Error::InUse(text()),
        Error::HeldBy {
            tenant: "shown".to_owned(),
            detail: text(),
        },
        Error::VmLocked(text()),
        Error::WrongHost(text()),
        Error::Unsupported {
            tenant: "shown",
            detail: text(),
        },
        Error::HolderUnknown(text()),
        Error::RealUnknown(text()),
        Error::GuestBusy(text()),
        Error::HalfAttached(text()),
        Error::HotplugFailed(text()),
        Error::Changed(text()),
        Error::StillRunning(text()),
        Error::StorageBusy(text()),
        Error::Contradiction(text()),
        Error::Internal(text()),
    ];
    for why in [
        Foreign::Region,
        Foreign::Storage,
        Foreign::PveNode,
        Foreign::Owner,
    ] {
        all.push(Error::Foreign {
            volume: text(),
            why,
        });
    }
    for why in [
        VmRefusal::Pool,
        VmRefusal::Template,
        VmRefusal::Owner,
        VmRefusal::Duplicate,
        VmRefusal::PveNode,
    ] {
        all.push(Error::VmRefused {
            why,
            detail: text(),
        });
    }
    for why in [
        Exhausted::Space,
        Exhausted::Quota,
        Exhausted::VolumeSize,
        Exhausted::Storage,
        Exhausted::Slots,
    ] {
        all.push(Error::Exhausted {
            why,
            detail: text(),
        });
    }
    for kind in kinds() {
        for effect in [Effect::None, Effect::Possible] {
            let source = answer(kind.clone(), effect);
            all.push(Error::Pve {
                doing: "d",
                source: source.clone(),
            });
            all.push(Error::Unsettled { doing: "d", source });
        }
    }
    all
}

/// A new variant does not compile here until it has joined [`every`].
fn name(error: &Error) -> String {
    match error {
        Error::Pve { source, .. } => format!("Pve {} {:?}", source.kind.label(), source.effect),
        Error::Unsettled { source, .. } => format!("Unsettled {}", source.kind.label()),
        Error::Foreign { .. } => "Foreign".to_owned(),
        Error::VmRefused { .. } => "VmRefused".to_owned(),
        Error::Exhausted { .. } => "Exhausted".to_owned(),
        Error::HeldBy { .. } => "HeldBy".to_owned(),
        Error::Unsupported { .. } => "Unsupported".to_owned(),
        Error::Invalid(_)
        | Error::OutOfRange(_)
        | Error::UnknownVolume
        | Error::UnknownNode(_)
        | Error::VmInvisible(_)
        | Error::Exists(_)
        | Error::Busy(_)
        | Error::ShuttingDown
        | Error::StandingBy
        | Error::Closed
        | Error::InUse(_)
        | Error::VmLocked(_)
        | Error::WrongHost(_)
        | Error::HolderUnknown(_)
        | Error::RealUnknown(_)
        | Error::GuestBusy(_)
        | Error::HalfAttached(_)
        | Error::HotplugFailed(_)
        | Error::Changed(_)
        | Error::StillRunning(_)
        | Error::StorageBusy(_)
        | Error::Contradiction(_)
        | Error::Internal(_) => format!("{error:?}").split('(').next().unwrap().to_owned(),
    }
}

#[test]
fn create_volume_keeps_the_provisioner_calling_exactly_while_a_disk_may_exist() {
    for error in every() {
        let code = error.code(Rpc::CreateVolume);
        let keeps_calling = matches!(
            code,
            Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
        );
        let possible = error.effect() == Effect::Possible;
        assert_eq!(keeps_calling, possible, "{}: {code:?}", name(&error));
    }
}

/// After any other code a person may ask for less, and Kubernetes books less than the volume has.
#[test]
fn a_volume_that_may_have_grown_keeps_the_resizer_at_the_same_size() {
    for error in every() {
        let code = error.code(Rpc::ControllerExpandVolume);
        let keeps_size = matches!(
            code,
            Code::Aborted
                | Code::Unavailable
                | Code::DeadlineExceeded
                | Code::Cancelled
                | Code::ResourceExhausted
        );
        let possible = error.effect() == Effect::Possible;
        assert!(keeps_size || !possible, "{}: {code:?}", name(&error));
    }
}

#[test]
fn what_could_not_be_observed_may_exist_whatever_the_answer_was() {
    for kind in kinds() {
        let source = answer(kind, Effect::None);
        let error = Error::Unsettled { doing: "d", source };
        assert_eq!(error.effect(), Effect::Possible, "{}", name(&error));
    }
}

#[test]
fn the_tenant_never_reads_what_pve_said_and_the_operator_always_can() {
    for error in every() {
        let name = name(&error);
        let status = error.into_status(Rpc::ControllerPublishVolume);
        assert!(
            !status.message().contains("secret"),
            "{name}: {}",
            status.message()
        );
        assert!(!status.message().is_empty(), "{name}");
        let source = std::error::Error::source(&status);
        assert!(source.is_some(), "{name} keeps its cause");
    }
}

#[test]
fn no_failure_is_told_as_success_or_as_unknown() {
    for error in every() {
        for rpc in RPCS {
            let code = error.code(rpc);
            assert!(
                !matches!(code, Code::Ok | Code::Unknown),
                "{}: {rpc:?}",
                name(&error)
            );
        }
    }
}

#[test]
fn codes_per_rpc() {
    let mut rows: Vec<String> = Vec::new();
    for error in every() {
        let mut row = format!("{:<36}", name(&error));
        let create = error.code(Rpc::CreateVolume);
        let publish = error.code(Rpc::ControllerPublishVolume);
        let expand = error.code(Rpc::ControllerExpandVolume);
        write!(row, "{create:?}").unwrap();
        if create != publish {
            write!(row, " | others {publish:?}").unwrap();
        }
        if expand != publish {
            write!(row, " | expand {expand:?}").unwrap();
        }
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    insta::assert_snapshot!(rows.join("\n"));
}
