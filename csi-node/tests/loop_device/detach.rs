//! Taking a volume away: only what is its own, and only once nothing has it any more.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tonic::Code;

use crate::machine::{MIB, block_capability, mounts_at, publish_request, run, with_machine};

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
const OTHER: &str = "r1/pve1/local-lvm/vm-9999-pvc-2";

/// A process with a copy of our mounts of its own, as a container that started just now.
struct Container(Child);

impl Container {
    async fn start() -> Self {
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sleep", "60"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let program = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&program).unwrap().trim() != "sleep" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self(child)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_volume_that_a_container_still_has_is_written_out_and_not_given_away() {
    with_machine("a_volume_that_a_container_still_has", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        machine.stage(&disk, &staging).await.unwrap();
        let container = Container::start().await;
        let text = "written and never flushed by its program";
        fs::write(staging.join("file"), text).unwrap();
        for _ in 0..2 {
            let error = machine.unstage(&disk, &staging).await.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert_eq!(mounts_at(&staging), 0);
        }
        let medium = disk.read(0, usize::try_from(disk.size).unwrap());
        let found = medium
            .windows(text.len())
            .any(|window| window == text.as_bytes());
        assert!(found, "it is on the medium");
        drop(container);
        let mut last = machine.unstage(&disk, &staging).await;
        // The kernel takes the mounts of a process down a moment after its end.
        for _ in 0..100 {
            if last.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            last = machine.unstage(&disk, &staging).await;
        }
        last.unwrap();
    });
}

#[test]
fn a_mount_that_was_left_behind_is_named() {
    with_machine("a_mount_that_was_left_behind", async |machine| {
        // Only the mount says which disk it is.
        let slot = "0x5056432d49443031".parse().unwrap();
        let disk = machine.disk("sdb", VOLUME, 64 * MIB).named(slot);
        disk.plug();
        let (staging, left) = (machine.path("staging"), machine.path("left"));
        machine.stage(&disk, &staging).await.unwrap();
        fs::create_dir_all(staging.join("sub")).unwrap();
        fs::create_dir(&left).unwrap();
        let (sub, at) = (staging.join("sub"), left.to_str().unwrap());
        run("mount", &["--bind", sub.to_str().unwrap(), at]);
        for _ in 0..2 {
            let error = machine.unstage(&disk, &staging).await.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(error.message().contains(at), "{error}");
        }
        run("umount", &[at]);
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn b53_what_is_not_the_volumes_is_not_taken_away() {
    with_machine("b53_what_is_not_the_volumes", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let kept = async |what: &str, path: &Path| {
            for answer in [
                machine.unstage(&disk, path).await,
                machine.unpublish(&disk, path).await,
            ] {
                let error = answer.expect_err(what);
                assert_eq!(error.code(), Code::FailedPrecondition, "{what}: {error}");
            }
            assert_eq!(mounts_at(path), 1, "{what}");
        };
        let foreign = machine.path("foreign");
        fs::create_dir(&foreign).unwrap();
        run("mount", &["-t", "tmpfs", "none", foreign.to_str().unwrap()]);
        kept("tmpfs", &foreign).await;

        let other = machine.plugged("sdc", OTHER, 64 * MIB);
        let staging = machine.path("staging");
        machine.stage(&other, &staging).await.unwrap();
        kept("another volume", &staging).await;
        let target = machine.path("target");
        let request = publish_request(&other, &staging, &target);
        machine.publish(request).await.unwrap();
        kept("another volume that is published", &staging).await;
        kept("where another volume is published", &target).await;
        machine.unpublish(&other, &target).await.unwrap();
        // A partition is no disk of sysfs' list, and is there nevertheless.
        other.unplug();
        let devices = machine.path("sys/dev/block");
        fs::create_dir_all(devices.join(other.number())).unwrap();
        kept("a device that is no whole disk", &staging).await;
        fs::remove_dir_all(&devices).unwrap();
        machine.unstage(&other, &staging).await.unwrap();

        let raw = machine.path("raw");
        other.plug();
        let mut request = publish_request(&other, &staging, &raw);
        request.volume_capability = Some(block_capability());
        machine.publish(request).await.unwrap();
        kept("another raw volume", &raw).await;
        machine.unpublish(&other, &raw).await.unwrap();
    });
}

#[test]
fn paths_outside_the_kubelets_directory_are_refused() {
    with_machine("paths_outside_the_kubelets_directory", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        machine.stage(&disk, &staging).await.unwrap();
        let outside = tempfile::tempdir().unwrap();
        let empty = outside.path().join("empty");
        fs::create_dir(&empty).unwrap();
        let link = machine.path("link");
        symlink(outside.path(), &link).unwrap();
        for path in [
            empty.clone(),
            outside.path().join("missing/deep"),
            link.join("empty"),
            link.join("missing"),
            machine.path(""),
        ] {
            let mut request = publish_request(&disk, &staging, &path);
            let mut answers = vec![
                machine.stage(&disk, &path).await,
                machine.unstage(&disk, &path).await,
                machine.publish(request.clone()).await,
                machine.unpublish(&disk, &path).await,
            ];
            request.volume_capability = Some(block_capability());
            answers.push(machine.publish(request).await);
            for answer in answers {
                let error = answer.expect_err(&path.display().to_string());
                assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
            }
        }
        assert!(empty.is_dir() && !outside.path().join("missing").exists());
        // A link that stays inside is only another way to write a path.
        let inside = machine.path("inside");
        symlink(machine.path("kubelet"), &inside).unwrap();
        let target = inside.join("target");
        machine
            .publish(publish_request(&disk, &staging, &target))
            .await
            .unwrap();
        assert_eq!(mounts_at(&machine.path("kubelet/target")), 1);
        machine.unpublish(&disk, &target).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn b40_what_is_left_of_a_disk_that_was_torn_out_stands_in_nobodys_way() {
    with_machine("b40_what_is_left_of_a_disk", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, left) = (machine.path("staging"), machine.path("left"));
        machine.stage(&disk, &staging).await.unwrap();
        fs::create_dir(&left).unwrap();
        let (from, to) = (staging.to_str().unwrap(), left.to_str().unwrap());
        run("mount", &["--bind", from, to]);
        assert!(machine.unstage(&disk, &staging).await.is_err());
        disk.unplug();
        machine.unstage(&disk, &staging).await.unwrap();
        assert_eq!(mounts_at(&staging), 0);
        run("umount", &[to]);
        // Sysfs shows it yet, and its device node is no more.
        disk.plug();
        fs::remove_file(&disk.node).unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}
