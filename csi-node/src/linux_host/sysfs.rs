//! Whole disks in sysfs: `block/<name>/…` (kernel `Documentation/ABI/stable/sysfs-block`).

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

use nix::errno::Errno;
use pve_model::size::Bytes;

use super::io;
use crate::host::{Access, Disk, HostError, Medium};

/// sysfs counts in these, whatever the disk's own block size.
const SECTOR: u64 = 512;

/// All disks. One that goes away meanwhile is left out, and so is one that does not say which it is: a disk that is bad
/// must not keep the volumes on others from being used.
pub(super) fn disks(sys_root: &Path) -> Result<Vec<Disk>, HostError> {
    let folder = sys_root.join("block");
    let mut disks = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(io("list", &folder))? {
        let entry = entry.map_err(io("list", &folder))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        match disk(&entry.path(), name) {
            Ok(disk) => disks.push(disk),
            Err(error) if error.says_gone() => {}
            Err(error) => tracing::warn!(%error, "a disk that cannot be read is left out"),
        }
    }
    disks.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(disks)
}

/// SCSI disks have `device/rescan` (kernel `drivers/scsi/scsi_sysfs.c`); virtio-blk learns of a new size by itself.
pub(super) fn rescan(folder: &Path) -> Result<(), HostError> {
    let file = folder.join("device/rescan");
    match OpenOptions::new().write(true).open(&file) {
        Ok(mut switch) => switch.write_all(b"1").map_err(io("rescan by", &file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io("open", &file)(error)),
    }
}

/// A disk that says which it is and can't be read otherwise is shown without a size, as one whose capacity is not
/// known yet: it is not used, but counts where another one has its name.
fn disk(folder: &Path, name: String) -> Result<Disk, HostError> {
    let number = read(&folder.join("dev"))?
        .parse()
        .map_err(|_| malformed(folder, "dev"))?;
    let unknown = Disk {
        name,
        number,
        wwid: optional(&folder.join("device/wwid"))?,
        serial: optional(&folder.join("serial"))?,
        size: Bytes::ZERO,
        access: Access::ReadOnly,
        holders: Vec::new(),
        partitions: Vec::new(),
        medium: Medium::Rotating,
    };
    match with_attributes(folder, unknown.clone()) {
        Ok(disk) => Ok(disk),
        Err(error) if error.says_gone() => Err(error),
        Err(error) => {
            tracing::warn!(%error, disk = unknown.name, "a disk cannot be used");
            Ok(unknown)
        }
    }
}

fn with_attributes(folder: &Path, disk: Disk) -> Result<Disk, HostError> {
    let sectors: u64 = read(&folder.join("size"))?
        .parse()
        .map_err(|_| malformed(folder, "size"))?;
    let size = sectors
        .checked_mul(SECTOR)
        .ok_or_else(|| malformed(folder, "size"))?;
    let read_only = optional(&folder.join("ro"))?;
    let rotational = optional(&folder.join("queue/rotational"))?;
    Ok(Disk {
        size: Bytes::new(size),
        access: match read_only.as_deref() {
            None | Some("0") => Access::ReadWrite,
            Some(_) => Access::ReadOnly,
        },
        holders: names(&folder.join("holders"))?,
        partitions: partitions(folder)?,
        medium: match rotational.as_deref() {
            Some("0") => Medium::Solid,
            None | Some(_) => Medium::Rotating,
        },
        ..disk
    })
}

fn malformed(folder: &Path, file: &str) -> HostError {
    HostError::Malformed {
        path: folder.join(file),
    }
}

fn read(path: &Path) -> Result<String, HostError> {
    let text = std::fs::read_to_string(path).map_err(io("read", path))?;
    Ok(text.trim().to_owned())
}

fn optional(path: &Path) -> Result<Option<String>, HostError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.says_gone() => Ok(None),
        // A disk of another bus that has no identification answers EINVAL to a read of `wwid`.
        Err(error) if error.errno() == Some(Errno::EINVAL as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

fn names(folder: &Path) -> Result<Vec<String>, HostError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io("list", folder)(error)),
    };
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.map_err(io("list", folder))?;
        Ok(entry.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

/// Subfolders with a file `partition`.
fn partitions(folder: &Path) -> Result<Vec<String>, HostError> {
    let mut names = names(folder)?;
    names.retain(|name| folder.join(name).join("partition").exists());
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join("block").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_disk_is_read_with_all_that_it_says() {
        let root = tree(&[
            ("sdb/dev", "8:16\n"),
            ("sdb/size", "2097152\n"),
            ("sdb/ro", "1\n"),
            ("sdb/device/wwid", "naa.5c42a611aadbf50e\n"),
            ("sdb/queue/rotational", "0\n"),
            ("sdb/holders/dm-0", ""),
            ("sdb/sdb1/partition", "1\n"),
            ("vda/dev", "254:0\n"),
            ("vda/serial", "5c42a611aadbf50f"),
            ("vda/size", "8\n"),
        ]);
        let disks = disks(root.path()).unwrap();
        assert_eq!(disks.len(), 2);
        let sdb = &disks[0];
        assert_eq!((sdb.name.as_str(), sdb.size), ("sdb", Bytes::GIB));
        assert_eq!((sdb.access, sdb.medium), (Access::ReadOnly, Medium::Solid));
        assert_eq!(sdb.holders, ["dm-0"]);
        assert_eq!(sdb.partitions, ["sdb1"]);
        let name = "0x5c42a611aadbf50e".parse().unwrap();
        assert!(sdb.has(name) && !disks[1].has(name));
        assert!(disks[1].has("0x5c42a611aadbf50f".parse().unwrap()));
        assert_eq!(
            (disks[1].wwid.as_deref(), disks[1].access),
            (None, Access::ReadWrite)
        );
    }

    #[test]
    fn b15_a_disk_that_goes_away_or_is_bad_does_not_keep_others_from_being_seen() {
        let half_gone = tree(&[
            ("sdb/dev", "8:16\n"),
            ("sdc/dev", "8:32"),
            ("sdc/size", "8"),
        ]);
        let names: Vec<_> = disks(half_gone.path())
            .unwrap()
            .into_iter()
            .map(|d| d.name)
            .collect();
        assert_eq!(names, ["sdc"]);
        let nonsense = tree(&[
            ("sda/dev", "nonsense"),
            ("sda/size", "8"),
            ("sdb/dev", "8:16\n"),
            ("sdb/size", "many"),
            ("sdb/device/wwid", "naa.5c42a611aadbf50e\n"),
            ("sdc/dev", "8:32"),
            ("sdc/size", "8"),
        ]);
        // A folder in the place of a file can't be read.
        fs::create_dir_all(nonsense.path().join("block/sdd/serial")).unwrap();
        fs::write(nonsense.path().join("block/sdd/dev"), "8:48").unwrap();
        let disks = disks(nonsense.path()).unwrap();
        let sizes: Vec<_> = disks
            .iter()
            .map(|disk| (disk.name.as_str(), disk.size.get()))
            .collect();
        assert_eq!(sizes, [("sdb", 0), ("sdc", 4096)]);
        assert!(disks[0].has("0x5c42a611aadbf50e".parse().unwrap()));
        assert!(super::disks(Path::new("/nonexistent")).is_err());
    }
}
