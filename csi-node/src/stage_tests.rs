use std::path::Path;

use super::*;
use crate::error::Effect;
use crate::fake_host::{FakeHost, disk};

const OWN: &str = "0x5c42a611aadbf50e";
const STAGING: &str = "/var/lib/kubelet/staging";

async fn device(host: &FakeHost) -> VerifiedDevice {
    host.set_disks(vec![disk("sdb", 16, OWN)]);
    let wanted = Wanted {
        wwn: OWN.parse().unwrap(),
        size: None,
    };
    device::find(host, wanted, Instant::now()).await.unwrap()
}

/// `minor root point kind super_options`
fn mount(line: &str) -> Mount {
    let [minor, root, point, kind, options]: [&str; 5] =
        line.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let text = format!("1 2 8:{minor} {root} {point} rw - {kind} /dev/x {options}\n");
    mountinfo::parse(text.as_bytes()).unwrap().remove(0)
}

#[tokio::test(start_paused = true)]
async fn b52_what_is_mounted_decides_what_is_done() {
    let device = device(&FakeHost::default()).await;
    let ours = "16 / /var/lib/kubelet/staging ext4 rw";
    let stopped = "16 / /var/lib/kubelet/staging ext4 rw,emergency_ro";
    let mirror = "16 / /mnt/kubelet/staging ext4 rw,emergency_ro";
    let pod = "16 / /var/lib/kubelet/pod ext4 rw";
    let cases: [(&[&str], Access, Option<Step>); 13] = [
        (&[], Access::ReadWrite, Some(Step::Mount)),
        (&[ours], Access::ReadWrite, Some(Step::Done)),
        (&[ours, ours], Access::ReadWrite, Some(Step::Done)),
        (&[ours, pod], Access::ReadWrite, Some(Step::Done)),
        (&[stopped], Access::ReadWrite, Some(Step::Renew)),
        (&[stopped], Access::ReadOnly, Some(Step::Done)),
        (&[stopped, pod], Access::ReadWrite, None),
        (&[stopped, mirror], Access::ReadWrite, Some(Step::Renew)),
        (&[mirror], Access::ReadWrite, None),
        (&[pod], Access::ReadWrite, None),
        (
            &["32 / /var/lib/kubelet/staging ext4 rw"],
            Access::ReadWrite,
            None,
        ),
        (
            &[ours, "0 / /var/lib/kubelet/staging tmpfs rw"],
            Access::ReadWrite,
            None,
        ),
        (
            &["16 /sub /var/lib/kubelet/staging ext4 rw"],
            Access::ReadWrite,
            None,
        ),
    ];
    for (index, (lines, access, step)) in cases.into_iter().enumerate() {
        let mounts: Vec<Mount> = lines.iter().map(|line| mount(line)).collect();
        let paths = (Path::new(STAGING), Path::new("/var/lib/kubelet"));
        let decided = decide(&mounts, paths, &device, access);
        assert_eq!(decided.ok(), step, "case {index}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_something_is_built_on_is_not_touched() {
    for change in [
        |disk: &mut crate::host::Disk| disk.holders.push("dm-0".into()),
        |disk: &mut crate::host::Disk| disk.partitions.push("sdb1".into()),
        |disk: &mut crate::host::Disk| disk.access = Access::ReadOnly,
    ] {
        let host = FakeHost::default();
        let mut changed = disk("sdb", 16, OWN);
        change(&mut changed);
        host.set_disks(vec![changed]);
        let wanted = Wanted {
            wwn: OWN.parse().unwrap(),
            size: None,
        };
        let device = device::find(&host, wanted, Instant::now()).await.unwrap();
        let options = MountOptions::parse(&[]).unwrap();
        let refused = prepare(&host, &device, wanted, (&options, FormatOptions::default())).await;
        assert!(
            matches!(refused, Err(Error::DeviceUnfit { .. })),
            "{refused:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_after_the_mount_is_uncertain_and_a_wrong_mount_goes() {
    const RIGHT: &str = "1 2 8:16 / /var/lib/kubelet/staging rw - ext4 /dev/x rw\n";
    const WRONG: &str = "1 2 8:32 / /var/lib/kubelet/staging rw - ext4 /dev/x rw\n";
    let (mounted, undone) = (format!("mount {STAGING}"), format!("unmount {STAGING}"));
    let cases: [(&'static str, bool, &[&String]); 3] = [
        (RIGHT, true, &[&mounted]),
        (WRONG, false, &[&mounted, &undone]),
        ("nonsense", false, &[&mounted]),
    ];
    for (table, good, calls) in cases {
        let host = FakeHost::default();
        let device = device(&host).await;
        host.set_mounts(&[table]);
        let options = MountOptions::parse(&[]).unwrap();
        let outcome = super::mount(&host, &device, Path::new(STAGING), &options).await;
        assert_eq!(outcome.is_ok(), good, "{table}");
        let effect = outcome.err().map(|error| (error.effect(), error.code()));
        let uncertain = (Effect::Possible, tonic::Code::Unavailable);
        assert!(effect.is_none_or(|effect| effect == uncertain), "{table}");
        assert_eq!(host.calls().iter().collect::<Vec<_>>(), calls, "{table}");
    }
}
