use tokio::time::Instant;

use super::*;
use crate::device::{self, Wanted};
use crate::fake_host::{FakeHost, disk};

fn output(code: Option<i32>, stdout: &str) -> ToolOutput {
    ToolOutput {
        code,
        stdout: stdout.to_owned(),
        stderr: String::new(),
    }
}

#[test]
fn what_blkid_says_is_read_by_its_exit_code() {
    let other = |text: &str| Some(Signature::Other(text.to_owned()));
    let cases = [
        (2, "", None),
        (
            0,
            "DEVNAME=/dev/sdb\nUUID=x\nTYPE=ext4\nUSAGE=filesystem\n",
            Some(Signature::Ext4),
        ),
        (0, "TYPE=xfs\n", other("signature of xfs")),
        (0, "TYPE=crypto_LUKS\n", other("signature of crypto_LUKS")),
        (0, "PTTYPE=dos\n", other("partition table of kind dos")),
        (0, "TYPE=ext4\nPTTYPE=dos\n", other("signature of ext4")),
        (0, "TYPE=e\u{7}vil/../\n", other("signature of evil")),
        (0, "", other("an unknown signature")),
        (8, "", other("signatures of several kinds")),
    ];
    for (code, stdout, expected) in cases {
        assert_eq!(
            signature(&output(Some(code), stdout)).unwrap(),
            expected,
            "{code} {stdout}"
        );
    }
    for code in [Some(1), Some(4), Some(127), None] {
        assert!(signature(&output(code, "TYPE=ext4\n")).is_err(), "{code:?}");
    }
}

#[test]
fn what_e2fsck_says_is_read_by_its_exit_code() {
    let outcome = |code| check_outcome("sdb", &output(code, "words\n"));
    for good in [0, 1, 2, 3] {
        assert!(outcome(Some(good)).is_ok(), "{good}");
    }
    for damaged in [4, 5, 6, 7] {
        let error = outcome(Some(damaged)).unwrap_err();
        assert!(
            matches!(error, Error::FilesystemDamaged { .. }),
            "{damaged}"
        );
    }
    for failed in [Some(8), Some(12), Some(16), Some(32), Some(128), None] {
        assert!(
            matches!(outcome(failed), Err(Error::Tool { .. })),
            "{failed:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_of_a_big_file_system_may_take_hours() {
    let host = FakeHost::default();
    host.set_disks(vec![disk("sdb", 16, "0x5c42a611aadbf50e")]);
    let wanted = Wanted {
        wwn: "0x5c42a611aadbf50e".parse().unwrap(),
        size: None,
    };
    let device = device::find(&host, wanted, Instant::now()).await.unwrap();
    assert!(check(&host, &device, Mark::Absent).await.is_err());
    assert_eq!(host.calls(), ["e2fsck for 86400 s"]);
}

#[test]
fn mkfs_is_never_forced_and_gets_the_sizes_that_were_asked_for() {
    let options = FormatOptions {
        block_size: Some(4096),
        inode_size: Some(256),
    };
    let args = mkfs_args("/dev/sdb", options);
    assert_eq!(
        args.join(" "),
        "-q -m0 -E nodiscard -b 4096 -I 256 /dev/sdb"
    );
    assert!(!mkfs_args("/dev/sdb", FormatOptions::default()).contains(&"-F".to_owned()));
}

#[test]
fn the_whole_of_a_small_disk_and_both_ends_of_a_big_one_are_read() {
    for size in [
        1 << 20,
        5 << 20,
        20 << 20,
        (64 << 20) + 512,
        1 << 40,
        (1 << 40) + 512,
    ] {
        let spans = spans(Bytes::new(size));
        assert!(
            spans.iter().all(|span| span.offset + span.length <= size),
            "{size}"
        );
        assert!(
            spans.iter().all(|span| span.offset.is_multiple_of(4096)),
            "{size}"
        );
        let reads = |byte| {
            spans
                .iter()
                .any(|s| (s.offset..s.offset + s.length).contains(&byte))
        };
        for byte in [0, size.min(HEAD) - 1, size - size.min(TAIL), size - 1] {
            assert!(reads(byte), "{byte} of {size}");
        }
    }
}

#[test]
fn the_mark_names_the_volume_and_lies_where_mkfs_does_not_write() {
    let one = "0x5c42a611aadbf50e".parse().unwrap();
    let other = "0x5c42a611aadbf50f".parse().unwrap();
    assert_ne!(mark_text(one), mark_text(other));
    assert_eq!(mark_text(one).len(), BLOCK);
    assert_eq!(mark_offset(Bytes::new(1 << 20)), None);
    for size in [16 << 20, (64 << 20) + 512, (1 << 40) + 512] {
        let offset = mark_offset(Bytes::new(size)).unwrap();
        assert!(
            offset.is_multiple_of(4096) && offset > size - (1 << 20) && offset < size - (256 << 10)
        );
    }
}
