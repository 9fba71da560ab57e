//! The documents say what is true: links lead somewhere, flags exist, and quoted messages are messages of ours.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod flags;
mod links;
mod quotes;

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// All files with this ending below a folder of the repository, in order.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The documents for people.
fn documents() -> Vec<PathBuf> {
    let mut all = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    for folder in ["docs", "deploy", "tests"] {
        all.extend(files(folder, ".md"));
    }
    assert!(all.len() >= 15, "{all:?}");
    all
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A document's path as people see it.
fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}
