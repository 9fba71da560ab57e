//! The objects that the driver needs in the tenant's API server.

use std::fmt::Debug;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::api::PostParams;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Api, Client, Resource};
use pve_model::topology::DEFAULT_DRIVER_NAME;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Where the service accounts and the capacity objects are.
pub const NAMESPACE: &str = "pve-csi";
/// Service account of csi-provisioner.
pub const PROVISIONER: &str = "csi-provisioner";
/// Service account of csi-attacher.
pub const ATTACHER: &str = "csi-attacher";
/// Service account of csi-resizer.
pub const RESIZER: &str = "csi-resizer";
/// Service account of the driver's controller.
pub const CONTROLLER: &str = "csi-controller";
/// Service account of the node plugin.
pub const NODE_PLUGIN: &str = "csi-node";
/// Service account of the cloud-controller-manager.
pub const CCM: &str = "ccm";
/// Service account of the cloud-controller-manager in the management cluster.
pub const MANAGEMENT: &str = "ccm-management";
/// Its role in the namespace of the machines.
const MACHINES_ROLE: &str = "pve-ccm-machines";

/// A class to be made.
#[derive(Debug, Clone)]
pub struct Class {
    /// Its name.
    pub name: &'static str,
    /// PVE storage.
    pub storage: String,
}

/// Makes what the cloud-controller-manager needs alone.
pub(crate) async fn install_ccm(client: &Client) -> Result<()> {
    create::<Namespace>(client, json!({ "metadata": { "name": NAMESPACE } })).await?;
    account(client, CCM, ccm_rules()).await?;
    let name = MANAGEMENT;
    create_in::<ServiceAccount>(client, json!({ "metadata": { "name": name } })).await?;
    let role = format!("pve-{name}");
    let rules = json!([rule(
        "coordination.k8s.io",
        &["leases"],
        &["get", "create", "update"]
    )]);
    let object = json!({ "metadata": { "name": role }, "rules": rules });
    create_in::<Role>(client, object).await?;
    create_in::<RoleBinding>(client, binding("Role", &role, name)).await
}

/// Lets the cloud-controller-manager read the `ProxmoxMachine`s of a namespace of the management cluster.
pub(crate) async fn install_management(client: &Client, namespace: &str) -> Result<()> {
    let object = json!({ "metadata": { "name": MACHINES_ROLE }, "rules": machines_rules() });
    let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
    post(&roles, object).await?;
    bind_management(client, namespace).await
}

/// Gives that role to its account.
pub(crate) async fn bind_management(client: &Client, namespace: &str) -> Result<()> {
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let object = binding("Role", MACHINES_ROLE, MANAGEMENT);
    post(&bindings, object).await
}

/// A service account and its rights in the whole cluster.
async fn account(client: &Client, name: &str, rules: Value) -> Result<()> {
    create_in::<ServiceAccount>(client, json!({ "metadata": { "name": name } })).await?;
    let role = format!("pve-{name}");
    let object = json!({ "metadata": { "name": role }, "rules": rules });
    create::<ClusterRole>(client, object).await?;
    create::<ClusterRoleBinding>(client, binding("ClusterRole", &role, name)).await
}

/// Makes all of it: namespace, service accounts, rights, `CSIDriver`, classes.
pub async fn install(client: &Client, classes: &[Class]) -> Result<()> {
    create::<Namespace>(client, json!({ "metadata": { "name": NAMESPACE } })).await?;
    for (name, rules) in [
        (PROVISIONER, provisioner_rules()),
        (ATTACHER, attacher_rules()),
        (RESIZER, resizer_rules()),
        (CONTROLLER, controller_rules()),
        (NODE_PLUGIN, node_plugin_rules()),
        (CCM, ccm_rules()),
    ] {
        account(client, name, rules).await?;
    }
    let role = format!("pve-{PROVISIONER}");
    let object = json!({ "metadata": { "name": role }, "rules": capacity_rules() });
    create_in::<Role>(client, object).await?;
    create_in::<RoleBinding>(client, binding("Role", &role, PROVISIONER)).await?;
    create::<CSIDriver>(client, driver()).await?;
    for class in classes {
        create::<StorageClass>(client, storage_class(class)).await?;
    }
    Ok(())
}

fn binding(kind: &str, role: &str, account: &str) -> Value {
    json!({
        "metadata": { "name": role },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }],
    })
}

