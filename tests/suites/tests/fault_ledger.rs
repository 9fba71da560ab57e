//! Every fault that people have met with controllers of these kinds has a test: the ids stand in the doc comments of the
//! tests (`/// B04: …`), the lists of them in `data/controller-faults.txt` and `data/ccm-faults.txt`. B44 and B45 are of
//! snapshots, which are not offered.

#![expect(
    clippy::unwrap_used,
    reason = "clippy does not take the helpers of tests for tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Where the tests of the controller are.
const CONTROLLER: [&str; 4] = ["tests", "csi-controller", "csi-node", "common"];
const CONTROLLER_FAULTS: &str = include_str!("../data/controller-faults.txt");
/// Where those of the cloud-controller-manager are: a fault that the controller has a test for is not tested with it.
const CCM: [&str; 3] = [
    "tests/suites/tests/ccm",
    "tests/suites/tests/cluster_chain.rs",
    "ccm",
];
const CCM_FAULTS: &str = include_str!("../data/ccm-faults.txt");

/// Ids in a text: `B` and two digits, as a word.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| {
            let digits = word.strip_prefix('B').unwrap_or_default();
            digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit())
        })
}

/// Ids in the doc comments of tests, with the test's name.
fn tests_of(source: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut said: BTreeSet<String> = BTreeSet::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            said.extend(ids(doc).map(str::to_owned));
        } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = name_of(line).filter(|_| is_test) {
            found.extend(
                std::mem::take(&mut said)
                    .into_iter()
                    .map(|id| (id, name.to_owned())),
            );
            is_test = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            said.clear();
            is_test = false;
        }
    }
    found
}

/// The name of the function that begins in this line.
fn name_of(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("async fn ")
        .or_else(|| line.strip_prefix("fn "))?;
    rest.split_once('(').map(|(name, _)| name)
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    if folder.is_file() {
        return into.push(folder.to_owned());
    }
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// How many of the listed have one, as a sentence.
fn each_has_a_test(what: &str, list: &str, folders: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in folders {
        sources(&root.join(folder), &mut files);
    }
    let mut tests: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        for (id, name) in tests_of(&std::fs::read_to_string(file).unwrap()) {
            tests.entry(id).or_default().push(name);
        }
    }
    let listed: Vec<&str> = list.lines().collect();
    let missing: Vec<&&str> = listed
        .iter()
        .filter(|id| !tests.contains_key(**id))
        .collect();
    let named = listed.len() - missing.len();
    assert!(missing.is_empty(), "without a test: {missing:?}");
    assert!(listed.is_sorted(), "{listed:?}");
    format!(
        "faults: {named} of {} {what} entries have tests",
        listed.len()
    )
}

#[test]
fn every_fault_of_the_controller_has_a_test_that_names_it() {
    let said = each_has_a_test("controller", CONTROLLER_FAULTS, &CONTROLLER);
    println!("{said}");
    assert!(CONTROLLER_FAULTS.lines().count() >= 36);
}

#[test]
fn every_fault_of_the_cloud_controller_manager_has_a_test_that_names_it() {
    let said = each_has_a_test("ccm", CCM_FAULTS, &CCM);
    println!("{said}");
    assert!(CCM_FAULTS.lines().count() >= 10);
}

#[test]
fn an_id_counts_only_in_the_words_of_a_test() {
    let source = "/// B01, B02: x\n#[test]\nfn a() {\n// B03\n}\n/// B04\nfn helper() {}\n/// B05\n#[tokio::test(x)]\nasync fn b() {}\n/// B6 AB07 B081\n#[test]\nfn c() {}\n";
    let found = tests_of(source);
    let ids: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["B01", "B02", "B05"]);
    assert_eq!(found.last().map(|(_, name)| name.as_str()), Some("b"));
}
