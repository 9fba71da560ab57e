//! Users of the API server: their tokens, and the kubeconfig of each.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

/// A user of the static token file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) group: &'static str,
}

impl User {
    pub(super) fn admin() -> Self {
        Self {
            name: "admin".to_owned(),
            group: "system:masters",
        }
    }

    pub(super) fn component(name: &str) -> Self {
        Self {
            name: format!("system:{name}"),
            group: "system:authenticated",
        }
    }

    pub(super) fn node(name: &str) -> Self {
        Self {
            name: format!("system:node:{name}"),
            group: "system:nodes",
        }
    }

    pub(super) fn token(&self) -> String {
        format!("token-of-{}", self.name.replace(':', "-"))
    }
}

/// The file that `--token-auth-file` reads: token, user, uid, "groups".
pub(super) fn write_tokens(path: &Path, users: &[User]) -> Result<()> {
    let mut lines = String::new();
    for user in users {
        let User { name, group } = user;
        writeln!(lines, "{},{name},{name},\"{group}\"", user.token())?;
    }
    Ok(std::fs::write(path, lines)?)
}

/// As [`write`], with the certificate in the file itself.
pub(super) fn write_whole(
    folder: &Path,
    name: &str,
    server: &str,
    ca: &Path,
    token: &str,
) -> Result<PathBuf> {
    let data = BASE64.encode(std::fs::read(ca)?);
    let cluster = json!({ "server": server, "certificate-authority-data": data });
    write_cluster(folder, name, &cluster, token)
}

/// Writes `<folder>/<name>.kubeconfig` and returns its path.
pub(super) fn write(
    folder: &Path,
    name: &str,
    server: &str,
    ca: &Path,
    token: &str,
) -> Result<PathBuf> {
    let cluster = json!({ "server": server, "certificate-authority": ca });
    write_cluster(folder, name, &cluster, token)
}

fn write_cluster(folder: &Path, name: &str, cluster: &Value, token: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.kubeconfig"));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": "test", "user": { "token": token } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
    });
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}
