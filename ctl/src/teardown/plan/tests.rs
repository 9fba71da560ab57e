use serde_json::{Value, json};

use super::*;

pub(super) const DRIVER: &str = "csi.proxmox.sinextra.dev";

pub(super) fn of<T: serde::de::DeserializeOwned>(objects: &[Value]) -> Vec<T> {
    let read = |object: &Value| serde_json::from_value(object.clone()).unwrap();
    objects.iter().map(read).collect()
}

pub(super) fn class(name: &str, provisioner: &str) -> Value {
    json!({ "metadata": { "name": name }, "provisioner": provisioner })
}

pub(super) fn claim(name: &str, class: &str, volume: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "a", "uid": format!("uid-{name}") },
        "spec": { "storageClassName": class, "volumeName": volume },
    })
}

pub(super) fn volume(name: &str, driver: &str, policy: &str, claim: Option<&str>) -> Value {
    let claim =
        claim.map(|name| json!({ "namespace": "a", "name": name, "uid": format!("uid-{name}") }));
    json!({
        "metadata": { "name": name, "uid": format!("uid-{name}") },
        "spec": {
            "csi": { "driver": driver, "volumeHandle": format!("r1/pve1/thin/vm-9999-{name}") },
            "claimRef": claim,
            "persistentVolumeReclaimPolicy": policy,
        },
        "status": { "phase": "Bound" },
    })
}

fn pod(name: &str, node: &str, claims: &[&str]) -> Value {
    let volumes = claims
        .iter()
        .map(|claim| json!({ "name": "v", "persistentVolumeClaim": { "claimName": claim } }));
    json!({
        "metadata": { "name": name, "namespace": "a", "uid": format!("uid-{name}") },
        "spec": { "nodeName": node, "volumes": volumes.collect::<Vec<_>>() },
    })
}

fn node(name: &str, ready: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "status": { "conditions": [
            { "type": "DiskPressure", "status": "True" },
            { "type": "Ready", "status": ready },
        ] },
    })
}

fn attachment(volume: &str, driver: &str) -> Value {
    json!({
        "metadata": { "name": format!("csi-{volume}") },
        "spec": { "attacher": driver, "nodeName": "n1", "source": { "persistentVolumeName": volume } },
    })
}

pub(super) fn ending(mut object: Value) -> Value {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object
}

pub(super) fn plan(seen: &Seen, memory: &Memory) -> Plan {
    plan_at(seen, memory, Instant::now())
}

fn plan_at(seen: &Seen, memory: &Memory, now: Instant) -> Plan {
    Plan::of(seen, memory, Rules { now, ..rules() })
}

pub(super) fn rules() -> Rules<'static> {
    Rules {
        driver: DRIVER,
        patience: Duration::from_secs(45),
        now: Instant::now(),
    }
}

fn claims(plan: &Plan) -> Vec<&str> {
    plan.claims
        .iter()
        .map(|step| step.id.name.as_str())
        .collect()
}

fn pods(plan: &Plan) -> Vec<(&str, bool)> {
    plan.pods
        .iter()
        .map(|step| (step.name.as_str(), step.force))
        .collect()
}

fn left(plan: &Plan) -> Vec<(Fate, &str, &str)> {
    let all = plan.left.iter();
    all.map(|left| (left.fate, left.name.as_str(), left.why.as_str()))
        .collect()
}

#[test]
fn claims_of_other_drivers_and_their_pods_are_not_touched() {
    let mut named = claim("named", "deleted", "");
    named["metadata"]["annotations"] =
        json!({ "volume.kubernetes.io/storage-provisioner": DRIVER });
    let seen = Seen {
        classes: of(&[class("ours", DRIVER), class("theirs", "other")]),
        claims: of(&[
            claim("bound", "whatever", "pv1"),
            claim("waiting", "ours", ""),
            claim("binding", "none", ""),
            named,
            claim("foreign", "ours", "pv9"),
            claim("foreign-waiting", "theirs", ""),
            claim("lost", "ours", "nowhere"),
        ]),
        volumes: of(&[
            volume("pv1", DRIVER, "Delete", Some("bound")),
            volume("pv2", DRIVER, "Delete", Some("binding")),
            volume("pv9", "other", "Delete", Some("foreign")),
        ]),
        pods: of(&[
            pod("both", "n1", &["foreign", "bound"]),
            pod("other", "n1", &["foreign", "foreign-waiting"]),
            pod("nowhere", "", &["waiting"]),
        ]),
        attachments: of(&[attachment("pv9", "other")]),
        nodes: of(&[node("n1", "True")]),
    };
    let plan = plan(&seen, &Memory::default());
    assert_eq!(claims(&plan), ["binding", "bound", "named", "waiting"]);
    assert_eq!(pods(&plan), [("both", false)]);
    assert_eq!(plan.pods[0].claims.len(), 1, "only ours");
    let still: Vec<&str> = plan.left.iter().map(|left| left.name.as_str()).collect();
    assert_eq!(still, ["pv1", "pv2", "a/named", "a/waiting"]);
}

