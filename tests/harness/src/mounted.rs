//! What a kubelet mounts into a Pod: Secrets, and volumes in memory.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};

/// A volume `emptyDir` of medium `Memory`: anybody may write it (`empty_dir.go` of Kubernetes, `perm`). It goes with the
/// folder of the run.
pub fn memory(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("tmpfs"),
        folder,
        Some("tmpfs"),
        flags,
        Some("mode=0777"),
    )
    .with_context(|| format!("mount tmpfs at {}", folder.display()))
}

/// A mounted Secret. The kubelet changes all of its files at once, by a rename of `..data` (`atomic_writer.go`).
#[derive(Debug)]
pub struct MountedSecret {
    folder: PathBuf,
    generation: u32,
    keys: BTreeSet<String>,
}

impl MountedSecret {
    /// One without keys, as an optional Secret that is not there; in memory, as kubelets mount it.
    pub fn new(folder: &Path) -> Result<Self> {
        memory(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            generation: 0,
            keys: BTreeSet::new(),
        })
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The Secret has these keys now.
    pub fn update(&mut self, pairs: &[(&str, &str)]) -> Result<()> {
        let former = format!("..2026_12_01.{}", self.generation);
        self.generation += 1;
        let name = format!("..2026_12_01.{}", self.generation);
        let folder = self.folder.join(&name);
        std::fs::create_dir(&folder)?;
        for (key, text) in pairs {
            std::fs::write(folder.join(key), text)?;
        }
        let new = self.folder.join("..data_tmp");
        symlink(&name, &new)?;
        std::fs::rename(new, self.folder.join("..data"))?;
        let keys: BTreeSet<String> = pairs.iter().map(|(key, _)| (*key).to_owned()).collect();
        for key in keys.difference(&self.keys) {
            symlink(format!("..data/{key}"), self.folder.join(key))?;
        }
        for key in self.keys.difference(&keys) {
            std::fs::remove_file(self.folder.join(key))?;
        }
        if self.generation > 1 {
            std::fs::remove_dir_all(self.folder.join(former))?;
        }
        self.keys = keys;
        Ok(())
    }
}
