//! What the plugin formats on real devices, what it mounts, and what it leaves alone.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::disk::{Disk, MARK_FROM_END};
use crate::machine::{MIB, Machine, mounts_at, publish_request, run, stage_request, with_machine};
use tonic::Code;

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
const SIZE: u64 = 64 * MIB;
/// Where the mark lies that formatting had begun.
const MARK: u64 = SIZE - MARK_FROM_END;

async fn assert_refused(machine: &Machine, disk: &Disk, what: &str) {
    let staging = machine.path("staging");
    let digest = disk.digest();
    let error = machine.stage(disk, &staging).await.expect_err(what);
    assert_eq!(error.code(), Code::FailedPrecondition, "{what}: {error}");
    assert_eq!((disk.digest(), mounts_at(&staging)), (digest, 0), "{what}");
}

#[test]
fn b50_a_disk_with_anything_on_it_is_never_formatted() {
    with_machine("b50_a_disk_with_anything_on_it", async |machine| {
        let contents: [(&str, u64, &[u8]); 12] = [
            ("one byte at the beginning", 0, b"\x01"),
            ("one byte in the boot block", 1023, b"\x01"),
            ("garbage in the first MiB", 700_000, b"garbage"),
            ("one byte at the very end", SIZE - 1, b"\x01"),
            ("garbage near the end", SIZE - 700_000, b"garbage"),
            ("a partition table", 510, b"\x55\xaa"),
            ("a GUID partition table", 512, b"EFI PART"),
            ("LUKS", 0, b"LUKS\xba\xbe\x00\x02"),
            (
                "an LVM label",
                512,
                b"LABELONE\x00\x00\x00\x00\x00\x00\x00\x00",
            ),
            ("XFS", 0, b"XFSB\x00\x00\x10\x00"),
            ("btrfs", 65600, b"_BHRfS_M"),
            (
                "the mark of another volume",
                MARK,
                b"pve-csi-node: ext4 is being made on 0x5, never mounted yet\n",
            ),
        ];
        for (index, (what, offset, bytes)) in contents.into_iter().enumerate() {
            let disk = machine.plugged(&format!("sd{index}"), VOLUME, SIZE);
            disk.write(offset, bytes);
            assert_refused(&machine, &disk, what).await;
            disk.unplug();
        }
    });
}

#[test]
fn b50_other_file_systems_and_broken_ones_are_left_alone() {
    with_machine("b50_other_file_systems", async |machine| {
        for kind in ["ext2", "ext3"] {
            let disk = machine.plugged(kind, VOLUME, SIZE);
            run(
                "mkfs.ext4",
                &["-q", "-t", kind, disk.node.to_str().unwrap()],
            );
            assert_refused(&machine, &disk, kind).await;
            disk.unplug();
        }
        let swap = machine.plugged("sdb", VOLUME, SIZE);
        run("mkswap", &[swap.node.to_str().unwrap()]);
        assert_refused(&machine, &swap, "swap").await;
        swap.unplug();

        // An ext4 that was made for a bigger disk.
        let cut = machine.plugged("sdc", VOLUME, SIZE);
        let big = machine.path("big.img");
        fs::File::create(&big).unwrap().set_len(2 * SIZE).unwrap();
        run("mkfs.ext4", &["-q", big.to_str().unwrap()]);
        let head = fs::read(&big).unwrap();
        cut.write(0, head.get(..usize::try_from(SIZE).unwrap()).unwrap());
        let staging = machine.path("staging");
        let error = machine.stage(&cut, &staging).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.message().contains("check by hand"), "{error}");
        assert_eq!(mounts_at(&staging), 0);
    });
}

#[test]
fn b50_a_disk_that_cannot_be_read_is_not_blank() {
    with_machine("b50_a_disk_that_cannot_be_read", async |machine| {
        let staging = machine.path("staging");
        for (name, left) in [("sdb", 0), ("sdc", 48 * MIB), ("sdd", SIZE - 4096)] {
            let disk = machine.plugged(name, VOLUME, SIZE);
            // Reads beyond the end of the backing file are I/O errors.
            fs::File::options()
                .write(true)
                .open(&disk.backing)
                .unwrap()
                .set_len(left)
                .unwrap();
            let error = machine.stage(&disk, &staging).await.unwrap_err();
            assert_eq!(error.code(), Code::Internal, "{left}: {error}");
            assert_eq!(mounts_at(&staging), 0);
            assert_eq!(fs::metadata(&disk.backing).unwrap().len(), left);
            assert!(
                disk.read(0, usize::try_from(left.min(2 * MIB)).unwrap())
                    .iter()
                    .all(|b| *b == 0)
            );
            disk.unplug();
        }
    });
}