#[test]
fn a_pod_is_found_by_any_of_its_claims_and_deleted_once() {
    let seen = Seen {
        claims: of(&[claim("x", "c", "pv1"), claim("y", "c", "pv2")]),
        volumes: of(&[
            volume("pv1", DRIVER, "Delete", Some("x")),
            volume("pv2", DRIVER, "Delete", Some("y")),
        ]),
        pods: of(&[
            pod("p", "n1", &["other", "x", "y"]),
            ending(pod("q", "n1", &["y"])),
        ]),
        nodes: of(&[node("n1", "True")]),
        ..Seen::default()
    };
    let plan = plan(&seen, &Memory::default());
    assert_eq!(pods(&plan), [("p", false)]);
    assert_eq!(plan.pods[0].claims.len(), 2);
}

#[test]
fn a_pod_is_taken_out_only_after_its_time_and_without_a_kubelet() {
    let seen = |nodes: &[Value]| Seen {
        claims: of(&[ending(claim("x", "c", "pv1"))]),
        volumes: of(&[volume("pv1", DRIVER, "Delete", Some("x"))]),
        pods: of(&[ending(pod("p", "n1", &["x"]))]),
        nodes: of(nodes),
        ..Seen::default()
    };
    let begin = Instant::now();
    let mut memory = Memory::default();
    let forced = |seen: &Seen, memory: &Memory, after| {
        let now = begin + Duration::from_secs(after);
        !plan_at(seen, memory, now).pods.is_empty()
    };
    assert!(
        !forced(&seen(&[]), &memory, 100),
        "nobody has seen it ending"
    );
    memory.ending.insert(Text::from("uid-p"), begin);
    assert!(forced(&seen(&[]), &memory, 45));
    assert!(forced(&seen(&[node("n1", "Unknown")]), &memory, 45));
    assert!(forced(&seen(&[node("n2", "True")]), &memory, 45));
    assert!(!forced(&seen(&[]), &memory, 44), "before its time");
    assert!(
        !forced(&seen(&[node("n1", "True")]), &memory, 1000),
        "its kubelet lives"
    );
}

#[test]
fn a_claim_that_is_made_anew_is_deleted_again_with_a_bound() {
    let mut made = claim("data-db-0", "ours", "");
    made["metadata"]["ownerReferences"] = json!([
        { "kind": "Other", "name": "x" },
        { "kind": "StatefulSet", "name": "db", "controller": true },
    ]);
    let mut seen = Seen {
        classes: of(&[class("ours", DRIVER)]),
        claims: of(&[made]),
        ..Seen::default()
    };
    let id = seen.claims[0].id().unwrap();
    let mut memory = Memory {
        switched: true,
        ..Memory::default()
    };
    memory.deleted.insert(id.clone(), MOST_PENDING - 1);
    assert_eq!(claims(&plan(&seen, &memory)), ["data-db-0"]);
    memory.deleted.insert(id.clone(), MOST_PENDING);
    let given_up = plan(&seen, &memory);
    assert!(
        given_up.claims.is_empty() && given_up.is_finished() && !given_up.open,
        "{given_up:?}"
    );
    assert_eq!(
        given_up.remade,
        ["a/data-db-0 was made anew 5 times by StatefulSet db"]
    );

    // Without the switch it gets a disk once a Pod is there for it.
    memory.switched = false;
    assert_eq!(claims(&plan(&seen, &memory)), ["data-db-0"]);
    memory.deleted.insert(id.clone(), MOST_BOUND);
    let given_up = plan(&seen, &memory);
    assert!(given_up.claims.is_empty() && given_up.remade.is_empty() && given_up.open);
    let why =
        "its claim a/data-db-0 was made anew 20 times by StatefulSet db, and it may get a disk yet";
    assert_eq!(left(&given_up), [(Fate::Stuck, "a/data-db-0", why)]);
    memory.switched = true;
    memory.deleted.insert(id.clone(), MOST_PENDING);

    // With a volume it has a disk, which must not be forgotten.
    seen.volumes = of(&[volume("pv1", DRIVER, "Delete", Some("data-db-0"))]);
    assert_eq!(claims(&plan(&seen, &memory)), ["data-db-0"]);
    memory.deleted.insert(id, MOST_BOUND);
    let given_up = plan(&seen, &memory);
    assert!(given_up.claims.is_empty() && given_up.remade.is_empty());
    let why = "its claim a/data-db-0 was made anew 20 times by StatefulSet db";
    assert_eq!(left(&given_up), [(Fate::Waiting, "pv1", why)]);
}

