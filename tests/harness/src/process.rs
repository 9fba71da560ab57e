//! One program under test: started with its own log file, ended by pid, never left behind.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

mod freshness;

pub use nix::sys::signal::Signal;

/// How long a program has to end after SIGTERM.
const STOP: Duration = Duration::from_secs(10);

/// A running program. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// Where a program of this workspace was built: beside the running test, or one folder up from it. One that is older
/// than its sources is an error.
pub fn built(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().context("path of the running program")?;
    let program = here
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not built: `make build` does it"))?;
    let copy = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    match freshness::stale(&program, copy.as_deref())? {
        None => Ok(program),
        Some(why) => bail!("{name} is out of date, {why}: `make build` builds it again"),
    }
}

impl Process {
    /// Starts `program`; its standard output and error go to `<logs>/<name>.log`.
    pub fn start<A: AsRef<OsStr>>(
        name: &str,
        program: &Path,
        args: &[A],
        logs: &Path,
    ) -> Result<Self> {
        Self::start_with_env(name, program, args, &[], logs)
    }

    /// As [`Process::start`], with environment variables on top.
    pub fn start_with_env<A: AsRef<OsStr>>(
        name: &str,
        program: &Path,
        args: &[A],
        env: &[(&str, String)],
        logs: &Path,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        let env = env.iter().map(|(key, value)| (key, value));
        command.args(args).envs(env);
        Self::spawn(name, command, logs)
    }

    /// As [`Process::start`], in a process group of its own: signals of the terminal do not reach it.
    pub fn start_apart<A: AsRef<OsStr>>(
        name: &str,
        program: &Path,
        args: &[A],
        logs: &Path,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(args).process_group(0);
        Self::spawn(name, command, logs)
    }

    fn spawn(name: &str, mut command: Command, logs: &Path) -> Result<Self> {
        std::fs::create_dir_all(logs)?;
        let log = logs.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The status with which it ended, or nothing while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until `ready` says so; fails at once, with the end of the log, if the program ends first.
    pub async fn ready<F>(&mut self, limit: Duration, mut ready: F) -> Result<()>
    where
        F: AsyncFnMut() -> bool,
    {
        let deadline = Instant::now() + limit;
        loop {
            if ready().await {
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                bail!("{} ended with {status}:\n{}", self.name, tail(&self.log()));
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} is not ready after {limit:?}:\n{}",
                    self.name,
                    tail(&self.log())
                );
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().context("the program has ended")?;
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
    }

    /// SIGTERM, then SIGKILL after ten seconds. Returns how it ended.
    pub async fn stop(mut self) -> Result<ExitStatus> {
        if self.pid().is_some() {
            self.signal(Signal::SIGTERM)?;
        }
        if let Ok(status) = timeout(STOP, self.child.wait()).await {
            return Ok(status?);
        }
        self.kill().await
    }

    /// SIGKILL, as a crash.
    pub async fn kill(mut self) -> Result<ExitStatus> {
        self.child.start_kill()?;
        Ok(self.child.wait().await?)
    }
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines
        .iter()
        .skip(lines.len().saturating_sub(25))
        .copied()
        .collect::<Vec<_>>()
        .join("\n")
}
