use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use base64::Engine as _;
use serde_json::json;

use super::*;

const TENANT: &str = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
    clusters: [{name: c, cluster: {server: 'https://tenant'}}], users: [{name: u, user: {token: secret-token}}]}";

/// What is reached by a Secret of a management cluster whose API server is this.
async fn reached(app: Router, key: &str) -> Result<Reached, ReachError> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("management");
    let text = TENANT.replace("https://tenant", &format!("http://{address}"));
    std::fs::write(&path, text).unwrap();
    let reach = Reach {
        kubeconfig: None,
        kubeconfig_secret: Some(secret("tenant-a/kubeconfig").unwrap()),
        kubeconfig_key: key.to_owned(),
        management_kubeconfig: Some(path),
    };
    reach.reached().await
}

fn holding(text: &str) -> Router {
    let data = BASE64.encode(text);
    let body = json!({ "data": { "super-admin.svc": data, "broken": "%%%" } });
    let path = "/api/v1/namespaces/tenant-a/secrets/kubeconfig";
    Router::new().route(path, get(async move || axum::Json(body.clone())))
}

#[tokio::test]
async fn a_secret_leads_to_the_tenant() {
    let reached = reached(holding(TENANT), "super-admin.svc").await;
    assert!(reached.is_ok_and(|reached| !reached.asked));
}

#[tokio::test]
async fn only_the_word_true_on_the_secret_asks_for_a_teardown() {
    for (value, is) in [("true", true), ("false", false), ("", false)] {
        let data = BASE64.encode(TENANT);
        let body = json!({
            "metadata": { "annotations": { "pve-cloud/teardown": value } },
            "data": { "super-admin.svc": data },
        });
        let path = "/api/v1/namespaces/tenant-a/secrets/kubeconfig";
        let app = Router::new().route(path, get(async move || axum::Json(body.clone())));
        let reached = reached(app, "super-admin.svc").await;
        assert_eq!(reached.map(|one| one.asked).ok(), Some(is), "{value:?}");
    }
}

#[tokio::test]
async fn a_missing_secret_is_told_from_one_that_can_not_be_read() {
    let error = reached(Router::new(), "super-admin.svc")
        .await
        .err()
        .unwrap();
    assert!(matches!(error, ReachError::Missing(..)), "{error}");
    assert!(
        error.to_string().contains("the name is wrong, or"),
        "{error}"
    );
    for status in [StatusCode::FORBIDDEN, StatusCode::INTERNAL_SERVER_ERROR] {
        let path = "/api/v1/namespaces/tenant-a/secrets/kubeconfig";
        let app = Router::new().route(path, get(async move || status));
        let error = reached(app, "super-admin.svc").await.err().unwrap();
        assert!(matches!(error, ReachError::Unknown(..)), "{error}");
        assert!(!error.is_refusal());
    }
}

#[tokio::test]
async fn what_is_no_kubeconfig_is_refused_and_not_repeated() {
    for (app, key) in [
        (holding(TENANT), "other"),
        (holding(TENANT), "broken"),
        (holding("secret-token: ["), "super-admin.svc"),
        (
            holding(&TENANT.replace("token: secret-token", "exec: {command: secret-token}")),
            "super-admin.svc",
        ),
    ] {
        let error = reached(app, key).await.err().unwrap();
        assert!(error.is_refusal(), "{error}");
        assert!(!error.to_string().contains("secret-token"), "{error}");
    }
}

#[test]
fn the_name_of_a_secret_is_nothing_else() {
    for bad in ["", "a", "a/", "/b", "a/b/c", "a/../b", "A/b", "a/b?x"] {
        assert!(secret(bad).is_err(), "{bad:?}");
    }
}
