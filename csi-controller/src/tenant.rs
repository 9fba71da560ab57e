//! The tenant's API server: asked only for the UUID behind a Node name of the former driver, and never believed.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::GetParams;
use kube::core::Request;
use pve_kube::{RequestError, Tenant};
use pve_model::{KubeNode, Uuid};

use crate::guests::{Hint, NodeHints};

const ANSWER: Duration = Duration::from_secs(10);
/// Most of a Node that is read. etcd takes objects of 1.5 MiB; those of kubelets have some KiB.
const NODE_MAX: usize = 1 << 20;

/// Reads Nodes of the tenant cluster.
#[derive(Debug)]
pub struct TenantNodes(Tenant);

impl TenantNodes {
    /// Asks with the client that is in force.
    pub fn new(tenant: Tenant) -> Self {
        Self(tenant)
    }

    async fn node(&self, name: &KubeNode) -> Result<Option<Node>, RequestError> {
        let get = Request::new("/api/v1/nodes").get(name.as_str(), &GetParams::default())?;
        match pve_kube::answer(&self.0.client(), get, NODE_MAX, ANSWER).await {
            Ok(node) => Ok(Some(node)),
            Err(RequestError::Status(404)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl NodeHints for TenantNodes {
    fn system_uuid<'a>(&'a self, name: &'a KubeNode) -> Hint<'a> {
        Box::pin(async move {
            let node = match self.node(name).await {
                Ok(node) => node?,
                Err(error) => {
                    tracing::warn!(%error, "the tenant's API server does not tell the Node");
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

    fn text(server: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
             clusters:\n- name: c\n  cluster:\n    server: {server}\nusers:\n- name: u\n  user:\n    username: t\n"
        )
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
        let write = async |node: String| {
            std::fs::write(&path, text(&server(node).await)).unwrap();
        };
        write(node(NODE_MAX)).await;
        let tenant = Tenant::of_kubeconfig(&path).await.unwrap();
        let nodes = TenantNodes::new(tenant.clone());
        assert_eq!(nodes.system_uuid(&name).await, None);
        write(node(1000)).await;
        assert!(tenant.reload().await.unwrap());
        let expected = UUID.parse().unwrap();
        assert_eq!(nodes.system_uuid(&name).await, Some(expected));
    }
}
