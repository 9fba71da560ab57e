//! Growing a volume on real devices while it is used.
//!
//! A kernel grows a mounted ext4 only for who has `CAP_SYS_RESOURCE`. Where that is missing a script stands in for
//! resize2fs, which takes the mounts away for as long as the real one grows the file system; the rest is as it is.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use csi_proto::csi::v1::{CapacityRange, NodeExpandVolumeRequest};
use tonic::{Code, Status};

use crate::disk::Disk;
use crate::machine::{
    MIB, Machine, block_capability, mounts_at, publish_request, run, stage_request, with_machine,
};

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";

async fn expand(machine: &Machine, disk: &Disk, path: &Path, size: u64) -> Result<u64, Status> {
    let request = NodeExpandVolumeRequest {
        volume_id: disk.handle.clone(),
        volume_path: path.display().to_string(),
        capacity_range: Some(CapacityRange {
            required_bytes: i64::try_from(size).unwrap(),
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let answer = machine.node().node_expand_volume(request).await?;
    Ok(u64::try_from(answer.into_inner().capacity_bytes).unwrap())
}

/// Grows what is behind the disk. The kernel does not know of it before it is asked to look.
fn grow(disk: &Disk, size: u64) {
    let file = fs::File::options().write(true).open(&disk.backing);
    file.unwrap().set_len(size).unwrap();
}

fn kernel_looks_again(disk: &Disk) {
    run("losetup", &["-c", disk.loop_device().to_str().unwrap()]);
}

/// The switch by which a SCSI disk is asked for its size: a pipe, behind which the loop device is asked.
struct Rescan(PathBuf);

impl Rescan {
    fn of(disk: &Disk) -> Self {
        let switch = disk.sysfs.join("device/rescan");
        nix::unistd::mkfifo(&switch, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (pipe, device) = (switch.clone(), disk.loop_device().to_owned());
        thread::spawn(move || {
            loop {
                let mut said = String::new();
                let mut end = fs::File::open(&pipe).unwrap();
                end.read_to_string(&mut said).unwrap();
                match said.as_str() {
                    "1" => drop(run("losetup", &["-c", device.to_str().unwrap()])),
                    _ => return,
                }
            }
        });
        Self(switch)
    }
}

impl Drop for Rescan {
    fn drop(&mut self) {
        let nobody = nix::fcntl::OFlag::O_NONBLOCK.bits();
        let switch = fs::File::options()
            .write(true)
            .custom_flags(nobody)
            .open(&self.0);
        if let Ok(mut switch) = switch {
            std::io::Write::write_all(&mut switch, b"end").unwrap();
        }
    }
}

/// Whether this machine lets its root grow a mounted ext4.
fn may_grow_mounted() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
    bits & (1 << 24) != 0
}

/// Lets resize2fs do its work on a volume that is staged, and published if there is a target.
fn let_it_grow(machine: &Machine, staging: &Path, target: Option<&Path>) {
    if may_grow_mounted() {
        return machine.interpose_nothing();
    }
    let staging = staging.display();
    let (away, back) = target.map(Path::display).map_or_else(
        || (String::new(), String::new()),
        |target| {
            let back = format!("mount --bind {staging} {target}\n");
            (format!("umount {target}\n"), back)
        },
    );
    let script = format!(
        "{away}umount {staging}\ne2fsck -fp \"$disk\" || [ $? = 1 ]\nreal \"$@\"\nmount \"$disk\" {staging}\n{back}"
    );
    machine.interpose("resize2fs", &script);
}

/// Length of the ext4 on a disk, as dumpe2fs reads it.
fn length_of_ext4(disk: &Disk) -> u64 {
    let said = run("dumpe2fs", &["-h", disk.node.to_str().unwrap()]);
    let said = String::from_utf8(said.stdout).unwrap();
    let value = |key: &str| -> u64 {
        let line = said.lines().find(|line| line.starts_with(key)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    value("Block count:") * value("Block size:")
}

#[test]
fn b62_a_file_system_grows_at_the_place_of_a_pod_and_once_only() {
    with_machine("b62_a_file_system_grows", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        machine.stage(&disk, &staging).await.unwrap();
        let request = publish_request(&disk, &staging, &target);
        machine.publish(request).await.unwrap();
        fs::write(target.join("kept"), "kept").unwrap();
        let rescan = Rescan::of(&disk);
        let_it_grow(&machine, &staging, Some(&target));
        for (path, size) in [(&target, 256 * MIB), (&staging, 512 * MIB)] {
            grow(&disk, size);
            let answer = expand(&machine, &disk, path, size).await.unwrap();
            assert_eq!((answer, length_of_ext4(&disk)), (size, size));
        }
        assert_eq!((mounts_at(&staging), mounts_at(&target)), (1, 1));
        assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "kept");
        let stats = machine.stats(&disk, &target).await.unwrap();
        assert!(stats.usage.first().unwrap().total > 400 << 20);
        // What is done is not done again.
        machine.interpose("resize2fs", "exit 9\n");
        for path in [&target, &staging] {
            let again = expand(&machine, &disk, path, 512 * MIB).await.unwrap();
            assert_eq!(again, 512 * MIB);
            let smaller = expand(&machine, &disk, path, 64 * MIB).await.unwrap();
            assert_eq!(smaller, 512 * MIB);
        }
        drop(rescan);
        machine.unpublish(&disk, &target).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
        run("e2fsck", &["-fn", disk.node.to_str().unwrap()]);
    });
}

#[test]
fn b62_a_program_that_cannot_grow_it_is_told_and_the_volume_stays_in_use() {
    with_machine("b62_a_program_that_cannot_grow_it", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        machine.stage(&disk, &staging).await.unwrap();
        grow(&disk, 128 * MIB);
        kernel_looks_again(&disk);
        let cases = [
            (
                "echo 'No space for it' >&2\nexit 1\n",
                Code::Internal,
                "No space for it",
            ),
            ("exit 0\n", Code::Unavailable, "64 MiB of 128 MiB"),
        ];
        for (script, code, said) in cases {
            machine.interpose("resize2fs", script);
            let error = expand(&machine, &disk, &staging, 128 * MIB)
                .await
                .unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(error.message().contains(said), "{error}");
            fs::write(staging.join("x"), "x").unwrap();
        }
        machine.interpose_nothing();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn b62_a_raw_volume_has_grown_when_the_kernel_knows() {
    with_machine("b62_a_raw_volume_has_grown", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        let mut request = publish_request(&disk, &staging, &target);
        request.volume_capability = Some(block_capability());
        machine.publish(request).await.unwrap();
        disk.write(0, b"somebody's");
        let rescan = Rescan::of(&disk);
        for size in [64 * MIB, 96 * MIB, 96 * MIB] {
            grow(&disk, size);
            let answer = expand(&machine, &disk, &target, size).await.unwrap();
            assert_eq!(answer, size);
            let known = run("blockdev", &["--getsize64", target.to_str().unwrap()]);
            assert_eq!(known.stdout, format!("{size}\n").into_bytes());
        }
        assert_eq!(disk.read(0, 10), b"somebody's");
        drop(rescan);
        machine.unpublish(&disk, &target).await.unwrap();
    });
}

#[test]
fn b62_a_disk_that_has_not_grown_is_waited_for_and_no_success() {
    with_machine("b62_a_disk_that_has_not_grown", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        machine.stage(&disk, &staging).await.unwrap();
        let_it_grow(&machine, &staging, None);
        let (late, busy) = tokio::join!(expand(&machine, &disk, &staging, 128 * MIB), async {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            let busy = expand(&machine, &disk, &staging, 128 * MIB).await;
            assert_eq!(length_of_ext4(&disk), 64 * MIB);
            grow(&disk, 128 * MIB);
            kernel_looks_again(&disk);
            busy
        });
        assert_eq!(busy.unwrap_err().code(), Code::Aborted);
        assert_eq!(late.unwrap(), 128 * MIB);
        assert_eq!(length_of_ext4(&disk), 128 * MIB);
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn b62_a_file_system_with_errors_is_left_as_it_is_until_it_is_staged_again() {
    with_machine("b62_a_file_system_with_errors", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        let name = disk.loop_device().file_name().unwrap().to_str().unwrap();
        let fault = format!("/sys/fs/ext4/{name}/trigger_fs_error");
        let mut size = 64 * MIB;
        for (option, why) in [
            ("errors=continue", "errors"),
            ("errors=remount-ro", "read-only"),
        ] {
            let mut request = stage_request(&disk, &staging);
            let capability = request.volume_capability.as_mut().unwrap();
            if let Some(csi_proto::csi::v1::volume_capability::AccessType::Mount(mount)) =
                capability.access_type.as_mut()
            {
                mount.mount_flags = vec![option.to_owned()];
            }
            machine
                .node()
                .node_stage_volume(request.clone())
                .await
                .unwrap();
            fs::write(&fault, "test").unwrap();
            grow(&disk, size * 2);
            kernel_looks_again(&disk);
            machine.interpose("resize2fs", "exit 9\n");
            let error = expand(&machine, &disk, &staging, size * 2)
                .await
                .unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
            assert!(error.message().contains(why), "{error}");
            assert_eq!(mounts_at(&staging), 1);
            size *= 2;
            // The next mount repairs it, and then it grows.
            machine.unstage(&disk, &staging).await.unwrap();
            machine.node().node_stage_volume(request).await.unwrap();
            let_it_grow(&machine, &staging, None);
            assert_eq!(expand(&machine, &disk, &staging, size).await.unwrap(), size);
            machine.unstage(&disk, &staging).await.unwrap();
        }
    });
}

#[test]
fn a_stage_leaves_the_growth_to_the_kubelet() {
    with_machine("a_stage_leaves_the_growth", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let staging = machine.path("staging");
        machine.stage(&disk, &staging).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
        grow(&disk, 128 * MIB);
        kernel_looks_again(&disk);
        machine.stage(&disk, &staging).await.unwrap();
        assert_eq!(length_of_ext4(&disk), 64 * MIB);
        let_it_grow(&machine, &staging, None);
        let size = expand(&machine, &disk, &staging, 128 * MIB).await.unwrap();
        assert_eq!((size, length_of_ext4(&disk)), (128 * MIB, 128 * MIB));
        machine.unstage(&disk, &staging).await.unwrap();
    });
}