#[test]
fn volumes_that_stay_are_told_with_the_reason() {
    let mut failing = volume("pv6", DRIVER, "Delete", Some("gone"));
    failing["status"]["phase"] = json!("Failed");
    failing["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection", "x.example/keep"]);
    let released = |mut volume: Value| {
        volume["status"]["phase"] = json!("Released");
        volume
    };
    let seen = Seen {
        volumes: of(&[
            released(volume("pv1", DRIVER, "Retain", Some("gone"))),
            released(volume("pv2", DRIVER, "Retain", Some("gone"))),
            released(volume("pv3", DRIVER, "Delete", Some("gone"))),
            volume("pv4", DRIVER, "Delete", None),
            volume("pv5", DRIVER, "Recycle", Some("gone")),
            failing,
        ]),
        attachments: of(&[attachment("pv2", DRIVER), ending(attachment("pv8", DRIVER))]),
        ..Seen::default()
    };
    let plan = plan(&seen, &Memory::default());
    assert_eq!(
        left(&plan),
        [
            (
                Fate::Waiting,
                "pv2",
                "it is attached to Node n1, which is not there"
            ),
            (
                Fate::Waiting,
                "pv3",
                "its disk is not deleted yet (it is Released)"
            ),
            (
                Fate::Waiting,
                "pv6",
                "its disk is not deleted yet (it is Failed, held by the finalizer x.example/keep)"
            ),
            (
                Fate::Waiting,
                "csi-pv8",
                "its PersistentVolume is not there; it is being detached from Node n1"
            ),
            (
                Fate::Stuck,
                "pv4",
                "no claim ever had it, so nothing deletes its disk"
            ),
            (Fate::Stuck, "pv5", "its reclaim policy is Recycle"),
            (Fate::Retained, "pv1", "its reclaim policy is Retain"),
        ]
    );
    assert!(!plan.is_finished());
}

#[test]
fn what_holds_a_claim_is_told_with_it() {
    let mut kept = ending(claim("kept", "c", "pv4"));
    kept["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection", "backup.example/x"]);
    let seen = Seen {
        claims: of(&[
            claim("webhook", "c", "pv1"),
            ending(claim("held", "c", "pv2")),
            ending(claim("dead", "c", "pv3")),
            kept,
        ]),
        volumes: of(&[
            volume("pv1", DRIVER, "Delete", Some("webhook")),
            volume("pv2", DRIVER, "Retain", Some("held")),
            volume("pv3", DRIVER, "Delete", Some("dead")),
            volume("pv4", DRIVER, "Delete", Some("kept")),
        ]),
        pods: of(&[
            pod("stubborn", "n1", &["held"]),
            ending(pod("slow", "n1", &["held"])),
            ending(pod("ghost", "n2", &["dead"])),
            ending(pod("lost", "n3", &["dead"])),
        ]),
        nodes: of(&[node("n1", "True"), node("n2", "False")]),
        ..Seen::default()
    };
    let mut memory = Memory::default();
    let id = seen.claims[0].id().unwrap();
    memory.refused_claims.insert(id, "no (500)".to_owned());
    memory
        .refused_pods
        .insert(Text::from("uid-stubborn"), "no (403)".to_owned());
    let plan = plan(&seen, &memory);
    assert_eq!(
        left(&plan),
        [
            (
                Fate::Waiting,
                "pv1",
                "its claim a/webhook can't be deleted: no (500)"
            ),
            (
                Fate::Waiting,
                "pv2",
                "Pod a/stubborn can't be deleted: no (403); Pod a/slow is ending on Node n1"
            ),
            (
                Fate::Waiting,
                "pv3",
                "Pod a/ghost is ending, its Node n2 is not ready; Pod a/lost is ending, its Node n3 is not there"
            ),
            (
                Fate::Waiting,
                "pv4",
                "its claim a/kept is ending, held by the finalizer backup.example/x"
            ),
        ]
    );
}

#[test]
fn attachments_to_nodes_that_are_not_there_are_deleted_once_no_claim_is_left() {
    let seen = |claims: &[Value], nodes: &[Value]| Seen {
        claims: of(claims),
        volumes: of(&[volume("pv1", DRIVER, "Retain", Some("x"))]),
        attachments: of(&[
            attachment("pv1", DRIVER),
            attachment("pv7", "other"),
            ending(attachment("pv8", DRIVER)),
        ]),
        nodes: of(nodes),
        ..Seen::default()
    };
    let steps = |seen: &Seen| plan(seen, &Memory::default()).attachments;
    let lost = steps(&seen(&[], &[node("n2", "True")]));
    let names: Vec<&str> = lost.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["csi-pv1"]);
    let held = seen(&[ending(claim("x", "c", "pv1"))], &[]);
    assert_eq!(steps(&held), [], "its claim is there yet");
    let there = seen(&[], &[node("n1", "Unknown")]);
    assert_eq!(steps(&there), [], "its Node is there");
}

#[test]
fn a_tenant_without_volumes_is_done() {
    let plan = plan(&Seen::default(), &Memory::default());
    assert_eq!(plan, Plan::default());
    assert!(plan.is_finished());
}
