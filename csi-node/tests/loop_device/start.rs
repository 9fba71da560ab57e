//! Whether the plugin starts at all.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::machine::{run, with_machine};

/// Exit code and words of a program that ends by itself.
async fn ended(command: &mut Command) -> (Option<i32>, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..500 {
        if child.try_wait().unwrap().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(child.kill());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

#[test]
fn b63_a_kubelet_that_would_not_see_the_volumes_is_no_place_to_start() {
    with_machine("b63_a_kubelet_that_would_not_see", async |mut machine| {
        machine.kill();
        let kubelet = machine.path("kubelet");
        let (code, said) = ended(&mut machine.program(&kubelet)).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("mountPropagation: Bidirectional"), "{said}");

        let (code, said) = ended(&mut machine.program(&machine.path("missing"))).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("missing"), "{said}");

        let path = kubelet.to_str().unwrap();
        run("mount", &["--bind", path, path]);
        run("mount", &["--make-shared", path]);
        let mut child = machine.program(&kubelet).spawn().unwrap();
        let socket = machine.path("csi.sock");
        for _ in 0..500 {
            if tokio::net::UnixStream::connect(&socket).await.is_ok() {
                break;
            }
            assert!(child.try_wait().unwrap().is_none(), "it runs");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fs::exists(&socket).unwrap());
    });
}

#[test]
fn a_log_filter_that_is_no_filter_is_named() {
    with_machine("a_log_filter_that_is_no_filter", async |machine| {
        let mut program = machine.program(&machine.path("kubelet"));
        let (code, said) = ended(program.args(["--log-filter", "info,=["])).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("filter"), "{said}");
    });
}
