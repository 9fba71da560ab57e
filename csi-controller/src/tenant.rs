//! The tenant's API server: asked only for the UUID behind a Node name of the former driver, and never believed.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::Node;
use kube::api::GetParams;
use kube::client::Body;
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Client, Config};
use pve_model::{KubeNode, Uuid};

use crate::guests::{Hint, NodeHints};

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);
/// Most of a Node that is read. etcd takes objects of 1.5 MiB; those of kubelets have some KiB.
const NODE_MAX: usize = 1 << 20;

/// Reads Nodes of the tenant cluster.
pub struct TenantNodes {
    path: PathBuf,
    client: RwLock<Made>,
}

/// A client and when the file that it was made of had been changed.
struct Made {
    client: Client,
    changed: Option<SystemTime>,
}

/// A kubeconfig that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// It can't be read.
    #[error("kubeconfig: {0}")]
    Read(#[from] kube::config::KubeconfigError),
    /// It would let the tenant run programs, read our files or redirect us.
    #[error("kubeconfig: {0} is not accepted")]
    Refused(&'static str),
    /// No client can be made of it.
    #[error("kubeconfig: {0}")]
    Client(#[from] kube::Error),
}

/// Why a Node was not read.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error("the name makes no request: {0}")]
    Request(#[from] kube::core::request::Error),
    #[error(transparent)]
    Client(#[from] kube::Error),
    #[error("status {0}")]
    Status(u16),
    #[error("the answer broke off or is larger than a Node can be: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer is no Node: {0}")]
    Json(#[from] serde_json::Error),
}

impl TenantNodes {
    /// Reads a kubeconfig. Nothing is sent.
    pub async fn of_kubeconfig(path: &Path) -> Result<Self, KubeconfigError> {
        let made = Made::of(path).await?;
        Ok(Self {
            path: path.to_owned(),
            client: RwLock::new(made),
        })
    }

    /// Reads the kubeconfig again if the file has changed since; true if it is in force now. One that is refused changes
    /// nothing and is not read again.
    pub async fn reload(&self) -> Result<bool, KubeconfigError> {
        let now = changed(&self.path).await;
        {
            let mut made = self.client.write().unwrap_or_else(PoisonError::into_inner);
            if now == made.changed {
                return Ok(false);
            }
            made.changed = now;
        }
        let new = Made::of(&self.path).await?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(true)
    }

    async fn node(&self, name: &KubeNode) -> Result<Option<Node>, NodeError> {
        let client = {
            let made = self.client.read().unwrap_or_else(PoisonError::into_inner);
            made.client.clone()
        };
        let get = Request::new("/api/v1/nodes").get(name.as_str(), &GetParams::default())?;
        let answer = client.send(get.map(Body::from)).await?;
        match answer.status().as_u16() {
            200 => {}
            404 => return Ok(None),
            status => return Err(NodeError::Status(status)),
        }
        let body = Limited::new(answer.into_body(), NODE_MAX).collect().await;
        let body = body.map_err(NodeError::Body)?.to_bytes();
        Ok(Some(serde_json::from_slice(&body)?))
    }
}

impl Made {
    async fn of(path: &Path) -> Result<Self, KubeconfigError> {
        let changed = changed(path).await;
        let file = Kubeconfig::read_from(path)?;
        check(&file)?;
        let mut config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(ANSWER);
        config.write_timeout = Some(ANSWER);
        config.proxy_url = None;
        Ok(Self {
            client: Client::try_from(config)?,
            changed,
        })
    }
}

async fn changed(path: &Path) -> Option<SystemTime> {
    tokio::fs::metadata(path).await.ok()?.modified().ok()
}

/// A kubeconfig comes from where the tenant may have written: no programs, no detours, no blind trust, and no files of
/// ours, which would be sent to a server that it names.
fn check(file: &Kubeconfig) -> Result<(), KubeconfigError> {
    let users = file
        .auth_infos
        .iter()
        .filter_map(|user| user.auth_info.as_ref());
    let clusters = file
        .clusters
        .iter()
        .filter_map(|cluster| cluster.cluster.as_ref());
    let refused = users
        .filter_map(of_user)
        .chain(clusters.filter_map(of_cluster))
        .next();
    refused.map_or(Ok(()), |key| Err(KubeconfigError::Refused(key)))
}

fn of_user(user: &AuthInfo) -> Option<&'static str> {
    [
        ("exec", user.exec.is_some()),
        ("auth-provider", user.auth_provider.is_some()),
        ("tokenFile", user.token_file.is_some()),
        ("client-certificate", user.client_certificate.is_some()),
        ("client-key", user.client_key.is_some()),
    ]
    .into_iter()
    .find_map(|(key, there)| there.then_some(key))
}

fn of_cluster(cluster: &Cluster) -> Option<&'static str> {
    [
        ("proxy-url", cluster.proxy_url.is_some()),
        (
            "insecure-skip-tls-verify",
            cluster.insecure_skip_tls_verify == Some(true),
        ),
        (
            "certificate-authority",
            cluster.certificate_authority.is_some(),
        ),
    ]
    .into_iter()
    .find_map(|(key, there)| there.then_some(key))
}

impl std::fmt::Debug for TenantNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantNodes")
    }
}

