//! csi-provisioner, csi-attacher and csi-resizer beside the controller, each with the rights of its own service account.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::control_plane::ControlPlane;
use super::objects::{ATTACHER, NAMESPACE, PROVISIONER, RESIZER};
use crate::process::Process;

const COMMON: [&str; 2] = ["--timeout=3m", "--leader-election=false"];
const PROVISIONER_FLAGS: [&str; 6] = [
    "--worker-threads=10",
    "--strict-topology",
    "--default-fstype=ext4",
    "--extra-create-metadata",
    "--enable-capacity",
    "--capacity-ownerref-level=-1",
];
const ATTACHER_FLAGS: [&str; 1] = ["--default-fstype=ext4"];
const RESIZER_FLAGS: [&str; 1] = ["--handle-volume-inuse-error=false"];

/// The flags that decide how a sidecar works, without those that say where socket and API server are.
pub fn sidecar_flags(name: &str) -> impl Iterator<Item = &'static str> {
    let own: &[&'static str] = match name {
        PROVISIONER => &PROVISIONER_FLAGS,
        ATTACHER => &ATTACHER_FLAGS,
        RESIZER => &RESIZER_FLAGS,
        _ => &[],
    };
    COMMON.iter().chain(own).copied()
}

/// The running sidecars. Dropped, they are killed.
#[derive(Debug)]
pub struct Sidecars {
    processes: Vec<(&'static str, Process)>,
}

impl Sidecars {
    /// Starts them on the controller's socket. The objects of [`super::objects::install`] must be there.
    pub async fn start(plane: &ControlPlane, socket: &Path) -> Result<Self> {
        let mut processes = Vec::new();
        for name in [PROVISIONER, ATTACHER, RESIZER] {
            let kubeconfig = account_kubeconfig(plane, name).await?;
            let mut args = vec![
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--csi-address={}", socket.display()),
                "--v=2".to_owned(),
            ];
            args.extend(sidecar_flags(name).map(str::to_owned));
            let program = plane.programs().sidecar(name);
            let env = [("NAMESPACE", NAMESPACE.to_owned())];
            let logs = plane.logs();
            let process = Process::start_with_env(name, &program, &args, &env, &logs)?;
            processes.push((name, process));
        }
        Ok(Self { processes })
    }

    /// Names of those that have ended. None should: a sidecar that exits is a restart of the controller's Pod.
    pub fn ended(&mut self) -> Result<Vec<&'static str>> {
        let mut names = Vec::new();
        for (name, process) in &mut self.processes {
            if process.ended()?.is_some() {
                names.push(*name);
            }
        }
        Ok(names)
    }

    /// Name and log of each.
    pub fn logs(&self) -> Vec<(String, String)> {
        self.processes
            .iter()
            .map(|(name, process)| ((*name).to_owned(), process.log()))
            .collect()
    }

    /// SIGTERM to each.
    pub async fn stop(mut self) -> Result<()> {
        self.end().await
    }

    /// As [`Sidecars::stop`]; none is left afterwards.
    pub async fn end(&mut self) -> Result<()> {
        for (_, process) in self.processes.drain(..) {
            process.stop().await?;
        }
        Ok(())
    }
}

/// Path of a kubeconfig with a token of a service account of [`NAMESPACE`].
pub(super) async fn account_kubeconfig(plane: &ControlPlane, account: &str) -> Result<PathBuf> {
    let token = account_token(plane, account).await?;
    plane.token_kubeconfig(account, &token)
}

/// A token of a service account of [`NAMESPACE`].
pub(crate) async fn account_token(plane: &ControlPlane, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.client(), NAMESPACE);
    let request: TokenRequest =
        serde_json::from_value(json!({ "spec": { "audiences": [], "expirationSeconds": 7200 } }))?;
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .with_context(|| format!("token of {account}"))?;
    let status = answer.status.context("a token request without an answer")?;
    Ok(status.token)
}
