use std::io;

use tonic::Code;

use super::*;
use crate::ext4::tests::head;
use crate::fake_host::{FakeHost, disk};
use crate::host::{DeviceNumber, HostError, Tool, ToolOutput};

const OWN: &str = "0x5c42a611aadbf50e";
const OTHER: &str = "0x5c42a611aadbf50f";
const RW: &str = "1 2 8:16 / /k/target rw - ext4 /dev/sdb rw\n";
const RO: &str = "1 2 8:16 / /k/target rw - ext4 /dev/sdb ro\n";
const STOPPED: &str = "1 2 8:16 / /k/target rw - ext4 /dev/sdb rw,emergency_ro\n";
const RAW: &str = "1 2 0:5 /sdb /k/target rw - devtmpfs udev rw\n";
const TWO_GIB: Bytes = Bytes::new(2 << 30);

fn request() -> ExpandRequest {
    ExpandRequest {
        volume: "r1/pve1/local-lvm/vm-9999-pvc-1".parse().unwrap(),
        path: "/k/target".into(),
        staging: None,
        required: Some(TWO_GIB),
        limit: None,
        usage: None,
    }
}

/// A machine with the volume of 1 GiB at the target, whose file system begins so at one reading and the next.
fn machine(table: &'static str, heads: Vec<Vec<u8>>) -> FakeHost {
    let host = FakeHost::default();
    host.set_disks(vec![disk("sdb", 16, OWN)]);
    host.set_mounts(&[table]);
    host.set_heads(heads);
    host.put_node(
        "/k/target",
        DeviceNumber {
            major: 8,
            minor: 16,
        },
    );
    host
}

fn ended(code: Option<i32>, stderr: &str) -> ToolOutput {
    ToolOutput {
        code,
        stdout: String::new(),
        stderr: stderr.to_owned(),
    }
}

async fn code(host: &FakeHost, request: &ExpandRequest) -> (Code, String) {
    let error = expand(host, request).await.unwrap_err();
    (error.code(), error.to_string())
}

