use super::*;
use proptest::prelude::*;
use serde_json::json;
use std::path::PathBuf;

/// Every committed input of a fuzz target.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let files = std::fs::read_dir(&folder).unwrap();
    let inputs: Vec<Vec<u8>> = files
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .collect();
    assert!(
        inputs.len() >= 10,
        "{} has {} inputs",
        folder.display(),
        inputs.len()
    );
    inputs
}

/// All inputs of a target that are text, and how many of them are a `T`.
fn replay<T: std::str::FromStr>(target: &str, oracle: fn(&str)) -> usize {
    let texts: Vec<String> = corpus(target)
        .into_iter()
        .filter_map(|b| String::from_utf8(b).ok())
        .collect();
    for text in &texts {
        oracle(text);
    }
    texts
        .iter()
        .filter(|text| text.parse::<T>().is_ok())
        .count()
}

#[test]
fn the_corpora_of_drives_and_task_names_hold_and_some_of_each_is_accepted() {
    assert!(replay::<Drive>("drive", drive) >= 8);
    assert!(replay::<Upid>("upid", upid) >= 4);
}

#[test]
fn the_corpus_of_answers_holds_and_every_reader_accepts_some_of_it() {
    let bodies = corpus("answers");
    let data: Vec<Value> = bodies
        .iter()
        .filter_map(|body| wire::data(body).ok())
        .collect();
    for body in &bodies {
        answer(body);
    }
    let some = |read: fn(&Value) -> bool| data.iter().any(read);
    assert!(some(
        |d| wire::listing(d, vm_entry).is_ok_and(|l| !l.entries.is_empty() && l.undecodable > 0)
    ));
    assert!(some(
        |d| wire::listing(d, storage_entry).is_ok_and(|l| !l.entries.is_empty())
    ));
    assert!(some(
        |d| wire::listing(d, node_entry).is_ok_and(|l| !l.entries.is_empty())
    ));
    assert!(some(
        |d| wire::listing(d, content_entry).is_ok_and(|l| !l.entries.is_empty())
    ));
    assert!(some(
        |d| wire::listing(d, crate::task_list::entry).is_ok_and(|l| !l.entries.is_empty())
    ));
    assert!(some(
        |d| wire::listing(d, crate::ha::rule).is_ok_and(|l| !l.entries.is_empty())
    ));
    assert!(some(
        |d| wire::listing(d, crate::ha::group).is_ok_and(|l| !l.entries.is_empty())
    ));
    assert!(some(
        |d| wire::listing(d, crate::ha::resource).is_ok_and(|l| !l.entries.is_empty())
    ));
    assert!(some(
        |d| matches!(crate::agent::read(d), Ok(Said::Interfaces(l)) if !l.is_empty())
    ));
    assert!(some(|d| matches!(
        crate::agent::read(d),
        Ok(Said::Refused(_))
    )));
    assert!(some(|d| VmPending::read(d).is_ok()));
    assert!(some(|d| VmConfig::read(d).is_ok()));
    assert!(some(|d| VmStatus::read(d).is_ok()));
    assert!(some(|d| task_state(d).is_ok()));
    assert!(some(|d| crate::snapshot::names(d).is_ok()));
    assert!(some(|d| disk_info(d).is_ok()));
    assert!(some(|d| matches!(
        Started::read(d),
        Ok(Started::Running(_))
    )));
}

/// One value as PVE may write it: the right one, one of another type, or none.
fn value(right: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => proptest::sample::select(right).prop_map(Value::from),
        2 => proptest::sample::select(right).prop_map(|text| serde_json::from_str(text).unwrap_or(Value::Null)),
        1 => any::<f64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => "\\PC{0,8}".prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(json!({})),
        1 => Just(json!(["x"])),
        1 => any::<bool>().prop_map(Value::from),
    ]
}

const TYPES: &[&str] = &[
    "qemu",
    "lxc",
    "storage",
    "node",
    "pool",
    "newkind",
    "node-affinity",
    "resource-affinity",
];

