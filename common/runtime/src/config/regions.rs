//! How PVE clusters are reached: endpoints, trust and tokens, in this driver's own form.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use pve_model::Region;
use secrecy::SecretString;

use super::beside::Beside;
use super::policy::{self, FormerOwner, policy, regions_of};
use super::tree::{Keys, Node};
use super::{EndpointConfig, RegionConfig, RegionPolicy, Trust};
use crate::bounded;
use crate::credentials::{CredentialError, Source, TokenConfig};

/// The policies of the policy file, if there is one.
pub(super) type Policies<'a> = Option<BTreeMap<Region, Node<'a>>>;

/// Largest CA bundle.
const CA_MAX: u64 = 1 << 20;

pub(super) fn regions(
    root: &Keys<'_>,
    mut policies: Policies<'_>,
    beside: Beside<'_>,
) -> Result<BTreeMap<Region, RegionConfig>, String> {
    let known = [["endpoints", "token"].as_slice(), &policy::KEYS].concat();
    let mut regions = BTreeMap::new();
    for (region, node) in regions_of(root)? {
        let keys = node.keys(&known)?;
        let endpoints = endpoints(&keys.get("endpoints")?, beside)?;
        let token = token(&keys.get("token")?, &TOKEN, beside)?;
        let policy = match &mut policies {
            None => policy(&keys, &region, FormerOwner::Absent)?,
            Some(policies) => {
                if let Some(key) = keys.any(&policy::KEYS) {
                    let why = "stands here although there is a policy file: policy has one place";
                    return Err(keys.refuse(key, why));
                }
                take_policy(policies, &region, FormerOwner::Absent, &node)?
            }
        };
        let config = RegionConfig {
            endpoints,
            token,
            policy,
        };
        regions.insert(region, config);
    }
    refuse_left_over(policies)?;
    Ok(regions)
}

/// The policy of `region` from the policy file.
pub(super) fn take_policy(
    policies: &mut BTreeMap<Region, Node<'_>>,
    region: &Region,
    former: FormerOwner,
    at: &Node<'_>,
) -> Result<RegionPolicy, String> {
    let node = policies
        .remove(region)
        .ok_or_else(|| at.refuse("has no policy: the policy file does not name this region"))?;
    policy(&node.keys(&policy::KEYS)?, region, former)
}

/// A policy for a region that is not configured is a mistyped name.
pub(super) fn refuse_left_over(policies: Policies<'_>) -> Result<(), String> {
    match policies.unwrap_or_default().into_values().next() {
        Some(node) => Err(node.refuse("is in the policy file and not in the config")),
        None => Ok(()),
    }
}

fn endpoints(node: &Node<'_>, beside: Beside<'_>) -> Result<Vec<EndpointConfig>, String> {
    let mut endpoints: Vec<EndpointConfig> = Vec::new();
    for member in node.members()? {
        let endpoint = endpoint(&member, beside)?;
        if endpoints.iter().any(|other| other.url == endpoint.url) {
            return Err(member.refuse("is the same as one before it"));
        }
        endpoints.push(endpoint);
    }
    if endpoints.is_empty() {
        return Err(node.refuse("must have at least one member"));
    }
    Ok(endpoints)
}

fn endpoint(node: &Node<'_>, beside: Beside<'_>) -> Result<EndpointConfig, String> {
    let keys = node.keys(&["url", "ca", "caFile", "fingerprint", "insecure"])?;
    let insecure = keys.find("insecure").map_or(Ok(false), |n| n.truth())?;
    let ways = ["ca", "caFile", "fingerprint"];
    let given: Vec<&str> = ways
        .into_iter()
        .filter(|way| keys.find(way).is_some())
        .collect();
    if let [_, second, ..] = given.as_slice() {
        return Err(keys.refuse(second, "only one of ca, caFile and fingerprint can hold"));
    }
    if let (true, Some(way)) = (insecure, given.first()) {
        return Err(keys.refuse(way, "has no meaning beside insecure: true"));
    }
    let trust = if let Some(node) = keys.find("ca") {
        Trust::Ca(pem(&node, node.text()?)?)
    } else if let Some(node) = keys.find("caFile") {
        Trust::Ca(pem(&node, &ca_file(&node, beside)?)?)
    } else if let Some(node) = keys.find("fingerprint") {
        Trust::Fingerprint(fingerprint(&node)?)
    } else if insecure {
        Trust::Insecure
    } else {
        Trust::SystemRoots
    };
    let url = url(&keys.get("url")?)?;
    Ok(EndpointConfig { url, trust })
}

