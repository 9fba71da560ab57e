//! One more controller on the same simulator, or one that must not start: beside the one that a world owns.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};

use crate::caller::Caller;
use crate::csi::Csi;
use crate::process::{Process, built};
use crate::world::World;

/// How long a config may take to be refused.
const REFUSAL: Duration = Duration::from_secs(15);

/// A controller that a test started by itself.
#[derive(Debug)]
pub struct ExtraController {
    /// The program.
    pub process: Process,
    /// Calls to it.
    pub caller: Caller,
    /// Where it listens.
    pub socket: PathBuf,
}

impl World {
    /// Calls to the controller of this world.
    pub fn caller(&self) -> Caller {
        Caller::new(self.csi())
    }

    /// Starts one more controller with the config of this world.
    pub async fn extra_controller(&self, name: &str) -> Result<ExtraController> {
        self.extra_controller_with(name, &[]).await
    }

    /// The same with more arguments.
    pub async fn extra_controller_with(
        &self,
        name: &str,
        more: &[String],
    ) -> Result<ExtraController> {
        let socket = self.folder().join(format!("{name}.sock"));
        let config = self.folder().join(format!("{name}.yaml"));
        std::fs::write(&config, self.config().to_string())?;
        let mut process = start(self.folder(), name, (&socket, &config), more)?;
        let csi = Csi::at(&socket);
        csi.served_by(&mut process).await?;
        Ok(ExtraController {
            process,
            caller: Caller::new(csi),
            socket,
        })
    }

    /// Starts a controller with this text as its config and waits until it ends: how it ended, what it wrote, and
    /// whether its socket ever appeared.
    pub async fn refused_controller(
        &self,
        name: &str,
        config: &str,
    ) -> Result<(ExitStatus, String, bool)> {
        let socket = self.folder().join(format!("{name}.sock"));
        let path = self.folder().join(format!("{name}.yaml"));
        std::fs::write(&path, config)?;
        let mut process = start(self.folder(), name, (&socket, &path), &[])?;
        let deadline = Instant::now() + REFUSAL;
        let mut bound = false;
        loop {
            bound |= socket.exists();
            if let Some(status) = process.ended()? {
                return Ok((status, process.log(), bound));
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "the controller did not end:\n{}",
                process.log()
            );
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Starts a controller with this socket and config file, and more arguments.
pub fn start(
    folder: &Path,
    name: &str,
    (socket, config): (&Path, &Path),
    more: &[String],
) -> Result<Process> {
    let mut arguments = vec![
        "--csi-address".to_owned(),
        format!("unix://{}", socket.display()),
        "--cloud-config".to_owned(),
        config.display().to_string(),
        "--log-filter".to_owned(),
        "debug,h2=info,hyper=info,rustls=info,tower=info".to_owned(),
    ];
    arguments.extend_from_slice(more);
    let program = built("pve-csi-controller")?;
    Process::start(name, &program, &arguments, &folder.join("log"))
        .with_context(|| format!("start {name}"))
}
