//! What a tenant's kubeconfig gives access with, taken apart and written anew for each program that shall have a part of
//! its rights.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use crate::kubeconfig::{self, KubeconfigError, NAMES};

/// The name of everything in a kubeconfig that is written anew.
const ONLY: &str = "tenant";

/// An API server and who asks it.
#[derive(Debug, Clone)]
pub struct Access {
    server: String,
    tls_server_name: Option<String>,
    ca: Option<SecretString>,
    certificate: Option<SecretString>,
    key: Option<SecretString>,
    token: Option<SecretString>,
}

impl Access {
    /// Reads a kubeconfig that [`Tenant`](crate::Tenant) accepts and takes what its current context names. Nothing is sent.
    ///
    /// It is refused if it impersonates somebody itself, if its server has no TLS, and if it has neither a client
    /// certificate nor a token.
    pub async fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let file = kubeconfig::accepted(path).await?;
        Self::of(&file)
    }

    fn of(file: &Kubeconfig) -> Result<Self, KubeconfigError> {
        let (cluster, user) = current(file)?;
        let server = cluster.server.clone();
        let server = server.ok_or(KubeconfigError::Lacks("the cluster's server"))?;
        if !server.starts_with("https://") {
            return Err(KubeconfigError::Plain);
        }
        let access = Self {
            server,
            tls_server_name: cluster.tls_server_name.clone(),
            ca: decoded(
                cluster.certificate_authority_data.as_deref(),
                "certificate-authority-data",
            )?,
            certificate: decoded(
                user.client_certificate_data.as_deref(),
                "client-certificate-data",
            )?,
            key: decoded(
                user.client_key_data
                    .as_ref()
                    .map(ExposeSecret::expose_secret),
                "client-key-data",
            )?,
            token: user.token.clone(),
        };
        match (&access.certificate, &access.key, &access.token) {
            (Some(_), None, _) => Err(KubeconfigError::Lacks("client-key-data")),
            (None, Some(_), _) => Err(KubeconfigError::Lacks("client-certificate-data")),
            (None, None, None) => Err(KubeconfigError::Lacks(
                "a client certificate or a token of the user",
            )),
            _ => Ok(access),
        }
    }

    /// The files that the kubeconfigs of it name: each with its name in the folder.
    pub fn files(&self) -> Vec<(&'static str, SecretString)> {
        let [ca, certificate, key, token] = NAMES;
        [
            (ca, &self.ca),
            (certificate, &self.certificate),
            (key, &self.key),
            (token, &self.token),
        ]
        .into_iter()
        .filter_map(|(name, text)| Some((name, text.clone()?)))
        .collect()
    }

    /// A kubeconfig that names these files, for who acts as `user`, or as whom the credentials are for.
    pub fn kubeconfig(&self, user: Option<&str>) -> String {
        let [ca, certificate, key, token] = NAMES;
        let mut cluster = Map::from_iter([("server".to_owned(), json!(self.server))]);
        let mut who = Map::new();
        let put = |map: &mut Map<String, Value>, key: &str, value: Option<&str>| {
            if let Some(value) = value {
                map.insert(key.to_owned(), json!(value));
            }
        };
        let there = |text: &Option<SecretString>, name| text.as_ref().map(|_| name);
        let server_name = self.tls_server_name.as_deref();
        put(&mut cluster, "tls-server-name", server_name);
        put(&mut cluster, "certificate-authority", there(&self.ca, ca));
        let certificate = there(&self.certificate, certificate);
        put(&mut who, "client-certificate", certificate);
        put(&mut who, "client-key", there(&self.key, key));
        put(&mut who, "tokenFile", there(&self.token, token));
        put(&mut who, "as", user);
        let context = json!({ "cluster": ONLY, "user": ONLY });
        let file = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": ONLY,
            "contexts": [{ "name": ONLY, "context": context }],
            "clusters": [{ "name": ONLY, "cluster": cluster }],
            "users": [{ "name": ONLY, "user": who }],
        });
        file.to_string()
    }
}

/// What the current context names. Its user may act as nobody else, and has no password.
fn current(file: &Kubeconfig) -> Result<(&Cluster, &AuthInfo), KubeconfigError> {
    let name = file.current_context.as_ref();
    let context = file
        .contexts
        .iter()
        .find(|context| Some(&context.name) == name);
    let context = context.and_then(|context| context.context.as_ref());
    let context = context.ok_or(KubeconfigError::Lacks("the current context"))?;
    let cluster = file
        .clusters
        .iter()
        .find(|cluster| cluster.name == context.cluster);
    let cluster = cluster.and_then(|cluster| cluster.cluster.as_ref());
    let cluster = cluster.ok_or(KubeconfigError::Lacks("the cluster of the current context"))?;
    let user = file
        .auth_infos
        .iter()
        .find(|user| Some(&user.name) == context.user.as_ref());
    let user = user.and_then(|user| user.auth_info.as_ref());
    let user = user.ok_or(KubeconfigError::Lacks("the user of the current context"))?;
    let refused = [
        ("as", user.impersonate.is_some()),
        ("as-uid", user.impersonate_uid.is_some()),
        ("as-groups", user.impersonate_groups.is_some()),
        ("as-user-extra", user.impersonate_user_extra.is_some()),
        ("username", user.username.is_some()),
        ("password", user.password.is_some()),
    ];
    match refused.into_iter().find(|(_, there)| *there) {
        Some((key, _)) => Err(KubeconfigError::Refused(key)),
        None => Ok((cluster, user)),
    }
}

fn decoded(data: Option<&str>, key: &'static str) -> Result<Option<SecretString>, KubeconfigError> {
    let Some(data) = data.filter(|data| !data.is_empty()) else {
        return Ok(None);
    };
    let wrong = KubeconfigError::Encoding(key);
    let Ok(bytes) = BASE64.decode(data) else {
        return Err(wrong);
    };
    let text = String::from_utf8(bytes).map_err(|_| wrong)?;
    Ok(Some(text.into()))
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
