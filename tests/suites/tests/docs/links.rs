//! Links between the documents.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

use super::{documents, name, read};

/// A document without what stands in code, which may look like a link.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    Regex::new("`[^`\n]*`")
        .unwrap()
        .replace_all(&text, "`code`")
        .into_owned()
}

/// The anchors that GitHub makes of a document's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let headings = text.lines().filter(|line| {
        fenced ^= line.trim_start().starts_with("```");
        !fenced && line.starts_with('#')
    });
    headings
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c })
        .collect::<String>()
        .to_lowercase()
}

/// What is wrong with a link of a document.
fn fault(document: &Path, link: &str) -> Option<String> {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        document.to_owned()
    } else {
        document.parent().unwrap().join(path)
    };
    if !target.exists() {
        return Some(format!("{}: {link} leads nowhere", name(document)));
    }
    let known = heading.is_empty() || anchors(&read(&target)).contains(heading);
    (!known).then(|| format!("{}: {link}: no such heading", name(document)))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_is_there() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut faults = Vec::new();
    let mut looked_at = 0;
    for document in documents() {
        let text = prose(&read(&document));
        for found in link.captures_iter(&text) {
            let link = found.get(1).unwrap().as_str();
            if !link.contains("://") && !link.starts_with("mailto:") {
                looked_at += 1;
                faults.extend(fault(&document, link));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(looked_at > 50, "{looked_at}");
}

#[test]
fn a_link_to_a_heading_or_file_that_is_not_there_is_found() {
    let readme = super::root().join("README.md");
    assert_eq!(
        fault(&readme, "docs/operations.md#a-pve-node-is-down"),
        None
    );
    assert_eq!(fault(&readme, "#limits"), None);
    for wrong in [
        "docs/operations.md#a-pve-node-is-up",
        "docs/none.md",
        "#none",
    ] {
        assert!(fault(&readme, wrong).is_some(), "{wrong}");
    }
}
