//! The operator's Secrets: what is in them, and what stands in one that was written earlier.

use std::collections::BTreeSet;

use pve_client::Program;
use pve_model::StorageId;
use pve_runtime::Config;
use pve_runtime::config::{Mode, Owners, Provider, RegionConfig, Trust};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::plan::{Plan, word};

/// A Secret that was written earlier.
#[derive(Debug)]
pub(crate) struct Known {
    /// All of it.
    pub(crate) manifest: SecretString,
    /// The token's secret.
    pub(crate) secret: SecretString,
    /// What in it is not as it is asked for now.
    pub(crate) differences: Vec<String>,
}

/// The name of a program's Secret.
pub(crate) fn name(plan: &Plan, program: Program) -> String {
    format!("{}-pve-{}", plan.tenant.release, word(program))
}

/// Stands where the token's secret belongs as long as nobody knows it.
pub(crate) fn placeholder(plan: &Plan, program: Program) -> String {
    format!("SECRET-OF-{}", plan.token_id(program))
}

/// `config.yaml`.
pub(crate) fn config(plan: &Plan, program: Program, secret: &str) -> String {
    let provider = match plan.provider {
        Provider::Default => "default",
        Provider::Capmox => "capmox",
    };
    let mut lines = vec![format!("provider: {provider}")];
    if program == Program::Ccm {
        lines.extend(nodes(plan));
    }
    lines.push("regions:".to_owned());
    lines.push(format!("  {}:", quoted(plan.region.as_str())));
    lines.push("    endpoints:".to_owned());
    for endpoint in &plan.endpoints {
        lines.push(format!("      - url: {}", quoted(&endpoint.url)));
        lines.extend(trust(&endpoint.trust));
    }
    lines.push("    token:".to_owned());
    lines.push(format!("      id: {}", quoted(&plan.token_id(program))));
    lines.push(format!("      secret: {}\n", quoted(secret)));
    lines.join("\n")
}

/// What the CCM writes on Nodes beside what it always does.
fn nodes(plan: &Plan) -> Vec<String> {
    let lines: [(bool, &[&str]); 3] = [
        (plan.optional.ha || plan.optional.agent, &["nodes:"]),
        (plan.optional.ha, &["  ha: true"]),
        (plan.optional.agent, &["  addresses:", "    agent: true"]),
    ];
    let wanted = lines.iter().filter(|(wanted, _)| *wanted);
    wanted
        .flat_map(|(_, lines)| lines.iter().map(|line| (*line).to_owned()))
        .collect()
}

fn trust(trust: &Trust) -> Vec<String> {
    match trust {
        Trust::SystemRoots => Vec::new(),
        Trust::Ca(pem) => {
            let lines = pem
                .trim_end()
                .lines()
                .map(|line| format!("          {line}"));
            std::iter::once("        ca: |".to_owned())
                .chain(lines)
                .collect()
        }
        Trust::Fingerprint(sha256) => {
            let pairs: Vec<String> = sha256.iter().map(|byte| format!("{byte:02X}")).collect();
            vec![format!("        fingerprint: {}", quoted(&pairs.join(":")))]
        }
        Trust::Insecure => vec!["        insecure: true".to_owned()],
    }
}

/// `policy.yaml`, to which the operator may add quotas and ceilings.
pub(crate) fn policy(plan: &Plan) -> String {
    let list = |names: Vec<&str>| {
        let names: Vec<String> = names.into_iter().map(quoted).collect();
        names.join(", ")
    };
    let storages = list(plan.storages.iter().map(StorageId::as_str).collect());
    let hosts = list(
        plan.pve_nodes
            .iter()
            .map(pve_model::PveNode::as_str)
            .collect(),
    );
    format!(
        "regions:\n  {}:\n    pool: {}\n    storages: [{storages}]\n    nodes: [{hosts}]\n    owners:\n      default: {}\n    mode: reserved\n",
        quoted(plan.region.as_str()),
        quoted(plan.pool.as_str()),
        plan.owner
    )
}

/// The Secret as a manifest.
pub(crate) fn manifest(plan: &Plan, program: Program, secret: &str) -> SecretString {
    let head = format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {}\n  namespace: {}\ntype: Opaque\nstringData:\n  use: {}\n",
        quoted(&name(plan, program)),
        quoted(&plan.tenant.namespace),
        word(program)
    );
    let config = indented(&config(plan, program, secret));
    let policy = indented(&policy(plan));
    format!("{head}  config.yaml: |\n{config}  policy.yaml: |\n{policy}").into()
}

/// A JSON string is a YAML scalar.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn indented(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            format!(
                "    {line}
"
            )
        })
        .collect();
    lines.concat()
}

