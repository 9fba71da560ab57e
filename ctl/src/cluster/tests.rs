use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use serde_json::{Value, json};

use super::*;

type Asked = Query<std::collections::BTreeMap<String, String>>;

/// A cluster whose API server is this.
async fn served(app: Router) -> Cluster {
    drop(rustls::crypto::ring::default_provider().install_default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    );
    let tenant = pve_kube::Tenant::of_text(&text.into()).await.unwrap();
    Cluster::new(tenant.client())
}

fn node(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

#[tokio::test]
async fn a_list_is_read_to_its_last_page() {
    let page = async |Query(asked): Asked| {
        let from: usize = asked
            .get("continue")
            .map_or(0, |token| token.parse().unwrap());
        assert_eq!(asked.get("limit").unwrap(), "200");
        let items: Vec<Value> = (from..from + 2).map(|n| node(&format!("n{n}"))).collect();
        let next = if from < 4 {
            (from + 2).to_string()
        } else {
            String::new()
        };
        axum::Json(json!({ "metadata": { "continue": next }, "items": items }))
    };
    let cluster = served(Router::new().route("/nodes", get(page))).await;
    let nodes: Vec<ClusterNode> = cluster.list("/nodes", Choice::All).await.unwrap();
    let names: Vec<&str> = nodes
        .iter()
        .map(|node| node.metadata.name.as_str())
        .collect();
    assert_eq!(names, ["n0", "n1", "n2", "n3", "n4", "n5"]);
}

#[tokio::test]
async fn a_list_that_was_compacted_meanwhile_is_begun_anew_and_not_for_ever() {
    let count = Arc::new(AtomicU32::new(0));
    let page = async |State(count): State<Arc<AtomicU32>>, Query(asked): Asked| {
        if asked.contains_key("continue") && count.fetch_add(1, Ordering::SeqCst) != 1 {
            return Err(StatusCode::GONE);
        }
        let next = if asked.contains_key("continue") {
            ""
        } else {
            "more"
        };
        Ok(axum::Json(
            json!({ "metadata": { "continue": next }, "items": [node("n1")] }),
        ))
    };
    let app = Router::new()
        .route("/nodes", get(page))
        .with_state(Arc::clone(&count));
    let cluster = served(app).await;
    let nodes: Vec<ClusterNode> = cluster.list("/nodes", Choice::All).await.unwrap();
    assert_eq!(nodes.len(), 2, "the page before is not counted twice");
    let endless = cluster.list::<ClusterNode>("/nodes", Choice::All).await;
    assert!(matches!(endless, Err(ApiError::Endless)), "{endless:?}");
}

#[tokio::test]
async fn a_list_without_end_is_an_error() {
    let empty = async || axum::Json(json!({ "metadata": { "continue": "more" }, "items": [] }));
    let long = async || {
        let many: Vec<Value> = (0..50_000).map(|n| node(&format!("n{n}"))).collect();
        axum::Json(json!({ "metadata": { "continue": "more" }, "items": many }))
    };
    let app = Router::new()
        .route("/empty", get(empty))
        .route("/long", get(long));
    let cluster = served(app).await;
    let outcome = cluster.list::<ClusterNode>("/empty", Choice::All).await;
    assert!(matches!(outcome, Err(ApiError::Endless)), "{outcome:?}");
    let outcome = cluster.list::<ClusterNode>("/long", Choice::All).await;
    assert!(matches!(outcome, Err(ApiError::TooMany)), "{outcome:?}");
}

#[tokio::test]
async fn objects_that_make_a_page_too_large_are_read_in_smaller_pages() {
    let page = async |Query(asked): Asked| {
        let limit: usize = asked.get("limit").unwrap().parse().unwrap();
        let from: usize = asked
            .get("continue")
            .map_or(0, |token| token.parse().unwrap());
        let end = (from + limit).min(10);
        // Written by hand: serde is slow where it is not optimised.
        let pad = "x".repeat(1 << 20);
        let object = |n| format!("{{\"metadata\":{{\"name\":\"n{n}\",\"pad\":\"{pad}\"}}}}");
        let items: Vec<String> = (from..end).map(object).collect();
        let next = if end < 10 {
            end.to_string()
        } else {
            String::new()
        };
        format!(
            "{{\"metadata\":{{\"continue\":\"{next}\"}},\"items\":[{}]}}",
            items.join(",")
        )
    };
    let cluster = served(Router::new().route("/nodes", get(page))).await;
    let nodes: Vec<ClusterNode> = cluster.list("/nodes", Choice::All).await.unwrap();
    assert_eq!(nodes.len(), 10);
}

#[tokio::test]
async fn a_deletion_is_of_the_object_that_was_seen() {
    let answer = async |axum::Json(body): axum::Json<Value>| {
        if body.pointer("/preconditions/uid") == Some(&json!("u1")) {
            Ok(axum::Json(json!({})))
        } else {
            Err(StatusCode::CONFLICT)
        }
    };
    let refuse = async || StatusCode::INTERNAL_SERVER_ERROR;
    let app = Router::new()
        .route("/pods/a", delete(answer))
        .route("/pods/b", delete(refuse));
    let cluster = served(app).await;
    let delete = async |name, uid| {
        let path = "/pods";
        let grace = Some(0);
        cluster
            .delete(Deletion {
                path,
                name,
                uid: Some(uid),
                grace,
            })
            .await
    };
    assert_eq!(delete("a", "u1").await.unwrap(), Deleted::Accepted);
    assert_eq!(delete("a", "u2").await.unwrap(), Deleted::Gone);
    assert_eq!(delete("nobody", "u1").await.unwrap(), Deleted::Gone);
    assert_eq!(delete("b", "u1").await.unwrap_err().status(), Some(500));
}

#[test]
fn names_and_texts_of_the_server_can_do_nothing_in_a_path_or_on_a_terminal() {
    for good in ["a", "pvc-1", "a.b-c.d", "0"] {
        assert_eq!(
            serde_json::from_value::<Name>(json!(good))
                .unwrap()
                .as_str(),
            good
        );
    }
    let long = "a".repeat(254);
    for bad in [
        "",
        "A",
        "a/b",
        "..",
        "a..b",
        "-a",
        "a-",
        "a b",
        "\u{1b}[2J",
        "a?x=1",
        "a%2f",
        &long,
    ] {
        assert!(
            serde_json::from_value::<Name>(json!(bad)).is_err(),
            "{bad:?}"
        );
    }
    let text: Text = serde_json::from_value(json!("\u{1b}[31mred\n\u{e4}")).unwrap();
    assert_eq!(text.as_str(), "?[31mred??");
    assert_eq!(Text::from(long.as_str()).as_str().len(), 253);
}

#[test]
fn every_claim_that_a_pod_mounts_is_seen() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "db-0", "namespace": "a" },
        "spec": { "nodeName": "n1", "volumes": [
            { "name": "one", "persistentVolumeClaim": { "claimName": "x" } },
            { "name": "none", "emptyDir": {} },
            { "name": "scratch", "ephemeral": { "volumeClaimTemplate": {} } },
            { "name": "two", "persistentVolumeClaim": { "claimName": "y" } },
        ] },
    }))
    .unwrap();
    let claims: Vec<String> = pod.claims().map(|id| id.to_string()).collect();
    assert_eq!(claims, ["a/x", "a/db-0-scratch", "a/y"]);
}

