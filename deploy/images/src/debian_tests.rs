use super::*;

#[test]
fn the_name_of_a_file_tells_package_version_and_platform() {
    let deb = Deb::parse("libc6_1%3a2.41-12+deb13u1_arm64.deb").unwrap();
    assert_eq!(deb.exact(), "libc6:arm64=1:2.41-12+deb13u1");
    let deb = Deb::parse("ca-certificates_20250419_all.deb").unwrap();
    assert_eq!(deb.exact(), "ca-certificates=20250419");
    assert!(Deb::parse("libc6.deb").is_err());
    assert!(Deb::parse("a_b_c").is_err());
}

#[test]
fn documentation_is_left_out_and_licences_are_not() {
    for (path, wanted) in [
        ("usr/share/doc/e2fsprogs/copyright", true),
        ("usr/share/doc/e2fsprogs/changelog.gz", false),
        ("usr/share/man/man8/mkfs.8.gz", false),
        ("usr/sbin/mkfs.ext4", true),
    ] {
        assert_eq!(in_slim(path), wanted, "{path}");
    }
}

#[test]
fn a_snapshot_is_asked_for_everything_or_for_nothing() {
    let today = Archive { snapshot: None }.release("trixie");
    assert!(
        today.contains(" trixie-security ") && !today.contains("snapshot"),
        "{today}"
    );
    assert!(!today.contains("check-valid-until"), "{today}");
    let then = Archive {
        snapshot: Some("20261201T000000Z"),
    }
    .release("trixie");
    assert_eq!(then.matches("/20261201T000000Z ").count(), 3, "{then}");
    assert!(!then.contains("deb.debian.org"), "{then}");
    assert_eq!(then.matches(" check-valid-until=no]").count(), 3, "{then}");
}

#[test]
fn a_scanner_finds_a_package_as_installed() {
    let entry = installed("Package: e2fsprogs\nVersion: 1.47\nDescription: a\n b\n").unwrap();
    assert_eq!(
        entry,
        "Package: e2fsprogs\nStatus: install ok installed\nVersion: 1.47\nDescription: a\n b\n\n"
    );
    assert!(installed("Version: 1\nPackage: x\n").is_err());
}
