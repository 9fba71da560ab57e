//! Flags of the programs, as they tell them by `--help`.

use std::path::Path;

use harness::process::built;
use tokio::process::Command;

use crate::{golden, head, root};

/// Every program that is shipped: the crates outside of `tests` and `deploy` that have a `main.rs`, which are named as
/// their program.
fn programs() -> Vec<String> {
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let quoted = workspace.split('"').skip(1).step_by(2);
    let members = quoted.filter(|path| {
        !path.starts_with("tests/") && !path.starts_with("deploy/") && has_main(path)
    });
    let mut names: Vec<String> = members.map(package).collect();
    names.sort();
    names.dedup();
    names
}

fn has_main(member: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_/".contains(c);
    member.chars().all(plain) && root().join(member).join("src/main.rs").is_file()
}

fn package(member: &str) -> String {
    let text = std::fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("name = "));
    line.unwrap().trim_matches('"').to_owned()
}

async fn help(program: &Path, verbs: &[&str]) -> String {
    let output = Command::new(program)
        .args(verbs)
        .arg("--help")
        .env_clear()
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{} {verbs:?}", program.display());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// The verbs that a text of `--help` names.
fn verbs(text: &str) -> Vec<String> {
    let after = text.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = after.lines().take_while(|line| line.starts_with("  "));
    // Deeper lines belong to the one before.
    let names = lines
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn section(level: &str, title: &str, text: &str) -> String {
    format!("{level} {title}\n\n```\n{}\n```\n\n", text.trim_end())
}

#[tokio::test]
async fn the_reference_of_flags_is_what_the_programs_say() {
    let names = programs();
    for name in ["pve-ccm", "pve-csi-controller", "pve-csi-node", "pvectl"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    let mut text = head("Flags", "what the programs say by `--help`");
    for name in names {
        let program = built(&name).unwrap();
        let whole = help(&program, &[]).await;
        text += &section("##", &name, &whole);
        for verb in verbs(&whole) {
            let part = help(&program, &[&verb]).await;
            text += &section("###", &format!("{name} {verb}"), &part);
            for inner in verbs(&part) {
                let part = help(&program, &[&verb, &inner]).await;
                text += &section("####", &format!("{name} {verb} {inner}"), &part);
            }
        }
    }
    golden("flags.md", &text);
}
