use csi_proto::csi::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};

use super::*;

const HANDLE: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
const WWN: &str = "/dev/disk/by-id/wwn-0x5c42a611aadbf50e";

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn with_mode(mode: Mode, access_type: AccessType) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

fn mounted(mount: MountVolume) -> VolumeCapability {
    with_mode(Mode::SingleNodeWriter, AccessType::Mount(mount))
}

fn good_stage() -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: HANDLE.to_owned(),
        publish_context: map(&[("DevicePath", WWN), ("lun", "1"), ("size", "1073741824")]),
        staging_target_path: "/var/lib/kubelet/staging".to_owned(),
        volume_capability: Some(mounted(MountVolume::default())),
        ..Default::default()
    }
}

fn good_publish() -> NodePublishVolumeRequest {
    let stage = good_stage();
    NodePublishVolumeRequest {
        volume_id: stage.volume_id,
        publish_context: stage.publish_context,
        staging_target_path: stage.staging_target_path,
        target_path: "/var/lib/kubelet/target".to_owned(),
        volume_capability: stage.volume_capability,
        ..Default::default()
    }
}

const BAD_HANDLES: [&str; 12] = [
    "",
    "r1",
    "r1/pve1/local-lvm/../vm-9999-a",
    "r1/../local-lvm/vm-9999-a",
    "r1/pve1/local-lvm/vm-9999-a,size=1G",
    "r1/pve1/local-lvm/vm-9999-a?x",
    "r1/pve1/local-lvm/vm-9999-a%2fb",
    "r1/pve1/local-lvm/vm-9999-a\n",
    "r1/pve1/local-lvm",
    "r1/pve1/local-lvm/vm-99-a",
    "r1/pve1/local-lvm/base-9999-a",
    "/pve1/local-lvm/vm-9999-a",
];

const BAD_PATHS: [&str; 6] = ["", "relative", "/", "/a/../b", "/a\0b", "./a"];

fn is_invalid<T: std::fmt::Debug>(result: Result<T, Error>, case: &str) {
    assert_eq!(
        result.unwrap_err().code(),
        tonic::Code::InvalidArgument,
        "{case}"
    );
}

#[test]
fn what_is_good_passes_and_defaults_are_known() {
    let checked = stage(&good_stage()).unwrap();
    assert_eq!(checked.staging, Path::new("/var/lib/kubelet/staging"));
    assert!(matches!(checked.usage, StageUsage::Mount { .. }));
    let checked = publish(&good_publish()).unwrap();
    assert_eq!(
        (checked.access, checked.usage),
        (Access::ReadWrite, PublishUsage::Mount)
    );
}

#[test]
fn malformed_handles_and_paths_are_refused_by_every_rpc() {
    for bad in BAD_HANDLES {
        let mut request = good_stage();
        request.volume_id = bad.to_owned();
        is_invalid(stage(&request), bad);
        let mut request = good_publish();
        request.volume_id = bad.to_owned();
        is_invalid(publish(&request), bad);
        let (volume_id, path) = (bad.to_owned(), "/x".to_owned());
        is_invalid(
            unstage(&NodeUnstageVolumeRequest {
                volume_id: volume_id.clone(),
                staging_target_path: path.clone(),
            }),
            bad,
        );
        is_invalid(
            unpublish(&NodeUnpublishVolumeRequest {
                volume_id,
                target_path: path,
            }),
            bad,
        );
    }
    for bad in BAD_PATHS {
        let mut request = good_stage();
        request.staging_target_path = bad.to_owned();
        is_invalid(stage(&request), bad);
        let mut request = good_publish();
        bad.clone_into(&mut request.target_path);
        is_invalid(publish(&request), bad);
        let mut request = good_publish();
        bad.clone_into(&mut request.staging_target_path);
        is_invalid(publish(&request), bad);
        let (volume_id, path) = (HANDLE.to_owned(), bad.to_owned());
        is_invalid(
            unstage(&NodeUnstageVolumeRequest {
                volume_id: volume_id.clone(),
                staging_target_path: path.clone(),
            }),
            bad,
        );
        is_invalid(
            unpublish(&NodeUnpublishVolumeRequest {
                volume_id,
                target_path: path,
            }),
            bad,
        );
    }
}

#[test]
fn statistics_of_what_cannot_be_a_volume_are_not_found() {
    let code = |volume: &str, path: &str| {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.to_owned(),
            ..Default::default()
        };
        stats(&request).map_err(|error| error.code())
    };
    let said = code(HANDLE, "/x").unwrap();
    assert_eq!(said.staging, None);
    assert_eq!(code("", "/x").unwrap_err(), tonic::Code::InvalidArgument);
    assert_eq!(code(HANDLE, "").unwrap_err(), tonic::Code::InvalidArgument);
    assert_eq!(
        code("fake-vol-id", "/x").unwrap_err(),
        tonic::Code::NotFound
    );
    assert_eq!(
        code(HANDLE, "some/path").unwrap_err(),
        tonic::Code::NotFound
    );
}

