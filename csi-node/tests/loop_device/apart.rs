//! One volume in one way, and beside all others.

use std::fs;
use std::path::Path;

use tonic::Code;

use crate::machine::{MIB, block_capability, mounts_at, publish_request, with_machine};

const VOLUME: &str = "r1/pve1/local-lvm/vm-9999-pvc-1";
const OTHER: &str = "r1/pve1/local-lvm/vm-9999-pvc-2";
/// `printf %s r1/pve1/local-lvm/vm-9999-pvc-1 | sha256sum`
const KEPT: &str = "c42a611aadbf50ec7f2c5d9706edee88c71a91b1aa6f8231a0e4916b5a5e046b";

#[test]
fn a_volume_is_mounted_or_raw_and_never_both() {
    with_machine("a_volume_is_mounted_or_raw", async |machine| {
        let disk = machine.plugged("sdb", VOLUME, 64 * MIB);
        let (staging, target) = (machine.path("staging"), machine.path("target"));
        let as_raw = |at: &Path| {
            let mut request = publish_request(&disk, &staging, at);
            request.volume_capability = Some(block_capability());
            request
        };
        let raw = machine.path("raw");
        machine.stage(&disk, &staging).await.unwrap();
        for answer in [
            machine.stage_as(&disk, &staging, block_capability()).await,
            machine.publish(as_raw(&raw)).await,
        ] {
            let error = answer.unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
            let place = staging.to_str().unwrap();
            assert!(error.message().contains(place), "{error}");
        }
        assert!(!raw.exists());
        machine.unstage(&disk, &staging).await.unwrap();

        machine
            .stage_as(&disk, &staging, block_capability())
            .await
            .unwrap();
        machine.publish(as_raw(&raw)).await.unwrap();
        let digest = disk.digest();
        let mounted = publish_request(&disk, &staging, &target);
        for answer in [
            machine.stage(&disk, &staging).await,
            machine.publish(mounted).await,
        ] {
            let error = answer.unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        }
        assert_eq!((disk.digest(), mounts_at(&staging)), (digest, 0));
        // What is there already is there still.
        machine.publish(as_raw(&raw)).await.unwrap();
        machine.unpublish(&disk, &raw).await.unwrap();
        machine.stage(&disk, &staging).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}

#[test]
fn no_volume_is_put_inside_another_or_inside_itself() {
    with_machine("no_volume_is_put_inside_another", async |machine| {
        let (other, disk) = (
            machine.plugged("sdb", OTHER, 64 * MIB),
            machine.plugged("sdc", VOLUME, 64 * MIB),
        );
        let (theirs, staging) = (machine.path("theirs"), machine.path("staging"));
        machine.stage(&other, &theirs).await.unwrap();
        for inside in [theirs.join("inside"), theirs.join("deep/inside")] {
            let error = machine.stage(&disk, &inside).await.unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        }
        machine.stage(&disk, &staging).await.unwrap();
        let around = machine.path("");
        for target in [theirs.join("inside"), staging.join("inside"), around] {
            for raw in [false, true] {
                let mut request = publish_request(&disk, &staging, &target);
                if raw {
                    request.volume_capability = Some(block_capability());
                }
                let error = machine.publish(request).await.unwrap_err();
                assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
            }
        }
        for path in [&theirs, &staging] {
            let names = fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name());
            assert_eq!(names.collect::<Vec<_>>(), ["lost+found"]);
        }
        machine.unstage(&disk, &staging).await.unwrap();
        // A staging path to which a raw volume is published is no other: it lies in it.
        let mut request = publish_request(&disk, &staging, &staging.join("inside"));
        request.volume_capability = Some(block_capability());
        let error = machine.publish(request).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        machine.unstage(&other, &theirs).await.unwrap();
    });
}

#[test]
fn b09_a_slots_name_gets_statistics_only_where_the_kubelet_keeps_the_volume() {
    with_machine("b09_a_slots_name_gets_statistics", async |machine| {
        let slot = "0x5056432d49443031".parse().unwrap();
        let disk = machine.disk("sdb", VOLUME, 64 * MIB).named(slot);
        disk.plug();
        let plain = machine.path("staging");
        machine.stage(&disk, &plain).await.unwrap();
        let error = machine.stats(&disk, &plain).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        machine.unstage(&disk, &plain).await.unwrap();

        let folder = machine.path("kubelet").join(KEPT);
        fs::create_dir(&folder).unwrap();
        let (staging, target) = (folder.join("globalmount"), machine.path("target"));
        machine.stage(&disk, &staging).await.unwrap();
        let request = publish_request(&disk, &staging, &target);
        machine.publish(request).await.unwrap();
        for path in [&staging, &target] {
            let stats = machine.stats(&disk, path).await.unwrap();
            assert!(!stats.volume_condition.unwrap().abnormal);
        }
        // The volume has come under its own name: what sits in the slot is another one.
        let own = machine.plugged("sdc", VOLUME, 64 * MIB);
        let error = machine.stats(&disk, &target).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        own.unplug();
        machine.unpublish(&disk, &target).await.unwrap();
        machine.unstage(&disk, &staging).await.unwrap();
    });
}
