//! What both halves must say alike, and what the examples of Flux say.

use std::collections::BTreeSet;
use std::io::Write as _;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::VALUES;
use crate::helm::Half::{Management, Tenant};
use crate::helm::{HALVES, Helm, with_sets};
use crate::objects::{container, list, of_kind, one, text, texts, walk};

/// The value of an argument.
fn argument<'a>(container: &'a Value, flag: &str) -> Vec<&'a str> {
    let prefix = format!("{flag}=");
    let all = texts(container, "/args").into_iter();
    all.filter_map(|argument| argument.strip_prefix(&prefix))
        .collect()
}

#[test]
fn both_halves_have_the_same_driver() -> Result<()> {
    let Some(helm) = Helm::find("chart: driver name")? else {
        return Ok(());
    };
    for values in VALUES.into_iter().filter(|values| *values != "minimal") {
        let management = helm.of_values(Management, values)?;
        let management = &management.objects;
        let tenant = helm.of_values(Tenant, values)?;
        let tenant = &tenant.objects;
        let driver = of_kind(tenant, "CSIDriver");
        let driver = driver.first().context("no CSIDriver")?;
        let name = text(driver, "/metadata/name");
        for (objects, program) in [
            (&management, "csi-controller"),
            (&management, "teardown"),
            (&management, "cleanup"),
            (&tenant, "csi-node"),
        ] {
            let said = argument(container(objects, program)?, "--driver-name");
            ensure!(said == [name], "{values} {program}: {said:?}, not {name}");
        }
        for class in of_kind(tenant, "StorageClass") {
            ensure!(text(class, "/provisioner") == name, "{values}: {class}");
        }
        let plugin = format!("/plugins/{name}/csi.sock");
        let told = argument(container(tenant, "csi-node")?, "--kubelet-csi-path");
        ensure!(told.iter().all(|path| path.ends_with(&plugin)), "{told:?}");
        let role = one(tenant, "ClusterRole", "pve-csi-controller")?;
        let names: Vec<&str> = list(role, "/rules")
            .iter()
            .flat_map(|rule| texts(rule, "/resourceNames"))
            .collect();
        ensure!(names == [name], "{values}: {names:?}");
    }
    Ok(())
}

/// A sidecar acts as an account of the tenant's release, by a kubeconfig that pve-credentials has made for it.
#[test]
fn whom_the_management_half_acts_as_is_in_the_tenants_half() -> Result<()> {
    let Some(helm) = Helm::find("chart: accounts")? else {
        return Ok(());
    };
    let management = helm.of_values(Management, "default")?;
    let management = &management.objects;
    let tenant = helm.of_values(Tenant, "default")?;
    let tenant = &tenant.objects;
    let accounts: BTreeSet<String> = of_kind(tenant, "ServiceAccount")
        .into_iter()
        .map(|account| {
            let namespace = text(account, "/metadata/namespace");
            let name = text(account, "/metadata/name");
            format!("system:serviceaccount:{namespace}:{name}")
        })
        .collect();
    for (deployment, programs) in [
        (
            "-csi-controller",
            [
                "csi-provisioner",
                "csi-attacher",
                "csi-resizer",
                "csi-controller",
            ]
            .as_slice(),
        ),
        ("-ccm", ["ccm"].as_slice()),
    ] {
        let deployment = one(management, "Deployment", deployment)?;
        let pod = &deployment["spec"]["template"]["spec"];
        let init = list(pod, "/initContainers")
            .first()
            .context("no init container")?;
        let all = list(pod, "/containers");
        let named = |name: &str| all.iter().find(|one| text(one, "/name") == name);
        let watch = named("credentials").context("no credentials")?;
        let made = argument(init, "--impersonate");
        ensure!(made == argument(watch, "--impersonate"), "{made:?}");
        ensure!(made.len() == programs.len(), "{made:?}");
        for program in programs {
            let of_it = format!("{program}=");
            let mut whom = made.iter().filter_map(|one| one.strip_prefix(&of_it));
            let whom = whom
                .next()
                .with_context(|| format!("nobody for {program}"))?;
            ensure!(accounts.contains(whom), "{whom} is not in {accounts:?}");
            let file = argument(named(program).context("no such container")?, "--kubeconfig");
            ensure!(
                file == [format!(
                    "/run/pve-cloud/kubeconfig/files/{program}.kubeconfig"
                )]
            );
        }
    }
    Ok(())
}

