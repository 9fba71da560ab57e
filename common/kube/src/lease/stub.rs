//! One Lease with the versions of a real API server, reached by links that can fail each for itself.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";

#[derive(Clone, Default)]
pub(crate) struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    lease: Option<Value>,
    changed: Option<Instant>,
}

/// What becomes of the requests of one candidate.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Link {
    Up,
    /// They get no answer and are not done.
    Cut,
    /// Those that write get no answer, but are done.
    Mute,
    /// They are done, and answered 3 s later.
    Slow,
    /// They are refused.
    Status(u16),
}

impl Server {
    /// The record as it is.
    pub(crate) fn spec(&self) -> Value {
        let lease = self.0.lock().unwrap().lease.clone();
        lease.map_or(Value::Null, |lease| lease["spec"].clone())
    }

    pub(crate) fn holder(&self) -> String {
        self.spec()["holderIdentity"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    }

    /// When it was last written.
    pub(crate) fn changed(&self) -> Instant {
        self.0.lock().unwrap().changed.unwrap()
    }

    /// Somebody writes this record.
    pub(crate) fn write(&self, spec: &Value) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        let metadata = json!({"name": "l", "namespace": "ns", "uid": "u", "resourceVersion": state.version.to_string()});
        state.changed = Some(Instant::now());
        state.lease = Some(json!({"metadata": metadata, "spec": spec}));
    }

    pub(crate) fn delete(&self) {
        self.0.lock().unwrap().lease = None;
    }

    fn handle(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let name = path.split('?').next().unwrap().strip_prefix(PATH).unwrap();
        let before = self.0.lock().unwrap().lease.clone();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match (method, name, before) {
            (&Method::GET | &Method::PUT, "/l", None) => return (404, json!({})),
            (&Method::GET, "/l", Some(lease)) => return (200, lease),
            (&Method::POST, "", None) => assert_eq!(body["metadata"]["name"], "l"),
            (&Method::POST, "", Some(_)) => return (409, json!({})),
            (&Method::PUT, "/l", Some(lease)) => {
                let version = &body["metadata"]["resourceVersion"];
                assert!(version.is_string(), "an update without a condition");
                if *version != lease["metadata"]["resourceVersion"] {
                    return (409, json!({}));
                }
                if body["spec"] == lease["spec"] {
                    return (200, lease);
                }
            }
            other => panic!("{other:?}"),
        }
        assert!(body["spec"]["leaseDurationSeconds"].as_i64().unwrap() > 0);
        self.write(&body["spec"]);
        (200, self.0.lock().unwrap().lease.clone().unwrap())
    }

    /// A client, and the link it has.
    pub(crate) fn client(&self) -> (Client, Arc<Mutex<Link>>) {
        let link = Arc::new(Mutex::new(Link::Up));
        let (server, state) = (self.clone(), Arc::clone(&link));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, link) = (server.clone(), *state.lock().unwrap());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (status, answer) = match link {
                    Link::Status(status) => (status, json!({})),
                    Link::Cut => std::future::pending().await,
                    Link::Up | Link::Mute | Link::Slow => {
                        server.handle(&head.method, &head.uri.to_string(), &body)
                    }
                };
                if link == Link::Mute && head.method != Method::GET {
                    std::future::pending::<()>().await;
                }
                if link == Link::Slow {
                    tokio::time::sleep(Duration::from_secs(3)).await;
                }
                let answer = Full::new(bytes::Bytes::from(answer.to_string()));
                let answer = Response::builder().status(status).body(answer).unwrap();
                Ok::<_, Infallible>(answer)
            }
        });
        (Client::new(service, "ns"), link)
    }
}
