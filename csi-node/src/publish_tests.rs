use std::path::Path;

use super::*;
use crate::error::Effect;
use crate::fake_host::{FakeHost, disk};

const NUMBER: DeviceNumber = DeviceNumber {
    major: 8,
    minor: 16,
};

/// `minor root options kind super_options`
fn mount(line: &str) -> Mount {
    let [minor, root, options, kind, super_options]: [&str; 5] =
        line.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let text = format!("1 2 8:{minor} {root} /x {options} - {kind} /dev/x {super_options}\n");
    mountinfo::parse(text.as_bytes()).unwrap().remove(0)
}

#[test]
fn what_is_at_the_target_decides_what_is_done() {
    let cases: [(&[&str], Access, Option<Step>); 8] = [
        (&[], Access::ReadWrite, Some(Step::Bind)),
        (&["16 / rw ext4 rw"], Access::ReadWrite, Some(Step::Done)),
        (
            &["16 / rw ext4 rw"],
            Access::ReadOnly,
            Some(Step::MakeReadOnly),
        ),
        (&["16 / ro ext4 rw"], Access::ReadOnly, Some(Step::Done)),
        (&["16 / ro ext4 rw"], Access::ReadWrite, None),
        (&["32 / rw ext4 rw"], Access::ReadWrite, None),
        (&["16 /sub rw ext4 rw"], Access::ReadWrite, None),
        (
            &["0 / rw tmpfs rw", "16 / rw ext4 rw"],
            Access::ReadWrite,
            None,
        ),
    ];
    for (index, (lines, access, step)) in cases.into_iter().enumerate() {
        let mounts: Vec<Mount> = lines.iter().map(|line| mount(line)).collect();
        let here: Vec<&Mount> = mounts.iter().collect();
        assert_eq!(
            decide(&here, Path::new("/x"), NUMBER, access).ok(),
            step,
            "case {index}"
        );
    }
}

#[test]
fn b54_b55_only_a_staged_and_writable_volume_is_published_for_writing() {
    let code = |line: &str, access| {
        let mounts = [mount(line)];
        let staged = staged_mount(&mounts, Path::new("/x"), NUMBER, access);
        staged.err().map(|error| error.code())
    };
    let refused = Some(tonic::Code::FailedPrecondition);
    assert_eq!(code("16 / rw ext4 rw", Access::ReadWrite), None);
    assert_eq!(code("32 / rw ext4 rw", Access::ReadWrite), refused);
    for stopped in [
        "16 / rw ext4 ro",
        "16 / rw ext4 rw,emergency_ro",
        "16 / rw ext4 rw,shutdown",
    ] {
        assert_eq!(code(stopped, Access::ReadWrite), refused, "{stopped}");
        assert_eq!(code(stopped, Access::ReadOnly), None, "{stopped}");
    }
    let nothing = staged_mount(&[], Path::new("/x"), NUMBER, Access::ReadOnly);
    assert!(matches!(nothing, Err(Error::NotStaged { .. })));
}

#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_after_the_bind_is_uncertain_and_a_wrong_bind_goes() {
    const STAGED: &str = "1 2 8:16 / /k/staging rw - ext4 /dev/x rw\n";
    const RIGHT: &str = "1 2 8:16 / /k/target rw - ext4 /dev/x rw\n";
    const WRONG: &str = "1 2 8:32 / /k/target rw - ext4 /dev/x rw\n";
    let cases: [(&'static str, Access, bool, &[&str]); 5] = [
        (RIGHT, Access::ReadWrite, true, &["bind"]),
        (WRONG, Access::ReadWrite, false, &["bind", "unmount"]),
        ("", Access::ReadWrite, false, &["bind"]),
        ("nonsense", Access::ReadWrite, false, &["bind"]),
        (
            RIGHT,
            Access::ReadOnly,
            false,
            &["bind", "read-only", "unmount"],
        ),
    ];
    for (table, access, good, calls) in cases {
        let host = FakeHost::default();
        host.set_disks(vec![disk("sdb", 16, "0x5c42a611aadbf50e")]);
        host.set_mounts(&[STAGED, table]);
        let request = PublishRequest {
            volume: "r1/pve1/local-lvm/vm-9999-pvc-1".parse().unwrap(),
            wanted: Wanted {
                wwn: "0x5c42a611aadbf50e".parse().unwrap(),
                size: None,
            },
            staging: "/k/staging".into(),
            target: "/k/target".into(),
            usage: PublishUsage::Mount,
            access,
            places: Places::Any,
        };
        let outcome = publish(&host, &request).await;
        assert_eq!(outcome.is_ok(), good, "{table} {access:?}");
        let effect = outcome.err().map(|error| (error.effect(), error.code()));
        let uncertain = (Effect::Possible, tonic::Code::Unavailable);
        assert!(effect.is_none_or(|effect| effect == uncertain), "{table}");
        let expected: Vec<String> = calls
            .iter()
            .map(|call| format!("{call} /k/target"))
            .collect();
        assert_eq!(host.calls(), expected, "{table} {access:?}");
    }
}