#[tokio::test(start_paused = true)]
async fn b62_the_disk_is_asked_until_it_has_grown_and_only_then_the_file_system_grows() {
    let host = machine(RW, vec![head(Bytes::GIB, 1), head(TWO_GIB, 1)]);
    host.set_rescans(&[Some(Bytes::GIB), Some(TWO_GIB)]);
    host.set_tools(vec![Ok(ended(Some(0), ""))]);
    assert_eq!(expand(&host, &request()).await.unwrap(), TWO_GIB);
    let calls = ["rescan sdb", "rescan sdb", "resize2fs for 1800 s"];
    assert_eq!(host.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn b62_what_has_grown_already_is_done() {
    let host = machine(RW, vec![head(TWO_GIB, 1)]);
    let mut grown = disk("sdb", 16, OWN);
    grown.size = TWO_GIB;
    host.set_disks(vec![grown]);
    assert_eq!(expand(&host, &request()).await.unwrap(), TWO_GIB);
    assert_eq!(host.calls(), [""; 0]);
    // Even if it could not be grown: there is nothing to do.
    host.set_mounts(&[STOPPED]);
    host.set_heads(vec![head(TWO_GIB, 3)]);
    assert_eq!(expand(&host, &request()).await.unwrap(), TWO_GIB);
    // Without a size the disk is asked, and the file system fills what it has.
    host.set_mounts(&[RW]);
    host.set_heads(vec![head(TWO_GIB, 1)]);
    let mut any = request();
    any.required = None;
    assert_eq!(expand(&host, &any).await.unwrap(), TWO_GIB);
    assert_eq!(host.calls(), ["rescan sdb"]);
}

#[tokio::test(start_paused = true)]
async fn b62_a_disk_that_does_not_grow_in_time_is_no_success_and_nothing_runs() {
    for table in [RW, RAW] {
        let host = machine(table, Vec::new());
        let start = Instant::now();
        let (code, said) = code(&host, &request()).await;
        assert_eq!(code, Code::Unavailable, "{said}");
        assert!(said.contains("1 GiB") && said.contains("2 GiB"), "{said}");
        assert!(start.elapsed() <= GROWS_WITHIN);
        let calls = host.calls();
        assert!(calls.len() > 5 && calls.iter().all(|call| call == "rescan sdb"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_cannot_be_asked_may_tell_its_size_by_itself() {
    let host = machine(RAW, Vec::new());
    host.set_rescans(&[None, Some(TWO_GIB)]);
    assert_eq!(expand(&host, &request()).await.unwrap(), TWO_GIB);
    assert_eq!(host.calls(), ["rescan sdb"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_exchanged_meanwhile_is_not_grown() {
    let host = machine(RW, vec![head(Bytes::GIB, 1)]);
    let expanding = request();
    let (expanded, ()) = tokio::join!(expand(&host, &expanding), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut other = disk("sdb", 16, OTHER);
        other.size = TWO_GIB;
        host.set_disks(vec![other]);
    });
    assert_eq!(expanded.unwrap_err().code(), Code::FailedPrecondition);
    assert!(host.calls().iter().all(|call| call == "rescan sdb"));
}

#[tokio::test(start_paused = true)]
async fn b62_a_file_system_that_cannot_be_grown_now_keeps_no_pod_from_its_volume() {
    let small = || head(Bytes::GIB, 1);
    let cases = [
        (RO, small(), "read-only"),
        (STOPPED, small(), "read-only"),
        (RW, head(Bytes::GIB, 2), "errors"),
        (RW, vec![0; 4096], "no ext4"),
    ];
    for (table, head, why) in cases {
        let host = machine(table, vec![head]);
        host.set_rescans(&[Some(TWO_GIB)]);
        let (code, said) = code(&host, &request()).await;
        assert_eq!(code, Code::FailedPrecondition, "{said}");
        assert!(said.contains(why), "{said}");
        assert_eq!(host.calls(), ["rescan sdb"], "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn b62_a_program_that_fails_is_named_and_one_that_did_nothing_is_not_believed() {
    let missing = || HostError::Spawn {
        tool: Tool::Resize2fs,
        source: io::Error::from_raw_os_error(2),
    };
    let slow = || HostError::ToolTimeout {
        tool: Tool::Resize2fs,
        limit: Duration::from_mins(30),
    };
    let cases = [
        (
            Ok(ended(Some(1), "resize2fs: Permission denied to resize")),
            Code::Internal,
            "Permission denied",
        ),
        (Ok(ended(None, "")), Code::Internal, "signal"),
        (Err(missing()), Code::Internal, "cannot run resize2fs"),
        (Err(slow()), Code::Internal, "longer than 1800 s"),
        (Ok(ended(Some(0), "")), Code::Unavailable, "1 GiB of 2 GiB"),
    ];
    for (answer, wanted, why) in cases {
        let host = machine(RW, vec![head(Bytes::GIB, 1); 2]);
        host.set_rescans(&[Some(TWO_GIB)]);
        host.set_tools(vec![answer]);
        let (code, said) = code(&host, &request()).await;
        assert_eq!(code, wanted, "{said}");
        assert!(said.contains(why), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn b62_a_raw_volume_only_has_its_size_looked_at() {
    let host = machine(RAW, Vec::new());
    host.set_rescans(&[Some(TWO_GIB)]);
    assert_eq!(expand(&host, &request()).await.unwrap(), TWO_GIB);
    assert_eq!(host.calls(), ["rescan sdb"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_may_change_gives_an_expansion_up() {
    // Nothing there, and another volume there.
    let host = machine("", Vec::new());
    assert_eq!(code(&host, &request()).await.0, Code::FailedPrecondition);
    let host = machine(RW, Vec::new());
    host.set_disks(vec![disk("sdb", 16, OTHER)]);
    assert_eq!(code(&host, &request()).await.0, Code::FailedPrecondition);
    // Torn out, and two of one name.
    let host = machine(RW, Vec::new());
    host.set_disks(Vec::new());
    assert_eq!(code(&host, &request()).await.0, Code::Unavailable);
    let host = machine(RW, Vec::new());
    host.set_disks(vec![disk("sdb", 16, OWN), disk("sdc", 32, OWN)]);
    assert_eq!(code(&host, &request()).await.0, Code::FailedPrecondition);
    // Something else than what it is taken for.
    for (table, usage) in [(RW, ExpandUsage::Block), (RAW, ExpandUsage::Mount)] {
        let host = machine(table, Vec::new());
        let mut other = request();
        other.usage = Some(usage);
        let (code, said) = code(&host, &other).await;
        assert_eq!(code, Code::FailedPrecondition, "{said}");
        assert_eq!(host.calls(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_larger_than_allowed_is_told_before_the_file_system_grows() {
    let host = machine(RW, Vec::new());
    host.set_rescans(&[Some(Bytes::new(3 << 30))]);
    let mut limited = request();
    limited.limit = Some(TWO_GIB);
    assert_eq!(code(&host, &limited).await.0, Code::OutOfRange);
    assert_eq!(host.calls(), ["rescan sdb"]);
}
