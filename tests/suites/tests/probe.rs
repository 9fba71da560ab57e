//! `pvectl probe` on a real Kubernetes: what it tells when volumes work and when they do not, and that nothing of it stays.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::cluster::pvectl::{Told, pvectl, start_pvectl, told};
use harness::cluster::{Place, Stack, eventually, requirements};
use harness::process::{Process, Signal};
use harness::requirements::noted;
use harness::truth::Truth;
use harness::world::FILES;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use pve_model::topology::DEFAULT_DRIVER_NAME;
use pve_sim::{RequestEffect, RequestFault};
use serde_json::json;

const N1: Place = Place {
    vmid: 101,
    pve_node: "pve1",
};
/// Only Pods of the Pod Security Standard `restricted` are admitted there.
const NAMESPACE: &str = "probe";
const LIMIT: Duration = Duration::from_mins(4);
const PATIENCE: Duration = Duration::from_mins(1);
const CONTENT: &str = "/nodes/{node}/storage/{storage}/content";

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_tells_which_step_fails_and_leaves_nothing_in_any_case() -> Result<()> {
    let Some(programs) = requirements("cluster: probe of a class") else {
        return Ok(());
    };
    let stack = Stack::start(&programs, &[N1]).await?;
    let outcome = stories(&stack).await;
    stack.finish(outcome).await
}

async fn stories(stack: &Stack) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(stack.client());
    let namespace = json!({ "metadata": {
        "name": NAMESPACE,
        "labels": { "pod-security.kubernetes.io/enforce": "restricted" },
    }});
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(namespace)?)
        .await?;
    works(stack).await.context("a class that works")?;
    refused_classes(stack)
        .await
        .context("classes that can't be probed")?;
    not_bound(stack).await.context("no volume")?;
    not_seen(stack).await.context("another owner")?;
    told_to_end(stack).await.context("SIGTERM")?;
    killed(stack).await.context("SIGKILL")
}

async fn works(stack: &Stack) -> Result<()> {
    let config = format!("--cloud-config={}", config(stack).display());
    let told = probe(stack, "works", FILES, &[&config]).await?;
    told.is(0, "/ok", true)?;
    for step in told.list("/steps")? {
        ensure!(step.get("verdict") == Some(&json!("ok")), "{}", told.text);
    }
    ensure!(told.list("/steps")?.len() == 8, "{}", told.text);
    nothing_is_left(stack, "works").await?;
    let seconds = told
        .list("/steps")?
        .iter()
        .filter_map(|step| step.get("seconds")?.as_f64());
    noted(&format!("probe of a class: {:.1} s", seconds.sum::<f64>()));
    Ok(())
}

async fn refused_classes(stack: &Stack) -> Result<()> {
    let classes: Api<StorageClass> = Api::all(stack.client());
    for (name, driver, policy) in [
        ("kept", DEFAULT_DRIVER_NAME, "Retain"),
        ("foreign", "other.example", "Delete"),
    ] {
        let class = json!({
            "metadata": { "name": name }, "provisioner": driver, "reclaimPolicy": policy,
            "parameters": { "storage": FILES },
        });
        classes
            .create(&PostParams::default(), &serde_json::from_value(class)?)
            .await?;
    }
    for (class, words) in [
        ("kept", "Retain: the disk would stay"),
        ("foreign", "made by other.example"),
        ("nowhere", "there is no StorageClass"),
    ] {
        let told = probe(stack, class, class, &[]).await?;
        failed(&told, 0, words)?;
        told.is(1, "/steps/1/verdict", "not-reached")?;
    }
    nothing_is_left(stack, "refused classes").await
}

async fn not_bound(stack: &Stack) -> Result<()> {
    fail(stack, "POST", CONTENT);
    let told = probe(stack, "not-bound", FILES, &["--timeout=12s"]).await?;
    stack.world.sim.clear_faults();
    failed(&told, 1, "the time is over; last warning:")?;
    nothing_is_left(stack, "not bound").await
}

/// The config names another owner than that in whose name the controller makes disks.
async fn not_seen(stack: &Stack) -> Result<()> {
    let mut other = stack.world.config();
    let owner = other
        .pointer_mut("/regions/r1/owners/default")
        .context("owner")?;
    *owner = json!(9998);
    let path = stack.folder().join("other.yaml");
    std::fs::write(&path, other.to_string())?;
    let flag = format!("--cloud-config={}", path.display());
    let told = probe(stack, "not-seen", FILES, &[&flag]).await?;
    failed(&told, 3, "is not that of the policy")?;
    nothing_is_left(stack, "not seen").await
}

async fn told_to_end(stack: &Stack) -> Result<()> {
    let mut process = reading(stack, "told-to-end").await?;
    process.signal(Signal::SIGTERM)?;
    let told = told(&mut process, LIMIT).await?;
    failed(&told, 4, "interrupted")?;
    nothing_is_left(stack, "SIGTERM").await
}

