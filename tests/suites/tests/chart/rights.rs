//! Who may do what: the rights of each `ServiceAccount`, from the rendered objects, beside the list that was reviewed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::VALUES;
use crate::helm::{HALVES, Half, Helm};
use crate::objects::{id, list, of_kind, text, texts};

/// One line per account, scope and resource: `account scope group/resource[names] verbs`.
const REVIEWED: &str = include_str!("rights.txt");

#[test]
fn every_account_has_exactly_the_rights_of_the_reviewed_list() -> Result<()> {
    let Some(helm) = Helm::find("chart: rights")? else {
        return Ok(());
    };
    let mut all = BTreeSet::new();
    for half in HALVES {
        for values in VALUES {
            let objects = helm.of_values(half, values)?;
            let objects = &objects.objects;
            for right in rights(half, objects)? {
                all.insert(right);
            }
        }
    }
    let reviewed: BTreeSet<String> = REVIEWED.lines().map(str::to_owned).collect();
    let more: Vec<_> = all.difference(&reviewed).collect();
    let fewer: Vec<_> = reviewed.difference(&all).collect();
    ensure!(
        more.is_empty() && fewer.is_empty(),
        "not reviewed: {more:#?}\nnot rendered: {fewer:#?}"
    );
    Ok(())
}

/// In the management cluster by default no account at all, but for that of the last Job.
#[test]
fn by_default_no_pod_has_a_token_of_the_management_cluster() -> Result<()> {
    let Some(helm) = Helm::find("chart: no token")? else {
        return Ok(());
    };
    let rendered = helm.of_values(Half::Management, "default")?;
    for kind in ["ServiceAccount", "Role", "RoleBinding"] {
        for object in of_kind(&rendered.objects, kind) {
            let hook = text(object, "/metadata/annotations/helm.sh~1hook");
            let ends = hook == "pre-delete" || hook == "post-delete";
            ensure!(ends, "{} is there for ever", id(object));
        }
    }
    for deployment in of_kind(&rendered.objects, "Deployment") {
        let spec = "/spec/template/spec";
        ensure!(text(deployment, &format!("{spec}/serviceAccountName")).is_empty());
        let volumes = list(deployment, &format!("{spec}/volumes"));
        let token = |volume: &&Value| volume.get("projected").is_some();
        ensure!(!volumes.iter().any(|volume| token(&volume)));
    }
    Ok(())
}

/// The rights of every account, a line each.
fn rights(half: Half, objects: &[Value]) -> Result<Vec<String>> {
    let accounts: BTreeSet<&str> = of_kind(objects, "ServiceAccount")
        .into_iter()
        .map(|account| text(account, "/metadata/name"))
        .collect();
    let mut lines = Vec::new();
    let mut bound = BTreeSet::new();
    for (binding, kind) in [
        ("ClusterRoleBinding", "ClusterRole"),
        ("RoleBinding", "Role"),
    ] {
        for binding in of_kind(objects, binding) {
            let name = text(binding, "/roleRef/name");
            ensure!(text(binding, "/roleRef/kind") == kind, "{}", id(binding));
            let namespace = text(binding, "/metadata/namespace");
            let roles = of_kind(objects, kind);
            let role = roles.into_iter().find(|role| {
                text(role, "/metadata/name") == name
                    && text(role, "/metadata/namespace") == namespace
            });
            let role = role.with_context(|| format!("{} binds nothing", id(binding)))?;
            for subject in list(binding, "/subjects") {
                let account = text(subject, "/name");
                ensure!(accounts.contains(account), "{account} is not there");
                ensure!(text(subject, "/kind") == "ServiceAccount");
                bound.insert((kind, name, namespace));
                lines.extend(lines_of(half, account, namespace, role));
            }
        }
    }
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(objects, kind) {
            let at = (
                kind,
                text(role, "/metadata/name"),
                text(role, "/metadata/namespace"),
            );
            ensure!(bound.contains(&at), "{} is bound to nobody", id(role));
        }
    }
    Ok(lines)
}

fn lines_of(half: Half, account: &str, namespace: &str, role: &Value) -> Vec<String> {
    let scope = match namespace {
        "" => "cluster",
        namespace if namespace == half.namespace() => "release",
        namespace => namespace,
    };
    let mut lines = Vec::new();
    for rule in list(role, "/rules") {
        let names = match texts(rule, "/resourceNames").join(",") {
            names if names.is_empty() => names,
            names => format!("[{names}]"),
        };
        let verbs = texts(rule, "/verbs").join(",");
        for group in texts(rule, "/apiGroups") {
            for resource in texts(rule, "/resources") {
                let what = format!("{group}/{resource}{names}");
                lines.push(format!("{}: {account} {scope} {what} {verbs}", half.name()));
            }
        }
    }
    lines
}
