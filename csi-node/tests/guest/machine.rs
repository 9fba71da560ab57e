//! A guest of QEMU in which the plugin runs.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use csi_proto::csi::v1::NodeGetCapabilitiesRequest;
use csi_proto::csi::v1::node_client::NodeClient;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

/// Names the folder with kernel and initrd, as `build` made it.
const GUEST: &str = "PVE_CLOUD_GUEST";
const QEMU: &str = "qemu-system-x86_64";
/// An emulated guest is up in some seconds, on a busy machine in many.
const START: Duration = Duration::from_mins(4);
const FIRST_SIZE: u64 = 64 << 20;
/// As Debian's kernel starts fastest without hardware acceleration.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr no_timer_check \
    tsc=reliable random.trust_cpu=on";

/// The folder of the guest, or why there can't be one.
fn requirements() -> Result<PathBuf, String> {
    for tool in [QEMU, "cpio", "strip", "ldd", "e2fsck", "dumpe2fs"] {
        let found = Command::new(tool)
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        found.map_err(|_| format!("needs {tool}"))?;
    }
    let folder = std::env::var_os(GUEST)
        .ok_or_else(|| format!("needs a guest: {GUEST}=$(csi-node/tests/guest/build)"))?;
    Ok(folder.into())
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

/// Runs `test` with a guest that has a blank disk of 64 MiB with this name, where that can be.
pub(crate) fn with_guest(name: &str, wwn: &str, test: impl AsyncFnOnce(Guest)) {
    let parts = match requirements() {
        Ok(parts) => parts,
        Err(why) => return skipped(name, &why),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let guest = Guest::start(&parts, wwn).await;
        test(guest).await;
    });
}

pub(crate) struct Guest {
    folder: tempfile::TempDir,
    qemu: Child,
    node: NodeClient<Channel>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        drop(self.qemu.kill());
        drop(self.qemu.wait());
    }
}

impl Guest {
    async fn start(parts: &Path, wwn: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        add_plugin(&parts.join("initrd"), folder.path());
        fs::File::create(at("disk"))
            .unwrap()
            .set_len(FIRST_SIZE)
            .unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let qemu = Command::new(QEMU)
            .args(["-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", "2", "-m", "768", "-nodefaults", "-display", "none"])
            .args(["-no-reboot", "-append", KERNEL_OPTIONS])
            .arg("-kernel")
            .arg(parts.join("vmlinuz"))
            .args(["-initrd", &at("initrd")])
            .args(["-serial", &format!("file:{}", at("console"))])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp"))])
            .args([
                "-netdev",
                &format!("user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:9000"),
            ])
            .args(["-device", "virtio-net-pci,netdev=net0"])
            .args(["-device", "virtio-scsi-pci,id=scsihw0"])
            .args([
                "-drive",
                &format!(
                    "file={},if=none,id=drive-scsi1,format=raw,cache=unsafe",
                    at("disk")
                ),
            ])
            .args([
                "-device",
                &format!(
                    "scsi-hd,bus=scsihw0.0,scsi-id=0,lun=1,drive=drive-scsi1,id=scsi1,wwn={wwn}"
                ),
            ])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let address = format!("http://127.0.0.1:{port}");
        let node = NodeClient::new(Endpoint::from_shared(address).unwrap().connect_lazy());
        let mut guest = Self { folder, qemu, node };
        guest.ready().await;
        guest
    }

    /// QEMU takes a connection before anything in the guest does, so only an answer tells.
    async fn ready(&mut self) {
        let start = tokio::time::Instant::now();
        loop {
            let console = fs::read(self.folder.path().join("console")).unwrap_or_default();
            let console = String::from_utf8_lossy(&console);
            let ended = self.qemu.try_wait().unwrap();
            assert!(
                ended.is_none() && start.elapsed() < START,
                "the guest does not come up: {ended:?}\n{console}"
            );
            let ask = NodeGetCapabilitiesRequest {};
            if console.contains("GUEST-READY")
                && self.node().node_get_capabilities(ask).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        self.node.clone()
    }

    /// Grows the disk and has QEMU tell the guest, as PVE does for a running VM.
    pub(crate) fn resize(&self, size: u64) {
        let disk = fs::File::options().write(true).open(self.disk());
        disk.unwrap().set_len(size).unwrap();
        let mut line = String::new();
        let mut socket = UnixStream::connect(self.folder.path().join("qmp")).unwrap();
        let mut answers = BufReader::new(socket.try_clone().unwrap());
        answers.read_line(&mut line).unwrap();
        let resize = json!({"device": "drive-scsi1", "size": size});
        for (command, arguments) in [("qmp_capabilities", json!({})), ("block_resize", resize)] {
            let request = json!({"execute": command, "arguments": arguments});
            writeln!(socket, "{request}").unwrap();
            loop {
                line.clear();
                answers.read_line(&mut line).unwrap();
                let answer: Value = serde_json::from_str(&line).unwrap();
                if answer.get("event").is_none() {
                    assert!(answer.get("return").is_some(), "{command}: {answer}");
                    break;
                }
            }
        }
    }

    fn disk(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// Ends the guest; its disk is there until it is dropped.
    pub(crate) fn end(&mut self) -> PathBuf {
        self.qemu.kill().unwrap();
        self.qemu.wait().unwrap();
        self.disk()
    }
}

/// The guest's initrd with the plugin and what it is linked to: a kernel unpacks one archive after the other.
fn add_plugin(initrd: &Path, folder: &Path) {
    let plugin = env!("CARGO_BIN_EXE_pve-csi-node");
    let root = folder.join("root");
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    let stripped = root.join("usr/bin/pve-csi-node");
    output("strip", &["-o", stripped.to_str().unwrap(), plugin]);
    for library in output("ldd", &[plugin]).split_whitespace() {
        if let Some(inside) = library.strip_prefix('/') {
            let copy = root.join(inside);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(library, copy).unwrap();
        }
    }
    let whole = folder.join("initrd");
    fs::copy(initrd, &whole).unwrap();
    let script = "cd \"$0\" && find . | cpio -o -H newc --quiet >>\"$1\"";
    output(
        "sh",
        &[
            "-c",
            script,
            root.to_str().unwrap(),
            whole.to_str().unwrap(),
        ],
    );
    fs::remove_dir_all(root).unwrap();
}

/// What a program says that must succeed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}
