//! Free space by storage and host.

use std::collections::HashMap;
use std::time::Duration;

use csi_proto::csi::v1::GetCapacityRequest;
use harness::csi::topology;
use harness::world::{FILES, REGION, SHARED, THIN, World};
use pve_sim::Storage;
use tonic::{Code, Status};

use crate::world;

/// What an administrator does to a storage.
type Change = fn(&mut Storage);

async fn capacity(world: &World, storage: &str, zone: Option<&str>) -> Result<i64, Status> {
    let request = GetCapacityRequest {
        parameters: HashMap::from([("storage".to_owned(), storage.to_owned())]),
        accessible_topology: Some(topology(REGION, zone)),
        ..Default::default()
    };
    let answer = world.csi().controller().get_capacity(request).await?;
    Ok(answer.into_inner().available_capacity)
}

/// B48: zero is an answer, and it must be the right one.
#[tokio::test(flavor = "multi_thread")]
async fn capacity_is_that_of_the_host_and_zero_where_no_disk_can_be() {
    let world = world(&[(101, "pve1")]).await;
    let whole = capacity(&world, SHARED, None).await.unwrap();
    assert!(whole > 0);
    for zone in ["pve1", "pve2"] {
        let seen = capacity(&world, SHARED, Some(zone)).await.unwrap();
        assert_eq!(seen, whole, "what all hosts share counts once: {zone}");
    }
    let rows: [(&str, &str, Change, [bool; 2]); 4] = [
        ("everywhere", FILES, |_| {}, [true, true]),
        (
            "on one host",
            THIN,
            |storage| storage.nodes = ["pve1".to_owned()].into(),
            [true, false],
        ),
        (
            "on the other",
            THIN,
            |storage| storage.nodes = ["pve2".to_owned()].into(),
            [false, true],
        ),
        (
            "for backups only",
            FILES,
            |storage| storage.content = ["backup".to_owned()].into(),
            [false, false],
        ),
    ];
    for (sentence, storage, change, expected) in rows {
        let before = world.sim.edit(|state| state.storages[storage].clone());
        world
            .sim
            .edit(|state| change(state.storages.get_mut(storage).unwrap()));
        // The list of storages is kept for two seconds.
        tokio::time::sleep(Duration::from_millis(2100)).await;
        for (zone, room) in ["pve1", "pve2"].into_iter().zip(expected) {
            let seen = capacity(&world, storage, Some(zone)).await;
            assert_eq!(
                seen.map(|bytes| bytes > 0).unwrap(),
                room,
                "{storage} {sentence}, {zone}"
            );
        }
        world
            .sim
            .edit(|state| state.storages.insert(storage.to_owned(), before));
    }
}

/// B48: what can't be told from a missing right, and what is no host.
#[tokio::test(flavor = "multi_thread")]
async fn no_room_is_seen_on_a_storage_that_is_off_nor_on_a_host_that_is_none() {
    let world = world(&[(101, "pve1")]).await;
    // PVE leaves out a storage that is switched off as it does one that the token may not see.
    world
        .sim
        .edit(|state| state.storages.get_mut(THIN).unwrap().disable = true);
    let off = capacity(&world, THIN, Some("pve1")).await;
    assert!(matches!(&off, Ok(0)) || off.is_err_and(|status| status.code() == Code::Unavailable));
    for zone in ["worker-101", "pve9"] {
        let status = capacity(&world, FILES, Some(zone)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(
            status.message().contains("topology.kubernetes.io/zone"),
            "{status:?}"
        );
    }
}

/// B48: a storage that the token may not see is no empty one.
#[tokio::test(flavor = "multi_thread")]
async fn capacity_of_a_storage_that_can_not_be_seen_is_an_error() {
    let world = world(&[(101, "pve1")]).await;
    world
        .sim
        .edit(|state| state.roles.get_mut("TenantStorage").unwrap().clear());
    let status = capacity(&world, THIN, Some("pve1")).await.unwrap_err();
    assert!(
        matches!(
            status.code(),
            Code::PermissionDenied | Code::Unavailable | Code::Internal
        ),
        "{status:?}"
    );
    assert!(
        !status.message().contains("Datastore"),
        "PVE's words are the operator's: {status:?}"
    );
}
