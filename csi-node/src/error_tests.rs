use super::*;

const UNCERTAIN: [Code; 4] = [
    Code::Cancelled,
    Code::DeadlineExceeded,
    Code::Unavailable,
    Code::Aborted,
];

#[test]
fn what_may_have_happened_is_told_apart_from_what_has_not() {
    let wwn = "0x5c42a611aadbf50e".parse().unwrap();
    assert!(UNCERTAIN.contains(&Error::Busy.code()));
    assert!(UNCERTAIN.contains(&Error::StillWorking(Duration::from_secs(1)).code()));
    assert!(
        UNCERTAIN.contains(
            &Error::DeviceMissing {
                wwn,
                waited: Duration::ZERO
            }
            .code()
        )
    );
    for error in [
        Error::invalid("x"),
        Error::ForeignContext { wwn },
        Error::NotBlank {
            disk: "sdb".into(),
            found: "xfs".into(),
        },
        Error::NotStaged { path: "/x".into() },
    ] {
        assert!(!UNCERTAIN.contains(&error.code()), "{error}");
    }
}

#[test]
fn a_disk_that_does_not_appear_is_named() {
    let wwn = "0x5c42a611aadbf50e".parse().unwrap();
    let status = Status::from(Error::DeviceMissing {
        wwn,
        waited: Duration::from_secs(20),
    });
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("0x5c42a611aadbf50e"),
        "{}",
        status.message()
    );
}

#[test]
fn what_may_have_happened_has_a_code_that_says_so() {
    let lost = || HostError::Lost { doing: "mount" };
    let errors = [
        Error::Busy,
        Error::StillWorking(Duration::from_secs(1)),
        Error::Work(WorkError::Panicked),
        Error::Host(lost()),
        Error::VolumeNotFound.after_mount(),
        Error::NotStaged { path: "/x".into() }
            .after_mount()
            .after_mount(),
    ];
    for error in errors {
        assert_eq!(error.effect(), Effect::Possible, "{error}");
        assert!(UNCERTAIN.contains(&error.code()), "{error}");
    }
    let before = Error::NotStaged { path: "/x".into() };
    assert_eq!(before.effect(), Effect::None);
}
