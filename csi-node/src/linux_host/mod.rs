//! Linux: the only place with system calls and programs.
//!
//! Every call that may block runs on a thread of its own kind, and the returned future ends when the call does: an
//! unmount that hangs keeps its own volume's lock and nothing else.

mod blockdev;
mod command;
mod paths;
mod sysfs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use prometheus_client::registry::Registry;

use crate::host::{
    Claim, Device, DeviceNumber, Disk, Host, HostError, MountPlan, PathKind, Span, Tool,
    ToolOutput, Unmount, Usage,
};
use crate::mountinfo::{self, Mount};

/// Where the kernel tells what is mounted in this mount namespace.
pub const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// This machine, or a part of it that looks like one.
#[derive(Debug, Clone)]
pub struct LinuxHost {
    sys_root: PathBuf,
    dev_root: PathBuf,
    kubelet_dir: PathBuf,
    tools: command::ToolMetrics,
}

impl LinuxHost {
    /// Disks are looked up below `sys_root` (`/sys`) and their nodes below `dev_root` (`/dev`). The kubelet's root is
    /// resolved.
    pub fn new(
        sys_root: PathBuf,
        dev_root: PathBuf,
        kubelet_dir: PathBuf,
        registry: &mut Registry,
    ) -> Self {
        Self {
            sys_root,
            dev_root,
            kubelet_dir,
            tools: command::ToolMetrics::register(registry),
        }
    }
}

/// Runs a call that may block.
async fn blocking<T, F>(doing: &'static str, call: F) -> Result<T, HostError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, HostError> + Send + 'static,
{
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(_) => Err(HostError::Lost { doing }),
    }
}

/// Names what was being done when a call failed.
fn io<E: Into<std::io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> HostError {
    let path = path.to_owned();
    move |source| HostError::Io {
        doing,
        path,
        source: source.into(),
    }
}

#[async_trait]
impl Host for LinuxHost {
    async fn disks(&self) -> Result<Vec<Disk>, HostError> {
        let root = self.sys_root.clone();
        blocking("list disks", move || sysfs::disks(&root)).await
    }

    async fn has_device(&self, number: DeviceNumber) -> Result<bool, HostError> {
        let entry = self.sys_root.join(format!("dev/block/{number}"));
        blocking("look for a device", move || {
            entry.try_exists().map_err(io("look at", &entry))
        })
        .await
    }

    async fn rescan(&self, disk: &Disk) -> Result<(), HostError> {
        let folder = self.sys_root.join("block").join(&disk.name);
        blocking("rescan", move || sysfs::rescan(&folder)).await
    }

    fn kubelet_dir(&self) -> &Path {
        &self.kubelet_dir
    }

    async fn open(&self, disk: &Disk) -> Result<Device, HostError> {
        let (path, disk) = (self.dev_root.join(&disk.name), disk.clone());
        blocking("open", move || blockdev::open(path, disk)).await
    }

    async fn claim(&self, device: &Device) -> Result<Claim, HostError> {
        let device = device.clone();
        blocking("claim", move || blockdev::claim(&device)).await
    }

    async fn first_nonzero(
        &self,
        device: &Device,
        spans: Vec<Span>,
    ) -> Result<Option<u64>, HostError> {
        let device = device.clone();
        blocking("read", move || blockdev::first_nonzero(&device, &spans)).await
    }

    async fn read_block(&self, device: &Device, offset: u64) -> Result<Vec<u8>, HostError> {
        let device = device.clone();
        blocking("read", move || blockdev::read_block(&device, offset)).await
    }

    async fn cached_head(&self, device: &Device) -> Result<Vec<u8>, HostError> {
        let device = device.clone();
        blocking("read", move || blockdev::cached_head(&device)).await
    }

    async fn write_block(
        &self,
        device: &Device,
        offset: u64,
        block: Vec<u8>,
    ) -> Result<(), HostError> {
        let device = device.clone();
        blocking("write", move || {
            blockdev::write_block(&device, offset, &block)
        })
        .await
    }

    async fn run(
        &self,
        tool: Tool,
        args: Vec<String>,
        limit: Duration,
    ) -> Result<ToolOutput, HostError> {
        command::run(&self.tools, tool, args, limit).await
    }

    async fn mounts(&self) -> Result<Vec<Mount>, HostError> {
        blocking("read", || {
            let path = Path::new(MOUNT_TABLE);
            let table = paths::read_steady(path)?;
            mountinfo::parse(&table).map_err(|_| HostError::Malformed {
                path: path.to_owned(),
            })
        })
        .await
    }

    async fn mount(&self, plan: MountPlan) -> Result<(), HostError> {
        blocking("mount", move || paths::mount(&plan)).await
    }

    async fn sync(&self, path: &Path) -> Result<(), HostError> {
        let path = path.to_owned();
        blocking("write out", move || paths::sync(&path)).await
    }

    async fn unmount(&self, path: &Path, how: Unmount) -> Result<(), HostError> {
        let path = path.to_owned();
        blocking("unmount", move || paths::unmount(&path, how)).await
    }

    async fn resolve(&self, path: &Path) -> Result<PathBuf, HostError> {
        let path = path.to_owned();
        blocking("resolve", move || paths::resolve(&path)).await
    }

    async fn kind(&self, path: &Path) -> Result<PathKind, HostError> {
        let path = path.to_owned();
        blocking("look at", move || paths::kind(&path)).await
    }

    async fn is_empty(&self, path: &Path) -> Result<bool, HostError> {
        let path = path.to_owned();
        blocking("list", move || {
            let mut entries = std::fs::read_dir(&path).map_err(io("list", &path))?;
            Ok(entries.next().is_none())
        })
        .await
    }

    async fn create_dir(&self, path: &Path) -> Result<(), HostError> {
        let path = path.to_owned();
        blocking("create", move || paths::create_dir(&path)).await
    }

    async fn create_file(&self, path: &Path) -> Result<(), HostError> {
        let path = path.to_owned();
        blocking("create", move || paths::create_file(&path)).await
    }

    async fn remove_dir(&self, path: &Path) -> Result<(), HostError> {
        let path = path.to_owned();
        blocking("remove", move || {
            std::fs::remove_dir(&path).map_err(io("remove", &path))
        })
        .await
    }

    async fn remove_file(&self, path: &Path) -> Result<(), HostError> {
        let path = path.to_owned();
        blocking("remove", move || {
            std::fs::remove_file(&path).map_err(io("remove", &path))
        })
        .await
    }

    async fn usage(&self, path: &Path) -> Result<Usage, HostError> {
        let path = path.to_owned();
        blocking("measure", move || paths::usage(&path)).await
    }

    async fn firmware_uuid(&self) -> Result<String, HostError> {
        let path = self.sys_root.join("class/dmi/id/product_uuid");
        blocking("read", move || {
            let text = std::fs::read_to_string(&path).map_err(io("read", &path))?;
            Ok(text.trim().to_owned())
        })
        .await
    }
}
