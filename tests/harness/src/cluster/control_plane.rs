//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::api_server::{Access, ServerOptions};
use super::client_authority::{self, ClientAuthority, ClientCertificate};
use super::kubeconfig::{self, User};
use super::pki::Pki;
use super::requirements::Programs;
use super::wait::eventually;
use crate::process::Process;

/// How long a part of the control plane has to come up on a busy machine.
const READY: Duration = Duration::from_secs(90);

/// Nodes that the token file knows: `n1` … `n4`.
pub(super) const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// A running control plane. Dropped, its programs are killed.
pub struct ControlPlane {
    programs: Programs,
    folder: PathBuf,
    server: String,
    pki: Pki,
    client: Client,
    processes: Vec<Process>,
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlPlane")
            .field("folder", &self.folder)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl ControlPlane {
    /// Starts it below `folder` (absolute, short), and waits until service accounts are made: then all of it works.
    pub async fn start(programs: &Programs, folder: &Path) -> Result<Self> {
        Self::start_with(programs, folder, ServerOptions::default()).await
    }

    /// As [`ControlPlane::start`], the API server otherwise than usual.
    pub async fn start_with(
        programs: &Programs,
        folder: &Path,
        options: ServerOptions,
    ) -> Result<Self> {
        let mut plane = Self::start_server_with(programs, folder, options).await?;
        plane.run_controllers()?;
        plane.wait_controllers().await?;
        Ok(plane)
    }

    /// Starts etcd and the API server alone: Nodes stay as they are written, no controller looks after them.
    pub async fn start_server(programs: &Programs, folder: &Path) -> Result<Self> {
        Self::start_server_with(programs, folder, ServerOptions::default()).await
    }

    /// As [`ControlPlane::start_server`], the API server otherwise than usual.
    pub async fn start_server_with(
        programs: &Programs,
        folder: &Path,
        options: ServerOptions,
    ) -> Result<Self> {
        if rustls::crypto::ring::default_provider()
            .install_default()
            .is_err()
        {
            tracing::debug!("a TLS provider is installed already");
        }
        let [etcd, peer, free] = free_ports()?;
        let access = Access::new(options.pods_reach_it, free);
        let pki = Pki::create(&folder.join("pki"), access.service)?;
        let server = format!("https://{}:{}", access.address, access.port);
        let users: Vec<User> = [
            User::admin(),
            User::component("kube-controller-manager"),
            User::component("kube-scheduler"),
        ]
        .into_iter()
        .chain(NODES.map(User::node))
        .collect();
        kubeconfig::write_tokens(&folder.join("pki/tokens.csv"), &users)?;
        let admin = write_kubeconfig(folder, &server, &pki, "admin", &User::admin())?;
        let client = client_of(&admin).await?;
        let mut plane = Self {
            programs: programs.clone(),
            folder: folder.to_owned(),
            server,
            pki,
            client,
            processes: Vec::new(),
        };
        plane.run("etcd", &etcd_flags(folder, etcd, peer))?;
        let mut flags = plane.server_flags(etcd, &access);
        flags.extend(options.flags(&folder.join("pki"), &plane.audit_log())?);
        plane.run("kube-apiserver", &flags)?;
        plane.wait_ready().await?;
        Ok(plane)
    }

    /// An administrator's client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Path of the administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.folder.join("pki/admin.kubeconfig")
    }

    /// Path of the administrator's kubeconfig that names no other file.
    pub fn whole_admin_kubeconfig(&self) -> Result<PathBuf> {
        self.whole_kubeconfig("admin-whole", &User::admin().token())
    }

