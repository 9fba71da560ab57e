//! The whole stack over a mocked transport.

use super::*;
use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use proptest::prelude::*;
use serde_json::json;
use tower_test::mock::{self, Handle};

use crate::testing::{config, reply};
use crate::transport::{Cause, Phase, Reply, TransportError};

type Mock = Handle<::http::Request<Bytes>, Reply>;

fn mocked(urls: &[&str]) -> (Client, Vec<Mock>) {
    let pairs = urls
        .iter()
        .map(|_| mock::pair::<::http::Request<Bytes>, Reply>());
    let (mocks, handles): (Vec<_>, Vec<_>) = pairs.unzip();
    let bottoms = mocks.into_iter().map(Bottom::new).collect();
    let client = Client::with_bottoms(config(urls), Metrics::default(), bottoms).unwrap();
    (client, handles)
}

fn vm() -> VmRef {
    VmRef {
        pve_node: "pve1".parse().unwrap(),
        vmid: "100".parse().unwrap(),
    }
}

fn lost(phase: Phase) -> TransportError {
    TransportError::new(phase, Cause::Wire, "connection reset by peer")
}

#[tokio::test(start_paused = true)]
async fn a_request_carries_the_token_and_nothing_that_pve_refuses() {
    let (client, mut handles) = mocked(&["https://pve1:8006/api2/json/"]);
    let handle = handles.first_mut().unwrap();
    let asked = tokio::spawn(async move { client.vm_pending(&vm()).await });
    let (request, answer) = handle.next_request().await.unwrap();
    assert_eq!(request.method(), "GET");
    assert_eq!(
        request.uri(),
        "https://pve1:8006/api2/json/nodes/pve1/qemu/100/pending"
    );
    let token = request.headers().get("authorization").unwrap();
    assert_eq!(token, "PVEAPIToken=csi@pve!ctl=s3cret");
    assert!(token.is_sensitive() && !format!("{request:?}").contains("s3cret"));
    assert!(request.body().is_empty() && request.headers().len() == 1);
    answer.send_response(reply(
        200,
        "OK",
        r#"{"data":[{"key":"digest","value":"82f5"}]}"#,
    ));
    assert_eq!(asked.await.unwrap().unwrap().digest, "82f5");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_died_on_the_wire_is_sent_once_and_may_have_acted() {
    let (client, mut handles) = mocked(&["https://pve1", "https://pve2"]);
    let change = ConfigChange {
        delete: vec!["scsi1".to_owned()],
        ..ConfigChange::default()
    };
    let asked = tokio::spawn(async move { client.update_vm(&vm(), &change).await });
    let (_, answer) = handles.first_mut().unwrap().next_request().await.unwrap();
    answer.send_error(lost(Phase::Sent));
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::OutcomeUnknown, Effect::Possible)
    );
    for handle in &mut handles {
        let more = tokio::time::timeout(Duration::from_mins(1), handle.next_request()).await;
        assert!(more.is_err() || more.unwrap().is_none(), "sent again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_never_left_goes_to_the_next_endpoint() {
    let (client, mut handles) = mocked(&["https://pve1", "https://pve2"]);
    let asked =
        tokio::spawn(async move { client.update_vm(&vm(), &ConfigChange::default()).await });
    let mut handles = handles.iter_mut();
    let (_, answer) = handles.next().unwrap().next_request().await.unwrap();
    answer.send_error(lost(Phase::NotSent));
    let (request, answer) = handles.next().unwrap().next_request().await.unwrap();
    assert_eq!(request.uri().host(), Some("pve2"));
    answer.send_response(reply(200, "OK", r#"{"data":null}"#));
    assert_eq!(asked.await.unwrap(), Ok(Started::Done));
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_says_nothing_is_given_up_after_the_time_out() {
    let (client, mut handles) = mocked(&["https://pve1"]);
    let begin = Instant::now();
    let asked =
        tokio::spawn(async move { client.update_vm(&vm(), &ConfigChange::default()).await });
    let held = handles.first_mut().unwrap().next_request().await.unwrap();
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::OutcomeUnknown, Effect::Possible)
    );
    assert_eq!(begin.elapsed().as_secs(), 35);
    drop(held);
}

#[test]
fn every_endpoint_is_called_by_a_program_and_none_is_changed_by_the_ccm() {
    let of = |program| {
        endpoints_of(program)
            .map(|spec| spec.name)
            .collect::<BTreeSet<_>>()
    };
    let (csi, ccm) = (of(Program::Csi), of(Program::Ccm));
    let all: BTreeSet<_> = endpoints().map(|spec| spec.name).collect();
    assert_eq!(csi.union(&ccm).copied().collect::<BTreeSet<_>>(), all);
    assert!(endpoints_of(Program::Ccm).all(|spec| spec.class == OpClass::Read));
    let expected = [
        "GET /cluster/ha/groups",
        "GET /cluster/ha/resources",
        "GET /cluster/ha/rules",
        "GET /cluster/nextid",
        "GET /cluster/resources",
        "GET /nodes/{node}/qemu/{vmid}/agent/network-get-interfaces",
        "GET /nodes/{node}/qemu/{vmid}/config",
        "GET /nodes/{node}/qemu/{vmid}/status/current",
        "GET /version",
    ];
    assert!(ccm.iter().eq(&expected), "{ccm:?}");
}

#[test]
fn every_endpoint_has_a_name_and_a_class_that_fits() {
    let names: BTreeSet<_> = endpoints().map(|spec| spec.name).collect();
    assert_eq!(names.len(), endpoints().count());
    for spec in endpoints() {
        assert!(
            ["GET", "POST", "PUT", "DELETE"].contains(&spec.method()),
            "{}",
            spec.name
        );
        assert!(spec.template().starts_with('/'));
        assert_eq!(
            spec.method() == "GET",
            spec.class == OpClass::Read,
            "{}",
            spec.name
        );
    }
}

#[test]
fn no_secret_is_printed_by_anything_public() {
    let config = config(&["https://pve1"]);
    let token = (config.token)().unwrap();
    let client = Client::new(config.clone(), Metrics::default()).unwrap();
    let printed = format!("{config:?} {token:?} {client:?}");
    assert!(!printed.contains("s3cret"), "{printed}");
}

#[test]
fn settings_that_let_nothing_through_are_refused() {
    let new = |change: fn(&mut ClientConfig)| {
        let mut config = config(&["https://pve1"]);
        change(&mut config);
        Client::new(config, Metrics::default())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(new(|c| c.endpoints.clear()), "no endpoint is configured");
    assert_eq!(new(|c| c.limits.rate = 0), "limits.rate must not be zero");
    assert_eq!(
        new(|c| c.limits.mutating_per_host = 0),
        "limits.mutating_per_host must not be zero"
    );
    assert_eq!(
        new(|c| c
            .endpoints
            .iter_mut()
            .for_each(|e| e.url = "http://x".to_owned())),
        "endpoints[0].url: must begin with https://"
    );
    assert_eq!(
        new(|c| c.token = Arc::new(|| Err("no file".to_owned()))),
        "token: no file"
    );
    assert_eq!(
        new(|c| c.token = Arc::new(|| Ok(testing::token("a\nb")))),
        "token: not usable"
    );
}

#[tokio::test(start_paused = true)]
async fn each_call_is_counted_by_what_it_came_to() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (mock, mut handle) = mock::pair::<::http::Request<Bytes>, Reply>();
    let bottoms = vec![Bottom::new(mock)];
    let client = Client::with_bottoms(config(&["https://pve1"]), metrics, bottoms).unwrap();
    let asked = tokio::spawn(async move { client.version().await });
    for status in [595, 500] {
        let (_, answer) = handle.next_request().await.unwrap();
        answer.send_response(reply(status, "VM is locked (backup)", ""));
    }
    asked.await.unwrap().unwrap_err();
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        r#"pve_request_seconds_count{endpoint="GET /version",class="read",outcome="locked"} 1"#,
        r#"pve_retries_total{endpoint="GET /version",phase="answered"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// JSON of the shapes and names that PVE uses, with anything in them.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "(local:9999/vm-9999-a.raw|UPID:pve1:|100|pve1|running|stopped|qemu)(,size=1G)?"
            .prop_map(Value::from),
    ];
    let key = "(vmid|node|type|status|pool|storage|key|value|pending|delete|digest|scsi1|size|volid|blockstat|errors|message|\\PC{0,4})";
    leaf.prop_recursive(3, 40, 8, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

async fn ask_everything(client: &Client) -> Vec<bool> {
    let at = StorageRef {
        pve_node: "pve1".parse().unwrap(),
        storage: "local".parse().unwrap(),
    };
    let disk = "9999/vm-9999-a.raw".parse().unwrap();
    let (vmid, size) = (vm().vmid, pve_model::Bytes::GIB);
    vec![
        client.version().await.is_ok(),
        client.vms().await.is_ok(),
        client.storages().await.is_ok(),
        client.pve_nodes().await.is_ok(),
        client.vmid_state(vmid).await.is_ok(),
        client.permissions("/vms/100").await.is_ok(),
        client.vm_config(&vm()).await.is_ok(),
        client.vm_pending(&vm()).await.is_ok(),
        client.vm_status(&vm()).await.is_ok(),
        client
            .update_vm(&vm(), &ConfigChange::default())
            .await
            .is_ok(),
        client.allocate_disk(&at, &disk, size).await.is_ok(),
        client.disk(&at, &disk).await.is_ok(),
        client.disks_of(&at, vmid).await.is_ok(),
        client.delete_disk(&at, &disk).await.is_ok(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn no_answer_makes_the_client_panic(data in json(), status in prop_oneof![Just(200), Just(400), Just(500)]) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let failed = json!({"data": data, "message": data, "errors": data}).to_string();
        let client = testing::client(move |_| Ok(reply(status, "VM is locked (", &failed)));
        let succeeded = runtime.block_on(ask_everything(&client));
        prop_assert!(status == 200 || succeeded.iter().all(|ok| !ok));
    }
}
