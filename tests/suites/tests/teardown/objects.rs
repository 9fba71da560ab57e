//! What the tenant has made.

use anyhow::{Context, Result};
use harness::cluster::{Claim, STAY, Tenant, View, Workload, eventually};
use harness::world::{FILES, THIN};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use pve_model::topology::DEFAULT_DRIVER_NAME;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{AT_ONCE, KEPT, PATIENCE};

/// Classes whose volumes need no Pod to be made.
pub(crate) async fn classes(client: &Client) -> Result<()> {
    for (name, policy) in [(AT_ONCE, "Delete"), (KEPT, "Retain")] {
        let class = json!({
            "metadata": { "name": name },
            "provisioner": DEFAULT_DRIVER_NAME,
            "parameters": { "storage": THIN },
            "volumeBindingMode": "Immediate",
            "reclaimPolicy": policy,
        });
        make_global::<StorageClass>(client, class).await?;
    }
    Ok(())
}

/// One replica with a claim of its own.
pub(crate) fn stateful_set() -> Value {
    json!({
        "metadata": { "name": "db" },
        "spec": {
            "serviceName": "db",
            "selector": { "matchLabels": { "app": "db" } },
            "template": {
                "metadata": { "labels": { "app": "db" } },
                "spec": {
                    "nodeSelector": { "kubernetes.io/hostname": "n2" },
                    "terminationGracePeriodSeconds": 2,
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "containers": [{
                        "name": "main", "image": "none",
                        "command": ["/bin/sh", "-euc", STAY],
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": {
                    "storageClassName": FILES,
                    "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "64Mi" } },
                },
            }],
        },
    })
}

/// Bound by hand to a volume of a driver that is not here.
pub(crate) async fn foreign_volume(client: &Client, tenant: &Tenant) -> Result<()> {
    let volume = json!({
        "metadata": { "name": "foreign" },
        "spec": {
            "capacity": { "storage": "64Mi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": { "driver": "other.example", "volumeHandle": "x" },
            "claimRef": { "namespace": "default", "name": "foreign" },
        },
    });
    make_global::<PersistentVolume>(client, volume).await?;
    let claim = json!({
        "metadata": { "name": "foreign" },
        "spec": {
            "storageClassName": "",
            "volumeName": "foreign",
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "64Mi" } },
        },
    });
    make::<PersistentVolumeClaim>(client, claim).await?;
    bound(tenant, "foreign").await
}

/// Nobody answers at its address, and it must not be passed over.
pub(crate) fn webhook() -> Value {
    json!({
        "metadata": { "name": "guard" },
        "webhooks": [{
            "name": "guard.example.com",
            "clientConfig": { "url": "https://127.0.0.1:1/" },
            "failurePolicy": "Fail",
            "timeoutSeconds": 1,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "objectSelector": { "matchLabels": { "guarded": "yes" } },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"],
                "resources": ["persistentvolumeclaims"],
            }],
        }],
    })
}

/// In the tenant's namespace.
pub(crate) async fn make<K>(client: &Client, object: Value) -> Result<()>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(())
}

/// In none.
pub(crate) async fn make_global<K>(client: &Client, object: Value) -> Result<()>
where
    K: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(())
}

/// Waits until a claim has its volume.
pub(crate) async fn bound(tenant: &Tenant, name: &str) -> Result<()> {
    let what = format!("{name} bound");
    let is = async || {
        let status = tenant.claims().get(name).await?.status;
        Ok((status.and_then(|status| status.phase).as_deref() == Some("Bound")).then_some(()))
    };
    let waited = eventually(&what, PATIENCE, is).await;
    match waited {
        Ok(_) => Ok(()),
        Err(error) => Err(error).context(tenant.story().await?),
    }
}

/// Of a file system.
pub(crate) fn claim<'a>(name: &'a str, class: &'a str) -> Claim<'a> {
    Claim {
        name,
        class,
        access: "ReadWriteOnce",
        view: View::Mount,
    }
}

/// A Pod that is called like its claim.
pub(crate) fn workload<'a>(name: &'a str, node: &'a str) -> Workload<'a> {
    Workload {
        name,
        node,
        claim: name,
        view: View::Mount,
        command: STAY,
    }
}
