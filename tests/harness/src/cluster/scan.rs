//! All that a tenant can read: every object of its API server, and what ran on its Nodes has written.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::Client;
use serde_json::Value;

use super::stack::Stack;

/// Kinds without which the walk has missed something.
const CERTAIN: [&str; 6] = [
    "/api/v1/secrets",
    "/api/v1/events",
    "/api/v1/configmaps",
    "/api/v1/persistentvolumes",
    "/apis/storage.k8s.io/v1/csidrivers",
    "/apis/events.k8s.io/v1/events",
];

/// The lists of objects and the logs that hold one of these secrets, also in base64, and how many were looked at.
pub async fn tenant_leaks(stack: &Stack, secrets: &[&str]) -> Result<(Vec<String>, usize)> {
    let wanted: Vec<String> = secrets
        .iter()
        .flat_map(|secret| [(*secret).to_owned(), BASE64.encode(secret)])
        .collect();
    let leaks = |text: &str| wanted.iter().any(|secret| text.contains(secret));
    let client = stack.client();
    let mut found = Vec::new();
    let lists = lists(&client).await?;
    for kind in CERTAIN {
        ensure!(
            lists.iter().any(|list| list == kind),
            "{kind} is not among {lists:?}"
        );
    }
    for list in &lists {
        if leaks(&get(&client, list).await?) {
            found.push(list.clone());
        }
    }
    let logs = logs(stack)?;
    let files = logs.iter().filter(|(_, text)| leaks(text));
    found.extend(files.map(|(name, _)| name.clone()));
    let count = lists.len() + logs.len();
    Ok((found, count))
}

/// What node plugins, kubelets and containers have written, those that have ended included.
fn logs(stack: &Stack) -> Result<Vec<(String, String)>> {
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(stack.log_folder())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("plugin-") || name.starts_with("kubelet-") {
            let text = std::fs::read(&path)?;
            logs.push((
                path.display().to_string(),
                String::from_utf8_lossy(&text).into(),
            ));
        }
    }
    ensure!(!logs.is_empty(), "no logs of workers");
    for node in ["n1", "n2", "n3", "n4"] {
        let pods = stack.folder().join(node).join("pod-logs");
        let mut text = String::new();
        if pods.exists() {
            read(&pods, &mut text)?;
        }
        logs.push((pods.display().to_string(), text));
    }
    Ok(logs)
}

/// The paths of all kinds that can be listed.
async fn lists(client: &Client) -> Result<Vec<String>> {
    let mut groups = vec!["/api/v1".to_owned()];
    let all: Value = serde_json::from_str(&get(client, "/apis").await?)?;
    for group in all
        .get("groups")
        .and_then(Value::as_array)
        .context("no groups")?
    {
        for version in group
            .get("versions")
            .and_then(Value::as_array)
            .context("no versions")?
        {
            let version = version
                .get("groupVersion")
                .and_then(Value::as_str)
                .context("no version")?;
            groups.push(format!("/apis/{version}"));
        }
    }
    let mut lists = Vec::new();
    for group in groups {
        let kinds: Value = serde_json::from_str(&get(client, &group).await?)?;
        for kind in kinds
            .get("resources")
            .and_then(Value::as_array)
            .context("no resources")?
        {
            let verbs = kind
                .get("verbs")
                .and_then(Value::as_array)
                .context("no verbs")?;
            if verbs.iter().any(|verb| verb == "list") {
                let name = kind
                    .get("name")
                    .and_then(Value::as_str)
                    .context("no name")?;
                lists.push(format!("{group}/{name}"));
            }
        }
    }
    Ok(lists)
}

async fn get(client: &Client, path: &str) -> Result<String> {
    let request = http::Request::get(path).body(Vec::new())?;
    client
        .request_text(request)
        .await
        .with_context(|| path.to_owned())
}

fn read(folder: &Path, all: &mut String) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, all)?;
        } else {
            all.push_str(&String::from_utf8_lossy(&std::fs::read(&path)?));
        }
    }
    Ok(())
}