#[tokio::test]
async fn references_that_are_no_names_do_not_make_a_list_unreadable() {
    let meta = |name: &str| json!({ "name": name, "namespace": "a" });
    let pod = json!({ "metadata": meta("p"), "spec": { "nodeName": "n1", "volumes": [
        { "name": "odd", "persistentVolumeClaim": { "claimName": "A_b" } },
        { "name": "even", "persistentVolumeClaim": { "claimName": "x" } },
    ] } });
    let claim = json!({ "metadata": meta("x"), "spec": { "volumeName": "A/../b" } });
    let attachment = json!({ "metadata": { "name": "csi-1" }, "spec": {
        "attacher": "d", "nodeName": "n1", "source": { "persistentVolumeName": "A_b" },
    } });
    let listed = |item: Value| get(async move || axum::Json(json!({ "items": [item] })));
    let app = Router::new()
        .route("/pods", listed(pod))
        .route("/claims", listed(claim))
        .route("/attachments", listed(attachment));
    let cluster = served(app).await;
    let pods: Vec<Pod> = cluster.list("/pods", Choice::All).await.unwrap();
    let mounted: Vec<String> = pods[0].claims().map(|id| id.to_string()).collect();
    assert_eq!(mounted, ["a/x"]);
    let claims: Vec<Claim> = cluster.list("/claims", Choice::All).await.unwrap();
    assert_eq!(claims[0].spec.volume_name, None);
    let all: Vec<Attachment> = cluster.list("/attachments", Choice::All).await.unwrap();
    assert_eq!(all[0].spec.source.persistent_volume_name, None);
}

#[test]
fn the_switch_is_read_where_it_is_written() {
    let annotations = json!({ pve_model::topology::TEARDOWN_ANNOTATION: "true" });
    let driver = json!({ "metadata": { "name": "d", "annotations": annotations } });
    let driver: Driver = serde_json::from_value(driver).unwrap();
    assert!(driver.metadata.annotations.teardown.is_some());
}
