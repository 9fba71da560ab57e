//! Compiles the two interface files without `protoc`.

use std::error::Error;

/// Every message with a field marked `csi_secret`: it gets no derived `Debug`. A test keeps the list whole.
const SECRET: [&str; 19] = [
    "CreateVolumeRequest",
    "DeleteVolumeRequest",
    "ControllerPublishVolumeRequest",
    "ControllerUnpublishVolumeRequest",
    "ValidateVolumeCapabilitiesRequest",
    "ControllerModifyVolumeRequest",
    "CreateSnapshotRequest",
    "DeleteSnapshotRequest",
    "ListSnapshotsRequest",
    "GetSnapshotRequest",
    "ControllerExpandVolumeRequest",
    "NodeStageVolumeRequest",
    "NodePublishVolumeRequest",
    "NodeExpandVolumeRequest",
    "CreateVolumeGroupSnapshotRequest",
    "DeleteVolumeGroupSnapshotRequest",
    "GetVolumeGroupSnapshotRequest",
    "GetMetadataAllocatedRequest",
    "GetMetadataDeltaRequest",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in ["csi.proto", "pluginregistration.proto"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let files = protox::compile(["csi.proto", "pluginregistration.proto"], ["."])?;
    tonic_prost_build::configure()
        .generate_default_stubs(true)
        .build_transport(false)
        .skip_debug(SECRET.map(|message| format!("csi.v1.{message}")))
        .compile_fds(files)?;
    Ok(())
}
