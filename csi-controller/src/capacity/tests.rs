use super::*;

fn seat(host: &str, free: u64) -> Seat {
    Seat {
        pve_node: host.parse().unwrap(),
        kind: StorageKind::LvmThin,
        shared: false,
        images: true,
        available: true,
        free: Bytes::new(free),
    }
}

fn room(seats: &[Seat], limits: &StoragePolicy) -> u64 {
    let seats: Vec<&Seat> = seats.iter().collect();
    rooms(&seats, limits)
        .iter()
        .map(|(_, room)| room.get())
        .sum()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn what_counts_as_room() {
    let free = StoragePolicy::default();
    let shared = |host, free| Seat {
        shared: true,
        ..seat(host, free)
    };
    let reserve = StoragePolicy {
        min_free: Some(Bytes::new(30)),
        ..StoragePolicy::default()
    };
    let rows: [(&str, Vec<Seat>, &StoragePolicy, u64); 8] = [
        (
            "local storages add up",
            vec![seat("pve1", 100), seat("pve2", 50)],
            &free,
            150,
        ),
        (
            "shared storage counts once, by its smallest measure",
            vec![shared("pve1", 100), shared("pve2", 90)],
            &free,
            90,
        ),
        ("no seat is no room", vec![], &free, 0),
        (
            "an unreachable storage has none",
            vec![Seat {
                available: false,
                ..seat("pve1", 100)
            }],
            &free,
            0,
        ),
        (
            "one without content type images has none",
            vec![Seat {
                images: false,
                ..seat("pve1", 100)
            }],
            &free,
            0,
        ),
        (
            "a type that can't be used has none",
            vec![Seat {
                kind: StorageKind::read("rbd"),
                ..seat("pve1", 100)
            }],
            &free,
            0,
        ),
        (
            "what the operator keeps free does not count",
            vec![seat("pve1", 100)],
            &reserve,
            70,
        ),
        (
            "less than that is nothing",
            vec![seat("pve1", 20)],
            &reserve,
            0,
        ),
    ];
    for (sentence, seats, limits, expected) in rows {
        assert_eq!(room(&seats, limits), expected, "{sentence}");
    }
}

#[test]
fn the_quota_bounds_what_is_free_and_the_largest_volume_what_is_left() {
    let limits = StoragePolicy {
        max_volume_bytes: Some(Bytes::new(40)),
        ..StoragePolicy::default()
    };
    let of =
        |room, quota: Option<u64>| Capacity::of(Bytes::new(room), quota.map(Bytes::new), &limits);
    assert_eq!(of(100, None).available.get(), 100);
    assert_eq!(of(100, Some(60)).available.get(), 60);
    assert_eq!(of(50, Some(60)).available.get(), 50);
    assert_eq!(of(100, None).largest, Some(Bytes::new(40)));
    assert_eq!(of(10, None).largest, Some(Bytes::new(10)));
}
