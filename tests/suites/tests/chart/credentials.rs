//! Nothing that is rendered for the tenant is a credential, or has a place for one.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::VALUES;
use crate::helm::{Half, Helm};
use crate::objects::{id, text, walk};

/// Kinds that hold credentials.
const KINDS: [&str; 2] = ["Secret", "ConfigMap"];
/// What a key with a credential, or with the name of one, is called.
const KEYS: [&str; 10] = [
    "token",
    "secret",
    "password",
    "passphrase",
    "credential",
    "kubeconfig",
    "apikey",
    "private",
    "username",
    "cloud-config",
];
/// Keys that hold such a word and are none: whether there is a token of the tenant's own API server, and where images come from.
const HARMLESS: [&str; 2] = ["automountServiceAccountToken", "imagePullSecrets"];
/// What is in a credential.
const WORDS: [&str; 6] = [
    "-----BEGIN",
    "PVEAPIToken",
    "@pve!",
    "@pam",
    "token_secret",
    "/api2/",
];

#[test]
fn nothing_rendered_for_the_tenant_is_a_credential() -> Result<()> {
    let Some(helm) = Helm::find("chart: credentials in the tenant")? else {
        return Ok(());
    };
    for values in VALUES {
        let rendered = helm.of_values(Half::Tenant, values)?;
        ensure!(!rendered.objects.is_empty());
        let found: Vec<String> = rendered.objects.iter().flat_map(findings).collect();
        ensure!(found.is_empty(), "{values}: {found:#?}");
    }
    Ok(())
}

/// The search itself finds what it is for.
#[test]
fn credentials_of_all_kinds_would_be_found() -> Result<()> {
    let pod = |container: Value| json!({ "kind": "Pod", "spec": { "containers": [container] } });
    for planted in [
        json!({ "kind": "Secret" }),
        json!({ "kind": "ConfigMap" }),
        pod(json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "x" } } }] })),
        pod(json!({ "envFrom": [{ "secretRef": { "name": "x" } }] })),
        pod(json!({ "env": [{ "name": "PVE_TOKEN", "value": "x" }] })),
        pod(json!({ "args": ["--cloud-config=/x"] })),
        pod(json!({ "args": ["csi@pve!tenant-a"] })),
        pod(json!({ "args": ["7a1c1a52-3f0e-4a65-8c3f-2f5e9c1d7b11"] })),
        json!({ "kind": "Pod", "spec": { "volumes": [{ "secret": { "secretName": "x" } }] } }),
        json!({ "kind": "Pod", "spec": { "volumes": [{ "projected": { "sources": [{ "secret": {} }] } }] } }),
        json!({ "kind": "StorageClass", "parameters": { "csi.storage.k8s.io/node-stage-secret-name": "x" } }),
    ] {
        ensure!(!findings(&planted).is_empty(), "{planted} was not found");
    }
    let harmless = json!({ "kind": "ServiceAccount", "automountServiceAccountToken": false });
    ensure!(findings(&harmless).is_empty());
    Ok(())
}

/// What of an object is a credential, or has a place for one.
fn findings(object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if KINDS.contains(&text(object, "/kind")) {
        found.push(id(object));
    }
    walk(object, "", &mut |path, value| {
        let key = path.rsplit('/').next().unwrap_or_default();
        let is_harmless = HARMLESS.iter().any(|harmless| path.contains(harmless));
        if !is_harmless && is_named_like_one(key) {
            found.push(format!("{} {path}", id(object)));
        }
        if value.as_str().is_some_and(is_one) {
            found.push(format!("{} {path}: {value}", id(object)));
        }
    });
    found
}

fn is_named_like_one(key: &str) -> bool {
    let key = key.to_lowercase();
    KEYS.iter().any(|word| key.contains(word))
}

fn is_one(value: &str) -> bool {
    let is_uuid = |word: &str| {
        let parts: Vec<usize> = word.split('-').map(str::len).collect();
        let digits = word.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
        parts == [8, 4, 4, 4, 12] && digits
    };
    let words = value.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    // The name of an argument or variable counts too.
    let name = value.strip_prefix("--").unwrap_or_default();
    let variable = value.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    WORDS.iter().any(|word| value.contains(word))
        || words.into_iter().any(is_uuid)
        || is_named_like_one(name.split('=').next().unwrap_or_default())
        || (variable && is_named_like_one(value))
}
