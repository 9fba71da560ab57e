//! A run that stops at any of its requests is completed by the next one.

use pve_sim::{RequestEffect, RequestFault};

use super::*;

/// How a request may stop a run. A question changes nothing, whether it was answered or not, and is asked again if its answer is
/// lost: for it an error is enough. A change is done or not done, and the answer to it may be lost.
fn effects(method: &str) -> Vec<RequestEffect> {
    let (status, message) = (500, "broken for this test".to_owned());
    if method == "GET" {
        return vec![RequestEffect::FailBefore { status, message }];
    }
    vec![
        RequestEffect::FailBefore {
            status,
            message: message.clone(),
        },
        RequestEffect::FailAfter { status, message },
        RequestEffect::LostReply,
    ]
}

/// The secret in each Secret that was written is that of its token.
fn hands_over(desk: &Desk) {
    let secrets = desk.secrets();
    for (secret, token) in SECRETS.into_iter().zip(["csi", "ccm"]) {
        let config = secret_in(&desk.path("secrets"), secret)["stringData"]["config.yaml"].clone();
        let config: Value = serde_saphyr::from_str(config.as_str().unwrap()).unwrap();
        let known = &config["regions"][REGION]["token"]["secret"];
        assert_eq!(*known, secrets[&format!("{USER}!{token}")], "{secret}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_stops_at_any_request_is_completed_by_the_next() {
    let whole = Desk::new(empty()).await;
    whole.apply("").await.done();
    let wanted = rights(&whole.sim.state());
    let requests = whole.sim.requests();
    assert!(requests.len() > 30, "{}", requests.len());
    let (mut stopped, mut runs) = (0, 0);
    for (nth, request) in (1..).zip(&requests) {
        for effect in effects(&request.method) {
            runs += 1;
            let desk = Desk::new(empty()).await;
            let story = format!("request {nth}, {effect:?}");
            desk.sim.add_fault(RequestFault {
                method: "*".to_owned(),
                path: "*".to_owned(),
                nth,
                times: 1,
                effect,
            });
            let first = desk.apply("").await;
            assert!([0, 1, 64].contains(&first.code), "{story}: {first:?}");
            assert_eq!(desk.sim.faults_left(), 0, "{story}");
            desk.sim.clear_faults();
            if first.code != 0 {
                stopped += 1;
                let second = desk.apply("").await;
                assert_eq!(second.code, 0, "{story}: {first:?}, then {second:?}");
            }
            assert_eq!(rights(&desk.sim.state()), wanted, "{story}");
            hands_over(&desk);
        }
    }
    // What may be repeated without harm is.
    assert!(stopped > requests.len(), "{stopped} of {runs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_cannot_be_written_is_made_anew_by_the_next_run() {
    let desk = Desk::new(empty()).await;
    let line = format!(
        "{} --apply --admin-password-file {}",
        desk.whose(),
        desk.path("password").display()
    );
    // Standard output that takes nothing.
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let status = Command::new(built("pvectl").unwrap())
        .arg("tenant")
        .args(line.split_whitespace())
        .stdout(full)
        .stderr(Stdio::null())
        .status()
        .await
        .unwrap();
    assert_eq!(status.code(), Some(1));
    let lost = desk.secrets();
    // Both were made and granted before the first could be handed over.
    assert_eq!(lost.len(), 2);
    desk.apply("").await.done();
    let known = desk.secrets();
    assert!(lost.iter().all(|(id, secret)| known[id] != *secret));
    hands_over(&desk);
}
