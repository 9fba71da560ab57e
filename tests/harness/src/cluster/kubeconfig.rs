//! Users of the API server: their tokens, and the kubeconfig of each.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

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

/// Writes `<folder>/<name>.kubeconfig` and returns its path.
pub(super) fn write(
    folder: &Path,
    name: &str,
    server: &str,
    ca: &Path,
    token: &str,
) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.kubeconfig"));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{ "name": "test", "cluster": { "server": server, "certificate-authority": ca } }],
        "users": [{ "name": "test", "user": { "token": token } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
    });
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}
