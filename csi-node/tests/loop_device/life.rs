//! The whole plugin on real devices: a volume's life.

use std::fs;
use std::time::Duration;

use csi_proto::csi::v1::VolumeCapability;
use csi_proto::csi::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::machine::{
    MIB, block_capability, device_at, mount_capability, mounts_at, publish_request, run,
    with_machine,
};

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
const OTHER: &str = "r1/pve1/local-lvm/vm-9999-pvc-2";

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
                .all(|usage| usage.total > 0 && usage.used > 0)
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
fn a_killed_plugin_goes_on_where_the_machine_is() {
    with_machine("a_killed_plugin", async |mut machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        let request = publish_request(&disk, &staging, &target);
        machine.stage(&disk, &staging).await.unwrap();
        machine.restart().await;
        machine.stage(&disk, &staging).await.unwrap();
        machine.publish(request.clone()).await.unwrap();
        fs::write(target.join("greeting"), "hello").unwrap();
        machine.restart().await;
        machine.publish(request).await.unwrap();
        assert_eq!((mounts_at(&staging), mounts_at(&target)), (1, 1));
        machine.unpublish(&disk, &target).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
        assert_eq!((mounts_at(&staging), mounts_at(&target)), (0, 0));
    });
}

#[test]
fn a_read_only_publish_cannot_be_written() {
    with_machine("a_read_only_publish_cannot_be_written", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        machine.stage(&disk, &staging).await.unwrap();
        let mut request = publish_request(&disk, &staging, &target);
        request.readonly = true;
        for _ in 0..2 {
            machine.publish(request.clone()).await.unwrap();
        }
        assert!(fs::write(target.join("x"), "x").is_err());
        assert!(fs::write(staging.join("x"), "x").is_ok());
        request.readonly = false;
        let refused = machine.publish(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists);
        machine.unpublish(&disk, &target).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn a_volume_of_one_writer_is_at_one_target_and_others_may_be_shared() {
    with_machine("a_volume_of_one_writer", async |machine| {
        let staging = machine.path("staging");
        let cases: [(_, _, fn() -> VolumeCapability); 2] = [
            ("sdb", VOLUME, mount_capability),
            ("sdc", OTHER, block_capability),
        ];
        for (name, handle, kind) in cases {
            let disk = machine.plugged(name, handle, 64 * MIB);
            let request = |target: &str, mode: Mode| {
                let mut request = publish_request(&disk, &staging, &machine.path(target));
                let mut capability = kind();
                capability.access_mode.as_mut().unwrap().mode = mode.into();
                request.volume_capability = Some(capability);
                request
            };
            machine.stage_as(&disk, &staging, kind()).await.unwrap();
            for _ in 0..2 {
                machine
                    .publish(request("one", Mode::SingleNodeSingleWriter))
                    .await
                    .unwrap();
            }
            let second = request("two", Mode::SingleNodeSingleWriter);
            let refused = machine.publish(second).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            assert!(!machine.path("two").exists());
            machine
                .publish(request("two", Mode::SingleNodeMultiWriter))
                .await
                .unwrap();
            for target in ["one", "two"] {
                machine
                    .unpublish(&disk, &machine.path(target))
                    .await
                    .unwrap();
            }
            machine.unstage(&disk, &staging).await.unwrap();
            // The next one may get its number.
            disk.unplug();
        }
    });
}

#[test]
fn b63_a_kubelets_root_that_is_seen_twice_is_one_place() {
    with_machine("b63_a_kubelets_root_that_is_seen_twice", async |machine| {
        let root = machine.path("root");
        fs::create_dir(&root).unwrap();
        let mirror = tempfile::tempdir().unwrap();
        let (at, second) = (root.to_str().unwrap(), mirror.path().to_str().unwrap());
        run("mount", &["-t", "tmpfs", "none", at]);
        run("mount", &["--make-shared", at]);
        run("mount", &["--bind", at, second]);
        let (staging, target) = (root.join("staging"), root.join("target"));
        let cases: [(_, _, fn() -> VolumeCapability); 2] = [
            ("sdb", VOLUME, mount_capability),
            ("sdc", OTHER, block_capability),
        ];
        for (name, handle, kind) in cases {
            let disk = machine.plugged(name, handle, 64 * MIB);
            machine.stage_as(&disk, &staging, kind()).await.unwrap();
            let mut request = publish_request(&disk, &staging, &target);
            let mut capability = kind();
            capability.access_mode.as_mut().unwrap().mode = Mode::SingleNodeSingleWriter.into();
            request.volume_capability = Some(capability);
            machine.publish(request.clone()).await.unwrap();
            assert_eq!(mounts_at(&mirror.path().join("target")), 1);
            request.target_path = root.join("second").display().to_string();
            let refused = machine.publish(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            machine.unpublish(&disk, &target).await.unwrap();
            machine.unstage(&disk, &staging).await.unwrap();
            disk.unplug();
        }
        run("umount", &[second]);
    });
}

#[test]
fn b10_a_disk_is_waited_for_and_meanwhile_the_volume_is_locked() {
    with_machine("b10_a_disk_is_waited_for", async |machine| {
        let disk = machine.disk("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        let (staged, second) = tokio::join!(machine.stage(&disk, &staging), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let start = tokio::time::Instant::now();
            let second = machine.stage(&disk, &staging).await;
            assert!(
                start.elapsed() < Duration::from_secs(2),
                "it does not queue"
            );
            disk.plug();
            second
        });
        assert_eq!(second.unwrap_err().code(), Code::Aborted);
        staged.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();

        // Publish does not wait, and names what is missing.
        disk.unplug();
        let request = publish_request(&disk, &staging, &machine.path("target"));
        let missing = machine.publish(request).await.unwrap_err();
        assert_eq!(missing.code(), Code::Unavailable);
        assert!(
            missing.message().contains(&disk.wwn.to_string()),
            "{missing}"
        );
    });
}

#[test]
fn b40_a_disk_that_comes_back_is_staged_over_what_remains_of_its_mount() {
    with_machine("b40_a_disk_that_comes_back", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        machine.stage(&disk, &staging).await.unwrap();
        fs::write(staging.join("kept"), "kept").unwrap();
        run("sync", &["-f", staging.to_str().unwrap()]);
        let held = fs::File::open(staging.join("kept")).unwrap();
        disk.unplug();
        let again = machine.again("sdc", &disk);
        again.plug();
        machine.stage(&again, &staging).await.unwrap();
        assert_eq!(mounts_at(&staging), 1);
        let number = again.number();
        assert_eq!(device_at(&staging), number);
        assert_eq!(fs::read_to_string(staging.join("kept")).unwrap(), "kept");
        drop(held);
        machine.unstage(&again, &staging).await.unwrap();
    });
}

#[test]
fn b59_a_raw_volume_is_the_disk_itself() {
    with_machine("b59_a_raw_volume_is_the_disk_itself", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("volumeDevices");
        let request = |name: &str| {
            let mut request = publish_request(&disk, &staging, &machine.path(name));
            request.volume_capability = Some(block_capability());
            request
        };
        let target = machine.path("target");
        let digest = disk.digest();
        machine
            .stage_as(&disk, &staging, block_capability())
            .await
            .unwrap();
        for _ in 0..2 {
            machine.publish(request("target")).await.unwrap();
            assert_eq!(mounts_at(&target), 1);
        }
        assert_eq!(disk.digest(), digest, "nothing is written on a raw volume");
        assert!(!staging.exists());
        let size = machine.stats(&disk, &target).await.unwrap();
        assert_eq!(
            size.usage.first().unwrap().total,
            i64::try_from(disk.size).unwrap()
        );
        fs::File::options().write(true).open(&target).unwrap();

        // Read-only concerns the whole device.
        let mut reader = request("reader");
        reader.readonly = true;
        let refused = machine.publish(reader.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        for _ in 0..2 {
            machine.unpublish(&disk, &target).await.unwrap();
            assert!(!target.exists());
        }
        machine.publish(reader).await.unwrap();
        assert!(fs::write(machine.path("reader"), "x").is_err());
        machine
            .unpublish(&disk, &machine.path("reader"))
            .await
            .unwrap();
        let switched = run("blockdev", &["--getro", disk.node.to_str().unwrap()]);
        assert_eq!(switched.stdout, b"0\n");
        machine.publish(request("target")).await.unwrap();
        fs::File::options().write(true).open(&target).unwrap();
        machine.unpublish(&disk, &target).await.unwrap();

        fs::create_dir(&target).unwrap();
        let refused = machine.publish(request("target")).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        machine.unstage(&disk, &staging).await.unwrap();
    });
}
