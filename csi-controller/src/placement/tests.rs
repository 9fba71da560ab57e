use std::collections::BTreeMap;

use pve_model::Parameters;
use pve_runtime::config::{Allow, Mode, Owners};

use super::*;
use crate::validate::SizeRange;
use DiskFormat::{Qcow2, Raw};
use std::fmt::Write;

const GIB: u64 = 1 << 30;

fn seat(host: &str) -> Seat {
    Seat {
        pve_node: host.parse().unwrap(),
        kind: StorageKind::LvmThin,
        shared: false,
        images: true,
        available: true,
        free: Bytes::new(100 * GIB),
    }
}

fn shared(host: &str) -> Seat {
    Seat {
        shared: true,
        ..seat(host)
    }
}

fn policy(hosts: &[&str]) -> RegionPolicy {
    RegionPolicy {
        pool: "tenant-a".parse().unwrap(),
        storages: BTreeMap::new(),
        pve_nodes: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        owners: Owners::default(),
        mode: Mode::Reserved,
        adopted: BTreeSet::new(),
    }
}

fn request(name: &str, gib: u64) -> CreateRequest {
    let size = Bytes::new(gib * GIB);
    CreateRequest {
        name: name.to_owned(),
        size: SizeRange {
            wanted: size,
            least: size,
            most: None,
        },
        parameters: Parameters {
            storage: Some("local-lvm".parse().unwrap()),
            ..Parameters::default()
        },
        context: std::collections::HashMap::new(),
        places: Vec::new(),
    }
}

type Row = (&'static str, Vec<Option<PveNode>>, Vec<Seat>, &'static str);

fn host<T: From<PveNode>>(name: &str) -> T {
    name.parse::<PveNode>().unwrap().into()
}

