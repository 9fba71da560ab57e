use super::*;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Response};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::{Value, json};

const DRIVER: &str = "csi.proxmox.sinextra.dev";
const PATH: &str = "/apis/storage.k8s.io/v1/";

/// An API server with objects by `namespace/name`, that answers two of them per page.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    /// How often a deleted object is made anew.
    come_back: usize,
    refuses_deletion: bool,
    serial: u32,
}

impl Server {
    fn add(&self, driver: &str, manager: &str, namespace: &str, name: &str) {
        let mut state = self.0.lock().unwrap();
        state.serial += 1;
        let labels = json!({ DRIVER_LABEL: driver, MANAGED_BY_LABEL: manager });
        let uid = format!("u{}", state.serial);
        let metadata = json!({"name": name, "namespace": namespace, "uid": uid, "labels": labels});
        state
            .objects
            .insert(format!("{namespace}/{name}"), json!({"metadata": metadata}));
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().objects.keys().cloned().collect()
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Value {
        let state = self.0.lock().unwrap();
        let wanted: Vec<(&str, &str)> = query["labelSelector"]
            .split(',')
            .map(|pair| pair.split_once('=').unwrap())
            .collect();
        let is = |object: &Value| {
            let labels = &object["metadata"]["labels"];
            wanted.iter().all(|(key, value)| labels[key] == *value)
        };
        let from: usize = query.get("continue").map_or(0, |at| at.parse().unwrap());
        let all: Vec<&Value> = state.objects.values().filter(|one| is(one)).collect();
        let rest = if all.len() > from + 2 {
            (from + 2).to_string()
        } else {
            String::new()
        };
        let items: Vec<&&Value> = all.iter().skip(from).take(2).collect();
        json!({"metadata": {"continue": rest}, "items": items})
    }

    fn delete(&self, path: &str, body: &Value) -> u16 {
        let mut state = self.0.lock().unwrap();
        if state.refuses_deletion {
            return 403;
        }
        let rest = path.strip_prefix("namespaces/").unwrap();
        let key = rest.replacen("/csistoragecapacities", "", 1);
        let Some(object) = state.objects.get(&key).cloned() else {
            return 404;
        };
        if body["preconditions"]["uid"] != object["metadata"]["uid"] {
            return 409;
        }
        state.objects.remove(&key);
        if state.come_back > 0 {
            state.come_back -= 1;
            state.serial += 1;
            let mut again = object;
            again["metadata"]["uid"] = json!(format!("u{}", state.serial));
            state.objects.insert(key, again);
        }
        200
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let path = head.uri.path().strip_prefix(PATH).unwrap().to_owned();
                let (status, answer) = match head.method {
                    Method::GET => (200, server.list(&query(head.uri.query().unwrap()))),
                    Method::DELETE => (server.delete(&path, &body), json!({"kind": "Status"})),
                    other => panic!("{other}"),
                };
                let answer = Full::new(bytes::Bytes::from(answer.to_string()));
                Ok::<_, Infallible>(Response::builder().status(status).body(answer).unwrap())
            }
        });
        Client::new(service, "default")
    }
}

fn query(text: &str) -> BTreeMap<String, String> {
    let plain = |text: &str| {
        let text = text.replace("%2F", "/").replace("%3D", "=");
        text.replace("%2C", ",")
    };
    text.trim_start_matches('&')
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (plain(key), plain(value)))
        .collect()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[tokio::test(start_paused = true)]
async fn all_of_the_driver_go_and_those_of_others_stay() {
    let server = Server::default();
    for index in 0..5 {
        server.add(DRIVER, MANAGER, "pve-cloud", &format!("csisc-{index}"));
    }
    server.add(DRIVER, MANAGER, "where-it-was-before", "csisc-x");
    server.add("other.example", MANAGER, "pve-cloud", "other-driver");
    server.add(DRIVER, "by-hand", "pve-cloud", "other-manager");
    let removed = remove_stale(&server.client(), DRIVER, soon())
        .await
        .unwrap();
    assert_eq!(removed, 6);
    assert_eq!(
        server.names(),
        ["pve-cloud/other-driver", "pve-cloud/other-manager"]
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_was_made_anew_goes_too_and_those_that_come_back_for_ever_are_told() {
    let server = Server::default();
    server.add(DRIVER, MANAGER, "ns", "a");
    server.0.lock().unwrap().come_back = 2;
    let removed = remove_stale(&server.client(), DRIVER, soon())
        .await
        .unwrap();
    assert_eq!(removed, 3);
    server.add(DRIVER, MANAGER, "ns", "a");
    server.0.lock().unwrap().come_back = usize::MAX;
    let error = remove_stale(&server.client(), DRIVER, soon()).await;
    let error = error.unwrap_err();
    assert!(matches!(error, CapacityError::ComeBack(1)), "{error}");
    assert!(error.to_string().contains("csi-provisioner"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_no_success_and_neither_is_the_end_of_the_time() {
    let server = Server::default();
    server.add(DRIVER, MANAGER, "ns", "a");
    server.0.lock().unwrap().refuses_deletion = true;
    let error = remove_stale(&server.client(), DRIVER, soon()).await;
    let error = error.unwrap_err();
    assert!(
        matches!(&error, CapacityError::Request(error) if error.is_status(403)),
        "{error}"
    );
    server.0.lock().unwrap().refuses_deletion = false;
    server.0.lock().unwrap().come_back = usize::MAX;
    let error = remove_stale(&server.client(), DRIVER, Instant::now() + PAUSE * 2).await;
    assert!(matches!(error, Err(CapacityError::Deadline)), "{error:?}");
}

#[tokio::test]
async fn a_driver_that_could_be_read_as_another_selector_and_a_namespace_that_is_a_path_are_refused()
 {
    let server = Server::default();
    let long = "x".repeat(64);
    for driver in ["", "a,b", "a=b", "a b", "-a", "a.", "a/b", "!a", &long] {
        let refused = remove_stale(&server.client(), driver, soon()).await;
        assert!(
            matches!(refused, Err(CapacityError::Driver(_))),
            "{driver}: {refused:?}"
        );
    }
    server.add(
        DRIVER,
        MANAGER,
        "../../../api/v1/namespaces/kube-system",
        "a",
    );
    let refused = remove_stale(&server.client(), DRIVER, soon()).await;
    assert!(
        matches!(
            refused,
            Err(CapacityError::Request(RequestError::Other(..)))
        ),
        "{refused:?}"
    );
    assert_eq!(server.names().len(), 1);
}
