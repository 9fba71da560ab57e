//! The tenant's API server: asked only for the UUID behind a Node name of the former driver, and never believed.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use pve_model::{KubeNode, Uuid};

use crate::guests::{Hint, NodeHints};

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);

/// Reads Nodes of the tenant cluster.
#[derive(Clone)]
pub struct TenantNodes {
    client: Client,
}

/// A kubeconfig that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// It can't be read.
    #[error("kubeconfig: {0}")]
    Read(#[from] kube::config::KubeconfigError),
    /// It would let the tenant run programs or redirect us.
    #[error("kubeconfig: {0} is not accepted")]
    Refused(&'static str),
    /// No client can be made of it.
    #[error("kubeconfig: {0}")]
    Client(#[from] kube::Error),
}

impl TenantNodes {
    /// Reads a kubeconfig. Nothing is sent.
    pub async fn of_kubeconfig(path: &Path) -> Result<Self, KubeconfigError> {
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
        })
    }
}

/// A kubeconfig comes from where the tenant may have written: no programs, no detours, no blind trust.
fn check(file: &Kubeconfig) -> Result<(), KubeconfigError> {
    let users = file
        .auth_infos
        .iter()
        .filter_map(|user| user.auth_info.as_ref());
    let clusters = file
        .clusters
        .iter()
        .filter_map(|cluster| cluster.cluster.as_ref());
    let runs = |user: &AuthInfo| user.exec.is_some();
    let provider = |user: &AuthInfo| user.auth_provider.is_some();
    if users.clone().any(runs) {
        return Err(KubeconfigError::Refused("exec"));
    }
    if users.clone().any(provider) {
        return Err(KubeconfigError::Refused("auth-provider"));
    }
    if clusters.clone().any(|cluster| cluster.proxy_url.is_some()) {
        return Err(KubeconfigError::Refused("proxy-url"));
    }
    if clusters
        .clone()
        .any(|cluster| cluster.insecure_skip_tls_verify == Some(true))
    {
        return Err(KubeconfigError::Refused("insecure-skip-tls-verify"));
    }
    Ok(())
}

impl std::fmt::Debug for TenantNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantNodes")
    }
}

impl NodeHints for TenantNodes {
    fn system_uuid<'a>(&'a self, name: &'a KubeNode) -> Hint<'a> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        Box::pin(async move {
            let found = tokio::time::timeout(ANSWER, nodes.get_opt(name.as_str())).await;
            let node = match found {
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

    fn kubeconfig(cluster: &str, user: &str) -> Kubeconfig {
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: https://127.0.0.1:1\n{cluster}\
             users:\n- name: u\n  user:\n    token: t\n{user}"
        );
        Kubeconfig::from_yaml(&text).unwrap()
    }

    #[test]
    fn a_kubeconfig_that_runs_programs_or_takes_detours_is_refused() {
        for (sentence, cluster, user, ok) in [
            ("a plain one", "", "", true),
            (
                "a program",
                "",
                "    exec:\n      command: /bin/sh\n",
                false,
            ),
            (
                "an auth provider",
                "",
                "    auth-provider:\n      name: x\n      config: {}\n",
                false,
            ),
            ("a proxy", "    proxy-url: http://127.0.0.1:1\n", "", false),
            (
                "no check of certificates",
                "    insecure-skip-tls-verify: true\n",
                "",
                false,
            ),
        ] {
            assert_eq!(check(&kubeconfig(cluster, user)).is_ok(), ok, "{sentence}");
        }
    }
}
