//! A driver, its loader, and the folders between them, as in a Pod.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::cluster::eventually;
use harness::mounted::{MountedSecret, memory};
use harness::process::{Process, built};
use harness::world::free_port;
use tokio::time::sleep;

/// How long a changed Secret may take: the loader looks each second, the drivers each five.
const PATIENCE: Duration = Duration::from_secs(30);
/// Everything that any crate has to say.
const LOG: &str = "trace";

/// A file of the tenant's kubeconfig Secret, as Kamaji calls it.
const SUPER_ADMIN: &str = "super-admin.svc";

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) secret: MountedSecret,
    kubeconfig: MountedSecret,
    pub(crate) folder: PathBuf,
    logs: PathBuf,
    loader: Option<Process>,
    driver: Option<Process>,
    pub(crate) admins: Vec<SocketAddr>,
}

impl Side {
    /// Folders and mounts of a Pod that does not run yet.
    pub(crate) fn new(name: &'static str, run: &Path) -> Result<Self> {
        let folder = run.join(name);
        for volume in ["config", "kubeconfig"] {
            memory(&folder.join(volume))?;
        }
        Ok(Self {
            name,
            secret: MountedSecret::new(&folder.join("secret"))?,
            kubeconfig: MountedSecret::new(&folder.join("kubeconfig-secret"))?,
            logs: run.join("log"),
            folder,
            loader: None,
            driver: None,
            admins: Vec::new(),
        })
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.join("config/files/config.yaml")
    }

    pub(crate) fn kubeconfig(&self, name: &str) -> PathBuf {
        self.folder
            .join(format!("kubeconfig/files/{name}.kubeconfig"))
    }

    pub(crate) fn set_kubeconfig(&mut self, text: &str) -> Result<()> {
        self.kubeconfig.update(&[(SUPER_ADMIN, text)])
    }

    /// The init container, which waits for a kubeconfig that comes late; then the container beside the driver.
    pub(crate) async fn load(&mut self, impersonate: &str, kubeconfig: &str) -> Result<()> {
        let logs = self.logs.clone();
        let folder = |name: &str| self.folder.join(name).display().to_string();
        let mut arguments = vec![
            format!("--use={}", self.name),
            format!("--secret-dir={}", folder("secret")),
            format!("--config-dir={}", folder("config/files")),
            format!(
                "--kubeconfig-source={}/{SUPER_ADMIN}",
                folder("kubeconfig-secret")
            ),
            format!("--kubeconfig-dir={}", folder("kubeconfig/files")),
            format!("--impersonate={impersonate}"),
            format!("--log-filter={LOG}"),
            "--expect-region=r1".to_owned(),
        ];
        let program = built("pve-credentials")?;
        let mut init = Process::start(&format!("{}-init", self.name), &program, &arguments, &logs)?;
        let config = self.config();
        init.ready(PATIENCE, async || config.exists()).await?;
        sleep(Duration::from_secs(1)).await;
        ensure!(init.ended()?.is_none(), "it does not wait: {}", init.log());
        self.set_kubeconfig(kubeconfig)?;
        let (status, _) = eventually("the init container", PATIENCE, async || init.ended()).await?;
        ensure!(status.success(), "{status}: {}", init.log());
        let admin = free_port()?;
        arguments.extend([
            "--watch".to_owned(),
            "--poll-period=1s".to_owned(),
            format!("--admin-address={admin}"),
        ]);
        let name = format!("{}-credentials", self.name);
        self.loader = Some(Process::start(&name, &program, &arguments, &logs)?);
        self.admins.push(admin);
        Ok(())
    }

    /// Starts the driver with what the loader has written.
    pub(crate) fn drive(
        &mut self,
        program: &str,
        tenant: &str,
        more: &[String],
    ) -> Result<SocketAddr> {
        let admin = free_port()?;
        let mut arguments = vec![
            format!("--cloud-config={}", self.config().display()),
            format!("--kubeconfig={}", self.kubeconfig(tenant).display()),
            format!("--admin-address={admin}"),
            format!("--log-filter={LOG}"),
        ];
        arguments.extend_from_slice(more);
        let process = Process::start(self.name, &built(program)?, &arguments, &self.logs)?;
        self.driver = Some(process);
        self.admins.push(admin);
        Ok(admin)
    }

    pub(crate) fn driver(&mut self) -> Option<&mut Process> {
        self.driver.as_mut()
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.loader.iter().chain(&self.driver)
    }

    fn said(&self, what: &str) -> usize {
        let log = self.driver.as_ref().map(Process::log).unwrap_or_default();
        log.matches(what).count()
    }

    /// How many configs have come into force since the driver's start.
    pub(crate) fn configs_in_force(&self) -> usize {
        self.said("the config has changed and is in force")
    }

    pub(crate) fn kubeconfigs_in_force(&self) -> usize {
        self.said("the kubeconfig has changed and is in force")
    }

    pub(crate) async fn new_config(&self, before: usize) -> Result<()> {
        let what = format!("{}: another config", self.name);
        eventually(&what, PATIENCE, async || {
            Ok((self.configs_in_force() > before).then_some(()))
        })
        .await?;
        Ok(())
    }

    pub(crate) async fn new_kubeconfig(&self, before: usize) -> Result<()> {
        let what = format!("{}: another kubeconfig", self.name);
        eventually(&what, PATIENCE, async || {
            Ok((self.kubeconfigs_in_force() > before).then_some(()))
        })
        .await?;
        Ok(())
    }

    /// Waits until the loader has logged this.
    pub(crate) async fn loader_says(&self, what: &str) -> Result<()> {
        eventually(what, PATIENCE, async || {
            let log = self.loader.as_ref().map(Process::log).unwrap_or_default();
            Ok(log.contains(what).then_some(()))
        })
        .await?;
        Ok(())
    }

    /// Ends both; fails if one has ended by itself or ends badly.
    pub(crate) async fn stop(self) -> Result<()> {
        for mut process in [self.driver, self.loader].into_iter().flatten() {
            ensure!(process.ended()?.is_none(), "{} has ended", self.name);
            let status = process.stop().await?;
            ensure!(status.success(), "{}: {status}", self.name);
        }
        Ok(())
    }
}
