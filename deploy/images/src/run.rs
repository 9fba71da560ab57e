//! Programs that this tool runs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A program, found on the search path when it is started.
#[expect(
    clippy::disallowed_methods,
    reason = "this tool runs compilers and apt"
)]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_this_package) {
            command.env_remove(name);
        }
    }
    command
}

/// What `cargo run` tells a program about its package: handed on, it counts as a change for build scripts.
fn of_this_package(variable: &str) -> bool {
    let of_it = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
    of_it.iter().any(|prefix| variable.starts_with(prefix)) || variable == "CARGO_CRATE_NAME"
}

/// Its standard output, if it ends well.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let what = format!("{command:?}");
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {what}"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("{what}: {}\n{}", out.status, said.trim());
    }
    String::from_utf8(out.stdout).with_context(|| format!("{what} did not write UTF-8"))
}

/// Runs it with this tool's output.
pub(crate) fn shown(command: &mut Command) -> Result<()> {
    let what = format!("{command:?}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("start {what}"))?;
    if !status.success() {
        bail!("{what}: {status}");
    }
    Ok(())
}

/// The first program of this name on the search path.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// All of these programs, or which are missing and which package of Debian brings them.
pub(crate) fn need(programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<String> = programs
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(program, package)| format!("{program} (package {package})"))
        .collect();
    if !missing.is_empty() {
        bail!("not found: {}", missing.join(", "));
    }
    Ok(())
}

/// The root of the repository that this tool was built from.
pub(crate) fn repository() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    here.canonicalize()
        .with_context(|| format!("the repository at {}", here.display()))
}
