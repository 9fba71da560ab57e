//! What a test needs of the machine. A test that can't run says so here, and `make test` repeats it at the end.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Names the file to which [`skipped`] appends a line, `<test>\t<reason>`.
pub const SKIP_LOG: &str = "PVE_CLOUD_SKIP_LOG";

/// Names the file to which [`noted`] appends a line.
pub const NOTE_LOG: &str = "PVE_CLOUD_NOTE_LOG";

/// Names the folder with the Go-built peers.
pub const PEERS: &str = "PVE_CLOUD_PEERS";

/// Whether loop devices can be made and mounted here; otherwise what is missing.
pub fn loop_devices() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("needs root for loop devices and mounts".to_owned());
    }
    for (path, why) in [
        ("/dev/loop-control", "loop devices"),
        ("/proc/self/mountinfo", "/proc"),
    ] {
        if !Path::new(path).exists() {
            return Err(format!("needs {why} ({path} is not there)"));
        }
    }
    for program in ["mkfs.ext4", "e2fsck", "blkid", "blockdev", "losetup"] {
        if find_program(program).is_none() {
            return Err(format!("needs {program}"));
        }
    }
    Ok(())
}

/// The folder with the Go-built peer `name`, as `tests/tools/build` made it; otherwise how to get it.
pub fn peer(part: &str, name: &str) -> Result<PathBuf, String> {
    let root =
        std::env::var_os(PEERS).ok_or("needs the Go-built peers (`make test` builds them)")?;
    let path = PathBuf::from(root).join(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("needs {name}: `tests/tools/build {part}`"))
    }
}

/// The first program of this name on the search path.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Records that `test` did not run. Where everything must run (`PVE_CLOUD_REQUIRE=all`), that is a failure.
///
/// # Panics
/// If nothing may be skipped here.
#[expect(clippy::print_stderr, reason = "the outcome of a test")]
pub fn skipped(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
    let all = std::env::var_os("PVE_CLOUD_REQUIRE").is_some_and(|value| value == "all");
    assert!(
        !all,
        "{test} was skipped, but nothing may be skipped here: {reason}"
    );
    append(SKIP_LOG, &format!("{test}\t{reason}"));
}

/// Keeps a figure for the summary: a test's own output is not shown when it passes.
#[expect(clippy::print_stderr, reason = "for who runs the test alone")]
pub fn noted(figure: &str) {
    eprintln!("{figure}");
    append(NOTE_LOG, figure);
}

/// # Panics
/// If the line can't be kept: the summary would be wrong.
#[expect(clippy::panic, reason = "the outcome of a test")]
fn append(log: &str, line: &str) {
    let Some(path) = std::env::var_os(log) else {
        return;
    };
    let written = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| writeln!(file, "{line}"));
    if let Err(error) = written {
        panic!("can't write to the file that {log} names: {error}");
    }
}
