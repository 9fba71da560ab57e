//! Running programs: no input, capped output, a time limit, and nothing left behind.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::host::{HostError, Tool, ToolOutput};

/// More than any of the programs says that is worth reading.
const OUTPUT_CAP: u64 = 64 << 10;

/// `node_tool_seconds{tool,outcome}`.
#[derive(Debug, Clone)]
pub(super) struct ToolMetrics {
    seconds: Family<ToolLabels, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolLabels {
    tool: &'static str,
    outcome: String,
}

impl ToolMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let new: fn() -> Histogram =
            || Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0, 600.0]);
        let seconds = Family::new_with_constructor(new);
        registry.register(
            "node_tool_seconds",
            "Run time of the programs that the node plugin calls",
            seconds.clone(),
        );
        Self { seconds }
    }

    fn observe(&self, tool: Tool, outcome: String, time: Duration) {
        let labels = ToolLabels {
            tool: tool.program(),
            outcome,
        };
        self.seconds
            .get_or_create(&labels)
            .observe(time.as_secs_f64());
    }
}

pub(super) async fn run(
    metrics: &ToolMetrics,
    tool: Tool,
    args: Vec<String>,
    limit: Duration,
) -> Result<ToolOutput, HostError> {
    let start = Instant::now();
    let result = execute(tool.program(), &args, limit)
        .await
        .map_err(|failure| match failure {
            Failure::Spawn(source) => HostError::Spawn { tool, source },
            Failure::Timeout => HostError::ToolTimeout { tool, limit },
        });
    let outcome = match &result {
        Ok(output) => output
            .code
            .map_or_else(|| "signal".to_owned(), |code| code.to_string()),
        Err(HostError::ToolTimeout { .. }) => "timeout".to_owned(),
        Err(_) => "error".to_owned(),
    };
    tracing::debug!(%tool, ?args, outcome, "ran a program");
    metrics.observe(tool, outcome, start.elapsed());
    result
}

/// Why there is no exit code.
#[derive(Debug)]
enum Failure {
    Spawn(std::io::Error),
    Timeout,
}

async fn execute(program: &str, args: &[String], limit: Duration) -> Result<ToolOutput, Failure> {
    let mut child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(Failure::Spawn)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (stdout, stderr) = tokio::join!(capped(stdout), capped(stderr));
        child.wait().await.map(|status| (status, stdout, stderr))
    };
    match tokio::time::timeout(limit, work).await {
        Ok(Ok((status, stdout, stderr))) => Ok(ToolOutput {
            code: status.code(),
            stdout,
            stderr,
        }),
        Ok(Err(source)) => Err(Failure::Spawn(source)),
        Err(_) => {
            end(&mut child).await;
            Err(Failure::Timeout)
        }
    }
}

/// Reads to the end, keeps the beginning.
async fn capped(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut pipe) = pipe else {
        return String::new();
    };
    let mut kept = Vec::new();
    let head = (&mut pipe).take(OUTPUT_CAP).read_to_end(&mut kept).await;
    if head.is_ok() {
        // The program must not block on a full pipe; what it says beyond the cap is dropped.
        drop(tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Kills the program with what it started, and waits until it is gone: it must not write after its caller went on.
async fn end(child: &mut Child) {
    let group = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .map(Pid::from_raw);
    if let Some(Err(error)) = group.map(|group| killpg(group, Signal::SIGKILL)) {
        tracing::debug!(%error, "killing a program");
    }
    if let Err(error) = child.wait().await {
        tracing::debug!(%error, "waiting for a killed program");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(script: &str, limit: Duration) -> Result<ToolOutput, Failure> {
        execute("sh", &["-c".to_owned(), script.to_owned()], limit).await
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_is_killed_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("left");
        let script = format!("(sleep 0.5; touch {}) & sleep 60", left.display());
        let start = Instant::now();
        let ended = sh(&script, Duration::from_millis(100)).await;
        assert!(matches!(ended, Err(Failure::Timeout)));
        assert!(start.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!left.exists());
    }

    #[tokio::test]
    async fn exit_codes_and_output_come_back_and_a_flood_is_capped() {
        let long = Duration::from_secs(20);
        let output = sh("echo out; echo err >&2; exit 7", long).await.unwrap();
        assert_eq!((output.code, output.stdout.as_str()), (Some(7), "out\n"));
        assert_eq!(output.stderr, "err\n");
        let flood = sh("head -c 1000000 /dev/zero", long).await.unwrap();
        assert_eq!((flood.code, flood.stdout.len()), (Some(0), 64 << 10));
        assert_eq!(sh("kill -9 $$", long).await.unwrap().code, None);
        assert!(matches!(
            execute("no-such-program", &[], long).await,
            Err(Failure::Spawn(_))
        ));
    }
}
