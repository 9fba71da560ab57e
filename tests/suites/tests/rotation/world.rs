//! A tenant's API server, a PVE cluster, and both drivers with their loaders between them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use harness::ccm::operator::administered;
use harness::ccm::{CcmWorld, PRIVILEGES, ROLE, admin_page};
use harness::cluster::objects::{CCM, NAMESPACE};
use harness::cluster::{ClientAuthority, ControlPlane, Programs};
use harness::world::{FILES, OWNER, POOL, REGION, SHARED, THIN, tenant};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use pve_sim::{SimHandle, Timing, TokenGrant};
use serde_json::{Value, json};

use crate::side::Side;

const PATIENCE: Duration = Duration::from_mins(1);
/// Who the CSI controller acts as in the tenant.
const CONTROLLER: &str = "csi-controller";

/// VMs of the tenant with their PVE nodes. The last one is for Nodes that come and go.
pub(crate) const VMS: [(u32, &str); 4] =
    [(101, "pve1"), (102, "pve2"), (103, "pve1"), (104, "pve2")];

/// The tokens of both drivers: id and secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokens {
    pub(crate) csi: (&'static str, &'static str),
    pub(crate) ccm: (&'static str, &'static str),
}

pub(crate) const OLD: Tokens = Tokens {
    csi: harness::world::TOKEN,
    ccm: harness::ccm::TOKEN,
};
pub(crate) const NEW: Tokens = Tokens {
    csi: ("csi@pve!rotated", "91c7c9e2-6a41-4b7d-8f50-3d2b7a60e4f5"),
    ccm: ("ccm@pve!rotated", "c04b1f6e-2f0d-4c8b-b3aa-70d9e5a1c693"),
};

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) csi: Side,
    pub(crate) ccm: Side,
    /// What the endpoint's certificate is of, in the beginning.
    pub(crate) ca: String,
    pub(crate) authorities: [ClientAuthority; 2],
    /// All kubeconfigs' keys that there were.
    pub(crate) keys: Vec<String>,
    cluster: CcmWorld,
}

impl World {
    pub(crate) async fn start(programs: &Programs) -> Result<Self> {
        let cluster = CcmWorld::start(programs, pve()).await?;
        let run = cluster.folder().to_owned();
        let mut world = Self {
            csi: Side::new("csi", &run)?,
            ccm: Side::new("ccm", &run)?,
            ca: cluster.sim().ca_pem().to_owned(),
            authorities: [
                ClientAuthority::new("first clients")?,
                ClientAuthority::new("second clients")?,
            ],
            keys: Vec::new(),
            cluster,
        };
        let kubeconfig = world.kubeconfig_of(0)?;
        let [first, _] = &world.authorities;
        world.plane().accept_clients_of(&[first])?;
        crate::accepted(&world, &kubeconfig).await?;
        world.grant_controller().await?;
        for (vmid, _) in VMS.into_iter().take(3) {
            let name = format!("worker-{vmid}");
            world.cluster.register(&name, vmid).await?;
        }
        let ca = world.ca.clone();
        world.give_out(&OLD, &ca)?;
        world.start_sides(&kubeconfig).await?;
        Ok(world)
    }

    async fn start_sides(&mut self, kubeconfig: &str) -> Result<()> {
        let who = |name: &str, account: &str| {
            format!("{name}=system:serviceaccount:{NAMESPACE}:{account}")
        };
        self.csi
            .load(&who("csi-controller", CONTROLLER), kubeconfig)
            .await?;
        self.ccm.load(&who("ccm", CCM), kubeconfig).await?;
        let socket = format!("--csi-address=unix://{}", self.socket().display());
        let csi = self
            .csi
            .drive("pve-csi-controller", "csi-controller", &[socket])?;
        let ccm = self
            .ccm
            .drive("pve-ccm", "ccm", &["--poll-period=1s".to_owned()])?;
        for (side, admin) in [(&mut self.csi, csi), (&mut self.ccm, ccm)] {
            let Some(process) = side.driver() else {
                continue;
            };
            process
                .ready(PATIENCE, async || {
                    let page = admin_page(admin, "/readyz").await;
                    page.is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
                })
                .await?;
        }
        Ok(())
    }

