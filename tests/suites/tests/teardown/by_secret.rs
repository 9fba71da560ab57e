//! What `pvectl teardown` does with a kubeconfig from a Secret, by hand and as a hook.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use harness::cluster::pvectl::{Told, pvectl};
use harness::cluster::{Stack, Tenant};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::objects::{bound, claim, make};
use crate::{AT_ONCE, LIMIT};

/// A kubeconfig from a Secret of the management cluster, and one that is not there.
pub(crate) async fn stories(stack: &Stack) -> Result<()> {
    let admin = stack.admin_kubeconfig()?;
    let text = std::fs::read_to_string(&admin)?;
    let secret =
        json!({ "metadata": { "name": "tenant" }, "stringData": { "super-admin.svc": text } });
    make::<Secret>(&stack.client(), secret).await?;
    let management = format!("--management-kubeconfig={}", admin.display());
    let management = management.as_str();
    let secrets: Api<Secret> = Api::namespaced(stack.client(), "default");
    for (name, more, outcome, code) in [
        ("tenant", "--dry-run", "dry-run", 0),
        ("tenant", "--hook", "dry-run", 0),
        ("nowhere", "--dry-run", "no-kubeconfig", 1),
        ("nowhere", "--hook", "no-kubeconfig", 0),
    ] {
        let told = told_by_secret(stack, name, &[management, more]).await?;
        told.is(code, "/outcome", outcome)?;
        let how = "kubectl annotate secret --namespace default tenant pve-cloud/teardown=true";
        let says = told.text.contains(how);
        ensure!(
            says == (name == "tenant" && more == "--hook"),
            "{}",
            told.text
        );
    }
    // A key that is not there can't keep a release from going.
    for (more, code) in [("--yes", 64), ("--hook", 0)] {
        let flags = [management, more, "--kubeconfig-key=other"];
        let told = told_by_secret(stack, "tenant", &flags).await?;
        ensure!(told.code == Some(code), "{}", told.text);
    }
    let wrong = [management, "--yes", "--driver-name=other.nowhere"];
    let told = told_by_secret(stack, "tenant", &wrong).await?;
    told.is(1, "/outcome", "unknown-driver")?;
    hook_acts_when_asked(stack, &secrets, management).await?;
    // It is the tenant's own, and it would hide what the scan is for.
    secrets.delete("tenant", &DeleteParams::default()).await?;
    Ok(())
}

/// It takes the annotation; without it neither switch nor claim is touched.
async fn hook_acts_when_asked(
    stack: &Stack,
    secrets: &Api<Secret>,
    management: &str,
) -> Result<()> {
    let told = told_by_secret(stack, "tenant", &[management, "--undo"]).await?;
    told.is(0, "/outcome", "undone")?;
    let tenant = Tenant::new(&stack.client());
    tenant.claim(&claim("precious", AT_ONCE)).await?;
    bound(&tenant, "precious").await?;
    let hook = [management, "--hook", "--settle=2s"];
    let told = told_by_secret(stack, "tenant", &hook).await?;
    told.is(0, "/outcome", "dry-run")?;
    told.is(0, "/switch", "off")?;
    let meta = tenant.claims().get("precious").await?.metadata;
    ensure!(meta.deletion_timestamp.is_none(), "it is deleted");
    let asked = json!({ "metadata": { "annotations": { "pve-cloud/teardown": "true" } } });
    let asked = Patch::Merge(asked);
    secrets
        .patch("tenant", &PatchParams::default(), &asked)
        .await?;
    let told = told_by_secret(stack, "tenant", &hook).await?;
    told.is(0, "/outcome", "done")?;
    ensure!(told.at("/seconds").as_u64() >= Some(12), "{}", told.text);
    ensure!(tenant.claims().get_opt("precious").await?.is_none());
    Ok(())
}

/// Each run writes to a log of its own.
static RUNS: AtomicU32 = AtomicU32::new(0);

async fn told_by_secret(stack: &Stack, name: &str, more: &[&str]) -> Result<Told> {
    let common = [
        "teardown".to_owned(),
        format!("--kubeconfig-secret=default/{name}"),
        "--output=json".to_owned(),
    ];
    let more = more.iter().map(|&flag| flag.to_owned());
    let arguments: Vec<String> = common.into_iter().chain(more).collect();
    let run = format!("secret-{name}-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    pvectl(&run, &arguments, &stack.log_folder(), LIMIT).await
}
