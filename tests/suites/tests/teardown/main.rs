//! A tenant goes away: what `pvectl teardown` leaves on Proxmox VE, and what it says when something stands in its way.

mod by_secret;
mod objects;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::ccm;
use harness::cluster::pvectl::{Told, pvectl};
use harness::cluster::{Place, Stack, Tenant, eventually, requirements, tenant_leaks};
use harness::requirements::noted;
use harness::truth::{Truth, mutations, volid};
use harness::world::{self, FILES};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use pve_model::topology::{DEFAULT_DRIVER_NAME, TEARDOWN_ANNOTATION};
use pve_sim::{RequestEffect, RequestFault};
use serde_json::{Value, json};

use crate::objects::{
    bound, claim, classes, foreign_volume, make, make_global, stateful_set, webhook, workload,
};

const N1: Place = Place {
    vmid: 101,
    pve_node: "pve1",
};
const N2: Place = Place {
    vmid: 102,
    pve_node: "pve1",
};
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
pub(crate) const LIMIT: Duration = Duration::from_mins(4);
/// Classes whose volumes need no Pod to be made.
pub(crate) const AT_ONCE: &str = "at-once";
pub(crate) const KEPT: &str = "kept";

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_goes_away_leaves_only_what_is_retained() -> Result<()> {
    let Some(programs) = requirements("cluster: teardown of a tenant") else {
        return Ok(());
    };
    let mut stack = Stack::start(&programs, &[N1, N2]).await?;
    let outcome = match stack.restart_management().await {
        Ok(()) => stories(&mut stack).await,
        Err(error) => Err(error),
    };
    stack.finish(outcome).await
}

async fn stories(stack: &mut Stack) -> Result<()> {
    let kept = whole_tenant(stack).await.context("a whole tenant")?;
    nothing_to_do(stack).await.context("nothing to do")?;
    switch_off(stack).await?;
    failing_webhook(stack).await.context("a failing webhook")?;
    switch_off(stack).await?;
    by_secret::stories(stack).await.context("by a Secret")?;
    switch_off(stack).await?;
    zero_nodes(stack, &kept).await.context("zero Nodes")?;
    no_leaks(stack).await.context("what the tenant can read")
}

/// B75: five volumes, two of them attached, one retained, one in creation; somebody who makes a claim anew; and a volume of
/// another driver.
async fn whole_tenant(stack: &Stack) -> Result<String> {
    let tenant = Tenant::new(&stack.client());
    let kept = five_volumes(stack, &tenant).await?;
    stack.world.sim.clear_requests();
    let told = teardown(stack, "whole", &["--settle=15s"]).await?;
    told.is(0, "/outcome", "done")?;
    ensure!(told.list("/left")?.len() == 1, "{}", told.text);
    told.is(0, "/left/0/fate", "retained")?;
    told.is(0, "/left/0/handle", kept.as_str())?;
    for name in ["app", "bare", "coming", "data-db-0", "kept"] {
        let id = json!(format!("default/{name}"));
        ensure!(told.list("/claimsDeleted")?.contains(&id), "{}", told.text);
    }
    only_disk_is(stack, &kept)?;
    let deleted = mutations(&stack.world.sim.requests());
    let deleted = deleted
        .iter()
        .filter(|one| one.starts_with("DELETE") && one.contains("content"));
    ensure!(deleted.count() >= 4, "also that which was in creation");
    let foreign = tenant.claims().get("foreign").await?;
    ensure!(
        foreign.metadata.deletion_timestamp.is_none(),
        "of another driver"
    );
    // The StatefulSet has made its claim anew, and it has no volume.
    let made = tenant.claims().get("data-db-0").await?;
    ensure!(made.metadata.deletion_timestamp.is_none());
    ensure!(made.spec.and_then(|spec| spec.volume_name).is_none());
    noted(&format!(
        "teardown of 5 volumes (2 attached, 1 retained, 1 in creation) and a StatefulSet: {} s",
        told.at("/seconds")
    ));
    Ok(kept)
}

