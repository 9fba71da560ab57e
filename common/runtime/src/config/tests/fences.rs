use jiff::Timestamp;

use super::super::fences::*;
use super::{example, folder};

const UUID: &str = "00000000-0000-4000-a000-000000000102";

fn load(text: &str) -> Result<FenceFile, String> {
    let folder = folder(&[("fences.yaml", text)]);
    FenceFile::load(&folder.path().join("fences.yaml")).map_err(|error| error.to_string())
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn fence(what: &str, until: &str) -> Fence {
    Fence {
        region: "r1".parse().unwrap(),
        what: what.parse().unwrap(),
        from: at("2026-12-01T04:00:00Z"),
        until: at(until),
        by: "alice".to_owned(),
        reason: Some("its \"power\" supply: dead".to_owned()),
    }
}

#[test]
fn a_file_that_is_not_there_or_empty_states_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let absent = FenceFile::load(&folder.path().join("fences.yaml"));
    assert_eq!(absent.unwrap(), FenceFile::default());
    for text in ["", "# nothing\n", "fences: []\n", "fences:\n"] {
        assert_eq!(load(text).unwrap(), FenceFile::default(), "{text:?}");
    }
}

#[test]
fn what_was_written_is_what_is_read() {
    let mut file = FenceFile::default();
    assert_eq!(load(&file.to_yaml()).unwrap(), file);
    file.fences.push(fence("pve3", "2026-12-01T05:00:00Z"));
    let gone = format!("102:{UUID}");
    file.fences.push(Fence {
        reason: None,
        ..fence(&gone, "2026-12-20T05:00:00Z")
    });
    assert_eq!(load(&file.to_yaml()).unwrap(), file);
}

#[test]
fn the_example_is_read() {
    let file = load(&example("fences.example.yaml")).unwrap();
    assert_eq!(file.fences.len(), 2);
}

#[test]
fn a_statement_that_is_not_clear_is_refused_with_its_place() {
    let row = |what: &str, from: &str, until: &str, more: &str| {
        format!(
            "fences:\n- region: r1\n  {what}\n  from: \"2026-12-01T{from}:00Z\"\n  until: {until}\n  by: alice\n  {more}\n"
        )
    };
    let hour = "\"2026-12-01T05:00:00Z\"";
    assert!(load(&row("host: pve3", "04:00", hour, "reason: x")).is_ok());
    for (text, why) in [
        (
            row("host: ../x", "04:00", hour, ""),
            "fences[0].host: not a valid PVE node name",
        ),
        (
            row("host: pve3", "04:00", "tomorrow", ""),
            "fences[0].until: must be a time",
        ),
        (
            row("host: pve3", "05:00", hour, ""),
            "fences[0]: ends before it begins",
        ),
        (
            row("host: pve3", "04:00", "\"2026-12-02T05:00:00Z\"", ""),
            "fences[0]: holds for more than 24 hours",
        ),
        (
            row("gone: pve3", "04:00", hour, ""),
            "fences[0].gone: must be <vmid>:<uuid>",
        ),
        (
            row("gone: 'x:y'", "04:00", hour, ""),
            "fences[0].gone: not a valid VMID",
        ),
        (
            row(
                &format!("gone: '102:{UUID}'\n  host: pve3"),
                "04:00",
                hour,
                "",
            ),
            "fences[0]: needs either host or gone",
        ),
        (row("hosts: pve3", "04:00", hour, ""), "unknown key"),
        (row("host: pve3", "04:00", hour, "reason: ''"), "reason"),
        (
            row("host: pve3", "04:00", hour, "reason: \"a\\nb\""),
            "fences[0]: reason must be 1 to 200 characters",
        ),
        ("fences: {}".to_owned(), "fences: must be a list"),
        ("fences:\n- 1\n".to_owned(), "fences[0]: must be a mapping"),
        ("[".to_owned(), "not well-formed YAML"),
    ] {
        let error = load(&text).unwrap_err();
        assert!(error.contains(why), "{error:?} does not say {why:?}");
    }
}

#[test]
fn a_statement_holds_until_its_end_and_never_for_too_long() {
    let (host, hour) = ("pve3", "2026-12-01T05:00:00Z");
    let gone = format!("102:{UUID}");
    for (what, until, now, holds) in [
        (host, hour, "2026-12-01T04:30:00Z", true),
        (host, hour, "2026-12-01T04:59:59Z", true),
        (host, hour, "2026-12-01T05:00:00Z", false),
        // The operator's clock is ahead of the controller's.
        (host, hour, "2026-12-01T03:58:00Z", true),
        // A year that was mistyped.
        (host, "2027-12-01T05:00:00Z", "2026-12-01T04:30:00Z", false),
        (
            gone.as_str(),
            "2026-12-20T05:00:00Z",
            "2026-12-01T04:30:00Z",
            true,
        ),
        (
            gone.as_str(),
            "2027-12-20T05:00:00Z",
            "2026-12-01T04:30:00Z",
            false,
        ),
    ] {
        assert_eq!(
            fence(what, until).holds(at(now)),
            holds,
            "{what} {until} {now}"
        );
    }
}

#[test]
fn a_statement_is_about_one_thing_of_one_region() {
    let file = FenceFile {
        fences: vec![
            fence("pve3", "2026-12-01T05:00:00Z"),
            fence("pve3", "2026-12-01T06:00:00Z"),
            fence(&format!("102:{UUID}"), "2026-12-01T06:00:00Z"),
        ],
    };
    let find = |region: &str, what: &str, now: &str| {
        let found = file.find(&region.parse().unwrap(), &what.parse().unwrap(), at(now));
        found.map(|fence| fence.until.to_string())
    };
    let now = "2026-12-01T04:30:00Z";
    assert_eq!(find("r1", "pve3", now).unwrap(), "2026-12-01T06:00:00Z");
    assert_eq!(find("r2", "pve3", now), None);
    assert_eq!(find("r1", "pve2", now), None);
    assert_eq!(find("r1", "pve3", "2026-12-01T06:00:00Z"), None);
    assert!(find("r1", &format!("102:{UUID}"), now).is_some());
    assert_eq!(find("r1", &format!("103:{UUID}"), now), None);
}
