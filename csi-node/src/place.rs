//! Where the kubelet wants a volume: below its root and nowhere else.
//!
//! It knows paths and what they lie on; it knows no volume.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::host::{DeviceNumber, Disk, Host, PathKind};
use crate::mountinfo::Mount;

/// The path as the mount table has it. One that is not inside the kubelet's root is refused: no request reaches
/// anything else on the machine.
pub async fn resolve(host: &dyn Host, path: &Path) -> Result<PathBuf, Error> {
    let resolved = host.resolve(path).await?;
    if is_inside(host.kubelet_dir(), &resolved) {
        return Ok(resolved);
    }
    Err(wrong_path(
        path,
        "outside the kubelet's directory",
        "a path inside it",
    ))
}

/// Whether a resolved path is inside the kubelet's root. Outside of it, all of it may be seen a second time, where it
/// is bound to another path.
pub fn is_inside(root: &Path, path: &Path) -> bool {
    path != root && path.starts_with(root)
}

/// Refuses a target inside the staging path, and the reverse: what is mounted at the one would be seen in the other, and
/// keep it from being unmounted.
pub fn apart(staging: &Path, target: &Path) -> Result<(), Error> {
    if target.starts_with(staging) {
        return Err(wrong_path(
            target,
            "inside the staging path",
            "a path beside it",
        ));
    }
    if staging.starts_with(target) {
        return Err(wrong_path(
            target,
            "around the staging path",
            "a path beside it",
        ));
    }
    Ok(())
}

/// Refuses a path inside the file system of a volume: that volume could not be unmounted any more, and who may write on
/// it could put a link there.
pub async fn outside_volumes(host: &dyn Host, mounts: &[Mount], path: &Path) -> Result<(), Error> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    let around = |mount: &&Mount| {
        folder.starts_with(&mount.point) && is_inside(host.kubelet_dir(), &mount.point)
    };
    let around: Vec<DeviceNumber> = mounts
        .iter()
        .filter(around)
        .map(|mount| mount.number)
        .collect();
    if around.is_empty() {
        return Ok(());
    }
    let is_volume = |disk: &Disk| disk.is_named_as_a_volume() && around.contains(&disk.number);
    if host.disks().await?.iter().any(is_volume) {
        return Err(wrong_path(
            path,
            "inside a volume",
            "a path outside of volumes",
        ));
    }
    Ok(())
}

/// Makes the directory on which something is to be mounted, if it is not there. One that has content would be covered,
/// and that is somebody's.
pub async fn ensure_directory(host: &dyn Host, path: &Path) -> Result<(), Error> {
    let found = match host.kind(path).await? {
        PathKind::Directory if host.is_empty(path).await? => return Ok(()),
        PathKind::Directory => {
            return Err(Error::NotEmpty {
                path: path.to_owned(),
            });
        }
        PathKind::Missing => return Ok(host.create_dir(path).await?),
        PathKind::File(_) => "a file",
        PathKind::Device(_) => "a device",
        PathKind::Other => "a link or the like",
    };
    Err(wrong_path(path, found, "a directory"))
}

/// The error that something else is needed there.
pub fn wrong_path(path: &Path, found: &'static str, wanted: &'static str) -> Error {
    Error::WrongPath {
        path: path.to_owned(),
        found,
        wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::{FakeHost, disk};
    use crate::mountinfo;

    #[test]
    fn a_target_and_the_staging_path_are_not_inside_each_other() {
        let allowed = |staging, target| apart(Path::new(staging), Path::new(target)).is_ok();
        assert!(allowed("/k/staging", "/k/target"));
        assert!(allowed("/k/staging", "/k/staging2"));
        for (staging, target) in [
            ("/k/staging", "/k/staging/target"),
            ("/k/target/staging", "/k/target"),
            ("/k/staging", "/k/staging"),
        ] {
            assert!(!allowed(staging, target), "{staging} {target}");
        }
    }

    #[tokio::test]
    async fn what_lies_in_a_volumes_file_system_is_no_place_for_another() {
        // The fake machine's root is the kubelet's root.
        let table = b"1 0 8:0 / / rw - ext4 /dev/sda rw\n\
            2 1 8:16 / /staging rw - ext4 /dev/sdb rw\n\
            3 1 8:32 / /pods rw - ext4 /dev/sdc rw\n\
            4 2 0:9 / /staging/tmp rw - tmpfs none rw\n";
        let mounts = mountinfo::parse(table).unwrap();
        let host = FakeHost::default();
        let (mut root, mut plain) = (disk("sda", 0, "0x5"), disk("sdc", 32, "0x5"));
        (root.wwid, plain.wwid) = (None, Some("t10.ATA     QEMU HARDDISK".to_owned()));
        let volume = disk("sdb", 16, "0x5c42a611aadbf50e");
        host.set_disks(vec![root, volume, plain]);
        for (path, good) in [
            ("/other", true),
            ("/staging", true),
            ("/staging2/x", true),
            ("/pods/1/mount", true),
            ("/staging/x", false),
            ("/staging/deep/x", false),
            ("/staging/tmp/x", false),
        ] {
            let found = outside_volumes(&host, &mounts, Path::new(path)).await;
            assert_eq!(found.is_ok(), good, "{path}");
        }
    }
}
