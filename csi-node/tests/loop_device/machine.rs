//! A machine for the node plugin: loop devices that look like SCSI disks in a private `/sys` and `/dev`, and the
//! real program on its real socket.
//!
//! Everything is mounted in a mount namespace of the test's own thread and goes with it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use csi_proto::csi::v1::node_client::NodeClient;
use csi_proto::csi::v1::volume_capability::access_mode::Mode;
use csi_proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::csi::v1::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use pve_model::wwn::Wwn;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::disk::{Disk, attach};

pub(crate) const MIB: u64 = 1 << 20;

/// Why a test with real devices can't run here, if it can't.
fn obstacle() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("no loop devices".to_owned());
    }
    let missing = ["losetup", "blkid", "mkfs.ext4", "e2fsck", "blockdev"]
        .into_iter()
        .find(|tool| {
            let version = Command::new(tool)
                .arg("--version")
                .stdin(Stdio::null())
                .output();
            version.is_err()
        });
    missing.map(|tool| format!("{tool} is not installed"))
}

/// Tells people and `make test` that a test did not run; where everything must run, that is a failure.
fn skipped(name: &str, why: &str) {
    println!("SKIPPED {name}: {why}");
    let all = std::env::var_os("PVE_CLOUD_REQUIRE").is_some_and(|value| value == "all");
    assert!(!all, "{name} must run here: {why}");
    if let Some(log) = std::env::var_os("PVE_CLOUD_SKIP_LOG") {
        let mut log = fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        writeln!(log, "{name}\t{why}").unwrap();
    }
}

/// Runs `test` where it can run, else says that and why it was skipped.
pub(crate) fn with_machine(name: &str, test: impl AsyncFnOnce(Machine)) {
    if let Some(why) = obstacle() {
        return skipped(name, &why);
    }
    // From here on all mounts of this thread, and of the processes that it starts, are its own.
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let machine = Machine::start().await;
        test(machine).await;
    });
}

/// The machine with the plugin running.
pub(crate) struct Machine {
    plugin: Option<Child>,
    folder: tempfile::TempDir,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        let prefix = self.folder.path().to_string_lossy().into_owned();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| point.starts_with(&prefix)) {
            if let Err(error) = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH) {
                println!("{point}: {error}");
            }
        }
    }
}

