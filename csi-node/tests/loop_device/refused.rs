//! Devices, paths and mounts that are not right: each is refused and left as it is.

use std::fs;
use std::path::Path;

use tonic::Code;

use crate::machine::{MIB, block_capability, mounts_at, publish_request, run, with_machine};

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
const OTHER: &str = "r1/pve1/local-lvm/vm-9999-pvc-2";

#[test]
fn b09_a_device_that_is_not_surely_the_volumes_is_refused() {
    with_machine("b09_a_device_that_is_not_surely", async |machine| {
        let staging = machine.path("staging");
        let refused = async |disk: &crate::disk::Disk| {
            let digest = disk.digest();
            let error = machine.stage(disk, &staging).await.unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
            assert_eq!((disk.digest(), mounts_at(&staging)), (digest, 0));
        };
        // A disk that is smaller than the volume.
        let mut small = machine.plugged("sdb", VOLUME, 32 * MIB);
        small.size = 64 * MIB;
        refused(&small).await;
        // Two disks of one name.
        let twin = machine.plugged("sdc", VOLUME, 64 * MIB);
        refused(&twin).await;
        small.unplug();
        // The name of a slot, in which another volume sits by now.
        let slot = "0x5056432d49443031".parse().unwrap();
        let mut stale = machine.disk("sdd", OTHER, 64 * MIB).named(slot);
        stale.plug();
        stale.size = 32 * MIB;
        refused(&stale).await;
        // A context of another volume.
        let mut swapped = machine.disk("sde", OTHER, 64 * MIB);
        swapped.wwn = twin.wwn;
        refused(&swapped).await;
        // A device node of another disk.
        let moved = machine.plugged("sdf", "r1/pve1/local-lvm/vm-9999-pvc-6", 64 * MIB);
        fs::rename(&twin.node, &moved.node).unwrap();
        let error = machine.stage(&moved, &staging).await.unwrap_err();
        assert_eq!(error.code(), Code::Internal, "{error}");
        // A slot's name is honoured while its size fits.
        stale.size = 64 * MIB;
        machine.stage(&stale, &staging).await.unwrap();
        machine.unstage(&stale, &staging).await.unwrap();
    });
}

