//! The part of `/sys` and `/dev` that a Linux guest shows for its disks (kernel `drivers/scsi/scsi_sysfs.c`,
//! `drivers/block/virtio_blk.c`), below a directory per VM.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, major, minor, mknod};

use crate::drive;
use crate::state::Device;

const SECTOR: u64 = 512;

/// One VM's tree: `sys/` and `dev/`.
#[derive(Debug)]
pub(super) struct GuestTree {
    root: PathBuf,
}

/// A disk shown in a tree.
#[derive(Debug)]
pub(super) struct GuestDisk {
    /// `sda`
    name: String,
    /// The device's directory below `sys/devices`.
    folder: PathBuf,
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, format!("{text}\n"))
}

impl GuestTree {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// An empty tree with the machine's identity (`smbios1: uuid=…`).
    pub(super) fn create(&self, uuid: &str) -> io::Result<()> {
        let id = self.root.join("sys/class/dmi/id");
        fs::create_dir_all(&id)?;
        fs::create_dir_all(self.root.join("sys/block"))?;
        fs::create_dir_all(self.root.join("dev"))?;
        write(&id.join("product_uuid"), uuid)
    }

    /// Shows a block device with that number as the slot's disk; it appears in `sys/block` when all of it is there.
    pub(super) fn add(&self, slot: &str, device: &Device, number: u64) -> io::Result<GuestDisk> {
        let (bus, index) = drive::slot(slot).unwrap_or(("scsi", 0));
        let prefix = if bus == "virtio" { "vd" } else { "sd" };
        let name = self.free_name(prefix)?;
        let below = match bus {
            "virtio" => format!(
                "devices/pci0000:00/0000:00:{:02x}.0/virtio{index}",
                index + 10
            ),
            _ => format!("devices/pci0000:00/0000:00:05.0/virtio1/host2/target2:0:0/2:0:0:{index}"),
        };
        let folder = self.root.join("sys").join(&below);
        let block = folder.join("block").join(&name);
        fs::create_dir_all(block.join("queue"))?;
        write(&block.join("size"), &(device.size / SECTOR).to_string())?;
        write(
            &block.join("dev"),
            &format!("{}:{}", major(number), minor(number)),
        )?;
        write(&block.join("ro"), if device.readonly { "1" } else { "0" })?;
        write(&block.join("removable"), "0")?;
        write(
            &block.join("queue/rotational"),
            if device.ssd { "0" } else { "1" },
        )?;
        write(&block.join("queue/logical_block_size"), "512")?;
        write(&block.join("queue/physical_block_size"), "512")?;
        symlink("../..", block.join("device"))?;
        match bus {
            "virtio" => write(
                &block.join("serial"),
                &device
                    .serial
                    .as_deref()
                    .unwrap_or_default()
                    .chars()
                    .take(20)
                    .collect::<String>(),
            )?,
            _ => scsi_identity(&folder, device)?,
        }
        let node = self.root.join("dev").join(&name);
        mknod(&node, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, number)?;
        symlink(
            format!("../{below}/block/{name}"),
            self.root.join("sys/block").join(&name),
        )?;
        Ok(GuestDisk { name, folder })
    }

    fn free_name(&self, prefix: &str) -> io::Result<String> {
        let blocks = self.root.join("sys/block");
        fs::create_dir_all(&blocks)?;
        let names = ('a'..='z')
            .map(|letter| format!("{prefix}{letter}"))
            .chain(('a'..='z').map(|letter| format!("{prefix}a{letter}")));
        let mut free = names.filter(|name| fs::symlink_metadata(blocks.join(name)).is_err());
        free.next()
            .ok_or_else(|| io::Error::other("no disk name left"))
    }

    pub(super) fn remove(&self, disk: &GuestDisk) {
        let results = [
            fs::remove_file(self.root.join("sys/block").join(&disk.name)),
            fs::remove_file(self.root.join("dev").join(&disk.name)),
            fs::remove_dir_all(&disk.folder),
        ];
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(disk = disk.name, %error, "part of a guest's tree stays");
        }
    }
}

/// What INQUIRY tells: vendor and model, VPD page 0x80 if there is a serial, the NAA identifier if there is one. The kernel takes
/// NAA types 3 to 6 only and QEMU's own designator is none, so that reading `wwid` fails without a wwn: no file.
fn scsi_identity(folder: &Path, device: &Device) -> io::Result<()> {
    write(&folder.join("vendor"), "QEMU    ")?;
    write(&folder.join("model"), "QEMU HARDDISK   ")?;
    write(&folder.join("type"), "0")?;
    if let Some(serial) = &device.serial {
        let length = u8::try_from(serial.len()).unwrap_or(u8::MAX);
        let mut page = vec![0, 0x80, 0, length];
        page.extend_from_slice(serial.as_bytes());
        fs::write(folder.join("vpd_pg80"), page)?;
    }
    let hex = device
        .wwn
        .as_deref()
        .and_then(|wwn| wwn.strip_prefix("0x"))
        .map(str::to_ascii_lowercase);
    if let Some(hex) = hex.filter(|hex| hex.starts_with(['3', '4', '5', '6'])) {
        write(&folder.join("wwid"), &format!("naa.{hex}"))?;
    }
    Ok(())
}

/// Tells a new size.
pub(super) fn set_size(disk: &GuestDisk, bytes: u64) -> io::Result<()> {
    write(
        &disk.folder.join("block").join(&disk.name).join("size"),
        &(bytes / SECTOR).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(serial: Option<&str>, wwn: Option<&str>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let device = Device {
            serial: serial.map(str::to_owned),
            wwn: wwn.map(str::to_owned),
            ..Device::default()
        };
        scsi_identity(folder.path(), &device).unwrap();
        folder
    }

    #[test]
    fn the_serial_stands_in_page_0x80_behind_its_length() {
        let folder = identity(Some("pvc-abc"), None);
        let page = fs::read(folder.path().join("vpd_pg80")).unwrap();
        assert_eq!(page, b"\x00\x80\x00\x07pvc-abc");
        assert!(!folder.path().join("wwid").exists());
    }

    #[test]
    fn the_kernel_shows_only_naa_types_three_to_six() {
        let shown = identity(None, Some("0x5056432D49443031"));
        let text = fs::read_to_string(shown.path().join("wwid")).unwrap();
        assert_eq!(text, "naa.5056432d49443031\n");
        let hidden = identity(None, Some("0x2056432d49443031"));
        assert!(!hidden.path().join("wwid").exists());
    }

    #[test]
    fn disks_take_the_first_free_letter() {
        let root = tempfile::tempdir().unwrap();
        let tree = GuestTree::new(root.path().to_owned());
        tree.create("00000000-0000-4000-a000-000000000100").unwrap();
        fs::write(root.path().join("sys/block/sda"), "").unwrap();
        fs::write(root.path().join("sys/block/sdc"), "").unwrap();
        assert_eq!(tree.free_name("sd").unwrap(), "sdb");
    }
}
