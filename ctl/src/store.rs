//! The fence file: changed as a whole or not at all, by one program at a time.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use pve_runtime::config::FenceFile;

use crate::fence::FenceError;

/// How often, and how long apart, the lock of another `pvectl` is waited for.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Reads the file, lets `act` change what it says, and writes it. The new file has mode 0600.
pub(crate) fn change<T>(
    path: &Path,
    act: impl FnOnce(&mut FenceFile) -> Result<T, FenceError>,
) -> Result<T, FenceError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| FenceError::Io { path, source }
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let opened = File::open(folder).map_err(failed(folder))?;
    let locked = lock(opened).map_err(|errno| failed(folder)(errno.into()))?;
    // A Secret's files are links that only the kubelet changes.
    let link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    if link {
        let why = format!(
            "{} is a symbolic link: name the file itself",
            path.display()
        );
        return Err(FenceError::Refused(why));
    }
    let mut file = FenceFile::load(path)?;
    let outcome = act(&mut file)?;
    let new = temporary(path, folder);
    let written = write(&new, &file).and_then(|()| std::fs::rename(&new, path));
    if let Err(source) = written {
        let left = std::fs::remove_file(&new);
        if left.is_err_and(|error| error.kind() != ErrorKind::NotFound) {
            eprintln!("pvectl: {} is left over", new.display());
        }
        return Err(failed(path)(source));
    }
    locked.sync_all().map_err(failed(folder))?;
    Ok(outcome)
}

fn lock(folder: File) -> Result<Flock<File>, Errno> {
    let mut folder = folder;
    for _ in 1..TRIES {
        match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((back, Errno::EWOULDBLOCK)) => folder = back,
            Err((_, errno)) => return Err(errno),
        }
        std::thread::sleep(PAUSE);
    }
    Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)
}

fn temporary(path: &Path, folder: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    folder.join(format!(".{name}.{}", std::process::id()))
}

fn write(path: &Path, file: &FenceFile) -> std::io::Result<()> {
    let mut new = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    new.write_all(file.to_yaml().as_bytes())?;
    new.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn the_file_is_replaced_as_a_whole_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fences.yaml");
        std::fs::write(&path, "fences: []").unwrap();
        let before = std::fs::metadata(&path).unwrap().ino();
        change(&path, |_| Ok(())).unwrap();
        let after = std::fs::metadata(&path).unwrap();
        assert_ne!(after.ino(), before, "not written in place");
        assert_eq!(after.mode() & 0o777, 0o600);
        assert_eq!(names(folder.path()), ["fences.yaml"]);
    }

    #[test]
    fn nothing_changes_after_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fences.yaml");
        std::fs::write(&path, "fences: []").unwrap();
        let refused = change(&path, |file| {
            file.fences.clear();
            Err::<(), _>(FenceError::Refused("no".to_owned()))
        });
        assert!(matches!(refused, Err(FenceError::Refused(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "fences: []");
        assert_eq!(names(folder.path()), ["fences.yaml"]);
    }

    #[test]
    fn what_is_no_fence_file_of_ours_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fences.yaml");
        std::fs::write(&path, "regions: {}").unwrap();
        let refused = change(&path, |_| Ok(()));
        assert!(matches!(refused, Err(FenceError::File(_))), "{refused:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "regions: {}");
        let link = folder.path().join("link.yaml");
        symlink(&path, &link).unwrap();
        let refused = change(&link, |_| Ok(()));
        assert!(
            matches!(refused, Err(FenceError::Refused(_))),
            "{refused:?}"
        );
        let nowhere = change(Path::new("/nowhere/fences.yaml"), |_| Ok(()));
        assert!(matches!(nowhere, Err(FenceError::Io { .. })), "{nowhere:?}");
    }
}