impl NodeHints for TenantNodes {
    fn system_uuid<'a>(&'a self, name: &'a KubeNode) -> Hint<'a> {
        Box::pin(async move {
            let node = match tokio::time::timeout(ANSWER, self.node(name)).await {
                Ok(Ok(node)) => node?,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the tenant's API server does not tell the Node");
                    return None;
                }
                Err(_) => {
                    tracing::warn!("the tenant's API server does not answer");
                    return None;
                }
            };
            node.status?.node_info?.system_uuid.parse::<Uuid>().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const UUID: &str = "abcdef00-1111-2222-3333-444455556666";

    fn text(server: &str, cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster:\n    server: {server}\n{cluster}\
             users:\n- name: u\n  user:\n    username: t\n{user}"
        )
    }

    #[test]
    fn a_kubeconfig_that_runs_programs_takes_detours_or_names_files_is_refused() {
        for (refused, cluster, user) in [
            ("", "", ""),
            ("", "", "    token: t\n"),
            ("exec", "", "    exec:\n      command: /bin/sh\n"),
            (
                "auth-provider",
                "",
                "    auth-provider:\n      name: x\n      config: {}\n",
            ),
            ("proxy-url", "    proxy-url: http://127.0.0.1:1\n", ""),
            (
                "insecure-skip-tls-verify",
                "    insecure-skip-tls-verify: true\n",
                "",
            ),
            ("tokenFile", "", "    tokenFile: /etc/pve/token\n"),
            ("client-key", "", "    client-key: /etc/pve/key\n"),
            (
                "client-certificate",
                "",
                "    client-certificate: /etc/pve/certificate\n",
            ),
            (
                "certificate-authority",
                "    certificate-authority: /etc/pve/ca\n",
                "",
            ),
        ] {
            let file = Kubeconfig::from_yaml(&text("https://127.0.0.1:1", cluster, user)).unwrap();
            let expected = match refused {
                "" => String::new(),
                key => format!("kubeconfig: {key} is not accepted"),
            };
            let said = check(&file).map_or_else(|error| error.to_string(), |()| String::new());
            assert_eq!(said, expected);
        }
    }

    /// An API server that has this for every question.
    async fn server(node: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
                drop(stream.read(&mut [0; 4096]).await);
                // The other side may end it early.
                drop(stream.write_all(head.as_bytes()).await);
                drop(stream.write_all(node.as_bytes()).await);
            }
        });
        format!("http://{address}")
    }

    fn node(padding: usize) -> String {
        let info = [
            "architecture",
            "bootID",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
        ]
        .map(|key| format!("\"{key}\":\"\","))
        .concat();
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{{\"name\":\"{}\"}},\"status\":{{\"nodeInfo\":\
             {{{info}\"systemUUID\":\"{UUID}\"}}}}}}",
            "x".repeat(padding)
        )
    }

    #[tokio::test]
    async fn an_answer_larger_than_a_node_is_cut_off_and_a_changed_kubeconfig_leads_elsewhere() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let name: KubeNode = "worker-a".parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let write = async |node: String, second: u64| {
            std::fs::write(&path, text(&server(node).await, "", "")).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(time).unwrap();
        };
        write(node(NODE_MAX), 1).await;
        let nodes = TenantNodes::of_kubeconfig(&path).await.unwrap();
        assert_eq!(nodes.system_uuid(&name).await, None);
        assert!(!nodes.reload().await.unwrap());
        write(node(1000), 2).await;
        assert!(nodes.reload().await.unwrap());
        let expected = UUID.parse().unwrap();
        assert_eq!(nodes.system_uuid(&name).await, Some(expected));
    }

    #[tokio::test]
    async fn a_changed_kubeconfig_that_is_refused_changes_nothing() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let name: KubeNode = "worker-a".parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let server = server(node(0)).await;
        std::fs::write(&path, text(&server, "", "")).unwrap();
        let nodes = TenantNodes::of_kubeconfig(&path).await.unwrap();
        let file = "    tokenFile: /etc/pve/token\n";
        std::fs::write(&path, text(&server, "", file)).unwrap();
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        let opened = std::fs::File::options().write(true).open(&path).unwrap();
        opened.set_modified(later).unwrap();
        assert!(nodes.reload().await.is_err());
        assert!(!nodes.reload().await.unwrap(), "said once");
        assert!(nodes.system_uuid(&name).await.is_some());
    }
}
