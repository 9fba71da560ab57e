//! `make test`: builds the peers, runs every test of the workspace, and sums up what ran and what did not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
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

const NO_GO: &str =
    "no Go toolchain: nothing runs against Kubernetes, its sidecars or csi-sanity\n";
/// The programs first: the tests run what was built last.
const BUILD: [&str; 4] = ["build", "--quiet", "--workspace", "--bins"];
const TESTS: [(&str, &[&str]); 4] = [
    ("unit tests", &["--workspace", "--lib", "--bins"]),
    (
        "node plugin on loop devices",
        &["-p", "pve-csi-node", "--test", "*"],
    ),
    ("suites", &["-p", "suites", "--test", "*"]),
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
    for (name, arguments) in TESTS {
        steps.push(cargo_test(name, arguments, &environment)?);
    }
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

fn cargo_test(
    name: &'static str,
    arguments: &[&str],
    environment: &[(&str, PathBuf)],
) -> Result<Step> {
    let started = Instant::now();
    let mut child = cargo(&["test", "--quiet", "--no-fail-fast"])?
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo")?;
    let mut counts = Counts::default();
    let out = child.stdout.take().context("output of cargo")?;
    for line in BufReader::new(out).lines() {
        let line = line?;
        writeln!(std::io::stdout(), "{line}")?;
        if let Some(result) = line.strip_prefix("test result: ") {
            add(&mut counts, result);
        }
    }
    let ok = child.wait()?.success();
    Ok(Step {
        name,
        counts,
        ok,
        took: started.elapsed(),
    })
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
