//! `Debug` for the messages that carry secrets: the name of the message and nothing of its contents.

use std::fmt;

use crate::csi::v1;

macro_rules! redacted {
    ($($message:ident)+) => {
        $(impl fmt::Debug for v1::$message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message)).finish_non_exhaustive()
            }
        })+
    };
}

redacted!(
    CreateVolumeRequest
    DeleteVolumeRequest
    ControllerPublishVolumeRequest
    ControllerUnpublishVolumeRequest
    ValidateVolumeCapabilitiesRequest
    ControllerModifyVolumeRequest
    CreateSnapshotRequest
    DeleteSnapshotRequest
    ListSnapshotsRequest
    GetSnapshotRequest
    ControllerExpandVolumeRequest
    NodeStageVolumeRequest
    NodePublishVolumeRequest
    NodeExpandVolumeRequest
    CreateVolumeGroupSnapshotRequest
    DeleteVolumeGroupSnapshotRequest
    GetVolumeGroupSnapshotRequest
    GetMetadataAllocatedRequest
    GetMetadataDeltaRequest
);

#[cfg(test)]
mod tests {
    use crate::csi::v1;

    #[test]
    fn a_secret_can_not_be_printed() {
        let request = v1::NodeStageVolumeRequest {
            secrets: [("key".to_owned(), "hunter2".to_owned())].into(),
            ..Default::default()
        };
        let shown = format!("{request:?} {request:#?} {:?}", Some(&request));
        assert!(
            !shown.contains("hunter2") && !shown.contains("key"),
            "{shown}"
        );
    }

    #[test]
    fn every_message_with_secrets_is_redacted() {
        let source = include_str!("../csi.proto");
        let here = include_str!("redact.rs");
        let listed = include_str!("../build.rs");
        let messages = source
            .split("\nmessage ")
            .skip(1)
            .filter(|text| text.contains("(csi_secret) = true"));
        let names: Vec<&str> = messages
            .filter_map(|text| text.split_whitespace().next())
            .collect();
        assert_eq!(names.len(), 19);
        for name in names {
            assert!(here.contains(&format!("\n    {name}\n")), "{name}");
            assert!(listed.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
