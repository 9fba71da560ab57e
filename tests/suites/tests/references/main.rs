//! References that are written from what they are about, and are wrong when they differ from it: `make references`, or
//! `UPDATE_REFERENCE=1 cargo test -p suites --test references`, writes them anew.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests fail by panics, also in their helpers"
)]

mod config;
mod config_keys;
mod flags;
mod metrics;
mod parameters;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a file of `docs/reference` with what it has to be, or writes it.
fn golden(name: &str, expected: &str) {
    let path = root().join("docs/reference").join(name);
    let expected = format!("{}\n", expected.trim_end());
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    if committed == expected {
        return;
    }
    let differs = committed
        .lines()
        .zip(expected.lines())
        .find(|(is, wanted)| is != wanted);
    panic!(
        "docs/reference/{name} is stale: `make references` writes it anew; the first difference: {differs:?}"
    );
}

/// The text at the head of each of them.
fn head(title: &str, from: &str) -> String {
    format!("# {title}\n\nWritten from {from}; don't edit. `make references` writes it anew.\n\n")
}

/// A row of a table. A `|` would end its cell.
fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |")
}