fn ca_file(node: &Node<'_>, beside: Beside<'_>) -> Result<String, String> {
    let path = beside.find(node)?;
    bounded::read_to_string(&path, CA_MAX).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => node.refuse("is larger than a CA bundle can be"),
        _ => node.refuse(format_args!("cannot read {}: {error}", path.display())),
    })
}

fn pem(node: &Node<'_>, text: &str) -> Result<String, String> {
    if text.contains("PRIVATE KEY-----") {
        return Err(node.refuse("holds a private key: give certificates only"));
    }
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        return Err(node.refuse("must hold certificates in PEM form"));
    }
    Ok(text.to_owned())
}

fn fingerprint(node: &Node<'_>) -> Result<[u8; 32], String> {
    let wrong =
        || node.refuse("must be the certificate's SHA-256: 64 hex digits, with or without colons");
    let text = node.text()?;
    let hex: String = match text.contains(':') {
        true if text.split(':').all(|pair| pair.len() == 2) => text.replace(':', ""),
        true => return Err(wrong()),
        false => text.to_owned(),
    };
    if hex.len() != 64 || !hex.is_ascii() {
        return Err(wrong());
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        let pair = hex.get(index * 2..index * 2 + 2).ok_or_else(wrong)?;
        let digits = pair.bytes().all(|b| b.is_ascii_hexdigit());
        *byte = match u8::from_str_radix(pair, 16) {
            Ok(value) if digits => value,
            _ => return Err(wrong()),
        };
    }
    Ok(bytes)
}

/// `https://host[:port]` of an endpoint, with or without `/api2/json` behind it.
pub(super) fn url(node: &Node<'_>) -> Result<String, String> {
    let text = node.text()?;
    let uri: http::Uri = text.parse().map_err(|_| node.refuse("must be a URL"))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(node.refuse("must be a URL: https://host:8006"));
    };
    if authority.as_str().contains('@') {
        return Err(node.refuse("must not hold a user or a password"));
    }
    if uri.query().is_some() || text.contains('#') {
        return Err(node.refuse("must not have a query or a fragment"));
    }
    if !matches!(uri.path().trim_end_matches('/'), "" | "/api2/json") {
        return Err(node.refuse("must have no path but /api2/json"));
    }
    if scheme != "https" {
        return Err(node.refuse("must begin with https://"));
    }
    let rest = authority.as_str().strip_prefix(authority.host());
    let port = rest.unwrap_or_default();
    let digits = port.strip_prefix(':').unwrap_or_default();
    let valid = digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u16>().is_ok();
    if !port.is_empty() && !valid {
        return Err(node.refuse("has a port that is not a number up to 65535"));
    }
    Ok(format!("https://{authority}"))
}

/// What the halves of a token are called: id, its file, secret, its file.
pub(super) type TokenKeys = [&'static str; 4];

const TOKEN: TokenKeys = ["id", "idFile", "secret", "secretFile"];

fn token(node: &Node<'_>, names: &TokenKeys, beside: Beside<'_>) -> Result<TokenConfig, String> {
    token_of(&node.keys(names)?, names, beside)
}

/// Reads the token once, so that a wrong one stops the program before it serves.
pub(super) fn token_of(
    keys: &Keys<'_>,
    names: &TokenKeys,
    beside: Beside<'_>,
) -> Result<TokenConfig, String> {
    let [id, id_file, secret, secret_file] = names;
    let token = TokenConfig {
        id: source(keys, id, id_file, beside)?,
        secret: source(keys, secret, secret_file, beside)?,
    };
    match token.read() {
        Ok(_) => Ok(token),
        Err(error) => {
            let half = match &error {
                CredentialError::Id => [id, id_file],
                CredentialError::Secret => [secret, secret_file],
                CredentialError::Read { .. } | CredentialError::TooLong(_) => {
                    [id_file, secret_file]
                }
            };
            Err(keys.refuse(keys.any(&half.map(|key| *key)).unwrap_or(id), error))
        }
    }
}

fn source(keys: &Keys<'_>, inline: &str, file: &str, beside: Beside<'_>) -> Result<Source, String> {
    match (keys.find(inline), keys.find(file)) {
        (Some(value), None) => Ok(Source::Inline(SecretString::from(value.text()?))),
        (None, Some(path)) => Ok(Source::File(beside.find(&path)?)),
        (None, None) => Err(keys.refuse(inline, format_args!("is required (or {file})"))),
        (Some(_), Some(_)) => {
            Err(keys.refuse(file, format_args!("stands beside {inline}: give one")))
        }
    }
}
