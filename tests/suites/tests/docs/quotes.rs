//! Messages that the documents quote.

use std::sync::LazyLock;

use regex::Regex;

use super::{files, name, read, root};

/// What the programs are made of, less tests.
const SOURCES: [&str; 6] = [
    "csi-controller/src",
    "csi-node/src",
    "ccm/src",
    "ctl/src",
    "common",
    "credentials/src",
];

/// Where a string goes on in the next line.
static CONTINUED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\\\n\s*").unwrap());

/// The code of one file: no tests, no comments, continued strings joined.
fn code(text: &str) -> String {
    let (product, _) = text.split_once("#[cfg(test)]\nmod ").unwrap_or((text, ""));
    let lines = product
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let joined = lines.collect::<Vec<_>>().join("\n");
    CONTINUED.replace_all(&joined, "").into_owned()
}

fn sources() -> Vec<String> {
    let folders = SOURCES.iter().filter(|folder| root().join(folder).is_dir());
    let paths = folders.flat_map(|folder| files(folder, ".rs"));
    let product = paths.filter(|path| {
        let path = name(path);
        !path.contains("test") && !path.contains("/oracles")
    });
    let all: Vec<String> = product.map(|path| code(&read(&path))).collect();
    assert!(all.len() > 50, "{} files", all.len());
    all
}

/// Whether a quote stands inside of one string; `…` stands for what is filled in.
fn is_said(quote: &str, sources: &[String]) -> bool {
    let pieces: Vec<&str> = quote
        .split('…')
        .map(str::trim)
        .filter(|piece| !piece.is_empty())
        .collect();
    let (first, rest) = pieces.split_first().unwrap();
    assert!(
        pieces.iter().any(|piece| piece.len() >= 8),
        "{quote}: there is nothing to look for"
    );
    sources.iter().any(|source| {
        let mut found = source.match_indices(first);
        found.any(|(at, _)| follow(&source[at + first.len()..], rest))
    })
}

/// Whether the pieces come one after the other before the string ends.
fn follow(text: &str, pieces: &[&str]) -> bool {
    let (mut left, _) = text.split_once('"').unwrap_or((text, ""));
    pieces.iter().all(|piece| {
        let after = left.split_once(piece).map(|(_, after)| after);
        left = after.unwrap_or_default();
        after.is_some()
    })
}

/// The lines of a document that begin with `>`.
fn quotes(document: &str) -> Vec<String> {
    let lines = document.lines().filter_map(|line| line.strip_prefix('>'));
    lines
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn every_message_that_troubleshooting_quotes_is_one_that_the_programs_say() {
    let sources = sources();
    let quotes = quotes(&read(&root().join("docs/troubleshooting.md")));
    assert!(quotes.len() > 40, "{}", quotes.len());
    let unknown: Vec<&String> = quotes
        .iter()
        .filter(|quote| !is_said(quote, &sources))
        .collect();
    assert!(unknown.is_empty(), "nobody says {unknown:#?}");
    assert!(!is_said("the volume is no longer attached to …", &sources));
    assert!(
        !is_said("The Node waits: … any more; … for a minute", &sources),
        "two strings are not one"
    );
}

#[test]
fn troubleshooting_quotes_every_warning_about_a_node_that_a_tenant_can_get() {
    let quotes = quotes(&read(&root().join("docs/troubleshooting.md")));
    let source = code(&read(&root().join("ccm/src/events.rs")));
    let warnings = Regex::new(r#""(The Node (?:waits|is kept|can't)[^"]*)""#).unwrap();
    let all: Vec<&str> = warnings
        .captures_iter(&source)
        .map(|found| found.get(1).unwrap().as_str())
        .collect();
    assert!(all.len() >= 10, "{all:?}");
    for warning in all {
        assert!(quotes.iter().any(|quote| quote == warning), "{warning}");
    }
}

/// Sentences in quotation marks elsewhere, where the document says that a program of ours says them.
#[test]
fn messages_in_the_other_documents_are_said_as_well() {
    let sources = sources();
    for (document, message) in [
        ("docs/maintenance.md", "disks carry WWN"),
        (
            "docs/maintenance.md",
            "the disk is in more than one VM: nothing is done about it",
        ),
        (
            "docs/maintenance.md",
            "the volume is part of a snapshot of a Node's virtual machine; ask the operator of Proxmox VE",
        ),
        (
            "docs/maintenance.md",
            "the Node's virtual machine is in a backup, migration or other operation of Proxmox VE; it will be tried again",
        ),
        (
            "docs/operations.md",
            "another Node may still hold the volume",
        ),
        ("docs/operations.md", "no VM of another Node is seen there"),
        (
            "docs/operations.md",
            "the endpoint sees less than half of the PVE nodes",
        ),
        (
            "docs/operations.md",
            "a guest has the VMID and the token lacks VM.Audit on it",
        ),
    ] {
        assert!(
            read(&root().join(document)).contains(message),
            "{document} no longer quotes {message}"
        );
        assert!(is_said(message, &sources), "nobody says {message}");
    }
}
