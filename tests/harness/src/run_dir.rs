//! The folder of one run, and what must be undone in it before it can go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};

/// A new folder in /tmp. Dropped, whatever is still mounted below it is unmounted, then it is removed.
///
/// The path is short: Unix sockets live below it, whose paths have less than 108 bytes (unix(7)).
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the folder.
    pub fn new() -> Result<Self> {
        let path = tempfile::Builder::new()
            .prefix("pvck-")
            .rand_bytes(5)
            .tempdir_in("/tmp")
            .context("make a folder in /tmp")?
            .keep();
        // Containers of any user look for their volumes below it.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Ok(Self { path })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // Programs that were killed a moment ago may still hold files.
        for _ in 0..20 {
            unmount_below(&self.path);
            if !self.path.exists() || std::fs::remove_dir_all(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        tracing::warn!(path = %self.path.display(), "the folder of the run could not be removed");
    }
}

/// Unmounts all below `root`, the last mounted first. What is busy is detached lazily.
pub(crate) fn unmount_below(root: &Path) {
    for target in mounts_below(root).iter().rev() {
        if umount2(target, MntFlags::UMOUNT_NOFOLLOW).is_err()
            && let Err(error) = umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
        {
            tracing::warn!(target = %target.display(), %error, "still mounted");
        }
    }
}

/// Mount points below `root`, in the order in which they were mounted.
pub(crate) fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        // proc(5): space, tab, newline and backslash are escaped; the paths here have none of them.
        .map(PathBuf::from)
        .filter(|target| target.starts_with(root))
        .collect()
}

/// File system and source of what is mounted at exactly this path, as `ext4 on /dev/loop0`.
pub fn mounted_at(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(4).map(Path::new) == Some(path))?;
    let (_, right) = line.split_once(" - ")?;
    Some(right.split(' ').take(2).collect::<Vec<_>>().join(" on "))
}
