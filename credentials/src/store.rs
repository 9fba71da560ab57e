//! The folder that the drivers read: in memory, for its owner alone, and always of one generation.
//!
//! A driver reads `config.yaml` and then `policy.yaml`; client-go reads a certificate and then its key. So that a reader
//! never has one of the old and one of the new, files are not replaced one by one. The folder has the form in which the
//! kubelet mounts a Secret: `config.yaml` is a link to `..data/config.yaml`, and `..data` a link to the folder of one
//! generation, which a rename replaces. A driver that finds another `..data` after reading than before reads again
//! ([`pve_runtime::swap`]). One file for all would do for our own drivers, but not for client-go, and it would not be what
//! the operator wrote.
//!
//! A volume `emptyDir` of medium `Memory` is a mount point that everybody may write (mode 0777, `empty_dir.go` of
//! Kubernetes, and sticky as any new tmpfs). So the folder is one below it that only its owner enters, which is made here
//! if it is not there. One that is there has to be such, whoever made it.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use nix::unistd::geteuid;
use pve_runtime::swap::CURRENT;
use secrecy::ExposeSecret;

use crate::{Files, Trouble};

/// `ramfs` (`linux/magic.h`).
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);
const NOT_IN_MEMORY: &str = "is not in memory: secrets are written to tmpfs or ramfs alone";
const NEXT: &str = "..next";
/// How folders of generations begin.
const GENERATION: &str = "..of-";

/// A folder whose files are written.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// What the system says of a folder.
#[derive(Debug, Clone, Copy)]
struct Facts {
    in_memory: bool,
    is_folder: bool,
    mode: u32,
    owned: bool,
}

impl Store {
    /// A folder that is fit for secrets. One that is not there is made, for its owner alone, if what it goes into is in
    /// memory.
    pub fn open(folder: &Path) -> Result<Self, Trouble> {
        let store = Self {
            // Without a slash at the end, with which a link would count as what it leads to.
            folder: folder.components().collect(),
        };
        store.make()?;
        store.check()?;
        Ok(store)
    }

    /// Puts these files in force, all at once; false if they are already. When it fails the former ones stay in force.
    pub fn put(&self, files: &Files) -> Result<bool, Trouble> {
        self.check()?;
        if self.holds(files) {
            self.clear();
            return Ok(false);
        }
        let generation = format!("{GENERATION}{}", Timestamp::now().as_nanosecond());
        let put = self
            .write(&generation, files)
            .and_then(|()| self.swap(&generation, files));
        self.clear();
        put.map_err(|error| self.failed(&error))?;
        Ok(true)
    }

    /// Whether anything is in force.
    pub fn is_empty(&self) -> bool {
        !self.folder.join(CURRENT).exists()
    }

    /// Whether both are the same folder, by whatever names.
    pub fn is_same(&self, other: &Self) -> bool {
        let real = |store: &Self| store.folder.canonicalize().ok();
        real(self).is_some_and(|folder| Some(folder) == real(other))
    }

    fn make(&self) -> Result<(), Trouble> {
        let there = absent(std::fs::symlink_metadata(&self.folder).map(Some), None);
        if there.map_err(|error| self.failed(&error))?.is_some() {
            return Ok(());
        }
        let above = match self.folder.parent() {
            Some(above) if above != Path::new("") => above,
            _ => Path::new("."),
        };
        if !in_memory(above).map_err(|error| self.failed(&error))? {
            return Err(self.refused(NOT_IN_MEMORY));
        }
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            // Somebody else was faster. Who, is looked at next.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(|error| self.failed(&error)),
        }
    }

    fn check(&self) -> Result<(), Trouble> {
        let facts = facts(&self.folder).map_err(|error| self.failed(&error))?;
        judge(facts).map_err(|why| self.refused(why))
    }

    fn refused(&self, why: &str) -> Trouble {
        Trouble::Refused(format!("{} {why}", self.folder.display()))
    }

    fn failed(&self, error: &io::Error) -> Trouble {
        Trouble::Failed(format!("{}: {error}", self.folder.display()))
    }

    /// Whether these files are in force and no others.
    fn holds(&self, files: &Files) -> bool {
        let Ok(entries) = std::fs::read_dir(self.folder.join(CURRENT)) else {
            return false;
        };
        let same = |(name, text): (&String, &secrecy::SecretString)| {
            std::fs::read(self.folder.join(name))
                .is_ok_and(|found| found == text.expose_secret().as_bytes())
        };
        entries.count() == files.len() && files.iter().all(same)
    }

    fn write(&self, generation: &str, files: &Files) -> io::Result<()> {
        let folder = self.folder.join(generation);
        DirBuilder::new().mode(0o700).create(&folder)?;
        for (name, text) in files {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(folder.join(name))?;
            file.write_all(text.expose_secret().as_bytes())?;
            file.sync_all()?;
        }
        std::fs::File::open(&folder)?.sync_all()
    }

    fn swap(&self, generation: &str, files: &Files) -> io::Result<()> {
        let next = self.folder.join(NEXT);
        absent(std::fs::remove_file(&next), ())?;
        symlink(generation, &next)?;
        // Links of the first generation are there before what they lead to: a reader then finds all of them or none.
        for name in files.keys() {
            let link = self.folder.join(name);
            match symlink(Path::new(CURRENT).join(name), &link) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && is_ours(&link, name) => {}
                other => other?,
            }
        }
        std::fs::rename(next, self.folder.join(CURRENT))?;
        std::fs::File::open(&self.folder)?.sync_all()
    }

    /// Removes generations that are not in force, those of a process that was killed too, and links that lead nowhere.
    /// What can't be removed has no say in what is in force; it is tried again each time.
    fn clear(&self) {
        if let Err(error) = self.cleared() {
            let folder = self.folder.display();
            tracing::error!(%folder, %error, "former files can't be removed");
        }
    }

    fn cleared(&self) -> io::Result<()> {
        let current = std::fs::read_link(self.folder.join(CURRENT)).ok();
        for entry in std::fs::read_dir(&self.folder)? {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(GENERATION) && current.as_deref() != Some(Path::new(name)) {
                std::fs::remove_dir_all(path)?;
            } else if is_ours(&path, name) && !path.exists() {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// Whether it is a link into the generation in force.
fn is_ours(link: &Path, name: &str) -> bool {
    std::fs::read_link(link).is_ok_and(|target| target == Path::new(CURRENT).join(name))
}

fn absent<T>(tried: io::Result<T>, instead: T) -> io::Result<T> {
    match tried {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(instead),
        other => other,
    }
}

fn in_memory(folder: &Path) -> io::Result<bool> {
    let kind = statfs(folder)?.filesystem_type();
    Ok(kind == TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// Of the folder itself, not of what a link in its place leads to.
fn facts(folder: &Path) -> io::Result<Facts> {
    let found = std::fs::symlink_metadata(folder)?;
    Ok(Facts {
        in_memory: in_memory(folder)?,
        is_folder: found.is_dir(),
        mode: found.mode(),
        owned: found.uid() == geteuid().as_raw(),
    })
}

fn judge(facts: Facts) -> Result<(), &'static str> {
    const OTHERS: u32 = 0o077;
    if !facts.is_folder {
        return Err("is not a folder");
    }
    if !facts.in_memory {
        return Err(NOT_IN_MEMORY);
    }
    if !facts.owned {
        return Err("belongs to another user");
    }
    if facts.mode & OTHERS != 0 {
        return Err("is open to other users: close it (mode 0700), or name a folder in it");
    }
    Ok(())
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
