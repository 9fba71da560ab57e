use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    fence: FenceArguments,
}

const UUID: &str = "00000000-0000-4000-a000-000000000102";

/// Runs `pvectl fence …` on the file of this folder.
fn fence(folder: &Path, line: &str) -> Result<String, String> {
    let file = folder.join("fences.yaml").display().to_string();
    let words = line.split(' ').filter(|word| !word.is_empty());
    let all = ["fence", "--file", &file, "--by", "alice"]
        .into_iter()
        .chain(words);
    let parsed = Line::try_parse_from(all).map_err(|error| format!("usage: {error}"))?;
    run(&parsed.fence).map_err(|error| error.to_string())
}

fn stated(folder: &Path) -> Vec<String> {
    let file = FenceFile::load(&folder.join("fences.yaml")).unwrap();
    let said = |fence: &Fence| {
        let term = fence.until.duration_since(fence.from).as_secs();
        format!("{} {} {term}", fence.region, fence.what)
    };
    file.fences.iter().map(said).collect()
}

#[test]
fn a_host_is_fenced_for_an_hour_or_as_long_as_is_said_and_the_text_says_what_it_means() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = fence(folder, "pve3 --region r1").unwrap();
    assert!(
        text.contains("pve3 in region r1 counts as off until"),
        "{text}"
    );
    assert!(
        text.contains("pvectl fence --lift pve3 --region r1"),
        "{text}"
    );
    assert_eq!(stated(folder), ["r1 pve3 3600"]);
    fence(folder, "pve3 --region r1 --for 90m --reason unplugged").unwrap();
    fence(folder, "pve3 --region r2 --for 24h").unwrap();
    let gone = format!("--gone 102:{UUID} --region r1 --for 30d");
    assert!(fence(folder, &gone).unwrap().contains("counts as gone"));
    let all = [
        "r1 pve3 5400",
        "r2 pve3 86400",
        &format!("r1 102:{UUID} 2592000"),
    ];
    assert_eq!(
        stated(folder),
        all,
        "the newer takes the place of the older"
    );
}

#[test]
fn what_is_not_clear_or_ends_at_once_or_lasts_too_long_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (line, why) in [
        ("", "usage"),
        ("pve3", "--region is needed"),
        ("../pve3 --region r1", "not a valid PVE node name"),
        ("pve3 --region ''", "not a valid region"),
        ("pve3 --region r1 --for 0s", "would end at once"),
        (
            "pve3 --region r1 --for 1",
            "must be a number with s, m, h or d",
        ),
        ("pve3 --region r1 --for -1h", "usage"),
        ("pve3 --region r1 --for 25h", "more than 24 hours"),
        ("pve3 --region r1 --for 99999999999999d", "too long"),
        ("pve3 --region r1 --for 9999999999999s", "too long"),
        ("pve3 --region r1 --reason a\tb", "reason must be"),
        ("--gone 102 --region r1", "--gone needs <VMID>:<UUID>"),
        ("--gone pve3 --region r1", "--gone needs <VMID>:<UUID>"),
        (&format!("--gone 99:{UUID} --region r1"), "not a valid VMID"),
        ("--gone 102:x --region r1", "not a valid"),
        (
            &format!("--gone 102:{UUID} --region r1 --for 31d"),
            "more than 720 hours",
        ),
        (&format!("pve3 --gone 102:{UUID} --region r1"), "usage"),
        ("--list --lift pve3", "usage"),
        ("--lift pve3", "nothing is stated about pve3"),
    ] {
        let error = fence(folder, line).unwrap_err();
        assert!(
            error.contains(why),
            "{line}: {error:?} does not say {why:?}"
        );
    }
    assert!(!folder.join("fences.yaml").exists(), "nothing was written");
}

#[test]
fn what_was_stated_is_listed_and_lifted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(fence(folder, "--list").unwrap().contains("states nothing"));
    fence(folder, "pve3 --region r1 --reason unplugged").unwrap();
    fence(folder, "pve3 --region r2").unwrap();
    let list = fence(folder, "--list").unwrap();
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].starts_with("holds\tr1\tpve3\tuntil "), "{list}");
    assert!(lines[0].ends_with("by alice\tunplugged"), "{list}");
    let document: serde_json::Value =
        serde_json::from_str(&fence(folder, "--list -o json").unwrap()).unwrap();
    assert_eq!(document["fences"][0]["host"], "pve3");
    assert_eq!(document["fences"][1]["region"], "r2");
    assert_eq!(document["fences"][1]["state"], "holds");
    let error = fence(folder, "--lift pve3").unwrap_err();
    assert!(error.contains("several regions"), "{error}");
    fence(folder, "--lift pve3 --region r1").unwrap();
    assert_eq!(stated(folder), ["r2 pve3 3600"]);
    fence(folder, "--lift pve3").unwrap();
    assert!(stated(folder).is_empty());
}

#[test]
fn what_has_ended_is_dropped_at_the_next_change_and_lifting_it_is_refused_then() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fence(folder, "pve3 --region r1 --for 1s").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(
        fence(folder, "--list")
            .unwrap()
            .starts_with("ended\tr1\tpve3")
    );
    fence(folder, "pve2 --region r1").unwrap();
    assert_eq!(stated(folder), ["r1 pve2 3600"]);
}

#[test]
fn with_the_config_names_are_checked_and_the_only_region_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = folder.join("config.yaml");
    let region = |name: &str| {
        format!(
            "  {name}:\n    endpoints:\n    - url: https://127.0.0.1:1\n      insecure: true\n    token: {{id: 'a@pve!b', \
             secret: c}}\n    pool: p\n    storages: [local]\n    nodes: [pve3]\n    owners: {{default: 9999}}\n"
        )
    };
    std::fs::write(&config, format!("regions:\n{}", region("dc1"))).unwrap();
    let with = |line: &str| {
        fence(
            folder,
            &format!("{line} --cloud-config {}", config.display()),
        )
    };
    with("pve3").unwrap();
    assert_eq!(stated(folder), ["dc1 pve3 3600"]);
    for (line, why) in [
        ("pve4", "does not name pve4 in region dc1"),
        ("pve3 --region dc2", "no region dc2"),
    ] {
        let error = with(line).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    std::fs::write(
        &config,
        format!("regions:\n{}{}", region("dc1"), region("dc2")),
    )
    .unwrap();
    let error = with("pve3").unwrap_err();
    assert!(error.contains("several regions"), "{error}");
    with("pve3 --region dc2").unwrap();
}
