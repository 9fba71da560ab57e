//! A kubelet for each worker.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::DeleteParams;
use kube::{Api, Client};

use super::control_plane::ControlPlane;
use crate::process::Process;
use crate::run_dir::unmount_below;

const READY: Duration = Duration::from_mins(1);

/// Who initialises the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudProvider {
    /// A cloud controller manager: until it has, only Pods that tolerate it are scheduled there.
    External,
    /// Nobody.
    None,
}

/// A worker as its kubelet knows it.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    /// Name of the Node: `n1` … `n4`.
    pub name: String,
    /// SMBIOS UUID of its VM.
    pub system_uuid: String,
    /// Who initialises it.
    pub cloud_provider: CloudProvider,
    /// Images, without tag, and the programs of this machine that stand for them.
    pub images: Vec<(String, PathBuf)>,
}

/// A running kubelet.
pub struct Kubelet {
    name: String,
    root: PathBuf,
    client: Client,
    process: Process,
}

impl std::fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubelet")
            .field("root", &self.root)
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl Kubelet {
    /// Starts it and waits until its Node is ready (and, if so, uninitialised).
    pub async fn start(plane: &ControlPlane, spec: &NodeSpec) -> Result<Self> {
        let root = plane.folder().join(&spec.name);
        let mut args = vec![
            "kubelet".to_owned(),
            format!(
                "--kubeconfig={}",
                plane.node_kubeconfig(&spec.name)?.display()
            ),
            format!("--hostname-override={}", spec.name),
            format!("--root-dir={}", root.display()),
            format!("--system-uuid={}", spec.system_uuid),
            "--v=2".to_owned(),
        ];
        if spec.cloud_provider == CloudProvider::External {
            args.push("--cloud-provider=external".to_owned());
        }
        let images = spec.images.iter();
        args.extend(images.map(|(image, file)| format!("--image={image}={}", file.display())));
        let process = Process::start(
            &format!("kubelet-{}", spec.name),
            &plane.programs().kubernetes(),
            &args,
            &plane.logs(),
        )?;
        let mut kubelet = Self {
            name: spec.name.clone(),
            root,
            client: plane.client(),
            process,
        };
        kubelet.wait_ready().await?;
        Ok(kubelet)
    }

    /// Name of the Node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kubelet's root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Where plugins announce themselves.
    pub fn registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }

    /// The node id under which `driver` is registered in the `CSINode`, if it is.
    pub async fn registered(&self, driver: &str) -> Result<Option<String>> {
        let nodes: Api<CSINode> = Api::all(self.client.clone());
        let entries = nodes
            .get_opt(&self.name)
            .await?
            .map(|node| node.spec.drivers)
            .unwrap_or_default();
        Ok(entries
            .into_iter()
            .find(|entry| entry.name == driver)
            .map(|entry| entry.node_id))
    }

    /// The Node object, if it is there.
    pub async fn node(&self) -> Result<Option<Node>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        Ok(nodes.get_opt(&self.name).await?)
    }

    /// Deletes the Node object; kubelet and VM go on.
    pub async fn delete_node(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// SIGTERM; the containers end with it. Mounts below its root stay, as with any kubelet, and are taken down here.
    pub async fn stop(self) -> Result<()> {
        self.process.stop().await?;
        unmount_below(&self.root);
        Ok(())
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let name = self.name.clone();
        self.process
            .ready(READY, async || {
                let node = nodes.get_opt(&name).await;
                node.is_ok_and(|node| node.is_some_and(|node| is_ready(&node)))
            })
            .await
    }
}

fn is_ready(node: &Node) -> bool {
    node.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
