//! Real bytes and real block devices: a volume is a sparse file, a plugged disk is a loop device on it that is shown to the "guest"
//! in a tree of its own (`guest_tree`). Needs root and `losetup` of util-linux.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::guest_tree::{self, GuestDisk, GuestTree};
use super::{Backing, Hardware};
use crate::state::{Device, VmNumber};

/// A disk that a guest has.
#[derive(Debug)]
struct Plugged {
    loop_device: PathBuf,
    disk: GuestDisk,
}

#[derive(Debug)]
pub(crate) struct LoopHardware {
    run_dir: PathBuf,
    plugged: Mutex<BTreeMap<(VmNumber, String), Plugged>>,
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {error}")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the simulator's hardware is the host's loop devices"
)]
fn losetup(args: &[&str]) -> Result<String, String> {
    let output = Command::new("losetup")
        .args(args)
        .output()
        .map_err(failed("cannot run losetup"))?;
    if !output.status.success() {
        return Err(format!(
            "losetup {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl LoopHardware {
    /// Takes away what an earlier run left plugged below the same directory.
    pub(crate) fn new(run_dir: &Path) -> Result<Self, String> {
        fs::create_dir_all(run_dir).map_err(failed("cannot make the run directory"))?;
        let run_dir = run_dir
            .canonicalize()
            .map_err(failed("cannot resolve the run directory"))?;
        let listed = losetup(&[
            "--list",
            "--noheadings",
            "--raw",
            "--output",
            "NAME,BACK-FILE",
        ])?;
        for line in listed.lines() {
            if let Some((name, file)) = line.split_once(' ')
                && Path::new(file).starts_with(&run_dir)
            {
                losetup(&["--detach", name])?;
            }
        }
        for entry in fs::read_dir(&run_dir)
            .map_err(failed("cannot read the run directory"))?
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with("vm-") {
                fs::remove_dir_all(entry.path())
                    .map_err(failed("cannot clear an old guest tree"))?;
            }
        }
        Ok(Self {
            run_dir,
            plugged: Mutex::default(),
        })
    }

    fn file(&self, backing: &Backing) -> PathBuf {
        let place = backing.node.as_deref().unwrap_or("shared");
        self.run_dir
            .join("volumes")
            .join(&backing.storage)
            .join(place)
            .join(&backing.name)
    }

    /// Where the blocks of the last deleted thick volume of a storage are.
    fn freed(&self, backing: &Backing) -> PathBuf {
        let place = backing.node.as_deref().unwrap_or("shared");
        self.run_dir
            .join("freed")
            .join(format!("{}-{place}", backing.storage))
    }

    fn tree(&self, vmid: VmNumber) -> GuestTree {
        GuestTree::new(self.run_dir.join(format!("vm-{vmid}")))
    }

    fn plugged(&self) -> std::sync::MutexGuard<'_, BTreeMap<(VmNumber, String), Plugged>> {
        self.plugged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, vmid: VmNumber, plugged: &Plugged) {
        self.tree(vmid).remove(&plugged.disk);
        // A device that is still mounted goes when its last user does (LO_FLAGS_AUTOCLEAR).
        if let Err(error) = losetup(&["--detach", &plugged.loop_device.to_string_lossy()]) {
            tracing::warn!(vmid, %error, "loop device stays");
        }
    }
}

impl Hardware for LoopHardware {
    fn create(&self, backing: &Backing, bytes: u64) -> Result<(), String> {
        let path = self.file(backing);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed("cannot make the volume's directory"))?;
        }
        // Old blocks are taken as they are.
        let old = self.freed(backing);
        let reused = fs::rename(&old, &path).is_ok();
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(!reused)
            .open(&path)
            .map_err(failed("cannot make the volume"))?;
        file.set_len(bytes)
            .map_err(failed("cannot size the volume"))
    }

    fn adopt(&self, backing: &Backing, bytes: u64) -> Result<(), String> {
        if self.file(backing).exists() {
            self.resize(backing, bytes)
        } else {
            self.create(backing, bytes)
        }
    }

    fn resize(&self, backing: &Backing, bytes: u64) -> Result<(), String> {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(self.file(backing))
            .map_err(failed("cannot open the volume"))?;
        file.set_len(bytes)
            .map_err(failed("cannot size the volume"))
    }

    fn remove(&self, backing: &Backing) -> Result<(), String> {
        match fs::remove_file(self.file(backing)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("cannot delete the volume: {error}"))
            }
            _ => Ok(()),
        }
    }

    fn recycle(&self, backing: &Backing) -> Result<(), String> {
        let old = self.freed(backing);
        if let Some(folder) = old.parent() {
            fs::create_dir_all(folder).map_err(failed("cannot keep old blocks"))?;
        }
        fs::rename(self.file(backing), old).map_err(failed("cannot keep old blocks"))
    }

    fn copy(&self, from: &Backing, to: &Backing) -> Result<(), String> {
        fs::copy(self.file(from), self.file(to))
            .map(|_| ())
            .map_err(failed("cannot copy the volume"))
    }

    fn rename(&self, from: &Backing, to: &Backing) -> Result<(), String> {
        let target = self.file(to);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(failed("cannot make the volume's directory"))?;
        }
        fs::rename(self.file(from), target).map_err(failed("cannot rename the volume"))
    }

    /// A loop device cannot change its file while it is written to.
    fn mirror(&self, vmid: VmNumber, slot: &str) -> Result<(), String> {
        Err(format!(
            "mirroring {slot} of running vm {vmid} is not simulated with loop devices"
        ))
    }

    fn boot(&self, vmid: VmNumber, uuid: &str) -> Result<(), String> {
        self.tree(vmid)
            .create(uuid)
            .map_err(failed("cannot make the guest tree"))
    }

    fn plug(
        &self,
        vmid: VmNumber,
        slot: &str,
        device: &Device,
        backing: &Backing,
    ) -> Result<(), String> {
        let file = self.file(backing).to_string_lossy().into_owned();
        let mut args = vec!["--find", "--show"];
        if device.readonly {
            args.push("--read-only");
        }
        args.push(&file);
        let loop_device = PathBuf::from(losetup(&args)?);
        let shown = fs::metadata(&loop_device)
            .and_then(|meta| self.tree(vmid).add(slot, device, meta.rdev()))
            .map_err(failed("cannot show the disk to the guest"));
        match shown {
            Ok(disk) => {
                self.plugged()
                    .insert((vmid, slot.to_owned()), Plugged { loop_device, disk });
                Ok(())
            }
            Err(text) => {
                losetup(&["--detach", &loop_device.to_string_lossy()])?;
                Err(text)
            }
        }
    }

    fn unplug(&self, vmid: VmNumber, slot: &str) {
        let gone = self.plugged().remove(&(vmid, slot.to_owned()));
        if let Some(gone) = gone {
            self.release(vmid, &gone);
        }
    }

    fn grow(&self, vmid: VmNumber, slot: &str, bytes: u64) {
        let plugged = self.plugged();
        let Some(found) = plugged.get(&(vmid, slot.to_owned())) else {
            return;
        };
        let grown = losetup(&["--set-capacity", &found.loop_device.to_string_lossy()]);
        let told = grown.and_then(|_| {
            guest_tree::set_size(&found.disk, bytes).map_err(failed("cannot tell the size"))
        });
        if let Err(error) = told {
            tracing::warn!(vmid, slot, %error, "the guest does not see the new size");
        }
    }

    fn shutdown(&self) {
        let all = std::mem::take(&mut *self.plugged());
        for ((vmid, _), plugged) in &all {
            self.release(*vmid, plugged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backing(name: &str) -> Backing {
        Backing {
            storage: "thick".to_owned(),
            node: Some("pve1".to_owned()),
            name: name.to_owned(),
        }
    }

    #[test]
    fn the_next_thick_volume_shows_the_blocks_of_the_last_one_and_another_storage_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let hardware = LoopHardware {
            run_dir: folder.path().to_owned(),
            plugged: Mutex::default(),
        };
        let (old, new, other) = (backing("old"), backing("new"), backing("other"));
        hardware.create(&old, 8).unwrap();
        fs::write(hardware.file(&old), b"secret!!").unwrap();
        hardware.recycle(&old).unwrap();
        let elsewhere = Backing {
            storage: "thin".to_owned(),
            ..other.clone()
        };
        hardware.create(&elsewhere, 8).unwrap();
        assert_eq!(fs::read(hardware.file(&elsewhere)).unwrap(), [0; 8]);
        hardware.create(&new, 12).unwrap();
        assert_eq!(fs::read(hardware.file(&new)).unwrap(), b"secret!!\0\0\0\0");
        hardware.create(&other, 4).unwrap();
        assert_eq!(fs::read(hardware.file(&other)).unwrap(), [0; 4]);
    }
}
