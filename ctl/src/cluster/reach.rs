//! How the tenant's API server is reached: by a kubeconfig in a file, or in a Secret of the management cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use pve_kube::{KubeconfigError, Tenant, management};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer};

use super::{ApiError, Cluster, Name};

/// On the Secret with the kubeconfig: `true` says that the tenant goes away, so that the hook before an uninstallation
/// deletes its volumes. Who installs an application writes it nowhere, and so does what undoes a failed installation.
pub(crate) const ASKED_ANNOTATION: &str = "pve-cloud/teardown";

/// Where the kubeconfig is.
#[derive(Debug, Clone, Args)]
pub(crate) struct Reach {
    /// The kubeconfig of an administrator of the tenant's cluster. It has to hold all that it needs.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "kubeconfig_secret"
    )]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The Secret of the management cluster that holds it instead.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = secret, conflicts_with = "kubeconfig")]
    pub(crate) kubeconfig_secret: Option<SecretName>,
    /// The key of that Secret.
    #[arg(long, value_name = "KEY", default_value = "super-admin.svc")]
    pub(crate) kubeconfig_key: String,
    /// How to reach the management cluster; by default as a Pod of it.
    #[arg(long, value_name = "FILE", requires = "kubeconfig_secret")]
    pub(crate) management_kubeconfig: Option<PathBuf>,
}

/// Namespace and name of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretName {
    pub(crate) namespace: Name,
    pub(crate) name: Name,
}

/// What the kubeconfig leads to.
pub(crate) struct Reached {
    /// The tenant's API server. It is not asked anything yet.
    pub(crate) cluster: Cluster,
    /// Whether the Secret has [`ASKED_ANNOTATION`].
    pub(crate) asked: bool,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReachError {
    /// The management cluster has no such Secret. A control plane that was deleted takes it along, but a wrong name looks
    /// the same.
    #[error(
        "there is no Secret {0}/{1} in the management cluster: the name is wrong, or the tenant's control plane is gone"
    )]
    Missing(Name, Name),
    /// The Secret can't be read, which says nothing about whether it is there.
    #[error("the Secret {0}/{1} can't be read in the management cluster: {2}")]
    Unknown(Name, Name, ApiError),
    /// The Secret does not hold a kubeconfig under that key.
    #[error("the Secret {0}/{1} {2}")]
    Content(Name, Name, &'static str),
    /// It is no kubeconfig that is accepted.
    #[error("the tenant's {0}")]
    Kubeconfig(KubeconfigError),
    /// The management cluster can't be asked at all.
    #[error("the management cluster's {0}")]
    Management(KubeconfigError),
}

#[derive(Deserialize)]
struct Secret {
    #[serde(default)]
    metadata: SecretMeta,
    #[serde(default)]
    data: BTreeMap<String, Data>,
}

#[derive(Deserialize, Default)]
struct SecretMeta {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Base64, as the API has it.
struct Data(SecretString);

// === impl Data ===

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(String::deserialize(deserializer)?.into()))
    }
}

// === impl Reach ===

impl Reach {
    /// The tenant's API server, and what the Secret says beside it.
    pub(crate) async fn reached(&self) -> Result<Reached, ReachError> {
        let mut asked = false;
        let tenant = match (&self.kubeconfig, &self.kubeconfig_secret) {
            (_, Some(secret)) => {
                let found = self.secret(secret).await?;
                asked = found.is_asked();
                let content =
                    |why| ReachError::Content(secret.namespace.clone(), secret.name.clone(), why);
                let text = found.text(&self.kubeconfig_key).map_err(content)?;
                Tenant::of_text(&text).await
            }
            (Some(file), None) => Tenant::of_kubeconfig(file).await,
            // clap asks for one of them.
            (None, None) => return Err(ReachError::Kubeconfig(missing())),
        };
        let tenant = tenant.map_err(ReachError::Kubeconfig)?;
        Ok(Reached {
            cluster: Cluster::new(tenant.client()),
            asked,
        })
    }

    async fn secret(&self, secret: &SecretName) -> Result<Secret, ReachError> {
        let client = management(self.management_kubeconfig.as_deref()).await;
        let management = Cluster::new(client.map_err(ReachError::Management)?);
        let SecretName { namespace, name } = secret;
        let path = format!("/api/v1/namespaces/{namespace}/secrets");
        let named = || (namespace.clone(), name.clone());
        let found: Option<Secret> = match management.find(&path, name.as_str()).await {
            Ok(found) => found,
            Err(error) => {
                let (namespace, name) = named();
                return Err(ReachError::Unknown(namespace, name, error));
            }
        };
        found.ok_or_else(|| {
            let (namespace, name) = named();
            ReachError::Missing(namespace, name)
        })
    }
}

// === impl Secret ===

impl Secret {
    fn is_asked(&self) -> bool {
        let value = self.metadata.annotations.get(ASKED_ANNOTATION);
        value.is_some_and(|value| value == "true")
    }

    fn text(&self, key: &str) -> Result<SecretString, &'static str> {
        let data = self.data.get(key);
        let data = data.ok_or("has no such key: see --kubeconfig-key")?;
        let text = BASE64.decode(data.0.expose_secret());
        let text = text.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.ok_or("holds no text under that key")?;
        Ok(text.into())
    }
}

// === impl ReachError ===

impl ReachError {
    /// Whether what was given is refused, rather than something out of reach.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Content(..) | Self::Kubeconfig(_) | Self::Management(_) => true,
            Self::Missing(..) | Self::Unknown(..) => false,
        }
    }
}

fn missing() -> KubeconfigError {
    KubeconfigError::Read(std::io::ErrorKind::NotFound.into())
}

fn secret(text: &str) -> Result<SecretName, String> {
    let (namespace, name) = text.split_once('/').ok_or("must be <namespace>/<name>")?;
    Ok(SecretName {
        namespace: namespace.parse()?,
        name: name.parse()?,
    })
}

#[cfg(test)]
#[path = "reach_tests.rs"]
mod tests;
