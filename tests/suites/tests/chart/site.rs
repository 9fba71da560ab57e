//! A PVE cluster, an API server that is the management cluster's and the tenant's at once, a Node of each, and helm.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm;
use harness::cluster::{
    CloudProvider, ControlPlane, Kubelet, NodeSpec, Programs, RunDir, ServerOptions, eventually,
};
use harness::process::built;
use harness::requirements::peer;
use harness::world::{FILES, OWNER, POOL, REGION, SHARED, THIN, TOKEN, free_port, tenant, uuid};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::Api;
use kube::api::{ListParams, PostParams};
use pve_sim::{HardwareKind, SimHandle, Timing};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::helm::Half::{self, Management, Tenant};
use crate::helm::Helm;
use crate::server::SECURITY;

/// The VM that is the tenant's Node.
pub(crate) const VMID: u32 = 101;
/// For what takes Kubernetes some tries.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);
/// The images of this project and the programs that stand for them.
const OURS: [&str; 5] = [
    "pve-csi-controller",
    "pve-ccm",
    "pve-credentials",
    "pvectl",
    "pve-csi-node",
];
const SIDECARS: [&str; 3] = ["csi-provisioner", "csi-attacher", "csi-resizer"];

/// Dropped in this order: what holds mounts ends first, then the mounts go, then the disks.
pub(crate) struct Site {
    pub(crate) worker: Kubelet,
    pub(crate) management: Kubelet,
    pub(crate) plane: ControlPlane,
    pub(crate) sim: SimHandle,
    helm: Helm,
    run: RunDir,
    hardware: RunDir,
}

impl Site {
    /// Starts all but the release.
    pub(crate) async fn start(programs: &Programs, helm: Helm) -> Result<Self> {
        let (run, hardware) = (RunDir::new()?, RunDir::new()?);
        let run_dir = hardware.path().join("pve");
        let builder = ccm::granted(tenant(&[(VMID, "pve1")]))
            .timing(Timing::REAL)
            .hardware(HardwareKind::Loop { run_dir });
        let options = ServerOptions {
            pod_security: Some(SECURITY),
            pods_reach_it: true,
            audit: true,
        };
        let plane = ControlPlane::start_with(programs, run.path(), options).await?;
        let sim = builder.start().await?;
        let images = images()?;
        let node = |name: &str, system_uuid: String, cloud_provider| NodeSpec {
            name: name.to_owned(),
            system_uuid,
            cloud_provider,
            images: images.clone(),
        };
        let management = node("n2", uuid(102), CloudProvider::None);
        let worker = node("n1", uuid(VMID), CloudProvider::External);
        let (management, worker) = tokio::try_join!(
            Kubelet::start(&plane, &management),
            Kubelet::start(&plane, &worker)
        )?;
        Ok(Self {
            worker,
            management,
            plane,
            sim,
            helm,
            run,
            hardware,
        })
    }

    /// The namespace of the tenant in the management cluster, with the operator's Secrets and the tenant's kubeconfig.
    pub(crate) async fn write_secrets(&self) -> Result<()> {
        let client = self.plane.client();
        let namespace: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": "tenant-a" } }))?;
        Api::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        let kubeconfig = std::fs::read_to_string(self.plane.whole_admin_kubeconfig()?)?;
        let secrets: Api<Secret> = Api::namespaced(client, "tenant-a");
        for (name, data) in [
            ("tenant-a-pve-csi", self.operator("csi", TOKEN)),
            ("tenant-a-pve-ccm", self.operator("ccm", ccm::TOKEN)),
            (
                "tenant-a-admin-kubeconfig",
                json!({ "super-admin.svc": kubeconfig }),
            ),
        ] {
            // Its removal is that of the tenant.
            let asked = json!({ "pve-cloud/teardown": "true" });
            let meta = json!({ "name": name, "annotations": asked });
            let secret = json!({ "metadata": meta, "stringData": data });
            let secret = serde_json::from_value(secret)?;
            secrets.create(&PostParams::default(), &secret).await?;
        }
        Ok(())
    }

