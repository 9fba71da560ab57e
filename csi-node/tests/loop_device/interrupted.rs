//! What happens between the steps of a Stage: the order in which they are done, and what changes under them.

use std::fs;
use std::time::Duration;

use tonic::Code;

use crate::machine::{MIB, mounts_at, run, stage_request, with_machine};

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";

#[test]
fn the_mark_is_on_the_medium_before_mkfs_begins() {
    with_machine("the_mark_is_on_the_medium", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        let (seen, block) = (machine.path("seen"), disk.mark_at() / 4096);
        let script = format!(
            "dd if=\"$disk\" of={} bs=4096 count=1 skip={block} iflag=direct status=none\nreal \"$@\"\n",
            seen.display()
        );
        machine.interpose("mkfs.ext4", &script);
        machine.stage(&disk, &staging).await.unwrap();
        assert!(fs::read(&seen).unwrap() == disk.mark());
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn a_plugin_that_is_killed_in_mkfs_formats_when_it_is_back() {
    with_machine("a_plugin_that_is_killed_in_mkfs", async |mut machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, pid) = (machine.path("staging"), machine.path("pid"));
        let script = format!(
            "printf 'half an inode table' | dd of=\"$disk\" bs=1M seek=1 conv=fsync status=none\n\
             echo $$ > {0}.new\nmv {0}.new {0}\nexec sleep 60\n",
            pid.display()
        );
        machine.interpose("mkfs.ext4", &script);
        let (mut node, request) = (machine.node(), stage_request(&disk, &staging));
        let staging_it = tokio::spawn(async move { node.node_stage_volume(request).await });
        for _ in 0..500 {
            if pid.exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        machine.kill();
        assert!(staging_it.await.unwrap().is_err());
        let mkfs: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let mkfs = nix::unistd::Pid::from_raw(mkfs);
        nix::sys::signal::kill(mkfs, nix::sys::signal::Signal::SIGKILL).unwrap();
        machine.interpose_nothing();
        machine.restart().await;
        machine.stage(&disk, &staging).await.unwrap();
        fs::write(staging.join("x"), "x").unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn b09_a_disk_that_is_exchanged_meanwhile_is_neither_formatted_nor_mounted() {
    with_machine("b09_a_disk_that_is_exchanged_meanwhile", async |machine| {
        let staging = machine.path("staging");
        // During the look at its content: nothing has been written.
        let blank = machine.plugged("sdb", VOLUME, 64 * MIB);
        let digest = blank.digest();
        let exchange = |disk: &crate::disk::Disk| {
            format!(
                "real \"$@\" || code=$?\necho 7:4095 > {}\nexit ${{code:-0}}\n",
                disk.sysfs.join("dev").display()
            )
        };
        machine.interpose("blkid", &exchange(&blank));
        let error = machine.stage(&blank, &staging).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert_eq!((blank.digest(), mounts_at(&staging)), (digest, 0));
        machine.interpose_nothing();
        blank.unplug();
        // While it is formatted, and while it is checked: it is not mounted, and the mark stays.
        for (name, tool) in [("sdc", "mkfs.ext4"), ("sdd", "e2fsck")] {
            let disk = machine.plugged(name, VOLUME, 64 * MIB);
            if tool == "e2fsck" {
                run("mkfs.ext4", &["-q", disk.node.to_str().unwrap()]);
                disk.write(disk.mark_at(), &disk.mark());
            }
            machine.interpose(tool, &exchange(&disk));
            let error = machine.stage(&disk, &staging).await.unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{tool}: {error}");
            assert_eq!(mounts_at(&staging), 0, "{tool}");
            assert!(disk.read(disk.mark_at(), 4096) == disk.mark(), "{tool}");
            machine.interpose_nothing();
            disk.unplug();
        }
    });
}
