use super::*;
use crate::fake_host::{FakeHost, disk};

const OWN: &str = "0x5c42a611aadbf50e";
const OTHER: &str = "0x5c42a611aadbf50f";
const SLOT: &str = "0x5056432d49443031";
/// `printf %s r1/pve1/local-lvm/vm-9999-pvc-1 | sha256sum`
const KEPT: &str = "c42a611aadbf50ec7f2c5d9706edee88c71a91b1aa6f8231a0e4916b5a5e046b";
const TARGET: &str = "/k/pods/1/mount";
const RAW: &str = "/k/volumeDevices/publish/pvc-1/1";

fn volume() -> VolumeId {
    "r1/pve1/local-lvm/vm-9999-pvc-1".parse().unwrap()
}

fn table(points: &[&str]) -> &'static str {
    let line = |point: &&str| format!("1 2 8:16 / {point} rw - ext4 /dev/sdb rw\n");
    let text: String = points.iter().map(line).collect();
    Box::leak(text.into_boxed_str())
}

async fn look_at(disks: Vec<Disk>, points: &[&str]) -> Result<Found, Error> {
    let host = FakeHost::default();
    host.set_disks(disks);
    host.set_mounts(&[table(points)]);
    look(&host, &volume(), (Path::new(TARGET), None)).await
}

#[tokio::test]
async fn b09_a_slots_name_speaks_for_a_volume_only_where_the_kubelet_keeps_it() {
    let slot = || disk("sdb", 16, SLOT);
    let kept = format!("/k/{KEPT}/globalmount");
    let other = format!("/k/{}/globalmount", "0".repeat(64));
    let wrong = format!("/k/{KEPT}/elsewhere");
    let cases: [(Vec<Disk>, &[&str], bool); 8] = [
        (vec![slot()], &[&kept, TARGET], true),
        (vec![slot()], &[TARGET, &other, &kept], true),
        (vec![slot()], &[TARGET], false),
        (vec![slot()], &[&other, TARGET], false),
        (vec![slot()], &[&wrong, TARGET], false),
        // The volume itself is there under its own name, or is nowhere.
        (vec![slot(), disk("sdc", 32, OWN)], &[&kept, TARGET], false),
        (vec![disk("sdb", 16, OTHER)], &[&kept, TARGET], false),
        (vec![disk("sdb", 16, OWN)], &[TARGET], true),
    ];
    for (index, (disks, points, good)) in cases.into_iter().enumerate() {
        match look_at(disks, points).await {
            Ok(Found::Filesystem { disk, .. }) => {
                assert!(good && disk.name == "sdb", "case {index}");
            }
            Err(Error::VolumeNotFound) => assert!(!good, "case {index}"),
            found => panic!("case {index}: {found:?}"),
        }
    }
    let twins = vec![slot(), disk("sdc", 32, SLOT)];
    let doubtful = look_at(twins, &[&kept, TARGET]).await;
    assert!(matches!(doubtful, Err(Error::DeviceAmbiguous { .. })));
    assert!(matches!(
        look_at(Vec::new(), &[TARGET]).await,
        Ok(Found::Gone)
    ));
}

#[tokio::test]
async fn b09_a_slots_name_speaks_for_a_raw_volume_only_at_the_place_of_its_pv() {
    let cases = [
        (RAW, SLOT, true),
        ("/k/volumeDevices/publish/pvc-2/1", SLOT, false),
        ("/k/volumeDevices/pvc-1/1", SLOT, false),
        ("/k/volumeDevices/publish/pvc-2/1", OWN, true),
        (RAW, OTHER, false),
    ];
    for (path, name, good) in cases {
        let host = FakeHost::default();
        let disk = disk("sdb", 16, name);
        host.put_node(path, disk.number);
        host.set_disks(vec![disk.clone()]);
        let text = format!("1 2 0:5 /sdb {path} rw - devtmpfs udev rw\n");
        host.set_mounts(&[Box::leak(text.into_boxed_str())]);
        let found = look(&host, &volume(), (Path::new(path), Some(Path::new("/k/x")))).await;
        match found {
            Ok(found) => assert!(good && found == Found::Raw(disk), "{path} {name}"),
            Err(Error::VolumeNotFound) => assert!(!good, "{path} {name}"),
            Err(error) => panic!("{path} {name}: {error}"),
        }
    }
}

#[tokio::test]
async fn a_file_system_is_at_the_staging_path_that_is_said() {
    let other = "1 2 8:32 / /k/other rw - ext4 /dev/sdc rw\n";
    let here = table(&["/k/staging", TARGET]).to_owned() + other;
    let cases = [("/k/staging", true), ("/k/other", false), ("/k/x", false)];
    for (staging, good) in cases {
        let host = FakeHost::default();
        host.set_disks(vec![disk("sdb", 16, OWN)]);
        host.set_mounts(&[Box::leak(here.clone().into_boxed_str())]);
        let paths = (Path::new(TARGET), Some(Path::new(staging)));
        let found = look(&host, &volume(), paths).await;
        assert_eq!(found.is_ok(), good, "{staging}");
    }
}
