//! Slots that others use.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use harness::truth::Truth;
use harness::world::{SHARED, World, tenant};
use pve_sim::Builder;
use tonic::Code;

/// B30: a data disk, a CD-ROM and a change that waits for the next start take slots too.
#[tokio::test(flavor = "multi_thread")]
async fn slots_of_others_are_left_alone_and_the_volume_after_the_last_is_refused() {
    let disk = |builder: Builder, number: u32| {
        builder.volume(
            SHARED,
            None,
            &format!("101/vm-101-disk-{number}.raw"),
            64 << 20,
        )
    };
    let builder = (0..2).fold(tenant(&[(101, "pve1")]), disk);
    let world = World::start(builder).await.unwrap();
    world.sim.stop_vm(101).unwrap();
    let others = [
        ("scsi0", "shared:101/vm-101-disk-0.raw,size=64M"),
        ("scsi5", "shared:101/vm-101-disk-1.raw,size=64M"),
        ("scsi30", "none,media=cdrom"),
        ("ide2", "none,media=cdrom"),
    ];
    world.sim.with_vm(101, |vm| {
        let written = others.map(|(key, line)| (key.to_owned(), line.to_owned()));
        vm.config.extend(written);
    });
    world.sim.start_vm(101).unwrap();
    world.sim.with_vm(101, |vm| {
        vm.pending
            .insert("scsi7".to_owned(), "none,media=cdrom".to_owned())
    });
    let caller = world.caller();
    let names: Vec<String> = (0..28).map(|number| format!("pvc-{number}")).collect();
    let made = join_all(names.iter().map(|name| caller.create(name, SHARED, None))).await;
    let made: Vec<String> = made.into_iter().map(Result::unwrap).collect();
    let (last, first) = made.split_last().unwrap();
    let attached = join_all(first.iter().map(|volume| caller.publish(volume, 101))).await;
    let luns: BTreeSet<String> = attached
        .into_iter()
        .map(|context| context.unwrap()["lun"].clone())
        .collect();
    assert_eq!(luns.len(), 27);
    for taken in ["0", "5", "7", "30"] {
        assert!(!luns.contains(taken), "scsi{taken} is another's");
    }
    let status = caller.publish(last, 101).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let truth = Truth::of(&world.sim);
    let seen: BTreeMap<&str, Option<&str>> = others
        .iter()
        .map(|(key, _)| (*key, truth.config(101, key)))
        .collect();
    assert_eq!(
        seen,
        others
            .iter()
            .map(|(key, line)| (*key, Some(*line)))
            .collect()
    );
    assert!(
        first
            .iter()
            .all(|volume| truth.slots(101, volume).len() == 1)
    );
}