#[test]
fn what_the_loader_writes_is_what_the_programs_read() -> Result<()> {
    let Some(helm) = Helm::find("chart: files")? else {
        return Ok(());
    };
    let objects = helm.of_values(Management, "full")?;
    let objects = &objects.objects;
    for (use_, program) in [("csi", "csi-controller"), ("ccm", "ccm")] {
        let deployment = one(objects, "Deployment", &format!("-{program}"))?;
        let pod = &deployment["spec"]["template"]["spec"];
        let all = list(pod, "/initContainers")
            .iter()
            .chain(list(pod, "/containers"));
        for loader in all.filter(|one| text(one, "/name").ends_with("credentials")) {
            ensure!(argument(loader, "--use") == [use_]);
            ensure!(argument(loader, "--config-dir") == ["/run/pve-cloud/config/files"]);
            ensure!(argument(loader, "--kubeconfig-dir") == ["/run/pve-cloud/kubeconfig/files"]);
            ensure!(argument(loader, "--kubeconfig-source") == ["/kubeconfig-secret/admin.conf"]);
            ensure!(argument(loader, "--expect-provider") == ["capmox"]);
            ensure!(argument(loader, "--expect-region") == ["dc1", "dc2"]);
        }
        let config = argument(container(objects, program)?, "--cloud-config");
        ensure!(config == ["/run/pve-cloud/config/files/config.yaml"]);
        let secret = list(pod, "/volumes").iter();
        let mut secret = secret.filter(|volume| text(volume, "/name") == "secret");
        let secret = secret.next().context("no Secret")?;
        ensure!(text(secret, "/secret/secretName") == format!("tenant-a-pve-{use_}"));
    }
    Ok(())
}

#[test]
fn capacity_is_turned_off_in_both_halves_alike() -> Result<()> {
    let Some(helm) = Helm::find("chart: capacity in the tenant")? else {
        return Ok(());
    };
    for is in [true, false] {
        let set = format!("csi.capacity.enabled={is}");
        let objects = helm.rendered(Tenant, &with_sets(Tenant, &[&set]))?.objects;
        let driver = of_kind(&objects, "CSIDriver");
        let driver = driver.first().context("no CSIDriver")?;
        ensure!(driver["spec"]["storageCapacity"] == json!(is));
        let may = of_kind(&objects, "Role").into_iter().any(|role| {
            let mut rules = list(role, "/rules").iter();
            rules.any(|rule| texts(rule, "/resources").contains(&"csistoragecapacities"))
        });
        ensure!(may == is);
    }
    Ok(())
}

#[test]
fn the_csidriver_is_that_of_the_design_on_old_and_new_kubernetes() -> Result<()> {
    let Some(helm) = Helm::find("chart: CSIDriver")? else {
        return Ok(());
    };
    for (version, period) in [("1.30.0", None), ("1.36.0", Some(60))] {
        let mut arguments = with_sets(Tenant, &[]);
        arguments.push(format!("--kube-version={version}"));
        let objects = helm.rendered(Tenant, &arguments)?.objects;
        let driver = of_kind(&objects, "CSIDriver");
        let mut wanted = json!({
            "attachRequired": true, "podInfoOnMount": false, "fsGroupPolicy": "File", "seLinuxMount": false,
            "requiresRepublish": false, "storageCapacity": true, "volumeLifecycleModes": ["Persistent"],
        });
        if let Some(period) = period {
            wanted["nodeAllocatableUpdatePeriodSeconds"] = json!(period);
        }
        let found = &driver.first().context("no CSIDriver")?["spec"];
        ensure!(*found == wanted, "{version}: {found}");
    }
    Ok(())
}

