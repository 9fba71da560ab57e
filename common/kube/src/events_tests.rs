use super::*;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use http::Response;
use http_body_util::{BodyExt, Full};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::sleep;

/// A server that takes Events, or answers with a status, or (0) not at all.
#[derive(Clone, Default)]
struct Server {
    events: Arc<Mutex<Vec<Value>>>,
    status: Arc<Mutex<Option<u16>>>,
}

impl Server {
    fn recorder(&self) -> Recorder {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                assert_eq!(request.method(), http::Method::POST);
                assert_eq!(request.uri().path(), "/api/v1/namespaces/default/events");
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let status = *server.status.lock().unwrap();
                match status {
                    Some(0) => std::future::pending().await,
                    Some(_) => {}
                    None => {
                        let event = serde_json::from_slice(&body).unwrap();
                        server.events.lock().unwrap().push(event);
                    }
                }
                let answer = Response::builder().status(status.unwrap_or(201));
                let answer = answer.body(Full::new(bytes::Bytes::from("{\"kind\":\"Event\"}")));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        let client = Client::new(service, "default");
        Recorder::new(Tenant::of_client(client), "pve-ccm")
    }

    fn count(&self) -> usize {
        self.events.lock().unwrap().len()
    }
}

fn node(name: &str) -> NodeRef {
    NodeRef {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_names_the_node_as_kubectl_looks_for_it() {
    let server = Server::default();
    let recorder = server.recorder();
    let long = format!("{}ü", "x".repeat(1023));
    recorder
        .tell(&node("a"), "Gone", EventKind::Warning, &long)
        .await;
    let event = server.events.lock().unwrap()[0].clone();
    let involved = json!({"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "uid-of-a"});
    assert_eq!(event["involvedObject"], involved);
    assert_eq!(
        event["metadata"],
        json!({"generateName": "a.", "namespace": "default"})
    );
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "Gone");
    assert_eq!(event["message"], "x".repeat(1023), "never half a character");
    assert_eq!(event["source"], json!({"component": "pve-ccm"}));
    assert_eq!(event["reportingComponent"], "pve-ccm");
    assert_eq!(event["count"], 1);
    assert!(event["lastTimestamp"].is_string() && event["eventTime"].is_null());
    recorder
        .tell(&node("a"), "Back", EventKind::Normal, "it is back")
        .await;
    let event = server.events.lock().unwrap()[1].clone();
    assert_eq!(event["type"], "Normal");
    assert_eq!(event["message"], "it is back");
}

#[tokio::test(start_paused = true)]
async fn the_same_is_told_once_an_hour_of_each_node_and_reason() {
    let server = Server::default();
    let recorder = server.recorder();
    let again = NodeRef {
        uid: "another".to_owned(),
        ..node("a")
    };
    for expected in [4, 4, 8] {
        for about in [&node("a"), &node("b"), &again] {
            recorder
                .tell(about, "Gone", EventKind::Warning, "gone")
                .await;
        }
        recorder
            .tell(&node("a"), "Stopped", EventKind::Normal, "stopped")
            .await;
        assert_eq!(server.count(), expected);
        sleep(Duration::from_mins(30)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn forged_nodes_can_not_flood_the_server() {
    let server = Server::default();
    let recorder = server.recorder();
    for name in 0..10_000 {
        let about = node(&name.to_string());
        recorder
            .tell(&about, "Gone", EventKind::Warning, "gone")
            .await;
    }
    assert_eq!(server.count(), 50);
    sleep(Duration::from_secs(10)).await;
    for name in 0..10_000 {
        let about = node(&name.to_string());
        recorder
            .tell(&about, "Gone", EventKind::Warning, "gone")
            .await;
    }
    assert_eq!(server.count(), 60);
    let names: BTreeSet<String> = {
        let events = server.events.lock().unwrap();
        let name = |event: &Value| event["involvedObject"]["name"].to_string();
        events.iter().map(name).collect()
    };
    assert_eq!(names.len(), 60, "each once");
}

#[tokio::test(start_paused = true)]
async fn what_was_not_taken_does_not_count_as_told() {
    let server = Server::default();
    let recorder = server.recorder();
    let tell = async || {
        let about = node("a");
        recorder
            .tell(&about, "Gone", EventKind::Warning, "gone")
            .await;
    };
    for status in [403, 500, 0] {
        *server.status.lock().unwrap() = Some(status);
        let begun = Instant::now();
        tell().await;
        assert!(
            begun.elapsed() <= Duration::from_secs(6),
            "it has a deadline"
        );
        assert!(recorder.failing.load(Ordering::Relaxed));
    }
    // Given up by the caller.
    assert!(
        tokio::time::timeout(Duration::from_secs(1), tell())
            .await
            .is_err()
    );
    *server.status.lock().unwrap() = None;
    tell().await;
    assert_eq!(server.count(), 1);
    assert!(!recorder.failing.load(Ordering::Relaxed));
    tell().await;
    assert_eq!(server.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_being_told_is_not_told_twice_at_a_time() {
    let server = Server::default();
    let recorder = server.recorder();
    let about = node("a");
    let tell = || recorder.tell(&about, "Gone", EventKind::Warning, "gone");
    tokio::join!(tell(), tell());
    assert_eq!(server.count(), 1);
}