    /// The CSI controller reads Nodes by their names, and nothing else.
    async fn grant_controller(&self) -> Result<()> {
        let params = PostParams::default();
        let rules = json!([{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] }]);
        let meta = json!({ "name": CONTROLLER });
        let role: ClusterRole =
            serde_json::from_value(json!({ "metadata": meta, "rules": rules }))?;
        let subject =
            json!({ "kind": "ServiceAccount", "name": CONTROLLER, "namespace": NAMESPACE });
        let role_ref = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CONTROLLER });
        let binding: ClusterRoleBinding = serde_json::from_value(
            json!({ "metadata": meta, "roleRef": role_ref, "subjects": [subject] }),
        )?;
        let client = self.cluster.client();
        Api::all(client.clone()).create(&params, &role).await?;
        Api::all(client).create(&params, &binding).await?;
        Ok(())
    }

    pub(crate) fn sim(&self) -> &SimHandle {
        self.cluster.sim()
    }

    pub(crate) fn plane(&self) -> &ControlPlane {
        self.cluster.plane()
    }

    pub(crate) fn cluster(&self) -> &CcmWorld {
        &self.cluster
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.cluster.folder().join("csi.sock")
    }

    pub(crate) fn sides(&self) -> [&Side; 2] {
        [&self.csi, &self.ccm]
    }

    /// The kubeconfig of an administrator who acts as others.
    pub(crate) fn kubeconfig_of(&mut self, authority: usize) -> Result<String> {
        let authority = &self.authorities[authority];
        let client = authority.certificate("super-admin", "system:masters")?;
        self.keys.push(client.key.clone());
        self.cluster.plane().certificate_kubeconfig(&client)
    }

    /// The operator changes both Secrets: single keys for the one, a whole config for the other.
    pub(crate) fn give_out(&mut self, tokens: &Tokens, ca: &str) -> Result<()> {
        let (url, policy) = (self.sim().url().to_owned(), policy().to_string());
        let (id, secret) = tokens.csi;
        self.csi.secret.update(&[
            ("use", "csi\n"),
            ("policy.yaml", &policy),
            ("url", &url),
            ("region", REGION),
            ("token_id", id),
            ("token_secret", secret),
            ("ca.crt", ca),
            ("provider", "capmox"),
        ])?;
        let (id, secret) = tokens.ccm;
        let region = json!({
            "endpoints": [{ "url": url, "ca": ca }], "token": { "id": id, "secret": secret },
        });
        let config = json!({ "provider": "capmox", "regions": { REGION: region } });
        self.ccm.secret.update(&[
            ("use", "ccm"),
            ("policy.yaml", &policy),
            ("config.yaml", &config.to_string()),
        ])
    }

    pub(crate) fn give_out_kubeconfig(&mut self, text: &str) -> Result<()> {
        self.csi.set_kubeconfig(text)?;
        self.ccm.set_kubeconfig(text)
    }

    pub(crate) async fn new_configs(&self, before: [usize; 2]) -> Result<()> {
        for (side, before) in self.sides().into_iter().zip(before) {
            side.new_config(before).await?;
        }
        Ok(())
    }

    pub(crate) async fn new_kubeconfigs(&self, before: [usize; 2]) -> Result<()> {
        for (side, before) in self.sides().into_iter().zip(before) {
            side.new_kubeconfig(before).await?;
        }
        Ok(())
    }

    pub(crate) fn requests_with_status(&self, status: u16) -> usize {
        let requests = self.sim().requests();
        requests.iter().filter(|one| one.status == status).count()
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.csi.stop().await?;
        self.ccm.stop().await?;
        self.cluster.stop().await
    }
}

/// A PVE cluster that takes as long as a real one, with old and new tokens of the same rights.
fn pve() -> pve_sim::Builder {
    let roles = |roles: &[(String, &str)]| -> Vec<(String, String)> {
        roles
            .iter()
            .map(|(path, role)| (path.clone(), (*role).to_owned()))
            .collect()
    };
    let pool = format!("/pool/{POOL}");
    let csi: Vec<(String, &str)> = [FILES, THIN, SHARED]
        .map(|storage| (format!("/storage/{storage}"), "TenantStorage"))
        .into_iter()
        .chain([(pool.clone(), "TenantPool")])
        .collect();
    let ccm = [(pool, ROLE)];
    let grant = |(id, secret): (&str, &str), granted: &[(String, &str)]| TokenGrant {
        id: id.to_owned(),
        secret: secret.to_owned(),
        privsep: true,
        roles: roles(granted),
    };
    let builder = administered(tenant(&VMS)).role(ROLE, &PRIVILEGES);
    [
        grant(NEW.csi, &csi),
        grant(OLD.ccm, &ccm),
        grant(NEW.ccm, &ccm),
    ]
    .into_iter()
    .fold(builder, pve_sim::Builder::token)
    .timing(Timing::HOST)
}

fn policy() -> Value {
    let region = json!({
        "pool": POOL,
        "storages": [FILES, THIN, SHARED],
        "nodes": ["pve1", "pve2"],
        "owners": { "default": OWNER },
        "mode": "reserved",
    });
    json!({ "regions": { REGION: region } })
}
