//! Disks of the machine: loop devices with the sysfs of a SCSI disk.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::stat::{Mode as FileMode, SFlag, makedev, mknod};
use pve_model::wwn::Wwn;

use crate::machine::run;

/// Distance of the mark from the end of a disk.
pub(crate) const MARK_FROM_END: u64 = 512 << 10;

/// A disk that is plugged into the machine.
pub(crate) struct Disk {
    pub(crate) handle: String,
    pub(crate) wwn: Wwn,
    pub(crate) size: u64,
    /// The former driver says none.
    pub(crate) says_size: bool,
    pub(crate) backing: PathBuf,
    pub(crate) node: PathBuf,
    pub(crate) sysfs: PathBuf,
    pub(crate) device: Loop,
}

pub(crate) struct Loop(PathBuf);

impl Drop for Loop {
    fn drop(&mut self) {
        // Its read-only switch would outlast it.
        drop(
            Command::new("blockdev")
                .arg("--setrw")
                .arg(&self.0)
                .output(),
        );
        // A device that is mounted yet goes with its last user.
        drop(Command::new("losetup").arg("-d").arg(&self.0).output());
    }
}

impl Disk {
    /// Makes it appear.
    pub(crate) fn plug(&self) {
        let rdev = fs::metadata(&self.device.0).unwrap().rdev();
        let (major, minor) = (nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
        if !self.node.exists() {
            mknod(
                &self.node,
                SFlag::S_IFBLK,
                FileMode::S_IRWXU,
                makedev(major, minor),
            )
            .unwrap();
        }
        fs::create_dir_all(self.sysfs.join("device")).unwrap();
        fs::write(self.sysfs.join("device/wwid"), self.wwn.sysfs_wwid() + "\n").unwrap();
        let real = Path::new("/sys/block").join(self.device.0.file_name().unwrap());
        for name in ["size", "ro", "holders", "queue"] {
            symlink(real.join(name), self.sysfs.join(name)).unwrap();
        }
        fs::write(self.sysfs.join("dev"), self.number() + "\n").unwrap();
    }

    /// `major:minor`.
    pub(crate) fn number(&self) -> String {
        let rdev = fs::metadata(&self.device.0).unwrap().rdev();
        let (major, minor) = (nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
        format!("{major}:{minor}")
    }

    /// Makes it disappear from view; what uses it keeps it.
    pub(crate) fn unplug(&self) {
        fs::remove_dir_all(&self.sysfs).unwrap();
        fs::remove_file(&self.node).unwrap();
    }

    /// Gives it another name, before it is plugged.
    pub(crate) fn named(mut self, wwn: Wwn) -> Self {
        self.wwn = wwn;
        self
    }

    /// What the controller hands over.
    pub(crate) fn context(&self) -> HashMap<String, String> {
        let mut context = HashMap::from([
            ("DevicePath".to_owned(), self.wwn.by_id_path()),
            ("lun".to_owned(), "1".to_owned()),
        ]);
        if self.says_size {
            context.insert("size".to_owned(), self.size.to_string());
        }
        context
    }

    /// What says on it that formatting has begun.
    pub(crate) fn mark(&self) -> Vec<u8> {
        let text = format!(
            "pve-csi-node: ext4 is being made on {}, never mounted yet\n",
            self.wwn
        );
        let mut mark = text.into_bytes();
        mark.resize(4096, 0);
        mark
    }

    /// Where it lies.
    pub(crate) fn mark_at(&self) -> u64 {
        self.size - MARK_FROM_END
    }

    /// The loop device itself.
    pub(crate) fn loop_device(&self) -> &Path {
        &self.device.0
    }

    /// `size` bytes of its content.
    pub(crate) fn read(&self, offset: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        fs::File::open(&self.backing)
            .unwrap()
            .read_exact_at(&mut bytes, offset)
            .unwrap();
        bytes
    }

    /// Writes into its content.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let file = fs::File::options().write(true).open(&self.node).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        file.sync_all().unwrap();
    }

    /// A fingerprint of all its content.
    pub(crate) fn digest(&self) -> String {
        let output = run("sha256sum", &[self.backing.to_str().unwrap()]);
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Programs that ask for a free device at the same time are told the same one, and only one gets it.
pub(crate) fn attach(backing: &Path) -> Loop {
    for _ in 0..50 {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(backing)
            .output()
            .unwrap();
        if output.status.success() {
            return Loop(String::from_utf8(output.stdout).unwrap().trim().into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no free loop device");
}
