//! What is deleted, and what is kept.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_typed_old_enough_and_in_no_vm_is_deleted_alone() {
    let desk = Desk::with_orphan().await;
    desk.disk("r1/pve2/thin/vm-9999-pvc-lone", DAY);
    let said = desk.run(&desk.delete(LONE)).await;
    assert_eq!(
        (said.code, said.out.trim()),
        (0, format!("deleted {LONE}").as_str()),
        "{said:?}"
    );
    let left: Vec<String> = desk
        .world
        .sim
        .state()
        .volumes
        .iter()
        .map(|v| format!("{:?} {}", v.node, v.name))
        .collect();
    assert_eq!(
        left,
        [
            "Some(\"pve1\") 9999/vm-9999-pvc-used.raw",
            "Some(\"pve2\") vm-9999-pvc-lone"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_not_certainly_loose_is_kept() {
    let desk = Desk::with_orphan().await;
    let delete = desk.delete(LONE);
    let used = "r1/pve1/files/9999/vm-9999-pvc-used.raw";
    desk.keeps(&delete.replace("1h", "2d"), "s old").await;
    desk.keeps(&desk.delete(used), "is not among the disks")
        .await;
    desk.keeps(
        &format!("{delete} --id r1/pve2/thin/vm-9999-pvc-lone"),
        "is not among the disks",
    )
    .await;
    desk.world.sim.edit(|state| {
        for volume in &mut state.volumes {
            volume.ctime = 0;
        }
    });
    desk.keeps(&delete, "does not tell how old").await;
    desk.world.sim.edit(|state| {
        for volume in &mut state.volumes {
            volume.ctime = 1;
        }
    });
    for line in [
        "--delete --min-age 9m --id r1/pve1/thin/vm-9999-a",
        "--delete --min-age 1h",
        "--delete --id r1//a/vm-9999-b",
    ] {
        assert_eq!(desk.run(line).await.code, 2, "{line}");
    }
    // On the word of an empty list.
    desk.kube.clear_volumes();
    desk.keeps(&delete, "no PersistentVolume of the driver at all")
        .await;
    desk.kube.add_volume("pv-used", DRIVER, used);
    // While something can't be read.
    desk.world.sim.node_health("pve2", Health::Offline);
    desk.keeps(&delete, "not all could be read").await;
    desk.world.sim.node_health("pve2", Health::Online);
    assert!(desk.has(LONE));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_a_vm_has_in_any_way_is_kept() {
    let desk = Desk::with_orphan().await;
    let delete = desk.delete(LONE);
    let drive = "thin:vm-9999-pvc-lone,size=1G".to_owned();
    let sim = &desk.world.sim;
    sim.with_vm(102, |vm| {
        vm.config.insert("scsi3".to_owned(), drive.clone())
    })
    .unwrap();
    desk.keeps(&delete, "VM 102 has thin:vm-9999-pvc-lone in scsi3")
        .await;
    sim.with_vm(102, |vm| vm.config.remove("scsi3")).unwrap();
    sim.with_vm(101, |vm| {
        vm.pending.insert("scsi4".to_owned(), drive.clone())
    })
    .unwrap();
    desk.keeps(&delete, "VM 101 has thin:vm-9999-pvc-lone in scsi4")
        .await;
    sim.with_vm(101, |vm| vm.pending.clear()).unwrap();
    sim.with_vm(101, |vm| {
        let mut then = vm.config.clone();
        then.insert("scsi5".to_owned(), drive.clone());
        vm.snapshots
            .insert("before".to_owned(), then.into_iter().collect());
    })
    .unwrap();
    desk.keeps(&delete, "snapshot before of VM 101 needs").await;
    sim.with_vm(101, |vm| vm.snapshots.clear()).unwrap();
    assert_eq!(desk.run(&delete).await.code, 0);
    assert!(!desk.has(LONE));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_deleted_only_with_sight_of_all_guests() {
    let desk = Desk::with_orphan().await;
    let sim = &desk.world.sim;
    let own = format!("--delete --min-age 1h --id {LONE}");
    // The VM of another cluster that has the same owner's number, which the driver's token does not see.
    let drive = "thin:vm-9999-pvc-lone,size=1G".to_owned();
    sim.with_vm(100, |vm| vm.config.insert("scsi3".to_owned(), drive))
        .unwrap();
    desk.keeps(&own, "VM.Audit on /vms, and all below it, is missing")
        .await;
    desk.keeps(&desk.delete(LONE), "VM 100 has").await;
    sim.with_vm(100, |vm| vm.config.remove("scsi3")).unwrap();
    desk.keeps(&own, "VM.Audit on /vms, and all below it, is missing")
        .await;
    // On /vms alone.
    sim.edit(|state| {
        state
            .roles
            .insert("Sight".to_owned(), ["VM.Audit".to_owned()].into());
        let lines = state.acl.clone();
        for mut line in lines {
            line.path = "/vms".to_owned();
            line.role = "Sight".to_owned();
            line.propagate = false;
            state.acl.push(line);
        }
    });
    desk.keeps(&own, "VM.Audit on /vms, and all below it, is missing")
        .await;
    sim.edit(|state| {
        for line in &mut state.acl {
            line.propagate |= line.role == "Sight";
        }
    });
    assert_eq!(desk.run(&own).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_named_by_another_storage_or_region_is_kept() {
    let desk = Desk::with_orphan().await;
    let sim = &desk.world.sim;
    for handle in [
        "Region-1/pve1/thin/vm-9999-pvc-lone",
        "old:vm-9999-pvc-lone",
    ] {
        desk.kube.add_volume("pv-old", DRIVER, handle);
        desk.keeps(&desk.delete(LONE), "PersistentVolume pv-old")
            .await;
        desk.kube.clear_volumes();
        desk.kube
            .add_volume("pv-used", DRIVER, "r1/pve1/files/9999/vm-9999-pvc-used.raw");
    }
    let drive = "oldname:vm-9999-pvc-lone,size=1G".to_owned();
    sim.with_vm(102, |vm| {
        vm.config.insert("scsi3".to_owned(), drive.clone())
    })
    .unwrap();
    desk.keeps(&desk.delete(LONE), "VM 102 has oldname:vm-9999-pvc-lone")
        .await;
    sim.with_vm(102, |vm| {
        vm.config.remove("scsi3");
        let mut then = vm.config.clone();
        then.insert("scsi5".to_owned(), drive);
        vm.snapshots
            .insert("before".to_owned(), then.into_iter().collect());
    })
    .unwrap();
    desk.keeps(
        &desk.delete(LONE),
        "snapshot before of VM 102 needs oldname:vm-9999-pvc-lone",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_disk_is_deleted_while_another_that_was_typed_may_not_be() {
    let desk = Desk::with_orphan().await;
    let second = "r1/pve1/thin/vm-9999-pvc-second";
    desk.disk(second, DAY);
    let drive = "thin:vm-9999-pvc-second,size=1G".to_owned();
    desk.world
        .sim
        .with_vm(102, |vm| vm.config.insert("scsi3".to_owned(), drive))
        .unwrap();
    let both = format!("{} --id {second}", desk.delete(LONE));
    desk.keeps(&both, "VM 102 has").await;
}