#[test]
fn b09_a_slots_name_alone_neither_formats_a_disk_nor_hands_it_out_raw() {
    with_machine("b09_a_slots_name_alone", async |machine| {
        let staging = machine.path("staging");
        let slot = "0x5056432d49443031".parse().unwrap();
        let mut disk = machine.disk("sdb", VOLUME, 64 * MIB).named(slot);
        disk.says_size = false;
        disk.plug();
        let refused = async |what: &str| {
            let digest = disk.digest();
            let error = machine.stage(&disk, &staging).await.expect_err(what);
            assert_eq!(error.code(), Code::FailedPrecondition, "{what}: {error}");
            assert_eq!((disk.digest(), mounts_at(&staging)), (digest, 0), "{what}");
        };
        refused("blank").await;
        disk.write(disk.mark_at(), &disk.mark());
        refused("being formatted").await;
        disk.write(disk.mark_at(), &[0; 4096]);
        let raw = block_capability();
        let error = machine.stage_as(&disk, &staging, raw).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        let mut request = publish_request(&disk, &staging, &machine.path("raw"));
        request.volume_capability = Some(block_capability());
        let error = machine.publish(request).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(!machine.path("raw").exists());
        // What the former driver had staged has its file system.
        run("mkfs.ext4", &["-q", disk.node.to_str().unwrap()]);
        machine.stage(&disk, &staging).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn b52_a_foreign_mount_is_neither_covered_nor_taken_for_ours() {
    with_machine("b52_a_foreign_mount", async |machine| {
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        let other = machine.plugged("sdb", OTHER, 64 * MIB);
        machine.stage(&other, &staging).await.unwrap();
        fs::write(staging.join("theirs"), "theirs").unwrap();

        let disk = machine.plugged("sdc", VOLUME, 64 * MIB);
        let digest = disk.digest();
        let refused = machine.stage(&disk, &staging).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let request = publish_request(&disk, &staging, &target);
        let refused = machine.publish(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!((disk.digest(), mounts_at(&staging)), (digest, 1));
        assert!(staging.join("theirs").exists() && !target.exists());

        // A volume that is mounted where we did not mount it.
        let elsewhere = machine.path("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        machine.unstage(&other, &staging).await.unwrap();
        run(
            "mount",
            &[other.node.to_str().unwrap(), elsewhere.to_str().unwrap()],
        );
        let refused = machine.stage(&other, &staging).await.unwrap_err();
        assert!(refused.message().contains("elsewhere"), "{refused}");
        run("umount", &[elsewhere.to_str().unwrap()]);

        // Stacked mounts all go.
        machine.stage(&other, &staging).await.unwrap();
        let path = staging.to_str().unwrap();
        run("mount", &["--bind", path, path]);
        assert_eq!(mounts_at(&staging), 2);
        machine.unstage(&other, &staging).await.unwrap();
        assert_eq!(mounts_at(&staging), 0);
    });
}

#[test]
fn b53_unstage_of_what_is_not_mounted_does_nothing() {
    with_machine("b53_unstage_of_what_is_not_mounted", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let containing = machine.path("containing");
        fs::create_dir(&containing).unwrap();
        run(
            "mount",
            &["-t", "tmpfs", "none", containing.to_str().unwrap()],
        );
        let plain = containing.join("plain");
        fs::create_dir(&plain).unwrap();
        fs::write(plain.join("kept"), "kept").unwrap();
        for path in [
            plain.clone(),
            containing.join("missing"),
            machine.path("no/parent"),
        ] {
            machine.unstage(&disk, &path).await.unwrap();
        }
        assert!(plain.join("kept").exists());
        assert_eq!(mounts_at(&containing), 1);
    });
}

#[test]
fn targets_that_are_something_else_are_refused_and_kept() {
    with_machine("targets_that_are_something_else", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        let target = machine.path("target");
        let refused = async |target: &Path| {
            let error = machine
                .publish(publish_request(&disk, &staging, target))
                .await
                .unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        };
        // Not staged.
        refused(&target).await;
        machine.stage(&disk, &staging).await.unwrap();
        fs::write(&target, "content").unwrap();
        refused(&target).await;
        let error = machine.unpublish(&disk, &target).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "content");
        // A link that leads elsewhere.
        let link = machine.path("link");
        std::os::unix::fs::symlink(&staging, &link).unwrap();
        refused(&link).await;
        assert!(machine.unpublish(&disk, &link).await.is_err());
        assert_eq!(mounts_at(&staging), 1);
        // Mounted by something else.
        let foreign = machine.path("foreign");
        fs::create_dir(&foreign).unwrap();
        run("mount", &["-t", "tmpfs", "none", foreign.to_str().unwrap()]);
        refused(&foreign).await;
        assert_eq!(mounts_at(&foreign), 1);
        // A directory with content that is no mount is neither covered nor deleted.
        let full = machine.path("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("kept"), "kept").unwrap();
        refused(&full).await;
        let other = machine.plugged("sdc", OTHER, 64 * MIB);
        let error = machine.stage(&other, &full).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert_eq!(mounts_at(&full), 0);
        assert!(machine.unpublish(&disk, &full).await.is_err());
        assert!(full.join("kept").exists());
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn statistics_are_only_given_of_the_volume_at_its_place() {
    with_machine("statistics_are_only_given", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let other = machine.plugged("sdc", OTHER, 64 * MIB);
        let staging = machine.path("staging");
        let code = async |disk, path: &Path| machine.stats(disk, path).await.unwrap_err().code();
        assert_eq!(code(&disk, &staging).await, Code::NotFound);
        machine.stage(&disk, &staging).await.unwrap();
        assert_eq!(code(&other, &staging).await, Code::NotFound);
        assert_eq!(code(&disk, &machine.path("sys")).await, Code::NotFound);
        disk.unplug();
        let gone = machine.stats(&disk, &staging).await.unwrap();
        assert!(gone.volume_condition.unwrap().abnormal && gone.usage.is_empty());
        // What remains of a disk that was torn out can be taken away.
        let held = fs::File::open(&staging).unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
        assert_eq!(mounts_at(&staging), 0);
        drop(held);
    });
}