    fn operator(&self, purpose: &str, (id, secret): (&str, &str)) -> Value {
        let endpoints = self.sim.urls().iter();
        let endpoints: Vec<Value> = endpoints
            .map(|url| json!({ "url": url, "ca": self.sim.ca_pem() }))
            .collect();
        let region = json!({ "endpoints": endpoints, "token": { "id": id, "secret": secret } });
        let policy = json!({
            "pool": POOL, "storages": [FILES, THIN, SHARED], "nodes": ["pve1", "pve2"],
            "owners": { "default": OWNER }, "mode": "reserved",
        });
        json!({
            "use": purpose,
            "config.yaml": json!({ "provider": "capmox", "regions": { REGION: region } }).to_string(),
            "policy.yaml": json!({ "regions": { REGION: policy } }).to_string(),
        })
    }

    /// What a user would set, and what makes the Pods fit on this one machine, whose network they share.
    fn values(&self, half: Half) -> Result<Value> {
        let mut ports = [0; 4];
        for port in &mut ports {
            *port = free_port()?.port();
        }
        let [one, two, three, four] = ports;
        let hardware = self.hardware.path().join(format!("pve/vm-{VMID}"));
        let class = |name: &str| json!({ "name": name, "parameters": { "storage": name } });
        Ok(match half {
            Management => json!({
                "tenant": { "kubeconfigSecret": { "name": "tenant-a-admin-kubeconfig" } },
                "policy": { "provider": "capmox", "regions": [REGION] },
                "csi": { "secretName": "tenant-a-pve-csi" },
                "ccm": { "secretName": "tenant-a-pve-ccm", "pollPeriod": "5s" },
                "teardown": { "timeoutSeconds": 60, "keepSeconds": 1 },
                "admin": { "host": "127.0.0.1", "ports": {
                    "csiController": one, "csiCredentials": two, "ccm": three, "ccmCredentials": four,
                } },
                "nodeSelector": { "kubernetes.io/hostname": "n2" },
            }),
            Tenant => json!({
                "kubeletDir": self.worker.root(),
                "node": {
                    "adminHost": "127.0.0.1",
                    "adminPort": one,
                    "nodeSelector": { "kubernetes.io/hostname": "n1" },
                    "extraArgs": [
                        format!("--sys-root={}/sys", hardware.display()),
                        format!("--dev-root={}/dev", hardware.display()),
                    ],
                    "extraVolumes": [{ "name": "hardware", "hostPath": { "path": hardware } }],
                    "extraVolumeMounts": [{ "name": "hardware", "mountPath": hardware }],
                },
                "storageClasses": [class(FILES), class(THIN), class(SHARED)],
            }),
        })
    }

    /// `helm install`; a warning is an error.
    pub(crate) async fn install(&self, half: Half) -> Result<()> {
        let path = self.run.path().join(format!("{}.json", half.name()));
        std::fs::write(&path, self.values(half)?.to_string())?;
        let chart = half.folder().display().to_string();
        let values = format!("--values={}", path.display());
        let mut arguments = vec!["install", half.name(), &chart, &values];
        if half == Tenant {
            arguments.extend(["--create-namespace", "--take-ownership"]);
        }
        let said = self.helm(half, &arguments).await?;
        ensure!(said.is_empty(), "helm install {} said {said}", half.name());
        Ok(())
    }

    /// `helm uninstall`; how long it took.
    pub(crate) async fn uninstall(&self, half: Half) -> Result<()> {
        self.helm(half, &["uninstall", half.name(), "--timeout=5m"])
            .await?;
        Ok(())
    }

