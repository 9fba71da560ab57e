//! Both halves installed by helm, a claim's life with them, and their removal.

use anyhow::{Context, Result, ensure};
use harness::cluster::{
    Claim, STAY, Tenant as Namespace, View, Workload, eventually, requirements, wait_content,
};
use harness::truth::Truth;
use harness::world::{FILES, SHARED, THIN};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::ListParams;

use crate::audit;
use crate::helm::Half::{Management, Tenant};
use crate::helm::Helm;
use crate::site::{PATIENCE, Site};

const CLAIM: &str = "bytes";

#[tokio::test(flavor = "multi_thread")]
async fn both_halves_install_serve_a_claim_and_leave_nothing_when_they_go() -> Result<()> {
    let test = "chart: installation";
    let (Some(helm), Some(programs)) = (Helm::find(test)?, requirements(test)) else {
        return Ok(());
    };
    let site = Site::start(&programs, helm).await?;
    let outcome = whole_life(&site).await;
    site.finish(outcome).await
}

async fn whole_life(site: &Site) -> Result<()> {
    site.write_secrets().await?;
    site.install(Tenant).await?;
    site.install(Management).await?;
    site.wait_ready("tenant-a", &["ccm", "csi-controller"])
        .await?;
    site.wait_ready("pve-cloud", &["csi-node"]).await?;
    capacities_are_told(site).await?;
    a_pod_has_its_volume(site).await?;
    site.no_restarts().await?;
    removed_with_its_disks(site).await?;
    audit::everyone_has_just_its_rights(&site.plane.audit_log())
}

/// In the tenant's namespace, an object for each class where the Node is.
async fn capacities_are_told(site: &Site) -> Result<()> {
    let capacities: Api<CSIStorageCapacity> = Api::namespaced(site.plane.client(), "pve-cloud");
    eventually("capacities of all classes", PATIENCE, async || {
        let known = capacities.list(&ListParams::default()).await?.items;
        let of = |class: &str| {
            let mut of_class = known.iter().filter(|one| one.storage_class_name == class);
            of_class.any(|one| one.capacity.is_some())
        };
        Ok([FILES, THIN, SHARED].into_iter().all(of).then_some(()))
    })
    .await?;
    Ok(())
}

/// Written by a Pod, on a disk of this tenant.
async fn a_pod_has_its_volume(site: &Site) -> Result<()> {
    let tenant = Namespace::new(&site.plane.client());
    let claim = Claim {
        name: CLAIM,
        class: FILES,
        access: "ReadWriteOnce",
        view: View::Mount,
    };
    tenant.claim(&claim).await?;
    let command = format!("echo written by a Pod > /data/hello; sync; {STAY}");
    let pod = Workload {
        name: "writer",
        node: "n1",
        claim: CLAIM,
        view: View::Mount,
        command: &command,
    };
    tenant.run(&pod).await?;
    tenant.wait_running(pod.name).await?;
    let path = tenant.mount_path(pod.name, CLAIM, &site.worker).await?;
    wait_content(&path.join("hello"), "written by a Pod\n").await?;
    let disks = Truth::of(&site.sim).disks();
    ensure!(disks.len() == 1, "disks of the tenant: {disks:?}");
    Ok(())
}

/// The management half goes first and takes claim, Pod and disk with it; then the other.
async fn removed_with_its_disks(site: &Site) -> Result<()> {
    site.uninstall(Management).await?;
    let disks = Truth::of(&site.sim).disks();
    ensure!(disks.is_empty(), "disks are left: {disks:?}");
    let claims: Api<PersistentVolumeClaim> = Api::all(site.plane.client());
    let left = claims.list(&ListParams::default()).await?.items;
    ensure!(left.is_empty(), "claims are left");
    let volumes = ["pv,pvc,volumeattachments,csistoragecapacities"];
    let left = site.listed(&volumes).await?;
    ensure!(left.is_empty(), "of the volumes are left {left:?}");

    site.uninstall(Tenant).await?;
    let kinds = "deployments,daemonsets,replicasets,pods,jobs,serviceaccounts,roles,rolebindings,clusterroles,\
                 clusterrolebindings,csidrivers,storageclasses,poddisruptionbudgets,configmaps";
    let label = "--selector=app.kubernetes.io/part-of=pve-cloud";
    let names = "--selector=app.kubernetes.io/name in (pve-cloud, pve-cloud-tenant)";
    eventually("nothing of the releases", PATIENCE, async || {
        let mut left = site.listed(&[kinds, label]).await?;
        left.extend(site.listed(&[kinds, names]).await?);
        ensure!(left.is_empty(), "left are {left:?}");
        Ok(Some(()))
    })
    .await?;
    // The operator's Secrets, and the namespace in which helm kept the tenant's release.
    let secrets = site.listed(&["secrets"]).await?;
    ensure!(secrets.len() == 3, "Secrets: {secrets:?}");
    let namespaces = site.listed(&["namespaces", label]).await?;
    let [namespace] = namespaces.as_slice() else {
        return Err(anyhow::anyhow!("{namespaces:?}")).context("namespaces");
    };
    ensure!(namespace == "namespace/pve-cloud");
    Ok(())
}