    /// Path of a kubeconfig with the credentials of the kubelet of `node`.
    pub fn node_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        write_kubeconfig(
            &self.folder,
            &self.server,
            &self.pki,
            node,
            &User::node(node),
        )
    }

    /// Path of a kubeconfig with any token, as `<name>.kubeconfig`.
    pub(super) fn token_kubeconfig(&self, name: &str, token: &str) -> Result<PathBuf> {
        kubeconfig::write(
            &self.folder.join("pki"),
            name,
            &self.server,
            &self.pki.ca,
            token,
        )
    }

    /// Path of a kubeconfig that holds all that it needs, as `<name>.kubeconfig`: one that names files is not accepted by
    /// those who take it for the tenant's.
    pub(crate) fn whole_kubeconfig(&self, name: &str, token: &str) -> Result<PathBuf> {
        kubeconfig::write_whole(
            &self.folder.join("pki"),
            name,
            &self.server,
            &self.pki.ca,
            token,
        )
    }

    /// From now on the API server accepts clients of these authorities and of no others, once it has seen the file.
    pub fn accept_clients_of(&self, authorities: &[&ClientAuthority]) -> Result<()> {
        let all: String = authorities.iter().map(|one| one.pem()).collect();
        let new = self.pki.clients.with_extension("new");
        std::fs::write(&new, all)?;
        Ok(std::fs::rename(new, &self.pki.clients)?)
    }

    /// The text of a kubeconfig with a client certificate, all in itself, as the makers of control planes write it.
    pub fn certificate_kubeconfig(&self, client: &ClientCertificate) -> Result<String> {
        client_authority::kubeconfig(&self.server, &self.pki.ca, client)
    }

    /// The programs it was started from.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Where everything that belongs to the run may put its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the programs write their logs.
    pub fn logs(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Where the API server writes who asked for what, a JSON object per line, if it was asked to.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    /// Kills all of it: the data is thrown away, a graceful end would only take time.
    pub async fn stop(self) -> Result<()> {
        for process in self.processes.into_iter().rev() {
            process.kill().await?;
        }
        Ok(())
    }

    fn run(&mut self, applet: &str, flags: &[String]) -> Result<()> {
        let args: Vec<&str> = std::iter::once(applet)
            .chain(flags.iter().map(String::as_str))
            .collect();
        let process = Process::start(applet, &self.programs.kubernetes(), &args, &self.logs())?;
        self.processes.push(process);
        Ok(())
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let client = self.client.clone();
        let server = self.processes.last_mut().context("no server was started")?;
        server.ready(READY, async || ready(&client).await).await
    }

    fn run_controllers(&mut self) -> Result<()> {
        let manager = User::component("kube-controller-manager");
        let scheduler = User::component("kube-scheduler");
        let path = write_kubeconfig(&self.folder, &self.server, &self.pki, "kcm", &manager)?;
        self.run("kube-controller-manager", &self.manager_flags(&path))?;
        let path = write_kubeconfig(&self.folder, &self.server, &self.pki, "sched", &scheduler)?;
        let flags = [
            format!("--kubeconfig={}", path.display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--profiling=false".to_owned(),
        ];
        self.run("kube-scheduler", &flags)
    }

    async fn wait_controllers(&mut self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
        eventually("the default service account", READY, async || {
            Ok(accounts.get_opt("default").await?)
        })
        .await?;
        for process in &mut self.processes {
            anyhow::ensure!(process.ended()?.is_none(), "{process:?} has ended");
        }
        Ok(())
    }

    fn server_flags(&self, etcd: u16, access: &Access) -> Vec<String> {
        let pki = &self.pki;
        vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            format!("--bind-address={}", access.address),
            format!("--advertise-address={}", access.address),
            format!("--secure-port={}", access.port),
            // A loopback address may not be an endpoint of the service `kubernetes`.
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--service-cluster-ip-range={}", access.services),
            format!("--tls-cert-file={}", pki.serving.display()),
            format!("--tls-private-key-file={}", pki.serving_key.display()),
            format!("--client-ca-file={}", pki.clients.display()),
            format!("--token-auth-file={}/pki/tokens.csv", self.folder.display()),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", pki.accounts.display()),
            format!(
                "--service-account-signing-key-file={}",
                pki.accounts_key.display()
            ),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--profiling=false".to_owned(),
            "--enable-priority-and-fairness=false".to_owned(),
        ]
    }

    fn manager_flags(&self, kubeconfig: &Path) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--profiling=false".to_owned(),
            // As the one user of its kubeconfig it would be forbidden most of what its controllers do.
            "--use-service-account-credentials=true".to_owned(),
            format!(
                "--service-account-private-key-file={}",
                self.pki.accounts_key.display()
            ),
            format!("--root-ca-file={}", self.pki.ca.display()),
            "--pvclaimbinder-sync-period=2s".to_owned(),
            "--attach-detach-reconcile-sync-period=5s".to_owned(),
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
        ]
    }
}

async fn ready(client: &Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    client.request_text(request).await.is_ok()
}

fn etcd_flags(folder: &Path, client: u16, peer: u16) -> Vec<String> {
    let client = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    vec![
        "--name=e".to_owned(),
        format!("--data-dir={}/etcd", folder.display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=e={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

fn write_kubeconfig(
    folder: &Path,
    server: &str,
    pki: &Pki,
    name: &str,
    user: &User,
) -> Result<PathBuf> {
    kubeconfig::write(&folder.join("pki"), name, server, &pki.ca, &user.token())
}

async fn client_of(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Ports below the range from which the kernel takes those of outgoing connections (32768, ip(7)): only a server may come in between.
/// Each call begins elsewhere: what one call found is not listened on yet when another looks, in this process or the next.
fn free_ports() -> Result<[u16; 3]> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let mut held = Vec::new();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let place = std::process::id()
        .wrapping_mul(64)
        .wrapping_add(call.wrapping_mul(4));
    let start = 12_000 + u16::try_from(place % 18_000)?;
    for port in (start..32_000).chain(12_000..start) {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            held.push(listener);
        }
        if let [one, two, three] = held.as_slice() {
            return Ok([
                one.local_addr()?.port(),
                two.local_addr()?.port(),
                three.local_addr()?.port(),
            ]);
        }
    }
    anyhow::bail!("no free ports on 127.0.0.1")
}
