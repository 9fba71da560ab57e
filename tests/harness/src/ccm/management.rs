//! The management cluster around the tenant's: Cluster API's kinds and objects, with no controller behind them, and the
//! account that the cloud-controller-manager has there. The tenant's API server plays it, in a namespace of its own.

use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::{CcmWorld, PATIENCE};
use crate::cluster::eventually;
use crate::cluster::objects::{MANAGEMENT, bind_management, install_management};
use crate::cluster::sidecars::account_token;

/// A kind of Cluster API: its group and name, and the versions that are served, the stored one last.
pub type Kind = (&'static str, &'static str, &'static [&'static str]);

/// What stands in a management cluster with capmox 0.7.
pub const CAPMOX_0_7: [Kind; 4] = [
    ("cluster.x-k8s.io", "Machine", &["v1beta1"]),
    (
        "infrastructure.cluster.x-k8s.io",
        "ProxmoxMachine",
        &["v1alpha1"],
    ),
    ("bootstrap.cluster.x-k8s.io", "KubeadmConfig", &["v1beta1"]),
    (
        "bootstrap.cluster.x-k8s.io",
        "KubeadmConfigTemplate",
        &["v1beta1"],
    ),
];
/// What stands in one with capmox 0.8 and later.
pub const CAPMOX_0_8: [Kind; 4] = [
    ("cluster.x-k8s.io", "Machine", &["v1beta1", "v1beta2"]),
    (
        "infrastructure.cluster.x-k8s.io",
        "ProxmoxMachine",
        &["v1alpha1", "v1alpha2"],
    ),
    (
        "bootstrap.cluster.x-k8s.io",
        "KubeadmConfig",
        &["v1beta1", "v1beta2"],
    ),
    (
        "bootstrap.cluster.x-k8s.io",
        "KubeadmConfigTemplate",
        &["v1beta1", "v1beta2"],
    ),
];

/// Who writes Cluster API's objects here.
const WRITER: &str = "cluster-api";

/// A namespace of the management cluster.
pub struct Management {
    client: Client,
    namespace: String,
    kubeconfig: PathBuf,
}

impl std::fmt::Debug for Management {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Management")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Management {
    /// Makes a namespace, and an account that may read the `ProxmoxMachine`s there and nothing else.
    pub async fn install(world: &CcmWorld, namespace: &str) -> Result<Self> {
        let client = world.client();
        let object =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        let params = PatchParams::apply(WRITER);
        Api::<Namespace>::all(client.clone())
            .patch(namespace, &params, &Patch::Apply(object))
            .await?;
        install_management(&client, namespace).await?;
        let token = account_token(world.plane(), MANAGEMENT).await?;
        Ok(Self {
            client,
            namespace: namespace.to_owned(),
            kubeconfig: world.plane().whole_kubeconfig(MANAGEMENT, &token)?,
        })
    }

    /// What the program is started with to read the `ProxmoxMachine`s.
    pub fn arguments(&self) -> [String; 2] {
        [
            format!("--management-kubeconfig={}", self.kubeconfig.display()),
            format!("--machines-namespace={}", self.namespace),
        ]
    }

    /// Has these kinds served, or served otherwise than before: any fields, converted by name alone.
    pub async fn serve(&self, kinds: &[Kind]) -> Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let params = PatchParams::apply(WRITER).force();
        for kind in kinds {
            let name = format!("{}.{}", plural(kind.1), kind.0);
            let definition = definition(kind, &name);
            definitions
                .patch(&name, &params, &Patch::Apply(&definition))
                .await
                .with_context(|| format!("serve {name}"))?;
        }
        for (group, kind, versions) in kinds {
            for version in *versions {
                let api = self.api(&format!("{group}/{version}"), kind)?;
                let what = format!("{kind} {version} served");
                eventually(&what, PATIENCE, async || {
                    Ok(api.list(&ListParams::default()).await.ok())
                })
                .await?;
            }
        }
        Ok(())
    }

    /// Writes an object as it is, its status with it.
    pub async fn apply(&self, object: &Value) -> Result<()> {
        let (api, name) = self.place(object)?;
        let mut object: DynamicObject = serde_json::from_value(object.clone())?;
        object.metadata.namespace = Some(self.namespace.clone());
        let params = PatchParams::apply(WRITER).force();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .with_context(|| format!("apply {name}"))?;
        Ok(())
    }

    /// Deletes an object, as if whoever holds it by a finalizer has done its work.
    pub async fn delete(&self, object: &Value) -> Result<()> {
        let (api, name) = self.place(object)?;
        let free = json!({ "metadata": { "finalizers": null } });
        api.patch(&name, &PatchParams::default(), &Patch::Merge(free))
            .await?;
        api.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// What the API server has of an object.
    pub async fn read(&self, object: &Value) -> Result<Value> {
        let (api, name) = self.place(object)?;
        Ok(serde_json::to_value(api.get(&name).await?)?)
    }

    /// Gives the account its role, or takes it away.
    pub async fn allow(&self, is: bool) -> Result<()> {
        if is {
            return bind_management(&self.client, &self.namespace).await;
        }
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &self.namespace);
        for binding in bindings.list(&ListParams::default()).await? {
            bindings
                .delete(&binding.name_any(), &DeleteParams::default())
                .await?;
        }
        Ok(())
    }

    fn place(&self, object: &Value) -> Result<(Api<DynamicObject>, String)> {
        let text = |at: &str| {
            let value = object.pointer(at).and_then(Value::as_str);
            value.with_context(|| format!("an object without {at}"))
        };
        let api = self.api(text("/apiVersion")?, text("/kind")?)?;
        Ok((api, text("/metadata/name")?.to_owned()))
    }

    fn api(&self, version: &str, kind: &str) -> Result<Api<DynamicObject>> {
        let (group, version) = version.split_once('/').context("no group")?;
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &plural(&kind.kind));
        Ok(Api::namespaced_with(
            self.client.clone(),
            &self.namespace,
            &resource,
        ))
    }
}

/// The documents of a YAML file.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).context("the manifests")
}

fn plural(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}

fn definition((group, kind, versions): &Kind, name: &str) -> Value {
    let plural = plural(kind);
    let stored = versions.last();
    let version = |name: &&'static str| {
        json!({
            "name": name,
            "served": true,
            "storage": Some(name) == stored,
            "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": name },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase() },
            "versions": versions.iter().map(version).collect::<Vec<_>>(),
        },
    })
}
