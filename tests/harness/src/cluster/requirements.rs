//! The programs that a real Kubernetes consists of, and whether a test can have it here.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::requirements::{loop_devices, peer, skipped};

/// What is started from tests/tools.
const NEEDED: [&str; 5] = [
    "kubepeer",
    "container-init",
    "csi-provisioner",
    "csi-attacher",
    "csi-resizer",
];

/// The folder with the programs that tests/tools/build makes.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Those that `make test` has built; otherwise what is missing.
    pub fn built() -> Result<Self, String> {
        let mut folder = None;
        for name in NEEDED {
            folder = peer("cluster", name)?.parent().map(Path::to_owned);
        }
        let folder = folder.ok_or("the peers are in no folder")?;
        Ok(Self { folder })
    }

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

    /// All of Kubernetes in one program: its first argument says which part it is.
    pub fn kubernetes(&self) -> PathBuf {
        self.folder.join("kubepeer")
    }

    pub(super) fn sidecar(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The programs, if this machine can run a test with real volumes; else records that `test` is skipped, and why.
pub fn requirements(test: &str) -> Option<Programs> {
    match loop_devices().and_then(|()| Programs::built()) {
        Ok(programs) => Some(programs),
        Err(reason) => {
            skipped(test, &reason);
            None
        }
    }
}