/// The handle of the one that is retained.
async fn five_volumes(stack: &Stack, tenant: &Tenant) -> Result<String> {
    let client = stack.client();
    classes(&client).await?;
    tenant.claim(&claim("app", FILES)).await?;
    tenant.run(&workload("app", "n1")).await?;
    make::<StatefulSet>(&client, stateful_set()).await?;
    for (name, class) in [("kept", KEPT), ("bare", AT_ONCE)] {
        tenant.claim(&claim(name, class)).await?;
    }
    foreign_volume(&client, tenant).await?;
    tenant.wait_running("app").await?;
    tenant.wait_running("db-0").await?;
    for name in ["kept", "bare"] {
        bound(tenant, name).await?;
    }
    stack.world.sim.add_fault(RequestFault {
        method: "POST".to_owned(),
        path: "/nodes/{node}/storage/{storage}/content".to_owned(),
        nth: 1,
        times: 1,
        effect: RequestEffect::Delay { ms: 8000 },
    });
    tenant.claim(&claim("coming", AT_ONCE)).await?;
    eventually("a volume in creation", PATIENCE, async || {
        Ok((stack.world.sim.faults_left() == 0).then_some(()))
    })
    .await?;
    ensure!(Truth::of(&stack.world.sim).disks().len() == 4);
    tenant.handle_of("kept").await
}

async fn nothing_to_do(stack: &Stack) -> Result<()> {
    let sets: Api<StatefulSet> = Api::namespaced(stack.client(), "default");
    sets.delete("db", &DeleteParams::default()).await?;
    let told = teardown(stack, "nothing", &[]).await?;
    told.is(0, "/outcome", "done")?;
    ensure!(*told.at("/volumesGone") == json!({}), "{}", told.text);
    Ok(())
}

/// One claim can't be deleted. The other is, all the same.
async fn failing_webhook(stack: &Stack) -> Result<()> {
    let client = stack.client();
    let tenant = Tenant::new(&client);
    for name in ["guarded", "free"] {
        tenant.claim(&claim(name, AT_ONCE)).await?;
    }
    for name in ["guarded", "free"] {
        bound(&tenant, name).await?;
    }
    let label = json!({ "metadata": { "labels": { "guarded": "yes" } } });
    let patch = Patch::Merge(label);
    tenant
        .claims()
        .patch("guarded", &PatchParams::default(), &patch)
        .await?;
    make_global::<ValidatingWebhookConfiguration>(&client, webhook()).await?;
    let refused = async || {
        let dry = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        Ok(tenant
            .claims()
            .delete("guarded", &dry)
            .await
            .is_err()
            .then_some(()))
    };
    eventually("the webhook", PATIENCE, refused).await?;
    let (handle, other) = (
        tenant.handle_of("guarded").await?,
        tenant.handle_of("free").await?,
    );

    let told = teardown(stack, "webhook", &["--timeout=15s"]).await?;
    told.is(1, "/outcome", "timeout")?;
    let row = row_of(&told, &handle)?;
    let why = row.as_str();
    ensure!(
        why.contains("default/guarded can't be deleted") && why.contains("webhook"),
        "{why}"
    );
    let disks = Truth::of(&stack.world.sim).disks();
    ensure!(
        disks.contains(&volid(&handle)) && !disks.contains(&volid(&other)),
        "{disks:?}"
    );

    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    hooks.delete("guard", &DeleteParams::default()).await?;
    let told = teardown(stack, "webhook-gone", &[]).await?;
    ensure!(told.code == Some(0), "{}", told.text);
    ensure!(
        !Truth::of(&stack.world.sim)
            .disks()
            .contains(&volid(&handle))
    );
    Ok(())
}

/// The kubelets are gone and the Nodes too, but not the VMs: nobody ends the Pod, and its disk is still in the VM.
async fn zero_nodes(stack: &mut Stack, kept: &str) -> Result<()> {
    let client = stack.client();
    let tenant = Tenant::new(&client);
    tenant.claim(&claim("orphan", FILES)).await?;
    tenant.run(&workload("orphan", "n2")).await?;
    tenant.wait_running("orphan").await?;
    let handle = tenant.handle_of("orphan").await?;
    stack.stop_kubelets().await?;
    let nodes: Api<ccm::Node> = Api::all(client.clone());
    for name in ["n1", "n2"] {
        nodes.delete(name, &DeleteParams::default()).await?;
    }
    ensure!(
        !Truth::of(&stack.world.sim).holders(&handle).is_empty(),
        "it is in a VM"
    );
    let told = teardown(stack, "zero", &["--pod-grace=2s"]).await?;
    told.is(0, "/outcome", "done")?;
    only_disk_is(stack, kept)?;
    noted(&format!(
        "teardown without any Node: {} s",
        told.at("/seconds")
    ));
    Ok(())
}

