use super::*;
use crate::fake_host::disk;
use crate::mountinfo;

#[test]
fn b55_what_is_wrong_with_a_file_system_is_told() {
    let cases = [
        ("rw", "rw", Access::ReadWrite, None),
        ("ro", "rw", Access::ReadWrite, None),
        ("ro", "ro", Access::ReadOnly, None),
        ("rw", "ro", Access::ReadWrite, Some(READ_ONLY)),
        ("rw", "rw,emergency_ro", Access::ReadWrite, Some(READ_ONLY)),
        ("ro", "rw,emergency_ro", Access::ReadWrite, Some(READ_ONLY)),
        ("ro", "rw,shutdown", Access::ReadWrite, Some(READ_ONLY)),
        ("rw", "rw", Access::ReadOnly, Some(DISK_READ_ONLY)),
    ];
    for (options, super_options, access, wanted) in cases {
        let line = format!("1 2 8:16 / /x {options} - ext4 /dev/sdb {super_options}\n");
        let mount = mountinfo::parse(line.as_bytes()).unwrap().remove(0);
        let mut disk = disk("sdb", 16, "0x5c42a611aadbf50e");
        disk.access = access;
        let case = format!("{options} {super_options} {access:?}");
        assert_eq!(trouble(&mount, &disk), wanted, "{case}");
    }
}
