//! `make demo`, interrupted in the middle: nothing may stay behind, least of all on a real Proxmox VE.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panics")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use harness::process::built;
use harness::requirements::{loop_devices, skipped};
use harness::truth::Truth;
use harness::world::{OWNER, World, tenant};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use pve_sim::Timing;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

const NOBODY: u32 = 65534;
const PATIENCE: Duration = Duration::from_mins(1);

struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Demo {
    /// In a process group of its own, as a shell starts it.
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
        command.args(arguments);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn says(&mut self, what: &str) {
        let found = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.contains(what) {
                    return true;
                }
            }
            false
        };
        if !timeout(PATIENCE, found).await.unwrap() {
            let (_, text) = self.end().await;
            panic!("the demo ended before {what}: {text}");
        }
    }

    /// As the terminal does it: all of the group get the signal.
    fn interrupt(&self) {
        let group = Pid::from_raw(self.child.id().unwrap().try_into().unwrap());
        killpg(group, Signal::SIGINT).unwrap();
    }

    /// How it ended, and what it wrote meanwhile.
    async fn end(&mut self) -> (ExitStatus, String) {
        let mut text = String::new();
        let mut error = self.child.stderr.take().unwrap();
        let rest = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                text += &line;
            }
            error.read_to_string(&mut text).await.unwrap();
        };
        timeout(PATIENCE, rest).await.unwrap();
        (self.child.wait().await.unwrap(), text)
    }

    /// The folder of its world: its programs listen there.
    fn folder(&self) -> PathBuf {
        let pid = self.child.id().unwrap();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let children: String = tasks
            .map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap())
            .collect();
        let mut sockets = children.split_whitespace().filter_map(|child| {
            let arguments = std::fs::read_to_string(format!("/proc/{child}/cmdline")).ok()?;
            let socket = arguments
                .split('\0')
                .find_map(|a| a.strip_prefix("unix://"))?;
            Some(PathBuf::from(socket))
        });
        let below = |path: PathBuf| {
            path.ancestors()
                .find(|p| p.parent() == Some("/tmp".as_ref()))
                .map(Path::to_owned)
        };
        sockets.find_map(below).unwrap()
    }
}

fn lines_with(table: &str, folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let lines = table.lines().filter(|line| line.contains(&folder));
    lines.map(str::to_owned).collect()
}

/// Files below `folder` that loop devices hold.
fn loops(folder: &Path) -> Vec<String> {
    let devices = std::fs::read_dir("/sys/block").unwrap();
    let files = devices.filter_map(|device| {
        let file = device.unwrap().path().join("loop/backing_file");
        std::fs::read_to_string(file).ok()
    });
    lines_with(&files.collect::<String>(), folder)
}

fn mounts(folder: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    lines_with(&table, folder)
}

#[tokio::test]
async fn without_privileges_it_runs_in_memory_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mode = Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).unwrap();
    let demo = PathBuf::from(env!("CARGO_BIN_EXE_demo"));
    for program in [&demo, &built("pve-csi-controller").unwrap()] {
        std::fs::copy(program, folder.path().join(program.file_name().unwrap())).unwrap();
    }
    let mut command = Command::new(folder.path().join("demo"));
    command.current_dir("/").env("HOME", "/nonexistent");
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut demo = Demo::spawn(command);
    demo.says("The disk is in memory: needs root").await;
    let (status, text) = demo.end().await;
    assert!(status.success(), "{status} {text}");
    assert!(text.ends_with("PVC round trip: OK"), "{text}");
}

#[tokio::test]
async fn interrupted_with_a_mounted_volume_it_leaves_no_folder_mount_or_loop_device() {
    const NAME: &str = "interrupted_with_a_mounted_volume_it_leaves_no_folder_mount_or_loop_device";
    if let Err(reason) = loop_devices() {
        return skipped(NAME, &reason);
    }
    let mut demo = Demo::start(&[]);
    demo.says("NodePublishVolume on").await;
    let folder = demo.folder();
    assert_ne!(loops(&folder), [""; 0]);
    assert_ne!(mounts(&folder), [""; 0]);
    demo.interrupt();
    let (status, text) = demo.end().await;
    assert_eq!(status.code(), Some(1), "{status} {text}");
    assert_eq!(mounts(&folder), [""; 0]);
    assert_eq!(loops(&folder), [""; 0]);
    assert!(!folder.exists(), "{}", folder.display());
}

#[tokio::test]
async fn interrupted_on_a_real_proxmox_it_detaches_and_deletes_the_disk() {
    for moment in [
        "controller is up",
        "CreateVolume: ",
        "ControllerPublishVolume: ",
    ] {
        let builder = tenant(&[(101, "pve1")]).timing(Timing::REAL);
        let world = World::without_controller(builder).await.unwrap();
        let config = world.folder().join("operator.yaml");
        std::fs::write(&config, world.config().to_string()).unwrap();
        let mut demo = Demo::start(&["--pve-config", config.to_str().unwrap(), "--vm", "101"]);
        demo.says(moment).await;
        demo.interrupt();
        let (status, text) = demo.end().await;
        assert_eq!(status.code(), Some(1), "{moment}: {status} {text}");
        assert!(text.contains("interrupted"), "{moment}: {text}");
        assert!(text.contains("no disk is left"), "{moment}: {text}");
        let state = world.sim.state();
        let ours = format!("vm-{OWNER}-");
        let left = state
            .volumes
            .iter()
            .filter(|volume| volume.name.contains(&ours));
        assert_eq!(left.count(), 0, "{moment}: a disk is left");
        let truth = Truth::of(&world.sim);
        assert!(truth.disks().is_empty(), "{moment}: {:?}", truth.disks());
        assert!(truth.violations().is_empty(), "{:?}", truth.violations());
    }
}
