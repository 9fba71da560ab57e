use std::convert::Infallible;
use std::path::Path;
use std::sync::Mutex;

use http::{Response as HttpResponse, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::*;
use crate::fake_host::FakeHost;

const STUCK: &str = "/var/lib/kubelet/stuck";

/// The services of a machine whose Node is `node`, or cannot be read.
fn service(host: FakeHost, node: Arc<Mutex<Option<Value>>>) -> Service {
    let api = tower::service_fn(move |_: http::Request<Body>| {
        let (status, body) = match node.lock().unwrap().clone() {
            Some(node) => (StatusCode::OK, node.to_string()),
            None => (StatusCode::FORBIDDEN, String::new()),
        };
        let response = HttpResponse::builder()
            .status(status)
            .body(Body::from(body.into_bytes()));
        async move { Ok::<_, Infallible>(response.unwrap()) }
    });
    let node = NodeObject::new(
        kube::Client::new(api, "default"),
        "worker-1".parse().unwrap(),
    );
    let work = Work::new(CancellationToken::new());
    Service::new("csi.example.test".to_owned(), Arc::new(host), node, work)
}

fn stuck() -> Service {
    service(FakeHost::stuck_at(Path::new(STUCK)), Arc::default())
}

async fn unstage(service: &Service, volume: u8, path: &str) -> Result<(), Code> {
    let request = NodeUnstageVolumeRequest {
        volume_id: format!("r1/pve1/local-lvm/vm-9999-pvc-{volume}"),
        staging_target_path: path.to_owned(),
    };
    let answer = service.node_unstage_volume(Request::new(request)).await;
    answer.map(drop).map_err(|status| status.code())
}

#[tokio::test(start_paused = true)]
async fn b54_work_that_hangs_keeps_its_own_volume_and_no_other() {
    let service = stuck();
    let hanging = tokio::spawn({
        let service = service.clone();
        async move { unstage(&service, 1, STUCK).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(unstage(&service, 1, "/elsewhere").await, Err(Code::Aborted));
    assert_eq!(unstage(&service, 2, "/elsewhere").await, Ok(()));
    // The kubelet is told before it gives up, and the lock stays with the work.
    assert_eq!(hanging.await.unwrap(), Err(Code::DeadlineExceeded));
    assert_eq!(unstage(&service, 1, "/elsewhere").await, Err(Code::Aborted));
}

#[tokio::test]
async fn work_that_panics_may_have_happened() {
    let service = service(FakeHost::broken_at(Path::new(STUCK)), Arc::default());
    assert_eq!(unstage(&service, 1, STUCK).await, Err(Code::Unavailable));
    assert_eq!(unstage(&service, 1, "/elsewhere").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_does_not_let_a_second_one_in() {
    let service = stuck();
    let gone = tokio::time::timeout(Duration::from_secs(1), unstage(&service, 1, STUCK)).await;
    assert!(gone.is_err());
    assert_eq!(unstage(&service, 1, "/elsewhere").await, Err(Code::Aborted));
}

#[tokio::test(start_paused = true)]
async fn statistics_that_hang_are_asked_for_once_and_answered_in_time() {
    let service = stuck();
    let stats = async |path: &str| {
        let request = NodeGetVolumeStatsRequest {
            volume_id: "r1/pve1/local-lvm/vm-9999-pvc-1".to_owned(),
            volume_path: path.to_owned(),
            ..Default::default()
        };
        let start = tokio::time::Instant::now();
        let code = service
            .node_get_volume_stats(Request::new(request))
            .await
            .unwrap_err()
            .code();
        assert!(start.elapsed() <= STATS_WITHIN);
        code
    };
    assert_eq!(stats(STUCK).await, Code::DeadlineExceeded);
    assert_eq!(stats(STUCK).await, Code::Aborted);
    assert_eq!(stats("/elsewhere").await, Code::NotFound);
}

#[tokio::test]
async fn what_is_advertised_is_what_is_there() {
    let service = stuck();
    let answer = service
        .node_get_capabilities(Request::new(NodeGetCapabilitiesRequest {}))
        .await
        .unwrap();
    let kinds: Vec<i32> = answer
        .into_inner()
        .capabilities
        .into_iter()
        .filter_map(|capability| {
            let node_service_capability::Type::Rpc(rpc) = capability.r#type?;
            Some(rpc.r#type)
        })
        .collect();
    assert_eq!(kinds, [1, 2, 3, 4, 5]);
    let probe = service
        .probe(Request::new(ProbeRequest {}))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(probe.ready, Some(true));
    let info = service
        .get_plugin_info(Request::new(GetPluginInfoRequest {}))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.name, "csi.example.test");
    assert!(!info.vendor_version.is_empty());
}

#[tokio::test]
async fn b64_the_node_is_read_at_each_question() {
    let node = Arc::new(Mutex::new(None));
    let service = service(FakeHost::default(), Arc::clone(&node));
    let ask = async || {
        let answer = service
            .node_get_info(Request::new(NodeGetInfoRequest {}))
            .await;
        answer
            .map(Response::into_inner)
            .map_err(|status| status.code())
    };
    assert_eq!(ask().await, Err(Code::Unavailable));
    let object = |labels: Value| {
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "worker-1", "labels": labels,
                "annotations": {"proxmox.sinextra.dev/instance-id": "104"}},
            "status": {"nodeInfo": {"systemUUID": "abcdef00-1111-2222-3333-444455556666",
                "machineID": "", "bootID": "", "kernelVersion": "", "osImage": "", "architecture": "",
                "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": ""}}})
    };
    *node.lock().unwrap() = Some(object(json!({})));
    assert_eq!(ask().await, Err(Code::Unavailable));
    for zone in ["pve1", "pve2"] {
        let labels =
            json!({"topology.kubernetes.io/region": "r1", "topology.kubernetes.io/zone": zone});
        *node.lock().unwrap() = Some(object(labels));
        let info = ask().await.unwrap();
        assert_eq!(info.node_id, "abcdef00-1111-2222-3333-444455556666/104");
        assert_eq!(info.max_volumes_per_node, 24);
        let segments = info.accessible_topology.unwrap().segments;
        assert_eq!(segments.get(ZONE).map(String::as_str), Some(zone));
        assert_eq!(segments.get(REGION).map(String::as_str), Some("r1"));
    }
}