#[test]
fn formatting_that_was_interrupted_is_done_again() {
    with_machine("formatting_that_was_interrupted", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, SIZE);
        let staging = machine.path("staging");
        // As a killed mkfs leaves it: inode tables, and no superblock yet.
        disk.write(MIB, b"half an inode table");
        assert_refused(&machine, &disk, "no mark").await;
        let mark = disk.mark();
        disk.write(MARK, &mark);
        machine.stage(&disk, &staging).await.unwrap();
        fs::write(staging.join("kept"), "kept").unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
        assert!(
            disk.read(MARK, 4096).iter().all(|byte| *byte == 0),
            "the mark goes before the first mount"
        );

        // mkfs was done, the plugin died before it mounted.
        disk.write(MARK, &mark);
        machine.stage(&disk, &staging).await.unwrap();
        assert_eq!(fs::read_to_string(staging.join("kept")).unwrap(), "kept");
        machine.unstage(&disk, &staging).await.unwrap();
        assert!(disk.read(MARK, 4096).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_machine_that_died_while_formatting_leaves_nothing_to_do_by_hand() {
    with_machine("a_machine_that_died_while_formatting", async |machine| {
        let staging = machine.path("staging");
        // What had not reached the medium: offset, length.
        let lost: [(&str, u64, usize); 4] = [
            ("group descriptors", 4096, 4096),
            ("bitmaps and inode tables", 8192, 4 << 20),
            ("a backup", 32 << 20, 1 << 20),
            ("all but the superblock", 4096, 48 << 20),
        ];
        for (index, (what, offset, length)) in lost.into_iter().enumerate() {
            let disk = machine.plugged(&format!("sd{index}"), VOLUME, SIZE);
            let node = disk.node.to_str().unwrap();
            run("mkfs.ext4", &["-q", "-b4096", "-E", "nodiscard", node]);
            disk.write(offset, &vec![0; length]);
            if index == 0 {
                // Without the mark it may be somebody's data.
                let error = machine.stage(&disk, &staging).await.unwrap_err();
                assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
                disk.write(offset, &vec![0; length]);
            }
            disk.write(MARK, &disk.mark());
            if let Err(error) = machine.stage(&disk, &staging).await {
                panic!("{what}: {error}");
            }
            fs::write(staging.join("x"), "x").unwrap();
            machine.unstage(&disk, &staging).await.unwrap();
            assert!(
                disk.read(MARK, 4096).iter().all(|byte| *byte == 0),
                "{what}"
            );
            disk.unplug();
        }
    });
}

#[test]
fn whenever_mkfs_is_killed_the_volume_can_be_staged_afterwards() {
    with_machine("whenever_mkfs_is_killed", async |machine| {
        let size = 1024 * MIB;
        for (index, delay) in [2, 5, 10, 20, 40, 80].into_iter().enumerate() {
            let disk = machine.plugged(&format!("sd{index}"), VOLUME, size);
            disk.write(disk.mark_at(), &disk.mark());
            let mut mkfs = Command::new("mkfs.ext4")
                .args(["-q", "-m0", "-E", "nodiscard"])
                .arg(&disk.node)
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            tokio::time::sleep(Duration::from_millis(delay)).await;
            mkfs.kill().unwrap();
            mkfs.wait().unwrap();
            let staging = machine.path("staging");
            machine.stage(&disk, &staging).await.unwrap();
            fs::write(staging.join("x"), "x").unwrap();
            machine.unstage(&disk, &staging).await.unwrap();
            disk.unplug();
        }
    });
}

#[test]
fn b55_a_file_system_that_stopped_writing_is_told_and_repaired() {
    with_machine("b55_a_file_system_that_stopped_writing", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, SIZE);
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        machine.stage(&disk, &staging).await.unwrap();
        fs::write(staging.join("kept"), "kept").unwrap();
        // What is not yet in the journal is lost by the error.
        run("sync", &["-f", staging.to_str().unwrap()]);
        let name = disk.loop_device().file_name().unwrap().to_str().unwrap();
        fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "test").unwrap();

        let told = machine.stats(&disk, &staging).await.unwrap();
        assert!(told.volume_condition.unwrap().abnormal);
        let request = publish_request(&disk, &staging, &target);
        let refused = machine.publish(request.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        machine.stage(&disk, &staging).await.unwrap();
        machine.publish(request).await.unwrap();
        fs::write(target.join("again"), "again").unwrap();
        assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "kept");
        machine.unpublish(&disk, &target).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn a_stage_never_disturbs_what_uses_the_disk() {
    with_machine("a_stage_never_disturbs", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, SIZE);
        let held = {
            use std::os::unix::fs::OpenOptionsExt;
            let exclusive = nix::fcntl::OFlag::O_EXCL.bits();
            fs::File::options()
                .read(true)
                .custom_flags(exclusive)
                .open(&disk.node)
                .unwrap()
        };
        assert_refused(&machine, &disk, "in use").await;
        drop(held);
        machine
            .stage(&disk, &machine.path("staging"))
            .await
            .unwrap();
        machine
            .unstage(&disk, &machine.path("staging"))
            .await
            .unwrap();
    });
}

#[test]
fn parameters_reach_mkfs() {
    with_machine("parameters_reach_mkfs", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, SIZE);
        let staging = machine.path("staging");
        let request = csi_proto::csi::v1::NodeStageVolumeRequest {
            volume_context: [
                ("blockSize".to_owned(), "2048".to_owned()),
                ("inodeSize".to_owned(), "512".to_owned()),
            ]
            .into(),
            ..stage_request(&disk, &staging)
        };
        machine.node().node_stage_volume(request).await.unwrap();
        let said = run("dumpe2fs", &["-h", disk.node.to_str().unwrap()]);
        let said = String::from_utf8(said.stdout).unwrap();
        let value = |key: &str| {
            let line = said.lines().find(|line| line.starts_with(key)).unwrap();
            line.rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!(
            (value("Block size:"), value("Inode size:")),
            ("2048".to_owned(), "512".to_owned())
        );
        assert_eq!(value("Reserved block count:"), "0");
        machine.unstage(&disk, &staging).await.unwrap();
    });
}
