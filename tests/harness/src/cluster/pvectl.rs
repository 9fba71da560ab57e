//! `pvectl` beside a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::time::timeout;

use super::stack::Stack;
use crate::process::{Process, built};

/// What a run of `pvectl … -o json` has said.
#[derive(Debug)]
pub struct Told {
    /// Its exit code.
    pub code: Option<i32>,
    /// Standard output and error.
    pub text: String,
    /// The document on standard output; null if there is none.
    pub json: Value,
}

impl Told {
    /// What stands there in the document, as `/left/0/why`; null if nothing does.
    pub fn at(&self, pointer: &str) -> &Value {
        self.json.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The members of a list of the document.
    pub fn list(&self, pointer: &str) -> Result<&[Value]> {
        let list = self.at(pointer).as_array();
        Ok(list.with_context(|| format!("no {pointer} in {}", self.text))?)
    }

    /// Fails unless it has ended with this code, and the document says this.
    pub fn is(&self, code: i32, pointer: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        let right = self.code == Some(code) && *self.at(pointer) == value;
        ensure!(
            right,
            "not {code} with {value} at {pointer}, but {:?}:\n{}",
            self.code,
            self.text
        );
        Ok(())
    }
}

/// Starts it; what it writes goes to a log of this name.
pub fn start_pvectl(name: &str, arguments: &[String], logs: &Path) -> Result<Process> {
    Process::start(name, &built("pvectl")?, arguments, logs)
}

/// Runs it to its end.
pub async fn pvectl(
    name: &str,
    arguments: &[String],
    logs: &Path,
    limit: Duration,
) -> Result<Told> {
    let mut process = start_pvectl(name, arguments, logs)?;
    told(&mut process, limit).await
}

/// Waits for its end.
pub async fn told(process: &mut Process, limit: Duration) -> Result<Told> {
    let ended = timeout(limit, async {
        loop {
            if let Some(status) = process.ended()? {
                return anyhow::Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let status = ended
        .await
        .with_context(|| format!("not within {limit:?}:\n{}", process.log()))??;
    let text = process.log();
    // Lines of progress are before it, and it ends the output.
    let json = text
        .find("\n{")
        .map_or(text.as_str(), |at| text.get(at..).unwrap_or_default());
    Ok(Told {
        code: status.code(),
        json: serde_json::from_str(json).unwrap_or_default(),
        text,
    })
}

impl Stack {
    /// Path of an administrator's kubeconfig that holds all that it needs.
    pub fn admin_kubeconfig(&self) -> Result<PathBuf> {
        self.plane.whole_admin_kubeconfig()
    }

    /// Below it is what belongs to the run.
    pub fn folder(&self) -> &Path {
        self.plane.folder()
    }

    /// Where the programs of the cluster write their logs.
    pub fn log_folder(&self) -> PathBuf {
        self.plane.logs()
    }

    /// Ends all kubelets, and their containers with them; the VMs run on.
    pub async fn stop_kubelets(&mut self) -> Result<()> {
        for worker in std::mem::take(&mut self.workers) {
            worker.kubelet.stop().await?;
            worker.plugin.stop().await?;
        }
        Ok(())
    }
}
