//! Flags that the documents name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::sync::LazyLock;

use harness::process::built;
use regex::Regex;

use super::{documents, name, read, root};

/// Flags of others, where a document names them without the program before them.
const OTHERS: [(&str, &[&str]); 4] = [
    ("helm", &["--take-ownership"]),
    (
        "kubelet",
        &[
            "--cloud-provider",
            "--node-ip",
            "--provider-id",
            "--root-dir",
        ],
    ),
    (
        "sidecars",
        &[
            "--capacity-ownerref-level",
            "--csi-address",
            "--default-fstype",
            "--enable-capacity",
            "--extra-create-metadata",
            "--handle-volume-inuse-error",
            "--leader-election",
            "--strict-topology",
            "--timeout",
            "--worker-threads",
        ],
    ),
    ("pveum", &["--propagate"]),
];

/// A flag in a command.
static FLAG: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?:^|[\s\[])(--[a-z][a-z0-9-]*)").unwrap());

/// Flags by program; those of a program with verbs by `program verb`.
type Flags = BTreeMap<String, BTreeSet<String>>;

fn ours() -> Flags {
    let mut all = Flags::new();
    let mut programs = vec![
        "pve-csi-controller",
        "pve-csi-node",
        "pve-ccm",
        "pvectl",
        "pve-sim",
    ];
    if root().join("credentials").is_dir() {
        programs.push("pve-credentials");
    }
    for program in programs {
        ask(&built(program).unwrap(), &[program], &mut all);
    }
    all
}

/// The help of a program, and of each of its verbs.
#[expect(
    clippy::disallowed_methods,
    reason = "the programs are asked for their help"
)]
fn ask(program: &Path, words: &[&str], all: &mut Flags) {
    let out = std::process::Command::new(program)
        .args(words.iter().skip(1))
        .arg("--help")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(out.status.success(), "{words:?}: {out:?}");
    let help = String::from_utf8(out.stdout).unwrap();
    let flag = Regex::new(r"(?m)^\s+(?:-\w, )?(--[a-z][a-z0-9-]*)").unwrap();
    let flags = flag.captures_iter(&help).map(|found| found[1].to_owned());
    all.insert(words.join(" "), flags.collect());
    let (_, commands) = help.split_once("\nCommands:\n").unwrap_or_default();
    let verb = Regex::new(r"^  ([a-z][a-z-]*)\b").unwrap();
    for line in commands.lines().take_while(|line| !line.is_empty()) {
        if let Some(found) = verb.captures(line).filter(|found| &found[1] != "help") {
            ask(program, &[words, &[&found[1]]].concat(), all);
        }
    }
}

/// The commands and flags that stand in code of a document: fences and `inline`.
fn code(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut fenced = false;
    let joined = text.replace("\\\n", " ");
    let inline = Regex::new("`([^`]+)`").unwrap();
    for line in joined.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            all.push(line.trim().to_owned());
        } else {
            all.extend(inline.captures_iter(line).map(|found| found[1].to_owned()));
        }
    }
    all
}

/// What a piece of code says wrongly about flags.
fn faults(code: &str, ours: &Flags) -> Vec<String> {
    let mut all = Vec::new();
    for command in code.split(['|', ';', '&']) {
        let command = command.split(" #").next().unwrap_or_default().trim();
        let words: Vec<&str> = command.split_whitespace().collect();
        let Some(first) = words.first() else { continue };
        let program = first.rsplit('/').next().unwrap_or_default();
        let known: BTreeSet<&str> = if ours.contains_key(program) {
            of(program, &words, ours)
        } else if first.starts_with("--") {
            let others = OTHERS.iter().flat_map(|(_, flags)| flags.iter().copied());
            ours.values()
                .flatten()
                .map(String::as_str)
                .chain(others)
                .collect()
        } else {
            continue;
        };
        for found in FLAG.captures_iter(command) {
            let flag = found.get(1).unwrap().as_str();
            if !known.contains(flag) {
                all.push(format!("{flag} in `{command}`"));
            }
        }
    }
    all
}

/// The flags of a program and of the verbs that the command names.
fn of<'a>(program: &str, words: &[&str], ours: &'a Flags) -> BTreeSet<&'a str> {
    let mut called = program.to_owned();
    for word in words.iter().skip(1) {
        let longer = format!("{called} {word}");
        if ours.contains_key(&longer) {
            called = longer;
        }
    }
    ours[&called].iter().map(String::as_str).collect()
}

#[test]
fn every_flag_that_a_document_names_is_one_of_the_programs_help() {
    let ours = ours();
    let mut wrong = Vec::new();
    let mut looked_at = 0;
    // Decisions stay as they were taken; the test peers' README is about the flags of Kubernetes' own programs.
    let others = [
        "docs/adr/",
        "tests/tools/",
        "tests/suites/tests/chart/MUTATIONS.md",
    ];
    for document in documents() {
        if others
            .iter()
            .any(|folder| name(&document).starts_with(folder))
        {
            continue;
        }
        for code in code(&read(&document)) {
            looked_at += usize::from(code.contains("--"));
            let faults = faults(&code, &ours);
            wrong.extend(
                faults
                    .into_iter()
                    .map(|fault| format!("{}: {fault}", name(&document))),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(looked_at > 30, "{looked_at}");
}

#[test]
fn a_flag_that_no_program_or_another_verb_has_is_found() {
    let ours = ours();
    for good in [
        "pvectl fence pve3 --region dc1 --for 2h",
        "--poll-period",
        "kubectl get x | pve-ccm --kubeconfig x # --no",
        "kubectl drain --ignore-daemonsets x",
        "/usr/bin/pve-ccm --leader-elect",
    ] {
        assert_eq!(faults(good, &ours), Vec::<String>::new(), "{good}");
    }
    for wrong in [
        "pvectl fence pve3 --regions dc1",
        "pvectl --region dc1",
        "--no-such-flag",
        "kubectl get x | pve-ccm --kubeconfigs x",
        "pve-csi-node --cloud-config x",
    ] {
        assert_eq!(faults(wrong, &ours).len(), 1, "{wrong}");
    }
}
