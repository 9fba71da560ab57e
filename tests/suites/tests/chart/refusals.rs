//! Values that are refused with a sentence.

use anyhow::{Result, ensure};

use crate::helm::Half::{self, Management, Tenant};
use crate::helm::{Helm, with_sets};

/// What is set on top of the default values, and all that is said.
const REFUSED: [(Half, &[&str], &str); 16] = [
    (
        Management,
        &["ccm.secretName="],
        "ccm.secretName is required: the name of the Secret with the config of the cloud-controller-manager",
    ),
    (
        Management,
        &["csi.secretName="],
        "csi.secretName is required unless csi.enabled is false: the name of the Secret with the config of the CSI controller",
    ),
    (
        Management,
        &["tenant.kubeconfigSecret.name="],
        "tenant.kubeconfigSecret.name is required: the name of the Secret with the tenant's kubeconfig",
    ),
    (
        Management,
        &["csi.secretName=same", "ccm.secretName=same"],
        "csi.secretName and ccm.secretName both name \"same\": the CSI controller and the cloud-controller-manager have a token \
         each, so give each a Secret of its own",
    ),
    (
        Management,
        &["csi.secretName=tenant-a-admin-kubeconfig"],
        "csi.secretName and tenant.kubeconfigSecret.name both name \"tenant-a-admin-kubeconfig\": the kubeconfig is a Secret of \
         its own",
    ),
    (
        Management,
        &["ccm.secretName=tenant-a-admin-kubeconfig"],
        "ccm.secretName and tenant.kubeconfigSecret.name both name \"tenant-a-admin-kubeconfig\": the kubeconfig is a Secret of \
         its own",
    ),
    (
        Management,
        &["csi.secretName=capmox-manager-credentials"],
        "csi.secretName names \"capmox-manager-credentials\", the Secret of Cluster API's provider: its token may do far more, so \
         make one with fewer rights",
    ),
    (
        Management,
        &["ccm.secretName=capmox-manager-credentials"],
        "ccm.secretName names \"capmox-manager-credentials\", the Secret of Cluster API's provider: its token may do far more, so \
         make one with fewer rights",
    ),
    (
        Management,
        &[
            "admin.ports.csiController=9900",
            "admin.ports.csiCredentials=9900",
        ],
        "admin.ports.csiController and admin.ports.csiCredentials must differ: they are ports of one Pod",
    ),
    (
        Management,
        &["admin.ports.ccm=9900", "admin.ports.ccmCredentials=9900"],
        "admin.ports.ccm and admin.ports.ccmCredentials must differ: they are ports of one Pod",
    ),
    (
        Management,
        &["podLabels.app\\.kubernetes\\.io/component=x"],
        "podLabels must not have \"app.kubernetes.io/component\": the Deployments find their Pods by it",
    ),
    (
        Tenant,
        &["kubeletDir=/a-path-of-seventy-characters-which-is-much-longer-than-any-should-be"],
        "kubeletDir and driverName are too long together: the path of the plugin's socket, \
         /a-path-of-seventy-characters-which-is-much-longer-than-any-should-be/plugins/csi.proxmox.sinextra.dev/csi.sock, has 111 bytes, \
         and Linux takes 107",
    ),
    (
        Tenant,
        &["csi.enabled=false"],
        "storageClasses are given, but csi.enabled is false: nothing would serve them",
    ),
    (
        Tenant,
        &[
            "storageClasses[1].name=pve",
            "storageClasses[1].parameters.storage=x",
        ],
        "storageClasses has \"pve\" twice",
    ),
    (
        Tenant,
        &[
            "storageClasses[0].name=a",
            "storageClasses[0].default=true",
            "storageClasses[0].parameters.storage=x",
            "storageClasses[1].name=b",
            "storageClasses[1].default=true",
            "storageClasses[1].parameters.storage=x",
        ],
        "storageClasses has 2 default classes (a, b): one is possible",
    ),
    (
        Tenant,
        &["node.podLabels.app\\.kubernetes\\.io/name=x"],
        "node.podLabels must not have \"app.kubernetes.io/name\": the DaemonSet finds its Pods by it",
    ),
];

#[test]
fn values_that_contradict_each_other_are_refused_with_a_sentence_that_names_them() -> Result<()> {
    let Some(helm) = Helm::find("chart: refusals")? else {
        return Ok(());
    };
    for (half, sets, sentence) in REFUSED {
        let said = helm.refusal(half, sets)?;
        ensure!(
            said.contains(&format!("): {sentence}\n")),
            "{} with {sets:?} said {said:?} and not {sentence:?}",
            half.name()
        );
    }
    Ok(())
}

#[test]
fn without_a_csi_controller_no_secret_of_its_own_is_asked_for() -> Result<()> {
    let Some(helm) = Helm::find("chart: no CSI controller")? else {
        return Ok(());
    };
    let sets = ["csi.enabled=false", "csi.secretName="];
    let rendered = helm.rendered(Management, &with_sets(Management, &sets))?;
    ensure!(!rendered.text.contains("tenant-a-pve-csi"));
    ensure!(!rendered.text.contains("csi-controller"));
    ensure!(rendered.text.contains("secretName: tenant-a-pve-ccm"));
    // The Secret of the CSI controller may have any name then, the CCM's too.
    for name in ["tenant-a-pve-ccm", "tenant-a-admin-kubeconfig"] {
        let sets = ["csi.enabled=false", &format!("csi.secretName={name}")];
        helm.rendered(Management, &with_sets(Management, &sets))?;
    }
    Ok(())
}
