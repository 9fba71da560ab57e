//! Kubeconfigs: which are accepted, and the client that is made of one and made anew when the file changes.
//!
//! It may name files of four names beside it, if its folder is one whose files change all at once (`..data`), as
//! `pve-credentials` writes it and the kubelet mounts a Secret: whoever wrote the kubeconfig wrote those, too. Any other
//! file is one of ours that would be sent to a server which the kubeconfig names.

mod source;

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use kube::config::{AuthInfo, Cluster, InClusterError, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::{Mutex, watch};

use self::source::Source;
use crate::client::limited;

/// What files beside a kubeconfig are called: the authority, the client's certificate and its key, the token.
pub(crate) const NAMES: [&str; 4] = [source::CA, source::CERTIFICATE, source::KEY, source::TOKEN];

/// A tenant's API server: a kubeconfig and the client that is made of it. Clones share both.
#[derive(Clone)]
pub struct Tenant(Arc<Shared>);

struct Shared {
    path: Option<PathBuf>,
    /// What the file said when it was last read.
    seen: Mutex<Seen>,
    client: RwLock<Client>,
    changes: watch::Sender<u64>,
}

enum Seen {
    Text(Source),
    Unreadable(ErrorKind),
}

/// A kubeconfig that can't be used. Its text holds nothing of the file's but names.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file can't be read.
    #[error("kubeconfig: {0}")]
    Read(#[from] io::Error),
    /// It is no YAML of a kubeconfig.
    #[error("kubeconfig: it is malformed{0}")]
    Malformed(Place),
    /// Something is missing in it, or can't be understood.
    #[error("kubeconfig: {0}")]
    Content(Box<kube::config::KubeconfigError>),
    /// It would let the tenant run programs, read our files or redirect us.
    #[error("kubeconfig: {0} is not accepted")]
    Refused(&'static str),
    /// It does not say all that it must.
    #[error("kubeconfig: it lacks {0}")]
    Lacks(&'static str),
    /// Whoever is on the way would have the credentials.
    #[error("kubeconfig: the cluster's server must begin with https://")]
    Plain,
    /// Something is not base64 of a text.
    #[error("kubeconfig: {0} is not base64 of PEM")]
    Encoding(&'static str),
    /// No client can be made of it.
    #[error("kubeconfig: {0}")]
    Client(Box<kube::Error>),
    /// There is no kubeconfig, and the program does not run in a cluster.
    #[error("the cluster around this program: {0}")]
    InCluster(#[from] InClusterError),
}

/// Line and column of a mistake, if they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(Option<(u64, u64)>);

/// The client for the management cluster, of the operator's kubeconfig or, without one, of the service account that
/// the kubelet has mounted. Nothing is sent. A token that the kubelet renews is read again; a kubeconfig is not.
pub async fn management(kubeconfig: Option<&Path>) -> Result<Client, KubeconfigError> {
    match kubeconfig {
        Some(path) => client_of(Source::read(path).await?.kubeconfig()?).await,
        None => made(Config::incluster()?),
    }
}

// === impl Tenant ===

impl Tenant {
    /// Reads a kubeconfig. Nothing is sent.
    pub async fn of_kubeconfig(path: &Path) -> Result<Self, KubeconfigError> {
        let source = Source::read(path).await?;
        let client = client_of(source.kubeconfig()?).await?;
        Ok(Self::new(Some(path.to_owned()), Seen::Text(source), client))
    }

    /// Of the text of a kubeconfig, which stays as it is. Nothing is sent.
    pub async fn of_text(text: &SecretString) -> Result<Self, KubeconfigError> {
        let file = Kubeconfig::from_yaml(text.expose_secret()).map_err(told)?;
        Ok(Self::of_client(client_of(file).await?))
    }

    /// A client that was made elsewhere and stays as it is.
    pub fn of_client(client: Client) -> Self {
        Self::new(None, Seen::Unreadable(ErrorKind::NotFound), client)
    }

    fn new(path: Option<PathBuf>, seen: Seen, client: Client) -> Self {
        Self(Arc::new(Shared {
            path,
            seen: Mutex::new(seen),
            client: RwLock::new(client),
            changes: watch::Sender::new(0),
        }))
    }

    /// Reads the kubeconfig again; true if it has changed since and is in force now. One that is refused changes nothing
    /// and is an error once.
    pub async fn reload(&self) -> Result<bool, KubeconfigError> {
        let Some(path) = &self.0.path else {
            return Ok(false);
        };
        let mut seen = self.0.seen.lock().await;
        let source = Source::read(path).await;
        if seen.is(&source) {
            return Ok(false);
        }
        *seen = match &source {
            Ok(source) => Seen::Text(source.clone()),
            Err(error) => Seen::Unreadable(error.kind()),
        };
        let new = client_of(source?.kubeconfig()?).await?;
        let lock = self.0.client.write();
        *lock.unwrap_or_else(PoisonError::into_inner) = new;
        self.0.changes.send_modify(|count| *count += 1);
        Ok(true)
    }

    /// As [`Tenant::reload`], and tells the operator what came of it.
    pub async fn follow(&self) {
        match self.reload().await {
            Ok(false) => {}
            Ok(true) => tracing::info!("the kubeconfig has changed and is in force"),
            Err(error) => {
                tracing::error!(%error, "the changed kubeconfig is refused, the former stays in force");
            }
        }
    }

    /// The client in force.
    pub fn client(&self) -> Client {
        let lock = self.0.client.read();
        lock.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often a new client has come into force; what was begun with a former one has to be begun anew.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant")
            .field("kubeconfig", &self.0.path)
            .finish_non_exhaustive()
    }
}

// === impl Seen ===

impl Seen {
    fn is(&self, now: &io::Result<Source>) -> bool {
        match (self, now) {
            (Self::Text(seen), Ok(now)) => seen.is(now),
            (Self::Unreadable(seen), Err(now)) => *seen == now.kind(),
            _ => false,
        }
    }
}

// === impl Place ===

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((line, column)) => write!(f, " at line {line}, column {column}"),
            None => Ok(()),
        }
    }
}

/// A kubeconfig of which a client can be made.
pub(crate) async fn accepted(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let file = Source::read(path).await?.kubeconfig()?;
    client_of(file.clone()).await?;
    Ok(file)
}

async fn client_of(file: Kubeconfig) -> Result<Client, KubeconfigError> {
    check(&file)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(file, &options).await;
    made(config.map_err(told)?)
}

fn made(config: Config) -> Result<Client, KubeconfigError> {
    limited(config).map_err(|error| KubeconfigError::Client(Box::new(error)))
}

/// What a parser of YAML says shows the lines around, with their tokens.
fn told(error: kube::config::KubeconfigError) -> KubeconfigError {
    match error {
        kube::config::KubeconfigError::Parse(error) => {
            let place = error.location().map(|at| (at.line(), at.column()));
            KubeconfigError::Malformed(Place(place))
        }
        error => KubeconfigError::Content(Box::new(error)),
    }
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

#[cfg(test)]
#[path = "kubeconfig_tests.rs"]
mod tests;
