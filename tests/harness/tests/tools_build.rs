//! `tests/tools/build` and the folder that it keeps its results in.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panics and run programs"
)]

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Makes what it is told to make, empty.
const GO: &str = r#"#!/bin/sh
while [ "$1" != -o ]; do shift; done
touch "$2/peer"
"#;

fn old_folder(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    let file = File::open(path).unwrap();
    let now = file.metadata().unwrap().modified().unwrap();
    file.set_modified(now - Duration::from_hours(24 * 9))
        .unwrap();
}

#[test]
fn what_nobody_asked_for_in_a_week_goes_and_what_others_keep_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    std::fs::write(&go, GO).unwrap();
    std::fs::set_permissions(&go, Permissions::from_mode(0o755)).unwrap();
    let tools = folder.path().join("tools");
    let [ours, others] =
        ["0123456789abcdef".repeat(4).as_str(), "android-sdk"].map(|name| tools.join(name));
    old_folder(&ours);
    old_folder(&others);
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.path().display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/build");
    let output = Command::new(script)
        .arg("descriptors")
        .env("PATH", path)
        .env("PVE_CLOUD_CACHE", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let bin = String::from_utf8(output.stdout).unwrap();
    assert!(Path::new(bin.trim()).join("peer").is_file(), "{bin}");
    assert!(!ours.exists(), "an old state of ours is kept");
    assert!(others.exists(), "a folder that is not ours is gone");
}
