//! Taking a volume away: only what is its own, and only once nothing has it any more.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tonic::Code;

use crate::machine::{MIB, mounts_at, run, with_machine};

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";

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
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, left) = (machine.path("staging"), machine.path("left"));
        machine.stage(&disk, &staging).await.unwrap();
        fs::create_dir_all(staging.join("sub")).unwrap();
        fs::create_dir(&left).unwrap();
        let (sub, at) = (staging.join("sub"), left.to_str().unwrap());
        run("mount", &["--bind", sub.to_str().unwrap(), at]);
        let error = machine.unstage(&disk, &staging).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.message().contains(at), "{error}");
        run("umount", &[at]);
        machine.unstage(&disk, &staging).await.unwrap();
    });
}
