//! Every object of every example, as the real API server sees it. Privileged Pods are refused there by default, and whatever is not
//! `restricted` is warned of.

use std::process::Output;

use anyhow::{Context, Result, ensure};
use harness::cluster::{ControlPlane, PodSecurity, Programs, RunDir, ServerOptions};
use harness::requirements::skipped;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::VALUES;
use crate::helm::{HALVES, Helm};
use crate::objects::{id, of_kind, text};

/// What the namespaces of the tests are like.
pub(crate) const SECURITY: PodSecurity = PodSecurity {
    enforce: "baseline",
    warn: "restricted",
};

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_object_of_every_example_without_a_warning() -> Result<()> {
    let test = "chart: dry run on the API server";
    let Some(helm) = Helm::find(test)? else {
        return Ok(());
    };
    let programs = match Programs::built() {
        Ok(programs) => programs,
        Err(reason) => {
            skipped(test, &reason);
            return Ok(());
        }
    };
    let run = RunDir::new()?;
    let options = ServerOptions {
        pod_security: Some(SECURITY),
        ..ServerOptions::default()
    };
    let plane = ControlPlane::start_server_with(&programs, run.path(), options).await?;
    let outcome = dry_runs(&plane, &helm).await;
    plane.stop().await?;
    outcome
}

async fn dry_runs(plane: &ControlPlane, helm: &Helm) -> Result<()> {
    let kubectl = Kubectl { plane };
    kubectl
        .apply(&[json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "tenant-a" },
        })])
        .await?;
    let mut count = 0;
    for half in HALVES {
        for values in VALUES {
            let rendered = helm.of_values(half, values)?;
            // In a namespace that isn't there nothing can be tried.
            for namespace in of_kind(&rendered.objects, "Namespace") {
                kubectl.apply(std::slice::from_ref(namespace)).await?;
            }
            let said = kubectl.dry_run(&rendered.objects).await;
            said.with_context(|| format!("{} {values}", half.name()))?;
            count += rendered.objects.len();
        }
    }
    ensure!(count > 150, "only {count} objects");
    privileged_pods_need_the_label(&kubectl, helm).await
}

/// The namespace is what lets the node plugin in: elsewhere its Pods are warned of, and refused.
async fn privileged_pods_need_the_label(kubectl: &Kubectl<'_>, helm: &Helm) -> Result<()> {
    let rendered = helm.of_values(crate::helm::Half::Tenant, "default")?;
    let mut plugin = of_kind(&rendered.objects, "DaemonSet");
    let mut plugin = plugin.pop().context("no DaemonSet")?.clone();
    let namespace = plugin.pointer_mut("/metadata/namespace");
    *namespace.context("no namespace")? = json!("tenant-a");
    let said = kubectl.dry_run(std::slice::from_ref(&plugin)).await;
    let said = format!("{:#}", said.err().context("no warning")?);
    ensure!(said.contains("would violate PodSecurity"), "{said}");
    Ok(())
}

/// kubectl as an administrator.
struct Kubectl<'a> {
    plane: &'a ControlPlane,
}

impl Kubectl<'_> {
    /// Writes objects.
    async fn apply(&self, objects: &[Value]) -> Result<()> {
        let output = self.run(objects, &[]).await?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{said}");
        Ok(())
    }

    /// Has them checked, each field too. A warning is an error.
    async fn dry_run(&self, objects: &[Value]) -> Result<()> {
        let output = self
            .run(objects, &["--dry-run=server", "--validate=strict"])
            .await?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{said}");
        let taken = String::from_utf8_lossy(&output.stdout);
        let taken = taken.matches("serverside-applied (server dry run)").count();
        ensure!(
            taken == objects.len(),
            "{taken} of {} were tried",
            objects.len()
        );
        Ok(())
    }

    async fn run(&self, objects: &[Value], flags: &[&str]) -> Result<Output> {
        let folder = self.plane.folder();
        let file = folder.join("objects.json");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        std::fs::write(&file, list.to_string())?;
        let names: Vec<String> = objects.iter().map(id).collect();
        ensure!(
            objects.iter().all(|one| !text(one, "/kind").is_empty()),
            "{names:?}"
        );
        let mut command = Command::new(self.plane.programs().kubernetes());
        command
            .arg("kubectl")
            .arg(format!(
                "--kubeconfig={}",
                self.plane.admin_kubeconfig().display()
            ))
            .arg(format!("--cache-dir={}", folder.join("kubectl").display()))
            .args(["apply", "--server-side"])
            .arg(format!("--filename={}", file.display()))
            .args(flags);
        Ok(command.output().await?)
    }
}
