//! `make test`: builds the peers, runs every test of the workspace, and sums up what ran and what did not.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use harness::requirements::{NOTE_LOG, PEERS, SKIP_LOG, find_program};
use tokio::time::Instant;

/// Counts of one `test result:` line or of several.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    counts: Counts,
    ok: bool,
    took: Duration,
}

/// One run of `cargo test`.
#[derive(Debug)]
struct Run {
    name: &'static str,
    arguments: Vec<String>,
}

const NO_GO: &str =
    "no Go toolchain: nothing runs against Kubernetes, its sidecars or csi-sanity\n";
/// The programs first: the tests run what was built last.
const BUILD: [&str; 4] = ["build", "--quiet", "--workspace", "--bins"];
/// They wait most of their time, and print nothing until they end.
const CLUSTER: &str = "real Kubernetes";
/// The other tests beside which they run; what is left measures times.
const BESIDE_CLUSTER: [(&str, &[&str]); 3] = [
    ("unit tests", &["--workspace", "--lib", "--bins"]),
    (
        "node plugin on loop devices",
        &["-p", "pve-csi-node", "--test", "*"],
    ),
    (
        "other integration tests",
        &[
            "--workspace",
            "--exclude",
            "suites",
            "--exclude",
            "pve-csi-node",
            "--test",
            "*",
        ],
    ),
];

/// Builds the programs and the peers, runs every test of the workspace, and sums up.
#[derive(Debug, Parser)]
struct Arguments {}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    Arguments::parse();
    let (skips, notes) = (
        tempfile::NamedTempFile::new()?,
        tempfile::NamedTempFile::new()?,
    );
    let mut environment = vec![
        (SKIP_LOG, skips.path().into()),
        (NOTE_LOG, notes.path().into()),
    ];
    let mut steps = vec![timed("build of the programs", || {
        Ok(cargo(&BUILD)?.status()?.success())
    })?];
    if find_program("go").is_some() {
        let mut peers = PathBuf::new();
        steps.push(timed("build of the peers", || {
            let built = build_of_peers()?;
            peers = built.unwrap_or_default();
            Ok(!peers.as_os_str().is_empty())
        })?);
        environment.push((PEERS, peers));
    } else {
        std::fs::write(notes.path(), NO_GO)?;
    }
    steps.extend(all_tests(&environment)?);
    let read = |file: &tempfile::NamedTempFile| std::fs::read_to_string(file.path());
    Ok(summary(&steps, &read(&skips)?, &read(&notes)?))
}

fn timed(name: &'static str, step: impl FnOnce() -> Result<bool>) -> Result<Step> {
    let started = Instant::now();
    let ok = step()?;
    Ok(Step {
        name,
        counts: Counts::default(),
        ok,
        took: started.elapsed(),
    })
}

#[expect(clippy::disallowed_methods, reason = "this program runs programs")]
fn cargo(arguments: &[&str]) -> Result<std::process::Command> {
    let mut command = std::process::Command::new(find_program("cargo").context("no cargo")?);
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_this_package) {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// What `cargo run` tells a program about its package. Handed on, it counts as a change for build scripts that read it
/// (`ring`), and everything above them is built anew.
fn is_of_this_package(variable: &str) -> bool {
    let of_it = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
    of_it.iter().any(|prefix| variable.starts_with(prefix)) || variable == "CARGO_CRATE_NAME"
}

/// The folder with the Go-built peers; nothing if they can't be built.
#[expect(clippy::disallowed_methods, reason = "this program runs programs")]
fn build_of_peers() -> Result<Option<PathBuf>> {
    let built = std::process::Command::new("tests/tools/build")
        .stderr(Stdio::inherit())
        .output()?;
    let folder = String::from_utf8(built.stdout)?.trim().to_owned();
    Ok(built.status.success().then(|| PathBuf::from(folder)))
}

/// Builds all tests, and runs those that need a Kubernetes beside others.
fn all_tests(environment: &[(&str, PathBuf)]) -> Result<Vec<Step>> {
    let (cluster, single) = suites()?;
    let cluster = Run::new(CLUSTER, &["-p", "suites"], cluster);
    let beside = BESIDE_CLUSTER.map(|(name, arguments)| Run::new(name, arguments, Vec::new()));
    let suites = Run::new("suites", &["-p", "suites"], single);
    // Nothing is built while a Kubernetes waits for the processors.
    let mut steps = vec![timed("build of the tests", || {
        let all = beside.iter().chain([&cluster, &suites]);
        all.map(Run::built)
            .try_fold(true, |good, built| Ok(good & built?))
    })?];
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| cluster.captured(environment));
        for run in &beside {
            steps.push(run.shown(environment)?);
        }
        let ended = waiting.join();
        let (text, step) = ended.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        std::io::stdout().write_all(text.as_bytes())?;
        steps.push(step);
        anyhow::Ok(())
    })?;
    steps.push(suites.shown(environment)?);
    Ok(steps)
}

