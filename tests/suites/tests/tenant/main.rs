//! `pvectl tenant` as a real program on a simulated PVE cluster: from nothing to controllers that work with the tokens that
//! it made, and back to nothing.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy does not take the helpers of tests for tests"
)]

mod life;
mod partial;
mod refused;
mod remove;
mod setup;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use harness::process::built;
use harness::run_dir::RunDir;
use harness::world::{FILES, REGION, SHARED, THIN};
use pve_sim::{Builder, Sim, SimHandle, State, StorageOptions, Volume};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The password of `root@pam`, which no output may hold.
const PASSWORD: &str = "root-pass word-91f3";
/// The pool of the tenant in these tests.
const POOL: &str = "blue";
/// What its Secrets are called.
const SECRETS: [&str; 2] = ["blue-pve-csi", "blue-pve-ccm"];
/// The user that is its own unless another is named.
const USER: &str = "pve-cloud-tenants.blue@pve";

/// A PVE cluster that knows no tenant: two hosts, three storages, and a VM that is none of the tenant's.
fn empty() -> Builder {
    let local = StorageOptions::default();
    let shared = StorageOptions {
        shared: true,
        ..local
    };
    Sim::builder()
        .node("pve1")
        .node("pve2")
        .storage_dir(FILES, local)
        .storage_lvmthin(THIN, local)
        .storage_dir(SHARED, shared)
        .vm(100, "pve1", "elsewhere")
}

/// The simulator, and a folder in which the operator works.
struct Desk {
    sim: SimHandle,
    folder: RunDir,
}

/// What a run of `pvectl` said.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn done(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Fails unless it was refused with these words.
    fn refused(&self, words: &str) {
        assert_eq!(self.code, 64, "{self:?}");
        assert!(self.err.contains(words), "{words:?} is not in {self:?}");
    }
}

impl Desk {
    async fn new(builder: Builder) -> Self {
        Self::around(builder.start().await.unwrap())
    }

    fn around(sim: SimHandle) -> Self {
        sim.edit(|state| {
            let root = state.users.entry("root@pam".to_owned()).or_default();
            root.password = Some(PASSWORD.to_owned());
        });
        let desk = Self {
            sim,
            folder: RunDir::new().unwrap(),
        };
        desk.file("ca.pem", desk.sim.ca_pem());
        desk.file("password", PASSWORD);
        desk
    }

    /// A disk appears.
    fn put(&self, storage: &str, host: Option<&str>, name: &str) {
        let volume = Volume {
            storage: storage.to_owned(),
            node: host.map(str::to_owned),
            name: name.to_owned(),
            size: 1 << 20,
            format: "raw".to_owned(),
            ctime: 0,
        };
        self.sim.edit(|state| state.volumes.push(volume));
    }

    /// Writes a file; where it is.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `pvectl tenant` with these words; blanks divide them.
    async fn run(&self, line: &str, stdin: &str) -> Said {
        let words = line.split_whitespace();
        let mut child = Command::new(built("pvectl").unwrap())
            .arg("tenant")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // A program that was refused earlier does not read it.
        drop(pipe.write_all(stdin.as_bytes()).await);
        drop(pipe);
        let output = child.wait_with_output().await.unwrap();
        let said = Said {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!format!("{said:?}").contains(PASSWORD), "{said:?}");
        said
    }

    /// How the tenant is named, without what is done.
    fn whose(&self) -> String {
        let (url, ca) = (self.sim.url(), self.path("ca.pem"));
        format!(
            "--namespace tenants --release blue --region {REGION} --endpoint {url} --ca-file {} --pool {POOL} --storage {FILES} \
             --storage {THIN} --storage {SHARED} --node pve1 --node pve2 --provider capmox",
            ca.display()
        )
    }

    /// The same as root, by password, with the Secrets in `secrets`.
    fn all(&self) -> String {
        let (password, out) = (self.path("password"), self.path("secrets"));
        format!(
            "{} --apply --admin-password-file {} --out {}",
            self.whose(),
            password.display(),
            out.display()
        )
    }

    /// Sets the tenant up, with more words.
    async fn apply(&self, more: &str) -> Said {
        let said = self.run(&format!("{} {more}", self.all()), "").await;
        self.tells_no_secret(&format!("{said:?}"));
        said
    }

    /// Fails if a token's secret is in the text.
    fn tells_no_secret(&self, text: &str) {
        for (id, secret) in self.secrets() {
            assert!(!text.contains(&secret), "the secret of {id} is in {text}");
        }
    }

    /// The secret of each token of the PVE cluster.
    fn secrets(&self) -> BTreeMap<String, String> {
        let state = self.sim.state();
        let tokens = state.users.iter().flat_map(|(user, account)| {
            let tokens = account.tokens.iter();
            tokens.map(move |(name, token)| (format!("{user}!{name}"), token.secret.clone()))
        });
        tokens.collect()
    }

    /// The tenant's VMs come into its pool, as Cluster API puts them there.
    fn add_workers(&self) {
        self.sim.edit(|state| {
            state.pools.get_mut(POOL).unwrap().vms.extend([101, 102]);
        });
    }

    /// `config.yaml` and `policy.yaml` of a Secret that was written, beside each other in a folder of that name; where
    /// the config is.
    fn unpack(&self, secret: &str) -> PathBuf {
        let data = secret_in(&self.path("secrets"), secret);
        let folder = self.path(secret);
        std::fs::create_dir_all(&folder).unwrap();
        for key in ["config.yaml", "policy.yaml"] {
            std::fs::write(folder.join(key), data["stringData"][key].as_str().unwrap()).unwrap();
        }
        folder.join("config.yaml")
    }
}

/// A Secret that was written to a folder.
fn secret_in(folder: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// What of the PVE cluster the verb may change, without the secrets.
fn rights(state: &State) -> Value {
    let mut users = serde_json::to_value(&state.users).unwrap();
    for user in users.as_object_mut().unwrap().values_mut() {
        let tokens = user.get_mut("tokens").and_then(Value::as_object_mut);
        for token in tokens.into_iter().flat_map(|tokens| tokens.values_mut()) {
            token.as_object_mut().unwrap().remove("secret");
        }
    }
    let mut acl: Vec<String> = state.acl.iter().map(|line| format!("{line:?}")).collect();
    acl.sort();
    serde_json::json!({ "users": users, "acl": acl, "roles": state.roles, "pools": state.pools })
}

/// The requests that change something.
fn writes(sim: &SimHandle) -> Vec<String> {
    let requests = sim.requests().into_iter();
    let writes =
        requests.filter(|request| request.method != "GET" && request.template != "/access/ticket");
    writes
        .map(|request| format!("{} {}", request.method, request.path))
        .collect()
}
