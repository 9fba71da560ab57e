//! The whole plugin on real devices: mkfs, fsck, mounts and all that must be refused.

mod machine;

use std::fs;

use machine::{MIB, block_capability, mounts_at, publish_request, with_machine};
use tonic::Code;

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";

#[test]
fn a_volume_lives_its_whole_life() {
    with_machine("a_volume_lives_its_whole_life", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        for _ in 0..2 {
            machine.stage(&disk, &staging).await.unwrap();
            assert_eq!(mounts_at(&staging), 1);
        }
        let request = publish_request(&disk, &staging, &target);
        for _ in 0..2 {
            machine.publish(request.clone()).await.unwrap();
            assert_eq!(mounts_at(&target), 1);
        }
        fs::write(target.join("greeting"), "hello").unwrap();

        let stats = machine.stats(&disk, &target).await.unwrap();
        assert_eq!(stats.usage.len(), 2);
        assert!(
            stats
                .usage
                .iter()
                .all(|usage| usage.total > 0 && usage.used + usage.available <= usage.total)
        );
        assert!(!stats.volume_condition.unwrap().abnormal);

        for _ in 0..2 {
            machine.unpublish(&disk, &target).await.unwrap();
            assert!(!target.exists());
        }
        for _ in 0..2 {
            machine.unstage(&disk, &staging).await.unwrap();
            assert_eq!(mounts_at(&staging), 0);
        }
        machine.stage(&disk, &staging).await.unwrap();
        assert_eq!(
            fs::read_to_string(staging.join("greeting")).unwrap(),
            "hello"
        );
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn a_read_only_publish_cannot_be_written_and_a_raw_volume_is_the_disk() {
    with_machine("a_read_only_publish", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        machine.stage(&disk, &staging).await.unwrap();
        let mut request = publish_request(&disk, &staging, &target);
        request.readonly = true;
        machine.publish(request.clone()).await.unwrap();
        machine.publish(request.clone()).await.unwrap();
        assert!(fs::write(target.join("x"), "x").is_err());
        assert!(fs::write(staging.join("x"), "x").is_ok());
        request.readonly = false;
        assert_eq!(
            machine.publish(request).await.unwrap_err().code(),
            Code::AlreadyExists
        );
        machine.unpublish(&disk, &target).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();

        let raw = machine.plugged("sdc", "r1/pve1/local-lvm/vm-9999-pvc-2", 8 * MIB);
        machine
            .stage_as(&raw, &staging, block_capability())
            .await
            .unwrap();
        assert_eq!(mounts_at(&staging), 0);
    });
}
