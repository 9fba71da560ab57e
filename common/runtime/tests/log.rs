//! What one RPC leaves in the log. Alone in its program, since a subscriber is the whole process's.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not take for tests"
)]

use std::convert::Infallible;
use std::io::Write;
use std::sync::{Arc, Mutex};

use http_body_util::Full;
use pve_runtime::RpcMetrics;
use pve_runtime::rpc::RpcLayer;
use tonic::body::Body;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Layer, Service, service_fn};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Cause {
    text: &'static str,
    source: Option<Box<Cause>>,
}

/// As a handler sees it: `text` is what the tenant sent.
async fn refuse(request: Request<String>) -> Result<Response<String>, Status> {
    assert_eq!(request.into_inner(), "confidential");
    let inner = Cause {
        text: "storage 'tank' is locked",
        source: None,
    };
    let mut status = Status::aborted("the volume is busy");
    status.set_source(Arc::new(Cause {
        text: "delete disk",
        source: Some(Box::new(inner)),
    }));
    Err(status)
}

#[tokio::test]
async fn the_operator_reads_the_causes_and_nobody_reads_the_request() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let handler = service_fn(async |request: http::Request<Body>| {
        let codec = ProstCodec::<String, String>::default();
        let mut grpc = tonic::server::Grpc::new(codec);
        Ok::<_, Infallible>(grpc.unary(service_fn(refuse), request).await)
    });
    let mut service = RpcLayer::new(RpcMetrics::default()).layer(handler);
    // A gRPC frame: not compressed, the length, and a message whose field 1 is the string.
    let frame = b"\0\0\0\0\x0e\x0a\x0cconfidential".as_slice();
    let request = http::Request::post("http://localhost/test.Probe/Refuse")
        .body(Body::new(Full::from(frame)))
        .unwrap();
    let response = service.call(request).await.unwrap();

    let status = response.extensions().get::<Status>().unwrap();
    assert_eq!(status.code(), Code::Aborted);
    let told = format!("{:?}", response.headers());
    assert!(told.contains("busy") && !told.contains("tank"), "{told}");

    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let ours: Vec<&str> = log.lines().filter(|l| l.contains("pve_runtime")).collect();
    assert_eq!(ours.len(), 1, "{log}");
    let causes = "the volume is busy: delete disk: storage 'tank' is locked";
    assert!(
        ours[0].contains(causes) && ours[0].contains("Aborted"),
        "{log}"
    );
    assert!(ours[0].contains("rpc{rpc=\"Refuse\" id="), "{log}");
    assert!(!log.contains("confidential"), "{log}");
}
