//! No answer tells a tenant whether something of another tenant exists.

use harness::two_tenants::{OWN, Power, bravo};
use harness::world::{REGION, node_id, uuid};
use tonic::Status;

use crate::Part;
use crate::calls::{self, Answer, Call};
use crate::matrix::world;

/// What is there and the other tenant's, and what is nowhere.
fn pairs() -> Vec<(Part, Part)> {
    let volume = |real: &str, invented: &str| {
        (
            Part::Volume(real.to_owned()),
            Part::Volume(invented.to_owned()),
        )
    };
    let node = |real: String, invented: String| (Part::Node(real), Part::Node(invented));
    let storage = |name: &str| Part::Entry("storage".to_owned(), name.to_owned());
    let place =
        |region: &str, zone: &str| Part::Places(vec![(region.to_owned(), Some(zone.to_owned()))]);
    vec![
        volume(
            "r1//both/78888/vm-78888-bravo-spare.raw",
            "r1//both/56789/vm-56789-delta-spare.raw",
        ),
        volume(
            "r1//both/78888/vm-78888-bravo-spare.raw",
            "r1//both/78888/vm-78888-no-such-disk.raw",
        ),
        volume(
            "r1/pve1/bravo-thin/vm-78888-bravo-db",
            "r1/pve1/delta-thin/vm-78888-bravo-db",
        ),
        volume(
            "r1/pve1/bravo-thin/vm-9999-x",
            "r1/pve1/delta-thin/vm-9999-x",
        ),
        volume(
            "r1/bravo-host/alpha-thin/vm-9999-x",
            "r1/delta-host/alpha-thin/vm-9999-x",
        ),
        volume(
            "bravo-region/pve1/alpha-thin/vm-9999-x",
            "delta-region/pve1/alpha-thin/vm-9999-x",
        ),
        (storage(bravo::STORAGE), storage("delta-thin")),
        (place(bravo::REGION, "pve1"), place("delta-region", "pve1")),
        (place(REGION, bravo::PVE_NODE), place(REGION, "delta-host")),
        node(node_id(bravo::VMS[0]), node_id(55555)),
        node(uuid(bravo::VMS[0]), uuid(55555)),
        node("claims-bravo".to_owned(), "bravo-worker-2".to_owned()),
    ]
}

/// Code and text, with the names of both alike.
fn outline(answer: Result<Answer, Status>) -> String {
    let text = match answer {
        Ok(Answer::Done(..)) => "ok".to_owned(),
        Ok(Answer::Objected(text)) => format!("no: {text}"),
        Err(status) => {
            let text = status.message().split(" (id ").next().unwrap_or_default();
            format!("{:?} {text}", status.code())
        }
    };
    text.replace("bravo", "delta")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_tenant_has_is_refused_in_the_words_of_what_nobody_has() {
    let (tenants, volumes) = world(Power::Least).await;
    let csi = tenants.csi();
    let mut compared = 0;
    for call in calls::honest(&csi, &volumes).await {
        // PVE tells everybody whether a VMID is taken, and a detach has to tell the tenant whether its VM is gone.
        let asks_whether_gone = matches!(call, Call::Unpublish(_));
        for (real, invented) in pairs() {
            if asks_whether_gone && matches!(real, Part::Node(_)) {
                continue;
            }
            let what = format!("{real:?}");
            let (Some(real), Some(invented)) = (call.forged(&real), call.forged(&invented)) else {
                continue;
            };
            let answers = (real.send(&csi).await, invented.send(&csi).await);
            let rpc = real.rpc();
            assert_eq!(outline(answers.0), outline(answers.1), "{rpc} {what}");
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared} pairs on {OWN} and elsewhere");
}
