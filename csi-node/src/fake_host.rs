//! A machine made of values, for tests of decisions.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use pve_model::size::Bytes;

use crate::host::{
    Access, Claim, Device, DeviceNumber, Disk, Host, HostError, Medium, MountPlan, PathKind, Span,
    Tool, ToolOutput, Unmount, Usage,
};
use crate::mountinfo::{self, Mount};

/// Its disks and mounts can be changed while it is used; everything else is empty, and no program runs.
#[derive(Debug, Default)]
pub(crate) struct FakeHost {
    disks: Mutex<Vec<Disk>>,
    stuck: Option<PathBuf>,
    broken: Option<PathBuf>,
    tables: Mutex<VecDeque<&'static str>>,
    calls: Mutex<Vec<String>>,
    nodes: Mutex<Vec<(PathBuf, DeviceNumber)>>,
    rescans: Mutex<VecDeque<Option<Bytes>>>,
    heads: Mutex<VecDeque<Vec<u8>>>,
    tools: Mutex<VecDeque<Result<ToolOutput, HostError>>>,
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

    /// A machine on which calls about `path` panic.
    pub(crate) fn broken_at(path: &Path) -> Self {
        Self {
            broken: Some(path.to_owned()),
            ..Self::default()
        }
    }

    /// What the mount table says at one reading after the other; it can't be read if that is nonsense, and is empty
    /// after the last.
    pub(crate) fn set_mounts(&self, tables: &[&'static str]) {
        *self.tables.lock().unwrap() = tables.iter().copied().collect();
    }

    /// Mounts, unmounts and programs that were asked for.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// A device node that is at a path.
    pub(crate) fn put_node(&self, path: &str, number: DeviceNumber) {
        self.nodes.lock().unwrap().push((path.into(), number));
    }

    /// The size that all disks have after one rescan and the next; none: it fails. After the last it changes nothing.
    pub(crate) fn set_rescans(&self, sizes: &[Option<Bytes>]) {
        *self.rescans.lock().unwrap() = sizes.iter().copied().collect();
    }

    /// How devices begin, at one reading after the other.
    pub(crate) fn set_heads(&self, heads: Vec<Vec<u8>>) {
        *self.heads.lock().unwrap() = heads.into();
    }

    /// What programs answer, one after the other.
    pub(crate) fn set_tools(&self, answers: Vec<Result<ToolOutput, HostError>>) {
        *self.tools.lock().unwrap() = answers.into();
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
    async fn has_device(&self, _: DeviceNumber) -> Result<bool, HostError> {
        Ok(false)
    }
    async fn rescan(&self, disk: &Disk) -> Result<(), HostError> {
        let call = format!("rescan {}", disk.name);
        self.calls.lock().unwrap().push(call);
        match self.rescans.lock().unwrap().pop_front() {
            None => Ok(()),
            Some(None) => not_here(),
            Some(Some(size)) => {
                let mut disks = self.disks.lock().unwrap();
                disks.iter_mut().for_each(|disk| disk.size = size);
                Ok(())
            }
        }
    }
    fn kubelet_dir(&self) -> &Path {
        Path::new("/")
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
    async fn cached_head(&self, _: &Device) -> Result<Vec<u8>, HostError> {
        let head = self.heads.lock().unwrap().pop_front();
        head.map_or_else(not_here, Ok)
    }
    async fn write_block(&self, _: &Device, _: u64, _: Vec<u8>) -> Result<(), HostError> {
        not_here()
    }
    async fn run(
        &self,
        tool: Tool,
        _: Vec<String>,
        limit: Duration,
    ) -> Result<ToolOutput, HostError> {
        let call = format!("{tool} for {} s", limit.as_secs());
        self.calls.lock().unwrap().push(call);
        let answer = self.tools.lock().unwrap().pop_front();
        answer.unwrap_or_else(not_here)
    }
    async fn mounts(&self) -> Result<Vec<Mount>, HostError> {
        let table = self.tables.lock().unwrap().pop_front().unwrap_or_default();
        mountinfo::parse(table.as_bytes()).or_else(|_| not_here())
    }
    async fn mount(&self, plan: MountPlan) -> Result<(), HostError> {
        let call = match plan {
            MountPlan::Filesystem { target, .. } => format!("mount {}", target.display()),
            MountPlan::Bind { target, .. } => format!("bind {}", target.display()),
            MountPlan::ReadOnlyBind { target, .. } => format!("read-only {}", target.display()),
        };
        self.calls.lock().unwrap().push(call);
        Ok(())
    }
    async fn sync(&self, _: &Path) -> Result<(), HostError> {
        not_here()
    }
    async fn unmount(&self, path: &Path, _: Unmount) -> Result<(), HostError> {
        let call = format!("unmount {}", path.display());
        self.calls.lock().unwrap().push(call);
        Ok(())
    }
    async fn resolve(&self, path: &Path) -> Result<PathBuf, HostError> {
        if self.stuck.as_deref() == Some(path) {
            std::future::pending::<()>().await;
        }
        assert_ne!(self.broken.as_deref(), Some(path), "expected by the test");
        Ok(path.to_owned())
    }
    async fn kind(&self, path: &Path) -> Result<PathKind, HostError> {
        let nodes = self.nodes.lock().unwrap();
        let found = nodes.iter().find(|(at, _)| at == path);
        Ok(found.map_or(PathKind::Missing, |(_, number)| PathKind::Device(*number)))
    }
    async fn is_empty(&self, _: &Path) -> Result<bool, HostError> {
        Ok(true)
    }
    async fn create_dir(&self, _: &Path) -> Result<(), HostError> {
        Ok(())
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