/// An entry of any of PVE's lists, with some fields left out and some of another type.
fn entry() -> impl Strategy<Value = Value> {
    let fields: [(&str, &'static [&'static str]); 21] = [
        ("vmid", &["100", "999999999", "9", "101.0"]),
        ("node", &["pve1", "pve-m-4", "..", ""]),
        ("type", TYPES),
        (
            "status",
            &[
                "running",
                "stopped",
                "unknown",
                "available",
                "online",
                "offline",
            ],
        ),
        ("template", &["0", "1", "1.0", "true", "2", "maybe"]),
        ("shared", &["0", "1", "true", "false"]),
        ("storage", &["nfs", "local-lvm", "../x"]),
        ("pool", &["tenant-a", "a/b/c", "", "../x"]),
        ("maxdisk", &["966367641600", "9.6e11", "-1", "1e300"]),
        ("volid", &["local:9999/a.raw", "thin:vm-9999-a"]),
        ("size", &["4194304", "1e3", "0", "-1"]),
        (
            "upid",
            &[
                "UPID:pve1:000000CE:0006F6CC:6B0E05DA:imgdel:9999@local:root@pam!full:",
                "UPID:",
            ],
        ),
        ("sid", &["vm:100", "ct:101", "vm:x", "vm:0100"]),
        ("resources", &["vm:100", "ct:101,vm:100", "vm:9", "vm:"]),
        ("rule", &["r1", "ha-group-a"]),
        ("group", &["a", ""]),
        ("affinity", &["positive", "negative", "mild"]),
        ("errors", &["{}", "null", "x"]),
        ("ip-address", &["10.0.0.7", "fe80::1%7", "::", "10.0.0.300"]),
        ("starttime", &["1796081115", "soon"]),
        ("endtime", &["1796081115", "soon"]),
    ];
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(key, right)| (Just(key), proptest::option::weighted(0.7, value(right))))
        .collect();
    fields.prop_map(|fields| {
        let said = fields
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Value::Object(said.collect())
    })
}

/// A row of `…/pending`.
fn row() -> impl Strategy<Value = Value> {
    let key = proptest::sample::select(vec![
        "scsi0", "scsi1", "scsi31", "unused0", "lock", "template", "digest", "efidisk0",
    ]);
    let drive: &[&str] = &[
        "local:9999/vm-9999-a.raw,size=1G",
        "thin:vm-9999-b",
        "none,media=cdrom",
        "size=1G",
        "1",
    ];
    let option = |right| proptest::option::weighted(0.6, value(right));
    (key, option(drive), option(drive), option(&["0", "1", "2"])).prop_map(
        |(key, value, pending, delete)| {
            let mut row = json!({ "key": key });
            for (key, value) in [("value", value), ("pending", pending), ("delete", delete)] {
                if let (Some(value), Some(row)) = (value, row.as_object_mut()) {
                    row.insert(key.to_owned(), value);
                }
            }
            row
        },
    )
}

fn ask(data: &Value) {
    answer(json!({ "data": data }).to_string().as_bytes());
}

#[test]
fn a_flag_that_is_a_zero_below_zero_is_off() {
    ask(
        &json!([{"type": "qemu", "vmid": 100, "node": "pve1", "status": "stopped", "template": -0.0}]),
    );
}

proptest! {
    /// B15: one entry of another shape breaks no list, and is not read as absent.
    #[test]
    fn lists_of_mixed_types_lose_no_entry(list in proptest::collection::vec(entry(), 0..6)) {
        ask(&json!({ "result": [{"name": "eth0", "ip-addresses": &list}, &list] }));
        ask(&json!({ "result": &list }));
        ask(&Value::Array(list));
    }

    #[test]
    fn an_object_of_mixed_types_is_refused_or_kept(object in entry(), exit in "(OK|ok|WARNINGS: [0-9]{0,3}|unexpected status|\\PC{0,9})") {
        ask(&object);
        ask(&json!({"result": {"error": {"class": exit, "desc": object.get("group")}}}));
        ask(&json!({"status": object.get("status"), "exitstatus": exit, "blockstat": object, "digest": "1"}));
        ask(&json!(exit));
    }

    #[test]
    fn pending_changes_lose_no_row(rows in proptest::collection::vec(row(), 0..6)) {
        let digest = json!({"key": "digest", "value": "6e31"});
        ask(&rows.into_iter().chain([digest]).collect());
    }

    #[test]
    fn a_drive_string_is_refused_or_kept(
        text in "((file=|volume=)?[a-z]{0,4}:?[0-9a-z/.-]{0,12})(,(iops|size|wwn|ssd|file|)=?[0-9a-zA-Z.:%=]{0,20}){0,4}",
        any in "\\PC{0,60}",
    ) {
        drive(&text);
        drive(&any);
    }

    #[test]
    fn a_task_name_is_refused_or_kept(
        text in "UPID:[a-z0-9.-]{1,8}:[0-9A-Fa-f]{7,9}:[0-9A-F]{8,10}:[0-9A-F]{8}:[a-z\\x00-\\x7f]{0,6}:[0-9@a-z \\x01]{0,8}:[a-z@!]{0,8}:?",
        any in "\\PC{0,60}",
    ) {
        upid(&text);
        upid(&any);
    }
}
