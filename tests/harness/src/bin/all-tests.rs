//! `make test`: builds the peers, runs every test of the workspace, and sums up what ran and what did not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use harness::requirements::{SKIP_LOG, find_program};
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let skips = tempfile::NamedTempFile::new()?;
    let mut notes = Vec::new();
    let peers = peers(&mut notes);
    let mut steps = Vec::new();
    for (name, arguments) in [
        ("unit tests", &["--workspace", "--lib", "--bins"][..]),
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
    ] {
        steps.push(cargo_test(name, arguments, peers.as_ref(), skips.path())?);
    }
    let skipped = std::fs::read_to_string(skips.path())?;
    Ok(summary(&steps, &skipped, &notes))
}

/// Builds the Go-built peers, or says why not.
#[expect(clippy::disallowed_methods, reason = "this program runs programs")]
fn peers(notes: &mut Vec<String>) -> Option<PathBuf> {
    if find_program("go").is_none() {
        notes.push(
            "no Go toolchain: tests against Kubernetes, its sidecars and csi-sanity are skipped"
                .to_owned(),
        );
        return None;
    }
    let built = std::process::Command::new("tests/tools/build")
        .stderr(Stdio::inherit())
        .output();
    match built {
        Ok(output) if output.status.success() => Some(PathBuf::from(
            String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )),
        Ok(output) => {
            notes.push(format!("tests/tools/build ended with {}", output.status));
            None
        }
        Err(error) => {
            notes.push(format!("tests/tools/build: {error}"));
            None
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this program runs programs")]
fn cargo_test(
    name: &'static str,
    arguments: &[&str],
    peers: Option<&PathBuf>,
    skips: &std::path::Path,
) -> Result<Step> {
    let started = Instant::now();
    let mut command = std::process::Command::new("cargo");
    command
        .args(["test", "--quiet", "--no-fail-fast"])
        .args(arguments)
        .env(SKIP_LOG, skips)
        .stdout(Stdio::piped());
    if let Some(peers) = peers {
        command.env("PVE_CLOUD_PEERS", peers);
    }
    let mut child = command.spawn().context("start cargo")?;
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
fn summary(steps: &[Step], skipped: &str, notes: &[String]) -> ExitCode {
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
    for note in notes {
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
