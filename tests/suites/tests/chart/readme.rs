//! The README of each chart: its table of values is written from the comments of `values.yaml`. `UPDATE_REFERENCE=1 cargo test -p
//! suites --test chart readme` writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::helm::{HALVES, Half};

/// What stands above this line is written by hand.
const MARK: &str = "<!-- From values.yaml; don't edit. `UPDATE_REFERENCE=1 cargo test -p suites --test chart readme` writes it anew. -->";

#[test]
fn the_readme_of_each_chart_tells_every_value() -> Result<()> {
    for half in HALVES {
        let path = half.folder().join("README.md");
        let readme = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let (by_hand, found) = readme.split_once(MARK).context("README.md has no mark")?;
        let wanted = format!("\n\n{}", table(half)?);
        if found == wanted {
            continue;
        }
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(&path, format!("{by_hand}{MARK}{wanted}"))?;
            continue;
        }
        bail!(
            "{}/README.md is not what values.yaml says; write it anew with `UPDATE_REFERENCE=1 cargo test -p suites --test chart \
             readme`",
            half.name()
        );
    }
    Ok(())
}

#[test]
fn a_value_without_a_comment_would_be_seen() -> Result<()> {
    let values = serde_json::json!({ "a": { "b": 1, "c": 2 } });
    let mut rows = String::new();
    let half = BTreeMap::from([("a.b".to_owned(), "Told.".to_owned())]);
    ensure!(rows_of(&values, "", &half, &mut rows).is_err());
    let both = BTreeMap::from([
        ("a.b".to_owned(), "Told.".to_owned()),
        ("a.c".to_owned(), "Too.".to_owned()),
    ]);
    rows_of(&values, "", &both, &mut rows)?;
    Ok(())
}

fn table(half: Half) -> Result<String> {
    let text = std::fs::read_to_string(half.folder().join("values.yaml"))?;
    let told = comments(&text)?;
    let values = half.read("values.yaml")?;
    let mut rows = String::from("| value | default | |\n|---|---|---|\n");
    let count = rows_of(&values, "", &told, &mut rows)?;
    ensure!(
        count == told.len(),
        "comments without a value in {}",
        half.name()
    );
    Ok(rows)
}

/// One row per value that a comment tells of; every value must be in one. Returns how many.
fn rows_of(
    value: &Value,
    path: &str,
    told: &BTreeMap<String, String>,
    rows: &mut String,
) -> Result<usize> {
    if let Some(text) = told.get(path) {
        let default = match value {
            Value::String(text) => format!("\"{text}\""),
            other => other.to_string(),
        };
        writeln!(rows, "| `{path}` | `{default}` | {text} |")?;
        return Ok(1);
    }
    let Some(fields) = value.as_object().filter(|fields| !fields.is_empty()) else {
        bail!("{path} has no comment");
    };
    let mut count = 0;
    for (key, value) in fields {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        count += rows_of(value, &path, told, rows)?;
    }
    Ok(count)
}

/// The comments that begin with `# --`, by the path of the key that follows.
fn comments(text: &str) -> Result<BTreeMap<String, String>> {
    let mut told = BTreeMap::new();
    let mut path: Vec<&str> = Vec::new();
    let mut comment: Option<String> = None;
    for line in text.lines() {
        let inner = line.trim_start();
        let depth = (line.len() - inner.len()) / 2;
        if let Some(first) = inner.strip_prefix("# -- ") {
            comment = Some(first.to_owned());
        } else if let Some(more) = inner.strip_prefix("# ") {
            if let Some(comment) = &mut comment {
                comment.push(' ');
                comment.push_str(more);
            }
        } else if let Some((key, _)) = inner.split_once(':') {
            path.truncate(depth);
            path.push(key);
            if let Some(comment) = comment.take() {
                ensure!(
                    comment.ends_with('.') || comment.ends_with('`'),
                    "no sentence: {comment}"
                );
                told.insert(path.join("."), comment);
            }
        } else {
            ensure!(inner.is_empty(), "what is {line:?}?");
        }
    }
    ensure!(comment.is_none(), "a comment at the end");
    Ok(told)
}