#[test]
fn capabilities_that_are_not_offered_are_refused() {
    let block = || AccessType::Block(BlockVolume {});
    let bad = [
        None,
        Some(VolumeCapability::default()),
        Some(VolumeCapability {
            access_type: Some(block()),
            access_mode: None,
        }),
        Some(with_mode(Mode::Unknown, block())),
        Some(with_mode(Mode::MultiNodeReaderOnly, block())),
        Some(with_mode(Mode::MultiNodeSingleWriter, block())),
        Some(with_mode(Mode::MultiNodeMultiWriter, block())),
        Some(mounted(MountVolume {
            fs_type: "xfs".into(),
            ..Default::default()
        })),
        Some(mounted(MountVolume {
            mount_flags: vec!["bind".into()],
            ..Default::default()
        })),
        Some(mounted(MountVolume {
            volume_mount_group: "1000".into(),
            ..Default::default()
        })),
    ];
    for (index, capability) in bad.into_iter().enumerate() {
        let mut request = good_stage();
        request.volume_capability.clone_from(&capability);
        is_invalid(stage(&request), &index.to_string());
        let mut request = good_publish();
        request.volume_capability = capability;
        is_invalid(publish(&request), &index.to_string());
    }
    for mode in [
        Mode::SingleNodeWriter,
        Mode::SingleNodeSingleWriter,
        Mode::SingleNodeMultiWriter,
        Mode::SingleNodeReaderOnly,
    ] {
        let mut request = good_stage();
        request.volume_capability = Some(with_mode(mode, block()));
        assert!(matches!(stage(&request).unwrap().usage, StageUsage::Block));
    }
}

#[test]
fn contexts_and_secrets_are_held_to_their_grammar() {
    let contexts: [&[(&str, &str)]; 5] = [
        &[],
        &[("DevicePath", "/dev/sda")],
        &[("DevicePath", WWN), ("size", "-1")],
        &[("DevicePath", WWN), ("size", "1G")],
        &[("DevicePath", WWN), ("lun", "x")],
    ];
    for context in contexts {
        let mut request = good_stage();
        request.publish_context = map(context);
        is_invalid(stage(&request), &format!("{context:?}"));
    }
    let mut request = good_stage();
    request.publish_context = map(&[("DevicePath", "/dev/disk/by-id/wwn-0x5c42a611aadbf50f")]);
    assert!(matches!(stage(&request), Err(Error::ForeignContext { .. })));

    let mut request = good_stage();
    request.secrets = map(&[("encryption-passphrase", "x")]);
    is_invalid(stage(&request), "secrets");
    for context in [
        [("blockSize", "512")],
        [("blockSize", "1000")],
        [("inodeSize", "64")],
        [("ssd", "yes")],
    ] {
        let mut request = good_stage();
        request.volume_context = map(&context);
        is_invalid(stage(&request), &format!("{context:?}"));
    }
    let mut request = good_stage();
    request.volume_context = map(&[
        ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
        ("blockSize", "4096"),
    ]);
    assert!(stage(&request).is_ok());
}

#[test]
fn read_only_comes_from_the_request_the_mode_or_the_options() {
    let access = |change: fn(&mut NodePublishVolumeRequest)| {
        let mut request = good_publish();
        change(&mut request);
        publish(&request).unwrap().access
    };
    assert_eq!(access(|r| r.readonly = true), Access::ReadOnly);
    assert_eq!(
        access(|r| r.volume_capability = Some(mounted(MountVolume {
            mount_flags: vec!["ro".into()],
            ..Default::default()
        }))),
        Access::ReadOnly
    );
    let reader = |r: &mut NodePublishVolumeRequest| {
        r.volume_capability = Some(with_mode(
            Mode::SingleNodeReaderOnly,
            AccessType::Block(BlockVolume {}),
        ));
    };
    assert_eq!(access(reader), Access::ReadOnly);
}

fn good_expand() -> NodeExpandVolumeRequest {
    NodeExpandVolumeRequest {
        volume_id: HANDLE.to_owned(),
        volume_path: "/var/lib/kubelet/target".to_owned(),
        ..Default::default()
    }
}

#[test]
fn an_expansion_says_what_and_where_and_may_say_how_much() {
    let expanded = expand(&good_expand()).unwrap();
    assert_eq!(
        (expanded.required, expanded.limit, expanded.usage),
        (None, None, None)
    );
    let mut request = good_expand();
    request.capacity_range = Some(CapacityRange {
        required_bytes: 5,
        limit_bytes: 7,
    });
    request.volume_capability = Some(mounted(MountVolume::default()));
    let expanded = expand(&request).unwrap();
    assert_eq!(
        (expanded.required, expanded.limit),
        (Some(Bytes::new(5)), Some(Bytes::new(7)))
    );
    assert_eq!(expanded.usage, Some(ExpandUsage::Mount));
    // Modes and options are those of the stage.
    let block = AccessType::Block(BlockVolume {});
    request.volume_capability = Some(with_mode(Mode::MultiNodeMultiWriter, block));
    assert_eq!(expand(&request).unwrap().usage, Some(ExpandUsage::Block));

    for (required_bytes, limit_bytes) in [(-1, 0), (0, -1), (8, 7)] {
        request.capacity_range = Some(CapacityRange {
            required_bytes,
            limit_bytes,
        });
        is_invalid(expand(&request), &format!("{required_bytes} {limit_bytes}"));
    }
    for (said, staging) in [("", None), ("/k/staging", Some("/k/staging".into()))] {
        let mut request = good_expand();
        said.clone_into(&mut request.staging_target_path);
        assert_eq!(expand(&request).unwrap().staging, staging);
    }
    let mut request = good_expand();
    request.staging_target_path = "some/path".to_owned();
    is_invalid(expand(&request), "staging");
    let mut request = good_expand();
    request.secrets = map(&[("encryption-passphrase", "x")]);
    is_invalid(expand(&request), "secrets");
    for (volume, path, code) in [
        ("", "/x", tonic::Code::InvalidArgument),
        (HANDLE, "", tonic::Code::InvalidArgument),
        ("fake-vol-id", "/x", tonic::Code::NotFound),
        (HANDLE, "some/path", tonic::Code::NotFound),
        (HANDLE, "/a/../b", tonic::Code::NotFound),
    ] {
        let mut request = good_expand();
        (request.volume_id, request.volume_path) = (volume.to_owned(), path.to_owned());
        assert_eq!(
            expand(&request).unwrap_err().code(),
            code,
            "{volume} {path}"
        );
    }
}
