//! What must hold of any text that is read as the operator's config: for tests here, and for the target under `fuzz/`.

use std::path::Path;

use secrecy::ExposeSecret;
use serde_json::Value;

use super::beside::Beside;
use super::nodes::MOST_NETWORKS;
use super::{
    AddressPolicy, Config, EndpointConfig, File, RegionConfig, RegionPolicy, config, tree,
};

/// What the corpora have in the place of a secret.
pub const SECRET: &str = "5ec4e7aa-0000-4000-8000-00005ec4e7aa";

/// Divides config and policy file.
const DIVIDER: &str = "\n---\n";

/// The longest refusal: the path of a key and a sentence.
const REFUSAL_MAX: usize = 1000;

/// A config, or a config and a policy file divided by `---`: what is refused is named by its place and never shown,
/// what is accepted has all that the drivers rely on, and no secret can be printed.
pub fn operator_config(text: &str) {
    let (main, policy) = text
        .split_once(DIVIDER)
        .map_or((text, None), |(a, b)| (a, Some(b)));
    let documents = (
        file("config.yaml", main),
        policy.map(|text| file("policy.yaml", text)),
    );
    let (main, policy) = match documents {
        (Ok(main), None) => (main, None),
        (Ok(main), Some(Ok(policy))) => (main, Some(policy)),
        (Err(refusal), _) | (_, Some(Err(refusal))) => return refused(&refusal),
    };
    let reads = |file: &File| names_a_file(&file.document);
    if reads(&main) || policy.as_ref().is_some_and(reads) {
        return;
    }
    match config(
        &main,
        policy.as_ref(),
        Beside::folder(Path::new("/nonexistent")),
    ) {
        Ok(accepted) => {
            let documents = [Some(&main), policy.as_ref()];
            let elsewhere = documents
                .into_iter()
                .flatten()
                .any(|file| shows(&file.document));
            kept(&accepted, elsewhere);
        }
        Err(refusal) => refused(&refusal),
    }
}

fn file(name: &str, text: &str) -> Result<File, String> {
    let document = tree::parse(text)?;
    Ok(File {
        name: name.to_owned(),
        document,
    })
}

fn refused(refusal: &str) {
    assert!(!refusal.contains(SECRET), "the secret is in {refusal:?}");
    assert!(
        refusal.len() <= REFUSAL_MAX,
        "{} bytes: {refusal:?}",
        refusal.len()
    );
    assert!(
        !refusal.contains('\n') && !refusal.is_empty(),
        "{refusal:?}"
    );
}

/// Whether a file of this machine would be read, other than one that can't be there.
fn names_a_file(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| {
            let names = key.ends_with("File") || key.ends_with("_file");
            let away = |text: &str| text.starts_with('/') || text.contains("..");
            names && value.as_str().is_some_and(away) || names_a_file(value)
        }),
        Value::Array(list) => list.iter().any(names_a_file),
        _ => false,
    }
}

/// Whether the secret stands where a name may stand, and is shown as one.
fn shows(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| {
            let hidden = matches!(key.as_str(), "secret" | "token_secret") && value.is_string();
            key.contains(SECRET) || !hidden && shows(value)
        }),
        Value::Array(list) => list.iter().any(shows),
        Value::String(text) => text.contains(SECRET),
        _ => false,
    }
}

fn kept(config: &Config, secret_elsewhere: bool) {
    let printed = format!("{config:?}");
    assert!(
        secret_elsewhere || !printed.contains(SECRET),
        "the secret is in {printed}"
    );
    assert!(!config.regions.is_empty());
    let AddressPolicy {
        external,
        include,
        exclude,
        order,
        ..
    } = &config.nodes.addresses;
    for list in [external, include, exclude, order] {
        assert!(list.len() <= MOST_NETWORKS);
    }
    for (
        region,
        RegionConfig {
            endpoints,
            token,
            policy,
        },
    ) in &config.regions
    {
        let Ok(token) = token.read() else {
            unreachable!("a token that can't be read was accepted")
        };
        assert!(token.id.contains('@') && token.id.contains('!'));
        let secret = token.secret.expose_secret();
        assert!(!secret.is_empty() && secret.bytes().all(|b| b.is_ascii_graphic()));
        assert!(!endpoints.is_empty());
        for one in endpoints {
            endpoint(one);
        }
        bounded(policy);
        assert!(policy.adopted.iter().all(|volume| volume.region == *region));
    }
}

fn endpoint(endpoint: &EndpointConfig) {
    let url = &endpoint.url;
    let authority = url.strip_prefix("https://").unwrap_or_default();
    assert!(
        !authority.is_empty() && !authority.contains(['/', '@', '?', '#', ' ']),
        "{url}"
    );
    assert!(url.parse::<http::Uri>().is_ok(), "{url}");
}

/// A policy that says nothing allows nothing.
fn bounded(policy: &RegionPolicy) {
    let owners = policy
        .owners
        .default
        .iter()
        .chain(policy.owners.per_node.values());
    let owners: Vec<_> = owners.collect();
    assert!(!owners.is_empty() && owners.iter().all(|owner| policy.is_owner(**owner)));
    assert!(
        policy
            .owners
            .per_node
            .keys()
            .all(|node| policy.pve_nodes.contains(node))
    );
    for storage in policy.storages.values() {
        assert!(storage.limits.iops != Some(0) && storage.limits.mbps != Some(0));
    }
}

#[cfg(test)]
mod tests;