/// The Job's Role reads one Secret, and the Job is tried once.
#[test]
fn the_last_job_reads_one_secret_and_is_tried_once() -> Result<()> {
    let Some(helm) = Helm::find("chart: teardown")? else {
        return Ok(());
    };
    let objects = helm.of_values(Management, "default")?;
    let objects = &objects.objects;
    let job = one(objects, "Job", "-teardown")?;
    ensure!(job["spec"]["backoffLimit"] == json!(0));
    ensure!(job["spec"]["template"]["spec"]["restartPolicy"] == json!("Never"));
    ensure!(text(job, "/metadata/annotations/helm.sh~1hook") == "pre-delete");
    let deadline = job["spec"]["activeDeadlineSeconds"]
        .as_u64()
        .unwrap_or_default();
    let teardown = container(objects, "teardown")?;
    ensure!(argument(teardown, "--timeout") == ["600s"] && deadline >= 1200);
    ensure!(argument(teardown, "--kubeconfig-secret") == ["tenant-a/tenant-a-admin-kubeconfig"]);
    // csi-provisioner writes capacities until it is gone.
    let cleanup = one(objects, "Job", "-cleanup")?;
    ensure!(text(cleanup, "/metadata/annotations/helm.sh~1hook") == "post-delete");
    let role = one(objects, "Role", "-teardown")?;
    let rules = json!([{
        "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["tenant-a-admin-kubeconfig"], "verbs": ["get"],
    }]);
    ensure!(role["rules"] == rules, "{role}");
    for sets in [["teardown.enabled=false"], ["csi.enabled=false"]] {
        let rendered = helm.rendered(Management, &with_sets(Management, &sets))?;
        let text = &rendered.text;
        ensure!(
            !text.contains("teardown") && !text.contains("cleanup"),
            "with {sets:?}"
        );
    }
    Ok(())
}

/// The examples for Flux are of charts that are here, and their values are taken.
#[test]
fn the_examples_for_flux_are_taken_by_the_charts() -> Result<()> {
    let Some(helm) = Helm::find("chart: Flux")? else {
        return Ok(());
    };
    for half in HALVES {
        let release = half.read("ci/flux-helmrelease.yaml")?;
        ensure!(text(&release, "/apiVersion") == "helm.toolkit.fluxcd.io/v2");
        ensure!(text(&release, "/spec/chart/spec/chart") == half.name());
        let in_the_tenant = release.pointer("/spec/kubeConfig/secretRef/name").is_some();
        ensure!(in_the_tenant == (half == Tenant), "{}", half.name());
        // It uninstalls what is not ready in time, hooks included.
        ensure!(release.pointer("/spec/install/remediation").is_none());
        let values = release.pointer("/spec/values").context("no values")?;
        let mut file = NamedTempFile::with_suffix(".yaml")?;
        file.write_all(values.to_string().as_bytes())?;
        let rendered = helm.rendered(half, &[format!("--values={}", file.path().display())])?;
        ensure!(!rendered.objects.is_empty());
    }
    Ok(())
}

/// Cozystack lets a Pod reach the management cluster's API server only with this label.
#[test]
fn labels_for_pods_are_on_all_pods() -> Result<()> {
    let Some(helm) = Helm::find("chart: labels of Pods")? else {
        return Ok(());
    };
    let objects = helm.of_values(Management, "cozystack")?;
    let objects = &objects.objects;
    let mut pods = 0;
    for object in objects {
        let Some(template) = object.pointer("/spec/template") else {
            continue;
        };
        let label = "/metadata/labels/policy.cozystack.io~1allow-to-apiserver";
        ensure!(text(template, label) == "true", "{object}");
        pods += 1;
    }
    ensure!(pods == 4, "{pods} kinds of Pods");
    Ok(())
}

/// Names that depend on the release, so that one namespace can hold several tenants.
#[test]
fn two_releases_of_the_management_half_share_no_name() -> Result<()> {
    let Some(helm) = Helm::find("chart: two releases")? else {
        return Ok(());
    };
    let names = |set: &str| -> Result<BTreeSet<String>> {
        let sets = [set, "csi.replicas=2", "ccm.replicas=2"];
        let objects = helm
            .rendered(Management, &with_sets(Management, &sets))?
            .objects;
        let mut names = BTreeSet::new();
        for object in &objects {
            names.insert(format!(
                "{}/{}",
                text(object, "/kind"),
                text(object, "/metadata/name")
            ));
            walk(object, "", &mut |path, value| {
                let lease = value
                    .as_str()
                    .filter(|value| value.starts_with("--lease-name="));
                if let Some(lease) = lease.filter(|_| path.contains("/args/")) {
                    names.insert(lease.to_owned());
                }
            });
        }
        Ok(names)
    };
    let (one, other) = (
        names("fullnameOverride=one")?,
        names("fullnameOverride=other")?,
    );
    let same: Vec<_> = one.intersection(&other).collect();
    ensure!(same.is_empty() && one.len() == other.len(), "{same:?}");
    Ok(())
}
