//! Single keys in the place of a `config.yaml`, as Secrets of existing installations have them: one PVE cluster.

use pve_model::Region;
use pve_runtime::Config;
use secrecy::SecretString;
use serde_json::{Map, Value, json};

use crate::secret::Mounted;

/// Without them nothing is reached.
const REQUIRED: [&str; 4] = ["url", "region", "token_id", "token_secret"];

/// Where each of them stands in the config that is made of them, below the region.
const PLACES: [(&str, &str); 6] = [
    (".endpoints[0].url", "url"),
    (".endpoints[0].ca", "ca.crt"),
    (".endpoints[0].fingerprint", "fingerprint"),
    (".endpoints[0].insecure", "insecure"),
    (".token.id", "token_id"),
    (".token.secret", "token_secret"),
];

/// The config in our own form, as text and checked.
pub(crate) fn config(mounted: &Mounted, policy: &str) -> Result<(SecretString, Config), String> {
    let [url, region, token_id, token_secret] = REQUIRED.map(|key| required(mounted, key));
    let (url, region) = (url?, region?);
    let region: Region = region
        .parse()
        .map_err(|error| format!("the Secret's key region: {error}"))?;
    let mut endpoint = Map::from_iter([("url".to_owned(), json!(url))]);
    for (key, name) in [("ca.crt", "ca"), ("fingerprint", "fingerprint")] {
        if let Some(text) = mounted.line(key) {
            endpoint.insert(name.to_owned(), json!(text));
        }
    }
    if let Some(truth) = mounted.line("insecure") {
        endpoint.insert("insecure".to_owned(), json!(parsed(truth)?));
    }
    let reached = json!({
        "endpoints": [endpoint],
        "token": { "id": token_id?, "secret": token_secret? },
    });
    let regions = Map::from_iter([(region.to_string(), reached)]);
    let mut document = Map::from_iter([("regions".to_owned(), Value::from(regions))]);
    if let Some(provider) = mounted.line("provider") {
        document.insert("provider".to_owned(), json!(provider));
    }
    // JSON is YAML.
    let text = Value::from(document).to_string();
    let config =
        Config::of_texts(&text, policy).map_err(|error| told(&error.to_string(), &region))?;
    Ok((text.into(), config))
}

fn required<'a>(mounted: &'a Mounted, key: &str) -> Result<&'a str, String> {
    match mounted.line(key) {
        Some("") => Err(format!("the Secret's key {key} is empty")),
        Some(text) => Ok(text),
        None => Err(format!(
            "the Secret lacks the key {key}: without config.yaml it needs {}",
            REQUIRED.join(", ")
        )),
    }
}

fn parsed(truth: &str) -> Result<bool, String> {
    match truth {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("the Secret's key insecure must be true or false".to_owned()),
    }
}

/// A refusal of the config that was made, in the words of the Secret.
fn told(refusal: &str, region: &Region) -> String {
    let Some(rest) = refusal.strip_prefix("config.yaml: ") else {
        return refusal.to_owned();
    };
    if let Some(why) = rest.strip_prefix("provider: ") {
        return format!("the Secret's key provider: {why}");
    }
    let Some(rest) = rest.strip_prefix(&format!("regions.{region}")) else {
        return refusal.to_owned();
    };
    let known = PLACES.iter().find_map(|(place, key)| {
        let why = rest.strip_prefix(place)?.strip_prefix(": ")?;
        Some(format!("the Secret's key {key}: {why}"))
    });
    known.unwrap_or_else(|| format!("the Secret's region {region}{rest}"))
}
