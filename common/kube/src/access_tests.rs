use super::*;
use crate::Tenant;
use std::os::unix::fs::symlink;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn file(server: &str, user: &Value) -> String {
    drop(rustls::crypto::ring::default_provider().install_default());
    let other = json!({ "token": "of-another" });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "b",
        "contexts": [
            { "name": "a", "context": { "cluster": "c", "user": "a" } },
            { "name": "b", "context": { "cluster": "c", "user": "b" } },
        ],
        "clusters": [{ "name": "c", "cluster": { "server": server, "tls-server-name": "kubernetes" } }],
        "users": [{ "name": "a", "user": other }, { "name": "b", "user": user }],
    })
    .to_string()
}

async fn access(server: &str, user: &Value) -> Result<Access, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, file(server, user)).unwrap();
    let access = Access::read(&path).await;
    access.map_err(|error| error.to_string())
}

#[tokio::test]
async fn what_gives_no_access_of_its_own_over_tls_is_refused() {
    let https = "https://127.0.0.1:1";
    for (server, user, refused) in [
        (https, json!({ "token": "s3cret" }), ""),
        (
            "http://127.0.0.1:1",
            json!({ "token": "s3cret" }),
            "kubeconfig: the cluster's server must begin with https://",
        ),
        (
            https,
            json!({}),
            "kubeconfig: it lacks a client certificate or a token of the user",
        ),
        (
            https,
            json!({ "token": "s3cret", "as": "somebody" }),
            "kubeconfig: as is not accepted",
        ),
        (
            https,
            json!({ "token": "s3cret", "as-groups": ["g"] }),
            "kubeconfig: as-groups is not accepted",
        ),
        (
            https,
            json!({ "username": "u", "password": "s3cret" }),
            "kubeconfig: username is not accepted",
        ),
        (
            https,
            json!({ "exec": { "command": "s3cret" } }),
            "kubeconfig: exec is not accepted",
        ),
    ] {
        let said = access(server, &user).await.err().unwrap_or_default();
        assert_eq!(said, refused);
    }
}

#[tokio::test]
async fn what_is_written_anew_names_files_and_holds_no_secret() {
    let user = json!({ "token": "s3cret" });
    let access = access("https://127.0.0.1:1", &user).await.unwrap();
    let told = format!("{} {access:?}", access.kubeconfig(Some("somebody")));
    assert!(!told.contains("s3cret"), "{told}");
    let names: Vec<&str> = access.files().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["token"]);
    let file = Kubeconfig::from_yaml(&access.kubeconfig(None)).unwrap();
    let (cluster, user) = current(&file).unwrap();
    assert_eq!(cluster.tls_server_name.as_deref(), Some("kubernetes"));
    assert_eq!(user.token_file.as_deref(), Some("token"));
    let file = Kubeconfig::from_yaml(&access.kubeconfig(Some("somebody"))).unwrap();
    let user = file.auth_infos[0].auth_info.as_ref().unwrap();
    assert_eq!(user.impersonate.as_deref(), Some("somebody"));
}

/// Else every program would have all rights of the tenant's administrator.
#[tokio::test]
async fn a_client_of_a_kubeconfig_with_as_asks_as_that_user_in_every_request() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let access = Access {
        server,
        tls_server_name: None,
        ca: None,
        certificate: None,
        key: None,
        token: Some("s3cret".into()),
    };
    let folder = tempfile::tempdir().unwrap();
    let generation = folder.path().join("..1");
    std::fs::create_dir(&generation).unwrap();
    symlink("..1", folder.path().join("..data")).unwrap();
    let user = "system:serviceaccount:pve-cloud:pve-ccm";
    let path = folder.path().join("ccm.kubeconfig");
    std::fs::write(&path, access.kubeconfig(Some(user))).unwrap();
    for (name, text) in access.files() {
        std::fs::write(folder.path().join(name), text.expose_secret()).unwrap();
    }
    let client = Tenant::of_kubeconfig(&path).await.unwrap().client();
    let asked = tokio::spawn(async move {
        let request = http::Request::get("/api/v1/nodes").body(Vec::new());
        client.request_text(request.unwrap()).await.unwrap()
    });
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = vec![0; 4096];
    let length = stream.read(&mut head).await.unwrap();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(answer).await.unwrap();
    asked.await.unwrap();
    let head = String::from_utf8_lossy(&head[..length]).to_lowercase();
    assert!(
        head.contains(&format!("\r\nimpersonate-user: {user}\r\n")),
        "{head}"
    );
    assert!(
        head.contains("\r\nauthorization: bearer s3cret\r\n"),
        "{head}"
    );
}