fn driver() -> Value {
    json!({
        "metadata": { "name": DEFAULT_DRIVER_NAME },
        "spec": {
            "attachRequired": true,
            "podInfoOnMount": false,
            "fsGroupPolicy": "File",
            "seLinuxMount": false,
            "requiresRepublish": false,
            "storageCapacity": true,
            "nodeAllocatableUpdatePeriodSeconds": 60,
        },
    })
}

fn storage_class(class: &Class) -> Value {
    json!({
        "metadata": { "name": class.name },
        "provisioner": DEFAULT_DRIVER_NAME,
        "parameters": { "storage": class.storage },
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": true,
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

const READ: [&str; 3] = ["get", "list", "watch"];

/// external-provisioner v6, deploy/kubernetes/rbac.yaml, without what needs Secrets, snapshots or elections.
fn provisioner_rules() -> Value {
    let storage = [
        "storageclasses",
        "csinodes",
        "volumeattachments",
        "volumeattributesclasses",
    ];
    json!([
        rule(
            "",
            &["persistentvolumes"],
            &["get", "list", "watch", "create", "patch", "delete"]
        ),
        rule(
            "",
            &["persistentvolumeclaims"],
            &["get", "list", "watch", "update"]
        ),
        rule("", &["nodes"], &READ),
        rule("", &["events"], &["create", "patch", "update"]),
        rule("storage.k8s.io", &storage, &READ),
    ])
}

/// `--enable-capacity` writes one object for each class and topology segment into its own namespace.
fn capacity_rules() -> Value {
    let verbs = [
        "get", "list", "watch", "create", "update", "patch", "delete",
    ];
    json!([rule("storage.k8s.io", &["csistoragecapacities"], &verbs)])
}

/// external-attacher v4, deploy/kubernetes/rbac.yaml.
fn attacher_rules() -> Value {
    json!([
        rule(
            "",
            &["persistentvolumes"],
            &["get", "list", "watch", "patch"]
        ),
        rule("storage.k8s.io", &["csinodes"], &READ),
        rule(
            "storage.k8s.io",
            &["volumeattachments"],
            &["get", "list", "watch", "patch"]
        ),
        rule("storage.k8s.io", &["volumeattachments/status"], &["patch"]),
    ])
}

/// external-resizer v2, deploy/kubernetes/rbac.yaml, without what needs Secrets, `VolumeAttributesClass`es or elections. It
/// reads Pods only to keep from volumes in use, which `--handle-volume-inuse-error=false` switches off.
fn resizer_rules() -> Value {
    json!([
        rule(
            "",
            &["persistentvolumes"],
            &["get", "list", "watch", "patch"]
        ),
        rule("", &["persistentvolumeclaims"], &READ),
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule(
            "",
            &["events"],
            &["list", "watch", "create", "update", "patch"]
        ),
    ])
}

/// Hints behind former node ids, what is attached, and whether the tenant goes away.
fn controller_rules() -> Value {
    json!([
        rule("", &["nodes"], &["get"]),
        rule("storage.k8s.io", &["volumeattachments"], &["get", "list"]),
        rule("storage.k8s.io", &["csidrivers"], &["get"]),
    ])
}

/// The labels of its own Node.
fn node_plugin_rules() -> Value {
    json!([rule("", &["nodes"], &READ)])
}

/// What the cloud-controller-manager may in the tenant's cluster.
fn ccm_rules() -> Value {
    json!([
        rule("", &["nodes"], &["get", "list", "watch", "patch", "delete"]),
        rule("", &["nodes/status"], &["patch"]),
        rule("", &["events"], &["create"]),
    ])
}

/// What it may in the management cluster if it is told the namespace of the machines.
fn machines_rules() -> Value {
    let machines = "infrastructure.cluster.x-k8s.io";
    json!([rule(machines, &["proxmoxmachines"], &["get", "list"])])
}

async fn create<K>(client: &Client, object: Value) -> Result<()>
where
    K: Resource<Scope = ClusterResourceScope, DynamicType = ()>,
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    post(&Api::<K>::all(client.clone()), object).await
}

async fn create_in<K>(client: &Client, object: Value) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    post(&Api::<K>::namespaced(client.clone(), NAMESPACE), object).await
}

pub(super) async fn post<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("create {}", K::kind(&())))?;
    Ok(())
}