/// What it left goes with the next probe, but only once its time is over.
async fn killed(stack: &Stack) -> Result<()> {
    let process = reading(stack, "killed").await?;
    process.kill().await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(stack.client(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(stack.client(), NAMESPACE);
    let name = |all: Vec<PersistentVolumeClaim>| all.into_iter().find_map(|one| one.metadata.name);
    let claim = name(claims.list(&ListParams::default()).await?.items).context("no claim")?;
    let told = probe(stack, "beside-it", FILES, &[]).await?;
    told.is(0, "/ok", true)?;
    // Without a config nobody asks Proxmox VE.
    told.is(0, "/steps/3/verdict", "not-asked")?;
    told.is(0, "/steps/6/verdict", "not-asked")?;
    ensure!(claims.get_opt(&claim).await?.is_some(), "it may be at work");
    let old =
        json!({ "metadata": { "annotations": { "pvectl.proxmox.sinextra.dev/seconds": "1" } } });
    let old = Patch::Merge(old);
    claims.patch(&claim, &PatchParams::default(), &old).await?;
    for pod in pods.list(&ListParams::default()).await?.items {
        let name = pod.metadata.name.context("a name")?;
        pods.patch(&name, &PatchParams::default(), &old).await?;
    }
    let told = probe(stack, "after-it", FILES, &[]).await?;
    told.is(0, "/ok", true)?;
    let detail = told.at("/steps/1/detail").as_str().unwrap_or_default();
    ensure!(
        detail.ends_with("deleted objects that earlier probes left: 2"),
        "{detail}"
    );
    let gone = async || Ok(claims.get_opt(&claim).await?.is_none().then_some(()));
    eventually("the end of what was left", PATIENCE, gone).await?;
    let disks = async || Ok(Truth::of(&stack.world.sim).disks().is_empty().then_some(()));
    eventually("the end of its disk", PATIENCE, disks).await?;
    nothing_is_left(stack, "SIGKILL").await
}

/// A probe whose reading Pod is there.
async fn reading(stack: &Stack, name: &str) -> Result<Process> {
    let kubeconfig = stack.admin_kubeconfig()?;
    let arguments = arguments(&kubeconfig, FILES, &[]);
    let process = start_pvectl(&format!("probe-{name}"), &arguments, &stack.log_folder())?;
    let pods: Api<Pod> = Api::namespaced(stack.client(), NAMESPACE);
    let reads = |pod: &Pod| {
        pod.metadata
            .name
            .as_ref()
            .is_some_and(|name| name.ends_with("-read"))
    };
    eventually("a Pod that reads", PATIENCE, async || {
        let all = pods.list(&ListParams::default()).await?.items;
        Ok(all.iter().any(reads).then_some(()))
    })
    .await?;
    Ok(process)
}

async fn probe(stack: &Stack, name: &str, class: &str, more: &[&str]) -> Result<Told> {
    let arguments = arguments(&stack.admin_kubeconfig()?, class, more);
    pvectl(
        &format!("probe-{name}"),
        &arguments,
        &stack.log_folder(),
        LIMIT,
    )
    .await
}

fn arguments(kubeconfig: &std::path::Path, class: &str, more: &[&str]) -> Vec<String> {
    let common = [
        "probe".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--storage-class={class}"),
        format!("--namespace={NAMESPACE}"),
        "--output=json".to_owned(),
    ];
    let more = more.iter().map(|&flag| flag.to_owned());
    common.into_iter().chain(more).collect()
}

fn config(stack: &Stack) -> PathBuf {
    stack.world.folder().join("config.yaml")
}

/// From now on PVE answers such requests with an error.
fn fail(stack: &Stack, method: &str, path: &str) {
    stack.world.sim.add_fault(RequestFault {
        method: method.to_owned(),
        path: path.to_owned(),
        nth: 1,
        times: 1000,
        effect: RequestEffect::FailBefore {
            status: 500,
            message: "no".to_owned(),
        },
    });
}

/// This step failed for this reason, and the last one, which cleans up, went well.
fn failed(told: &Told, step: usize, words: &str) -> Result<()> {
    told.is(1, &format!("/steps/{step}/verdict"), "failed")?;
    told.is(1, "/steps/7/verdict", "ok")?;
    let detail = told
        .at(&format!("/steps/{step}/detail"))
        .as_str()
        .unwrap_or_default();
    ensure!(detail.contains(words), "{words:?} is not in {detail:?}");
    Ok(())
}

async fn nothing_is_left(stack: &Stack, after: &str) -> Result<()> {
    let client = stack.client();
    let all = ListParams::default();
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let (claims, volumes) = (
        claims.list(&all).await?.items,
        volumes.list(&all).await?.items,
    );
    let pods = pods.list(&all).await?.items;
    ensure!(
        claims.is_empty() && volumes.is_empty() && pods.is_empty(),
        "after {after}"
    );
    let truth = Truth::of(&stack.world.sim);
    let (disks, wrong) = (truth.disks(), truth.violations());
    ensure!(
        disks.is_empty() && wrong.is_empty(),
        "after {after}: {disks:?} {wrong:?}"
    );
    Ok(())
}