/// B74: after all that, no token of Proxmox VE is in any object, Event or log of the tenant.
async fn no_leaks(stack: &Stack) -> Result<()> {
    let secrets = [world::TOKEN.1, ccm::TOKEN.1, world::TOKEN.0, ccm::TOKEN.0];
    let (found, count) = tenant_leaks(stack, &secrets).await?;
    ensure!(found.is_empty(), "tokens stand in {found:?}");
    noted(&format!(
        "token scan: 0 hits in {count} lists of objects and logs"
    ));
    // A scan that finds nothing must be able to find something.
    let planted =
        json!({ "metadata": { "name": "planted" }, "stringData": { "x": world::TOKEN.1 } });
    make::<Secret>(&stack.client(), planted).await?;
    let (found, _) = tenant_leaks(stack, &secrets).await?;
    ensure!(found == ["/api/v1/secrets"], "{found:?}");
    Ok(())
}

/// Nobody listens there: that is no tenant without claims.
#[tokio::test]
async fn an_api_server_that_can_not_be_asked_is_told_from_a_tenant_without_claims() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("kubeconfig");
    let server = format!("https://{}", world::free_port()?);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": { "token": "t" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
    });
    std::fs::write(&path, config.to_string())?;
    let hook = [
        "--hook".to_owned(),
        "--kubeconfig-secret=a/b".to_owned(),
        format!("--management-kubeconfig={}", path.display()),
    ];
    let plain = [format!("--kubeconfig={}", path.display())];
    for (name, more, code) in [("plain", &plain[..], 1), ("hook", &hook[..], 0)] {
        let arguments = [
            "teardown".to_owned(),
            "--timeout=3s".to_owned(),
            "--output=json".to_owned(),
        ];
        let arguments: Vec<String> = arguments.into_iter().chain(more.iter().cloned()).collect();
        let told = pvectl(name, &arguments, folder.path(), LIMIT).await?;
        told.is(code, "/outcome", "unreachable")?;
        let summary = told.at("/summary").as_str().unwrap_or_default();
        ensure!(
            summary.contains("whether the tenant has volumes is not known"),
            "{summary}"
        );
    }
    std::fs::write(&path, "[")?;
    let arguments = [
        "teardown".to_owned(),
        format!("--kubeconfig={}", path.display()),
    ];
    let told = pvectl("malformed", &arguments, folder.path(), LIMIT).await?;
    ensure!(told.code == Some(64), "{}", told.text);
    Ok(())
}

async fn teardown(stack: &Stack, name: &str, more: &[&str]) -> Result<Told> {
    let kubeconfig = stack.admin_kubeconfig()?;
    let arguments = [
        "teardown".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        "--output=json".to_owned(),
    ];
    let timeout = more.iter().any(|flag| flag.starts_with("--timeout"));
    let timeout = (!timeout).then(|| "--timeout=3m".to_owned());
    let settle = more.iter().any(|flag| flag.starts_with("--settle"));
    let settle = (!settle).then(|| "--settle=2s".to_owned());
    let hook = more.contains(&"--hook");
    let yes = (!hook).then(|| "--yes".to_owned());
    let timeout = timeout.into_iter().chain(settle).chain(yes);
    let more = more.iter().map(|&flag| flag.to_owned());
    let arguments: Vec<String> = arguments.into_iter().chain(timeout).chain(more).collect();
    pvectl(
        &format!("teardown-{name}"),
        &arguments,
        &stack.log_folder(),
        LIMIT,
    )
    .await
}

/// As an operator does who has changed his mind.
async fn switch_off(stack: &Stack) -> Result<()> {
    let drivers: Api<CSIDriver> = Api::all(stack.client());
    let driver = drivers.get(DEFAULT_DRIVER_NAME).await?;
    let annotations = driver.metadata.annotations.unwrap_or_default();
    ensure!(annotations.get(TEARDOWN_ANNOTATION).map(String::as_str) == Some("true"));
    let off = json!({ "metadata": { "annotations": { TEARDOWN_ANNOTATION: null } } });
    let off = Patch::Merge(off);
    drivers
        .patch(DEFAULT_DRIVER_NAME, &PatchParams::default(), &off)
        .await?;
    Ok(())
}

fn only_disk_is(stack: &Stack, handle: &str) -> Result<()> {
    let truth = Truth::of(&stack.world.sim);
    let (disks, wrong) = (truth.disks(), truth.violations());
    ensure!(disks.iter().eq([&volid(handle)]), "{disks:?}");
    ensure!(truth.holders(handle).is_empty(), "it is in a VM");
    ensure!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

/// Why the volume of this handle is left.
fn row_of(told: &Told, handle: &str) -> Result<String> {
    let rows = told.list("/left")?;
    let row = rows
        .iter()
        .find(|row| row.get("handle") == Some(&json!(handle)));
    let why = row.and_then(|row| row.get("why")).and_then(Value::as_str);
    Ok(why.with_context(|| told.text.clone())?.to_owned())
}