/// Reads a manifest that was written earlier. The error holds nothing of it.
pub(crate) fn read(plan: &Plan, program: Program, manifest: SecretString) -> Result<Known, String> {
    let document: Value = serde_saphyr::from_str(manifest.expose_secret())
        .map_err(|_| "is not well-formed YAML".to_owned())?;
    let of = |map: &str, key: &str| {
        let value = document.get(map).and_then(|map| map.get(key));
        value
            .and_then(Value::as_str)
            .ok_or(format!("has no {map}.{key}"))
    };
    let mut differences = Vec::new();
    let mut differs = |what: &str, is: &str, wanted: &str| {
        if is != wanted {
            differences.push(format!("{what} is {is}, not {wanted}"));
        }
    };
    differs("its name", of("metadata", "name")?, &name(plan, program));
    differs(
        "its namespace",
        of("metadata", "namespace")?,
        &plan.tenant.namespace,
    );
    differs("use", of("stringData", "use")?, word(program));
    let (main, policy) = (
        of("stringData", "config.yaml")?,
        of("stringData", "policy.yaml")?,
    );
    let config = Config::of_texts(main, policy).map_err(|error| error.to_string())?;
    let region = match config.regions.get(&plan.region) {
        Some(region) if config.regions.len() == 1 => region,
        _ => return Err(format!("does not hold the region {} alone", plan.region)),
    };
    let token = region.token.read().map_err(|error| error.to_string())?;
    differs("the token", &token.id, &plan.token_id(program));
    differences.extend(other(plan, program, &config, region));
    Ok(Known {
        secret: token.secret,
        manifest,
        differences,
    })
}

fn other(plan: &Plan, program: Program, config: &Config, region: &RegionConfig) -> Vec<String> {
    let policy = &region.policy;
    let storages: BTreeSet<StorageId> = policy.storages.keys().cloned().collect();
    let owners = Owners {
        default: Some(plan.owner),
        ..Owners::default()
    };
    let (ha, agent) = (config.nodes.ha, config.nodes.addresses.agent);
    let same_nodes =
        program == Program::Csi || (ha, agent) == (plan.optional.ha, plan.optional.agent);
    let checks = [
        ("provider", config.provider == plan.provider),
        ("endpoints", region.endpoints == plan.endpoints),
        ("pool", policy.pool == plan.pool),
        ("storages", storages == plan.storages),
        ("nodes", policy.pve_nodes == plan.pve_nodes),
        ("owners", policy.owners == owners),
        ("mode", policy.mode == Mode::Reserved),
        ("what is written on Nodes", same_nodes),
    ];
    let differs = checks.into_iter().filter(|(_, same)| !same);
    differs
        .map(|(what, _)| format!("{what}: other than asked for"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    #[test]
    fn a_secret_is_what_the_loader_takes_and_is_read_again_as_it_was_written() {
        let mut plan = plan();
        plan.optional.agent = true;
        for program in super::super::plan::PROGRAMS {
            let manifest = manifest(&plan, program, "0000-s3cret");
            let known = read(&plan, program, manifest).unwrap();
            assert_eq!(known.differences, [""; 0]);
            assert_eq!(known.secret.expose_secret(), "0000-s3cret");
            let config = Config::of_texts(&config(&plan, program, "x"), &policy(&plan)).unwrap();
            assert_eq!(config.nodes.addresses.agent, program == Program::Ccm);
            assert!(!format!("{known:?}").contains("s3cret"));
        }
    }

    #[test]
    fn what_the_operator_added_is_no_difference_and_what_was_asked_otherwise_is_one() {
        let plan = plan();
        let text = manifest(&plan, Program::Csi, "x")
            .expose_secret()
            .to_owned();
        let quota = text.replace(
            "storages: [\"big\", \"fast\"]",
            "storages: {big: {maxVolumes: 3}, fast: }",
        );
        assert_ne!(quota, text);
        assert_eq!(
            read(&plan, Program::Csi, quota.into()).unwrap().differences,
            [""; 0]
        );
        let mut other = plan.clone();
        other.storages.pop_first();
        other.owner = "100".parse().unwrap();
        other.tokens.csi = "new".to_owned();
        let differences = read(&other, Program::Csi, text.into())
            .unwrap()
            .differences
            .join("; ");
        for word in ["the token is", "storages", "owners"] {
            assert!(differences.contains(word), "{differences}");
        }
    }

    #[test]
    fn what_is_no_such_secret_is_refused_without_a_word_of_it() {
        for text in [
            "s3cret: [",
            "s3cret: 1",
            "metadata: {name: a, namespace: s3cret}",
        ] {
            let error = read(&plan(), Program::Csi, text.to_owned().into()).unwrap_err();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
