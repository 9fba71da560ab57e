//! A mounted ext4 that really grows: the plugin in a guest of QEMU, whose kernel lets its root do that, on a disk that
//! QEMU resizes as Proxmox VE has it done. Emulated, so that it runs anywhere.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests fail by panics, and run programs as an administrator would"
)]

mod machine;

use std::path::Path;

use csi_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use csi_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use machine::{Guest, output, with_guest};

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
/// Its own name, by which the guest finds it.
const WWN: &str = "0x5c42a611aadbf50e";
const MIB: u64 = 1 << 20;
const STAGING: &str = "/kubelet/staging";
const TARGET: &str = "/kubelet/target";
const READER: &str = "/kubelet/reader";

fn capability() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode {
            mode: access_mode::Mode::SingleNodeWriter.into(),
        }),
    }
}

async fn stage(guest: &Guest) {
    let request = NodeStageVolumeRequest {
        volume_id: VOLUME.to_owned(),
        publish_context: [(
            "DevicePath".to_owned(),
            format!("/dev/disk/by-id/wwn-{WWN}"),
        )]
        .into(),
        staging_target_path: STAGING.to_owned(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    guest.node().node_stage_volume(request).await.unwrap();
}

async fn publish(guest: &Guest, target: &str, readonly: bool) {
    let request = NodePublishVolumeRequest {
        volume_id: VOLUME.to_owned(),
        publish_context: [(
            "DevicePath".to_owned(),
            format!("/dev/disk/by-id/wwn-{WWN}"),
        )]
        .into(),
        staging_target_path: STAGING.to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(capability()),
        readonly,
        ..Default::default()
    };
    guest.node().node_publish_volume(request).await.unwrap();
}

async fn expand(guest: &Guest, path: &str, size: Option<u64>) -> u64 {
    let request = NodeExpandVolumeRequest {
        volume_id: VOLUME.to_owned(),
        volume_path: path.to_owned(),
        capacity_range: size.map(|size| CapacityRange {
            required_bytes: i64::try_from(size).unwrap(),
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let answer = guest.node().node_expand_volume(request).await.unwrap();
    u64::try_from(answer.into_inner().capacity_bytes).unwrap()
}

/// What Pods see of it.
async fn room(guest: &Guest, path: &str) -> u64 {
    let request = NodeGetVolumeStatsRequest {
        volume_id: VOLUME.to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    };
    let stats = guest.node().node_get_volume_stats(request).await.unwrap();
    let stats = stats.into_inner();
    assert!(!stats.volume_condition.unwrap().abnormal);
    u64::try_from(stats.usage.first().unwrap().total).unwrap()
}

async fn take_away(guest: &Guest) {
    for target in [TARGET, READER] {
        let request = NodeUnpublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            target_path: target.to_owned(),
        };
        guest.node().node_unpublish_volume(request).await.unwrap();
    }
    let request = NodeUnstageVolumeRequest {
        volume_id: VOLUME.to_owned(),
        staging_target_path: STAGING.to_owned(),
    };
    guest.node().node_unstage_volume(request).await.unwrap();
}

/// Length of the ext4 in a file.
fn length_of_ext4(file: &Path) -> u64 {
    let said = output("dumpe2fs", &["-h", file.to_str().unwrap()]);
    let value = |key: &str| -> u64 {
        let line = said.lines().find(|line| line.starts_with(key)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    value("Block count:") * value("Block size:")
}

#[test]
fn b62_a_mounted_file_system_grows_with_its_disk() {
    with_guest("b62_a_mounted_file_system_grows", WWN, async |mut guest| {
        stage(&guest).await;
        publish(&guest, TARGET, false).await;
        publish(&guest, READER, true).await;
        let mut before = room(&guest, TARGET).await;
        for (path, size) in [
            (TARGET, 256 * MIB),
            (STAGING, 1024 * MIB),
            (READER, 1100 * MIB),
        ] {
            guest.resize(size);
            assert_eq!(expand(&guest, path, Some(size)).await, size, "{path}");
            let now = room(&guest, TARGET).await;
            assert!(now > before + 50 * MIB, "{path}: {before} to {now}");
            before = now;
            // Without a size the kernel asks the disk, and nothing is left to be done.
            assert_eq!(expand(&guest, path, None).await, size, "{path}");
        }
        take_away(&guest).await;
        let disk = guest.end();
        output("e2fsck", &["-fn", disk.to_str().unwrap()]);
        assert_eq!(length_of_ext4(&disk), 1100 * MIB);
    });
}
