use std::path::Path;

use super::*;

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
