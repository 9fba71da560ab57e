//! What a test with a real Kubernetes needs of the machine.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// The folder with the programs that tests/tools/build makes.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Runs tests/tools/build: at once when its sources haven't changed since the last time, else minutes.
    pub async fn build() -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/build");
        let output = Command::new(&script)
            .arg("cluster")
            .output()
            .await
            .with_context(|| format!("run {}", script.display()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!(
                "tests/tools/build cluster failed: {}",
                words.lines().last().unwrap_or("no message")
            );
        }
        let folder = String::from_utf8(output.stdout)?;
        Ok(Self {
            folder: PathBuf::from(folder.trim_end()),
        })
    }

    pub(super) fn kubernetes(&self) -> PathBuf {
        self.folder.join("kubepeer")
    }

    pub(super) fn sidecar(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The programs, if this machine can run a test with volumes; else says on standard error why `test` is skipped.
pub async fn requirements(test: &str) -> Option<Programs> {
    match programs_of_this_machine().await {
        Ok(programs) => Some(programs),
        Err(reason) => {
            // Not by a print macro: the test runner hides what those write.
            writeln!(std::io::stderr(), "SKIPPED {test}: {reason:#}").ok();
            None
        }
    }
}

async fn programs_of_this_machine() -> Result<Programs> {
    if !nix::unistd::geteuid().is_root() {
        bail!("not root: kubelets mount");
    }
    if !Path::new("/dev/loop-control").exists() {
        bail!("no /dev/loop-control: disks are loop devices");
    }
    Programs::build().await
}