/// The tests of the suites as arguments of cargo: those that need a Kubernetes, and the others.
fn suites() -> Result<(Vec<String>, Vec<String>)> {
    let mut all: Vec<String> = Vec::new();
    for entry in std::fs::read_dir("tests/suites/tests")? {
        let name = entry?
            .file_name()
            .into_string()
            .ok()
            .context("the name of a test")?;
        all.push(name.trim_end_matches(".rs").to_owned());
    }
    all.sort();
    let (cluster, single): (Vec<String>, Vec<String>) = all
        .into_iter()
        .partition(|name| name.starts_with("cluster_"));
    let arguments = |names: Vec<String>| {
        let pairs = names.into_iter().map(|name| ["--test".to_owned(), name]);
        pairs.flatten().collect()
    };
    Ok((arguments(cluster), arguments(single)))
}

impl Run {
    fn new(name: &'static str, arguments: &[&str], more: Vec<String>) -> Self {
        let mut all: Vec<String> = arguments.iter().map(|part| (*part).to_owned()).collect();
        all.extend(more);
        Self {
            name,
            arguments: all,
        }
    }

    fn built(&self) -> Result<bool> {
        let mut command = cargo(&["test", "--quiet", "--no-run"])?;
        Ok(command.args(&self.arguments).status()?.success())
    }

    fn start(&self, environment: &[(&str, PathBuf)]) -> Result<Child> {
        cargo(&["test", "--quiet", "--no-fail-fast"])?
            .args(&self.arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .spawn()
            .context("start cargo")
    }

    /// Runs it; each line is shown as it comes.
    fn shown(&self, environment: &[(&str, PathBuf)]) -> Result<Step> {
        self.followed(environment, |line| {
            Ok(writeln!(std::io::stdout(), "{line}")?)
        })
    }

    /// Runs it without showing anything: what it wrote.
    fn captured(&self, environment: &[(&str, PathBuf)]) -> Result<(String, Step)> {
        let mut text = String::new();
        let step = self.followed(environment, |line| Ok(writeln!(text, "{line}")?))?;
        Ok((text, step))
    }

    fn followed(
        &self,
        environment: &[(&str, PathBuf)],
        mut show: impl FnMut(&str) -> Result<()>,
    ) -> Result<Step> {
        let started = Instant::now();
        let mut child = self.start(environment)?;
        let mut counts = Counts::default();
        let out = child.stdout.take().context("output of cargo")?;
        for line in BufReader::new(out).lines() {
            let line = line?;
            show(&line)?;
            if let Some(result) = line.strip_prefix("test result: ") {
                add(&mut counts, result);
            }
        }
        let ok = child.wait()?.success();
        Ok(Step {
            name: self.name,
            counts,
            ok,
            took: started.elapsed(),
        })
    }
}

/// Reads `ok. 25 passed; 0 failed; 0 ignored; …`.
fn add(counts: &mut Counts, result: &str) {
    for part in result.split(['.', ';']) {
        let mut words = part.split_whitespace();
        let (Some(number), Some(what)) = (
            words.next().and_then(|n| n.parse::<u64>().ok()),
            words.next(),
        ) else {
            continue;
        };
        match what {
            "passed" => counts.passed += number,
            "failed" => counts.failed += number,
            "ignored" => counts.ignored += number,
            _ => {}
        }
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the summary is what this program is for"
)]
fn summary(steps: &[Step], skipped: &str, notes: &str) -> ExitCode {
    println!("\n== summary");
    let mut total = Counts::default();
    for step in steps {
        let Counts {
            passed,
            failed,
            ignored,
        } = step.counts;
        total = Counts {
            passed: total.passed + passed,
            failed: total.failed + failed,
            ignored: total.ignored + ignored,
        };
        let verdict = if step.ok { "ok" } else { "FAILED" };
        println!(
            "{:30} {passed:5} passed {failed:3} failed  {:6.1} s  {verdict}",
            step.name,
            step.took.as_secs_f64()
        );
    }
    let skips: Vec<&str> = skipped.lines().collect();
    for note in notes.lines() {
        println!("note: {note}");
    }
    for line in &skips {
        println!("skipped: {}", line.replace('\t', ": "));
    }
    let count = u64::try_from(skips.len()).unwrap_or(u64::MAX);
    // A skipped test returns early and is counted by cargo as passed.
    let passed = total.passed.saturating_sub(count);
    println!(
        "{passed} passed, {} failed, {} skipped",
        total.failed,
        count + total.ignored
    );
    if steps.iter().all(|step| step.ok) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
