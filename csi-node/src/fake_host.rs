//! A machine made of values, for tests of decisions.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use pve_model::size::Bytes;

use crate::host::{
    Access, Claim, Device, DeviceNumber, Disk, Host, HostError, Medium, MountPlan, PathKind, Span,
    Tool, ToolOutput, Unmount, Usage,
};
use crate::mountinfo::Mount;

/// Its disks can be changed while it is used; everything else is empty, and no program runs.
#[derive(Debug, Default)]
pub(crate) struct FakeHost {
    disks: Mutex<Vec<Disk>>,
    stuck: Option<PathBuf>,
}

/// A disk of 1 GiB with nothing on it; `wwn` as `0x…`.
pub(crate) fn disk(name: &str, minor: u64, wwn: &str) -> Disk {
    Disk {
        name: name.to_owned(),
        number: DeviceNumber { major: 8, minor },
        wwid: Some(format!("naa.{}", wwn.trim_start_matches("0x"))),
        serial: None,
        size: Bytes::GIB,
        access: Access::ReadWrite,
        holders: Vec::new(),
        partitions: Vec::new(),
        medium: Medium::Rotating,
    }
}

impl FakeHost {
    /// A machine on which calls about `path` never come back.
    pub(crate) fn stuck_at(path: &Path) -> Self {
        Self {
            stuck: Some(path.to_owned()),
            ..Self::default()
        }
    }

    pub(crate) fn set_disks(&self, disks: Vec<Disk>) {
        *self.disks.lock().unwrap() = disks;
    }
}

fn not_here<T>() -> Result<T, HostError> {
    Err(HostError::Lost { doing: "fake" })
}

#[async_trait]
impl Host for FakeHost {
    async fn disks(&self) -> Result<Vec<Disk>, HostError> {
        Ok(self.disks.lock().unwrap().clone())
    }
    async fn open(&self, disk: &Disk) -> Result<Device, HostError> {
        Ok(Device {
            path: Path::new("/dev").join(&disk.name),
            size: disk.size,
            disk: disk.clone(),
            hold: None,
        })
    }
    async fn claim(&self, _: &Device) -> Result<Claim, HostError> {
        Ok(Claim::Free)
    }
    async fn first_nonzero(&self, _: &Device, _: Vec<Span>) -> Result<Option<u64>, HostError> {
        not_here()
    }
    async fn read_block(&self, _: &Device, _: u64) -> Result<Vec<u8>, HostError> {
        not_here()
    }
    async fn write_block(&self, _: &Device, _: u64, _: Vec<u8>) -> Result<(), HostError> {
        not_here()
    }
    async fn run(&self, _: Tool, _: Vec<String>, _: Duration) -> Result<ToolOutput, HostError> {
        not_here()
    }
    async fn mounts(&self) -> Result<Vec<Mount>, HostError> {
        Ok(Vec::new())
    }
    async fn mount(&self, _: MountPlan) -> Result<(), HostError> {
        not_here()
    }
    async fn sync(&self, _: &Path) -> Result<(), HostError> {
        not_here()
    }
    async fn unmount(&self, _: &Path, _: Unmount) -> Result<(), HostError> {
        not_here()
    }
    async fn resolve(&self, path: &Path) -> Result<PathBuf, HostError> {
        if self.stuck.as_deref() == Some(path) {
            std::future::pending::<()>().await;
        }
        Ok(path.to_owned())
    }
    async fn kind(&self, _: &Path) -> Result<PathKind, HostError> {
        Ok(PathKind::Missing)
    }
    async fn create_dir(&self, _: &Path) -> Result<(), HostError> {
        not_here()
    }
    async fn create_file(&self, _: &Path) -> Result<(), HostError> {
        not_here()
    }
    async fn remove_dir(&self, _: &Path) -> Result<(), HostError> {
        not_here()
    }
    async fn remove_file(&self, _: &Path) -> Result<(), HostError> {
        not_here()
    }
    async fn usage(&self, _: &Path) -> Result<Usage, HostError> {
        not_here()
    }
    async fn firmware_uuid(&self) -> Result<String, HostError> {
        not_here()
    }
}