impl Machine {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["sys/block", "dev", "tools", "kubelet/plugins_registry"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
            clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]\n\
            contexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x, user: {}}]\n";
        fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        let mut machine = Self {
            plugin: None,
            folder,
        };
        machine.restart().await;
        machine
    }

    /// Starts the plugin anew.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        let log = fs::File::create(self.path("log")).unwrap();
        let child = self
            .program(&self.path(""))
            .args([
                "--allow-private-mounts",
                "--log-filter",
                "info,pve_csi_node=debug",
            ])
            .stderr(log)
            .spawn()
            .unwrap();
        self.plugin = Some(child);
        let socket = self.path("csi.sock");
        for _ in 0..1000 {
            if tokio::net::UnixStream::connect(&socket).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "no socket: {}",
            fs::read_to_string(self.path("log")).unwrap()
        );
    }

    /// The plugin's program and its arguments.
    pub(crate) fn program(&self, kubelet_dir: &Path) -> Command {
        let at = |name: &str| self.path(name).display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pve-csi-node"));
        let search = std::env::var("PATH").unwrap();
        command
            .env("PATH", format!("{}:{search}", at("tools")))
            .args(["--csi-address", &format!("unix://{}", at("csi.sock"))])
            .args(["--registration-dir", &at("kubelet/plugins_registry")])
            .args(["--kubelet-csi-path", &at("csi.sock")])
            .arg("--kubelet-dir")
            .arg(kubelet_dir)
            .args(["--node-name", "worker-1", "--kubeconfig", &at("kubeconfig")])
            .args(["--sys-root", &at("sys"), "--dev-root", &at("dev")]);
        command
    }

    /// Puts a script in the way of a program that the plugin runs: `real` in it runs the program itself, and `disk`
    /// is the last argument.
    pub(crate) fn interpose(&self, tool: &str, script: &str) {
        let path = self.path("tools").join(tool);
        let head = format!(
            "#!/bin/sh -e\nreal() {{ PATH=\"${{PATH#*:}}\" command {tool} \"$@\"; }}\nfor disk; do :; done\n"
        );
        fs::write(&path, head + script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Takes the scripts away.
    pub(crate) fn interpose_nothing(&self) {
        fs::remove_dir_all(self.path("tools")).unwrap();
        fs::create_dir(self.path("tools")).unwrap();
    }

    /// As a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.plugin.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A blank disk of volume `handle`, not plugged yet.
    pub(crate) fn disk(&self, name: &str, handle: &str, size: u64) -> Disk {
        let wwn = Wwn::of(&handle.parse().unwrap());
        let backing = self.path(&format!("{name}.img"));
        let file = fs::File::create(&backing).unwrap();
        file.set_len(size).unwrap();
        let device = attach(&backing);
        Disk {
            handle: handle.to_owned(),
            wwn,
            size,
            says_size: true,
            backing,
            node: self.path("dev").join(name),
            sysfs: self.path("sys/block").join(name),
            device,
        }
    }

    /// A disk that was unplugged, attached a second time.
    pub(crate) fn again(&self, name: &str, disk: &Disk) -> Disk {
        Disk {
            handle: disk.handle.clone(),
            backing: disk.backing.clone(),
            node: self.path("dev").join(name),
            sysfs: self.path("sys/block").join(name),
            device: attach(&disk.backing),
            ..*disk
        }
    }

    /// A blank disk, plugged.
    pub(crate) fn plugged(&self, name: &str, handle: &str, size: u64) -> Disk {
        let disk = self.disk(name, handle, size);
        disk.plug();
        disk
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        let socket = self.path("csi.sock");
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let socket = socket.clone();
            async move {
                tokio::net::UnixStream::connect(socket)
                    .await
                    .map(hyper_util::rt::TokioIo::new)
            }
        });
        NodeClient::new(
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector),
        )
    }

    pub(crate) async fn stage(&self, disk: &Disk, staging: &Path) -> Result<(), Status> {
        self.stage_as(disk, staging, mount_capability()).await
    }

    pub(crate) async fn stage_as(
        &self,
        disk: &Disk,
        staging: &Path,
        capability: VolumeCapability,
    ) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_capability: Some(capability),
            ..stage_request(disk, staging)
        };
        self.node().node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, disk: &Disk, staging: &Path) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: disk.handle.clone(),
            staging_target_path: staging.display().to_string(),
        };
        self.node().node_unstage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        self.node().node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, disk: &Disk, target: &Path) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: disk.handle.clone(),
            target_path: target.display().to_string(),
        };
        self.node().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn stats(
        &self,
        disk: &Disk,
        path: &Path,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: disk.handle.clone(),
            volume_path: path.display().to_string(),
            ..Default::default()
        };
        Ok(self
            .node()
            .node_get_volume_stats(request)
            .await?
            .into_inner())
    }
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    output
}

pub(crate) fn mount_capability() -> VolumeCapability {
    capability(AccessType::Mount(MountVolume {
        fs_type: "ext4".to_owned(),
        ..Default::default()
    }))
}

pub(crate) fn block_capability() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}))
}

fn capability(kind: AccessType) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(kind),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}

pub(crate) fn stage_request(disk: &Disk, staging: &Path) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: disk.handle.clone(),
        publish_context: disk.context(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(mount_capability()),
        ..Default::default()
    }
}

pub(crate) fn publish_request(
    disk: &Disk,
    staging: &Path,
    target: &Path,
) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: disk.handle.clone(),
        publish_context: disk.context(),
        staging_target_path: staging.display().to_string(),
        target_path: target.display().to_string(),
        volume_capability: Some(mount_capability()),
        ..Default::default()
    }
}

/// `major:minor` of what is mounted at exactly this path.
pub(crate) fn device_at(path: &Path) -> String {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let line = table
        .lines()
        .rfind(|line| line.split(' ').nth(4) == path.to_str())
        .unwrap();
    line.split(' ').nth(2).unwrap().to_owned()
}

/// How many mounts there are at exactly this path.
pub(crate) fn mounts_at(path: &Path) -> usize {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let path = path.to_str().unwrap();
    table
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some(path))
        .count()
}