/// `pve1`, `pve1:Space` for an obstacle, `(pve1+pve2)` for shared storage.
fn show(outcome: Result<Plan, Error>) -> String {
    let plan = match outcome {
        Ok(plan) => plan,
        Err(Error::Exhausted { why, .. }) => return format!("no room: {why:?}"),
        Err(Error::Invalid(_)) => return "invalid".to_owned(),
        Err(other) => return other.to_string(),
    };
    let candidates: Vec<String> = plan
        .candidates
        .iter()
        .map(|candidate| {
            let hosts: Vec<&str> = candidate.hosts.iter().map(PveNode::as_str).collect();
            let mut text = match candidate.zone {
                Some(_) => hosts.join("+"),
                None => format!("({})", hosts.join("+")),
            };
            if let Some(why) = candidate.obstacle {
                write!(text, ":{why:?}").unwrap();
            }
            text
        })
        .collect();
    candidates.join(" ")
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn where_a_volume_may_go() {
    let down = |host| Seat {
        available: false,
        ..seat(host)
    };
    let full = |host| Seat {
        free: Bytes::new(GIB - 1),
        ..seat(host)
    };
    let rows: [Row; 14] = [
        (
            "the host asked for",
            vec![host("pve1")],
            vec![seat("pve1"), seat("pve2")],
            "pve1",
        ),
        (
            "hosts in the order asked for",
            vec![host("pve2"), host("pve1")],
            vec![seat("pve1"), seat("pve2")],
            "pve2 pve1",
        ),
        (
            "a host without the storage is left out",
            vec![host("pve1"), host("pve2")],
            vec![seat("pve2")],
            "pve2",
        ),
        (
            "the storage is on none of them",
            vec![host("pve1")],
            vec![seat("pve2")],
            "no room: Storage",
        ),
        (
            "the storage is nowhere",
            vec![host("pve1")],
            vec![],
            "no room: Storage",
        ),
        (
            "a host that is down stays in its place",
            vec![host("pve1"), host("pve2")],
            vec![down("pve1"), seat("pve2")],
            "pve1:Storage pve2",
        ),
        (
            "a full storage stays in its place",
            vec![host("pve1"), host("pve2")],
            vec![full("pve1"), seat("pve2")],
            "pve1:Space pve2",
        ),
        (
            "a storage without content type images",
            vec![host("pve1")],
            vec![Seat {
                images: false,
                ..seat("pve1")
            }],
            "pve1:Storage",
        ),
        (
            "a host that policy does not name, beside one that it does",
            vec![host("pve9"), host("pve1")],
            vec![seat("pve9"), seat("pve1")],
            "pve1",
        ),
        (
            "only a host that policy does not name",
            vec![host("pve9")],
            vec![seat("pve9")],
            "invalid",
        ),
        (
            "shared storage is one place",
            vec![host("pve2"), host("pve1")],
            vec![shared("pve1"), shared("pve2")],
            "(pve2+pve1)",
        ),
        (
            "shared storage, asked of the host that is up",
            vec![host("pve1"), host("pve2")],
            vec![
                Seat {
                    shared: true,
                    ..down("pve1")
                },
                shared("pve2"),
            ],
            "(pve2+pve1)",
        ),
        (
            "shared storage whose hosts are all down",
            vec![host("pve1")],
            vec![Seat {
                shared: true,
                ..down("pve1")
            }],
            "(pve1):Storage",
        ),
        (
            "a type of storage that comes later",
            vec![host("pve1")],
            vec![Seat {
                kind: StorageKind::read("rbd"),
                ..seat("pve1")
            }],
            "not supported: volumes can't be made on this type of storage: only dir and lvmthin are supported (storage of type rbd)",
        ),
    ];
    for (sentence, wanted, seats, expected) in rows {
        let outcome = plan(
            &request("pvc-1", 1),
            &wanted,
            &seats,
            &policy(&["pve1", "pve2"]),
            &StoragePolicy::default(),
        );
        assert_eq!(show(outcome), expected, "{sentence}");
    }
}

#[test]
fn hosts_that_no_term_tells_apart_spread_volumes_and_keep_their_order() {
    let names = ["pve1", "pve2", "pve3"];
    let allowed = policy(&names).pve_nodes;
    let mut first: BTreeMap<PveNode, u32> = BTreeMap::new();
    for n in 0..300 {
        let name = format!("pvc-{n}");
        let order = hosts(&name, &[], &allowed).unwrap();
        assert_eq!(
            order,
            hosts(&name, &[None], &allowed).unwrap(),
            "no term and any host are the same"
        );
        *first.entry(order[0].clone()).or_default() += 1;
    }
    assert!(
        first.len() == 3 && first.values().all(|count| *count > 50),
        "{first:?}"
    );
}

#[test]
fn free_space_never_changes_the_order_in_which_a_retry_looks() {
    let policy = policy(&["pve1", "pve2", "pve3"]);
    let order = |frees: [u64; 3]| {
        let seats: Vec<Seat> = ["pve1", "pve2", "pve3"]
            .iter()
            .zip(frees)
            .map(|(host, free)| Seat {
                free: Bytes::new(free),
                ..seat(host)
            })
            .collect();
        let plan = plan(
            &request("pvc-1", 1),
            &[None],
            &seats,
            &policy,
            &StoragePolicy::default(),
        )
        .unwrap();
        plan.candidates
            .into_iter()
            .map(|candidate| candidate.zone)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        order([9 * GIB, 5 * GIB, 7 * GIB]),
        order([0, 100 * GIB, GIB])
    );
}

#[test]
fn shared_storage_that_only_some_hosts_have_says_which() {
    let only_on = |seats: &[Seat]| {
        plan(
            &request("pvc-1", 1),
            &[None],
            seats,
            &policy(&["pve1", "pve2", "pve3"]),
            &StoragePolicy::default(),
        )
        .unwrap()
        .only_on
        .map(|hosts| hosts.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(
        only_on(&[shared("pve1"), shared("pve2"), shared("pve3")]),
        None
    );
    assert_eq!(
        only_on(&[shared("pve1"), shared("pve3")]),
        Some(vec!["pve1".to_owned(), "pve3".to_owned()])
    );
    assert_eq!(
        only_on(&[seat("pve1")]),
        None,
        "a local volume says its host anyway"
    );
}

#[test]
fn what_the_operator_keeps_and_forbids() {
    let policy = policy(&["pve1"]);
    let outcome = |limits: StoragePolicy| {
        show(plan(
            &request("pvc-1", 10),
            &[None],
            &[seat("pve1")],
            &policy,
            &limits,
        ))
    };
    let free = StoragePolicy::default();
    assert_eq!(outcome(free.clone()), "pve1");
    assert_eq!(
        outcome(StoragePolicy {
            min_free: Some(Bytes::new(91 * GIB)),
            ..free.clone()
        }),
        "pve1:Space"
    );
    assert_eq!(
        outcome(StoragePolicy {
            min_free: Some(Bytes::new(90 * GIB)),
            ..free.clone()
        }),
        "pve1"
    );
    assert_eq!(
        outcome(StoragePolicy {
            max_volume_bytes: Some(Bytes::new(9 * GIB)),
            ..free.clone()
        }),
        "no room: VolumeSize"
    );
    assert_eq!(
        outcome(StoragePolicy {
            max_volume_bytes: Some(Bytes::new(10 * GIB)),
            ..free
        }),
        "pve1"
    );
}

#[test]
fn what_a_quota_leaves() {
    let limits = |max_bytes: Option<u64>, max_volumes| StoragePolicy {
        max_bytes: max_bytes.map(Bytes::new),
        max_volumes,
        ..StoragePolicy::default()
    };
    let left = |limits: &StoragePolicy, used, count| {
        quota_left(limits, Bytes::new(used), count).map(Bytes::get)
    };
    assert_eq!(left(&limits(None, None), 50, 5), None);
    assert_eq!(left(&limits(Some(100), None), 60, 5), Some(40));
    assert_eq!(left(&limits(Some(100), None), 160, 5), Some(0));
    assert_eq!(left(&limits(None, Some(5)), 0, 4), None);
    assert_eq!(left(&limits(None, Some(5)), 0, 5), Some(0));
    assert_eq!(left(&limits(Some(100), Some(5)), 60, 5), Some(0));
}

#[test]
fn the_format_follows_the_storage_and_the_policy() {
    let policy = policy(&["pve1"]);
    let outcome = |kind: &str, wanted, formats: Option<BTreeSet<DiskFormat>>| {
        let mut request = request("pvc-1", 1);
        request.parameters.format = wanted;
        let limits = StoragePolicy {
            allow: Allow {
                formats,
                ..Allow::default()
            },
            ..StoragePolicy::default()
        };
        let seats = [Seat {
            kind: StorageKind::read(kind),
            ..seat("pve1")
        }];
        plan(&request, &[None], &seats, &policy, &limits)
            .map(|plan| plan.format)
            .ok()
    };
    assert_eq!(outcome("dir", None, None), Some(Some(Raw)));
    assert_eq!(outcome("dir", Some(Qcow2), None), Some(Some(Qcow2)));
    assert_eq!(
        outcome("dir", Some(Qcow2), Some([Raw].into())),
        None,
        "qcow2 is not allowed"
    );
    assert_eq!(outcome("lvmthin", None, None), Some(None));
    assert_eq!(outcome("lvmthin", Some(Raw), None), Some(None));
    assert_eq!(
        outcome("lvmthin", Some(Qcow2), None),
        None,
        "LVM has no files"
    );
}
