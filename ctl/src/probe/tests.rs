use jiff::Timestamp;
use serde_json::json;

use super::cleanup::is_leftover;
use super::manifest::Role;
use super::*;
use crate::cluster::Meta;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: ProbeArguments,
}

fn arguments(more: &[&str]) -> Result<ProbeArguments, clap::Error> {
    let line = ["x", "--storage-class=thin"]
        .into_iter()
        .chain(more.iter().copied());
    <Line as clap::Parser>::try_parse_from(line).map(|line| line.arguments)
}

#[test]
fn an_object_is_left_over_only_when_its_probe_must_have_ended() {
    let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
    let meta = |name: &str, made: &str, seconds: &str| -> Meta {
        serde_json::from_value(json!({
            "name": name,
            "creationTimestamp": made,
            "annotations": { "pvectl.proxmox.sinextra.dev/seconds": seconds },
        }))
        .unwrap()
    };
    assert!(is_leftover(
        &meta("pvectl-probe-1", "2026-01-01T00:58:19Z", "100"),
        now
    ));
    for kept in [
        meta("pvectl-probe-1", "2026-01-01T00:58:20Z", "100"),
        meta("pvectl-probe-1", "2026-01-01T02:00:00Z", "100"),
        meta("pvectl-probe-1", "2025-12-31T01:30:00Z", "none"),
        meta("pvectl-probe-1", "yesterday", "100"),
        meta("db", "2026-01-01T00:00:00Z", "100"),
    ] {
        assert!(!is_leftover(&kept, now), "{kept:?}");
    }
    assert!(is_leftover(
        &meta("pvectl-probe-1", "2025-12-31T00:30:00Z", "none"),
        now
    ));
}

#[test]
fn a_run_has_names_of_its_own_that_are_names() {
    let arguments = arguments(&["--kubeconfig=x"]).unwrap();
    let (one, other) = (Run::new(&arguments), Run::new(&arguments));
    assert_ne!(one.id, other.id);
    for name in [
        one.claim_name(),
        one.pod_name(Role::Writer),
        one.pod_name(Role::Reader),
    ] {
        assert!(name.parse::<Name>().is_ok(), "{name}");
        assert!(name.len() <= 63, "it becomes a host name");
    }
}

#[test]
fn the_job_has_what_was_asked_for_and_is_one_line_each() {
    let more = [
        "--kubeconfig-secret=tenant-a/kube",
        "--image=registry/x:1",
        "--job-image=a\nb: c",
        "--print-job",
    ];
    let text = job::manifest(&arguments(&more).unwrap()).unwrap();
    assert!(text.contains("          image: \"a\\nb: c\"\n"), "{text}");
    assert!(
        text.contains("            - \"--image=registry/x:1\"\n"),
        "{text}"
    );
    assert!(text.contains("resourceNames: [\"kube\"]"), "{text}");
    assert!(arguments(&["--print-job", "--kubeconfig=x"]).is_err());
}

#[test]
fn sizes_are_whole_numbers_of_mebibytes_or_gibibytes() {
    for good in ["1Mi", "64Mi", "2Gi"] {
        assert_eq!(size(good).unwrap(), good);
    }
    for bad in [
        "",
        "Mi",
        "0Mi",
        "1",
        "1M",
        "-1Mi",
        "1.5Gi",
        "9999999Gi",
        "1Mi ",
    ] {
        assert!(size(bad).is_err(), "{bad:?}");
    }
}