    async fn helm(&self, half: Half, arguments: &[&str]) -> Result<String> {
        let mut command = Command::from(self.helm.command());
        command
            .args(arguments)
            .arg(format!("--namespace={}", half.namespace()))
            .arg(format!(
                "--kubeconfig={}",
                self.plane.admin_kubeconfig().display()
            ));
        let Output { status, stderr, .. } = command.output().await?;
        let said = String::from_utf8(stderr)?;
        ensure!(status.success(), "helm {arguments:?}: {said}");
        Ok(said)
    }

    /// Names of what kubectl lists.
    pub(crate) async fn listed(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let output = Command::new(self.plane.programs().kubernetes())
            .args(["kubectl", "get", "--all-namespaces", "--output=name"])
            .arg(format!(
                "--kubeconfig={}",
                self.plane.admin_kubeconfig().display()
            ))
            .arg(format!("--cache-dir={}/kubectl", self.run.path().display()))
            .args(arguments)
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let names = String::from_utf8(output.stdout)?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Waits until all Pods of these components are ready.
    pub(crate) async fn wait_ready(&self, namespace: &str, components: &[&str]) -> Result<()> {
        for component in components {
            let what = format!("{component} ready");
            let outcome = eventually(&what, PATIENCE, async || {
                let pods = self.pods(namespace, component).await?;
                let ready = pods.iter().filter(|pod| is_ready(pod)).count();
                Ok((ready == 1 && pods.len() == 1).then_some(()))
            })
            .await;
            outcome.map(drop)?;
        }
        Ok(())
    }

    /// Fails if a container was started anew.
    pub(crate) async fn no_restarts(&self) -> Result<()> {
        for (namespace, component) in [
            ("tenant-a", "csi-controller"),
            ("tenant-a", "ccm"),
            ("pve-cloud", "csi-node"),
        ] {
            for pod in self.pods(namespace, component).await? {
                let status = pod.status.context("no status")?;
                let init = status.init_container_statuses.into_iter().flatten();
                for container in init.chain(status.container_statuses.into_iter().flatten()) {
                    let (name, count) = (container.name, container.restart_count);
                    ensure!(
                        count == 0,
                        "{name} of {component} was restarted {count} times"
                    );
                }
            }
        }
        Ok(())
    }

    async fn pods(&self, namespace: &str, component: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.plane.client(), namespace);
        let label = format!("app.kubernetes.io/component={component}");
        Ok(pods
            .list(&ListParams::default().labels(&label))
            .await?
            .items)
    }

    /// The end of what every container has said, for the reader of a failure.
    pub(crate) fn logs(&self) -> String {
        let mut text = String::new();
        for kubelet in [&self.management, &self.worker] {
            for log in files_below(&kubelet.root().join("pod-logs")) {
                let lines = std::fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = lines.lines().collect();
                let end = lines
                    .get(lines.len().saturating_sub(12)..)
                    .unwrap_or_default();
                text.extend([
                    "--- ",
                    &log.display().to_string(),
                    "\n",
                    &end.join("\n"),
                    "\n",
                ]);
            }
        }
        text
    }

    /// Ends everything after a test; if that failed, tells what the containers had to say.
    pub(crate) async fn finish(self, outcome: Result<()>) -> Result<()> {
        let outcome = outcome.map_err(|error| error.context(self.logs()));
        self.worker.stop().await?;
        self.management.stop().await?;
        self.plane.stop().await?;
        drop((self.run, self.sim));
        drop(self.hardware);
        outcome
    }
}

fn images() -> Result<Vec<(String, PathBuf)>> {
    let mut images = Vec::new();
    for name in OURS {
        images.push((format!("ghcr.io/pve-cloud/{name}"), built(name)?));
    }
    for name in SIDECARS {
        let program = peer("cluster", name).map_err(anyhow::Error::msg)?;
        images.push((format!("registry.k8s.io/sig-storage/{name}"), program));
    }
    Ok(images)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|one| one.type_ == "Ready" && one.status == "True")
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}
