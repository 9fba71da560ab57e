//! What every Pod may do on its Node, and where it may run.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::VALUES;
use crate::helm::Half::{self, Management, Tenant};
use crate::helm::{HALVES, Helm, with_sets};
use crate::objects::{containers, id, list, of_kind, pods, text, walk};

/// The one container that is an exception, and how: it mounts on the Node and opens its devices.
const EXCEPTION: &str = "csi-node";
const ITS_SECURITY: &str = r#"{
    "privileged": true, "readOnlyRootFilesystem": true, "runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": false
}"#;
const ITS_PATHS: [&str; 4] = [
    "/var/lib/kubelet",
    "/var/lib/kubelet/plugins/csi.proxmox.sinextra.dev",
    "/dev",
    "/sys",
];

fn each(helm: &Helm, mut check: impl FnMut(Half, &str, &[Value]) -> Result<()>) -> Result<()> {
    for half in HALVES {
        for values in VALUES {
            let rendered = helm.of_values(half, values)?;
            check(half, values, &rendered.objects)?;
        }
    }
    Ok(())
}

#[test]
fn every_container_is_confined_but_the_node_plugin() -> Result<()> {
    let Some(helm) = Helm::find("chart: security of containers")? else {
        return Ok(());
    };
    let confined = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "privileged": false,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
    });
    let exception: Value = serde_json::from_str(ITS_SECURITY)?;
    let mut seen = BTreeSet::new();
    each(&helm, |_, values, objects| {
        for (object, pod) in pods(objects) {
            let seccomp = text(pod, "/securityContext/seccompProfile/type");
            ensure!(seccomp == "RuntimeDefault", "{values} {object}: {seccomp}");
            for container in containers(pod) {
                let name = text(container, "/name");
                let wanted = if name == EXCEPTION {
                    &exception
                } else {
                    &confined
                };
                let found = &container["securityContext"];
                ensure!(found == wanted, "{values} {object} {name}: {found}");
                seen.insert(name.to_owned());
            }
        }
        Ok(())
    })?;
    let all = [
        "ccm",
        "cleanup",
        "credentials",
        "csi-attacher",
        "csi-controller",
        "csi-node",
        "csi-provisioner",
        "csi-resizer",
        "init-credentials",
        "teardown",
    ];
    ensure!(seen.iter().eq(all), "{seen:?}");
    Ok(())
}

#[test]
fn pods_of_the_management_cluster_run_as_nobody_and_get_no_token_unasked() -> Result<()> {
    let Some(helm) = Helm::find("chart: security of Pods")? else {
        return Ok(());
    };
    let security = json!({
        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": { "type": "RuntimeDefault" },
    });
    for values in VALUES {
        for (object, pod) in pods(&helm.of_values(Management, values)?.objects) {
            ensure!(pod["securityContext"] == security, "{values} {object}");
            ensure!(
                pod["automountServiceAccountToken"] == json!(false),
                "{values} {object}"
            );
            for host in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"] {
                ensure!(pod.get(host).is_none(), "{values} {object} has {host}");
            }
            for volume in list(pod, "/volumes") {
                ensure!(volume.get("hostPath").is_none(), "{values} {object}");
            }
        }
    }
    Ok(())
}

/// Only the program that talks to the management API has the token, not its neighbours.
#[test]
fn a_token_of_the_management_cluster_is_in_the_one_container_that_uses_it() -> Result<()> {
    let Some(helm) = Helm::find("chart: token of the management cluster")? else {
        return Ok(());
    };
    let mut with = BTreeSet::new();
    for values in VALUES {
        for (_, pod) in pods(&helm.of_values(Management, values)?.objects) {
            for container in containers(pod) {
                let mounts = list(container, "/volumeMounts");
                if mounts
                    .iter()
                    .any(|mount| text(mount, "/name") == "management-token")
                {
                    with.insert(text(container, "/name").to_owned());
                }
            }
        }
    }
    ensure!(
        with.iter()
            .eq(["ccm", "cleanup", "csi-controller", "teardown"]),
        "{with:?}"
    );
    Ok(())
}

#[test]
fn the_tokens_of_proxmox_are_in_no_container_but_those_that_need_them() -> Result<()> {
    let Some(helm) = Helm::find("chart: who has the config")? else {
        return Ok(());
    };
    for values in VALUES {
        for (object, pod) in pods(&helm.of_values(Management, values)?.objects) {
            for container in containers(pod) {
                let name = text(container, "/name");
                let mounts = list(container, "/volumeMounts");
                let has = |volume| mounts.iter().any(|mount| text(mount, "/name") == volume);
                let loads = name == "credentials" || name == "init-credentials";
                let drives = name == "csi-controller" || name == "ccm";
                ensure!(has("secret") == loads, "{values} {object} {name}");
                ensure!(
                    has("kubeconfig-secret") == loads,
                    "{values} {object} {name}"
                );
                ensure!(
                    has("config") == (loads || drives),
                    "{values} {object} {name}"
                );
            }
            for volume in list(pod, "/volumes") {
                let memory = text(volume, "/emptyDir/medium") == "Memory";
                ensure!(
                    volume.get("emptyDir").is_none() || memory,
                    "{values} {object}: {volume}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn pods_are_where_they_belong() -> Result<()> {
    let Some(helm) = Helm::find("chart: tolerations")? else {
        return Ok(());
    };
    let management = json!([
        { "key": "CriticalAddonsOnly", "operator": "Exists" },
        { "key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule" },
    ]);
    let everywhere = json!([{ "operator": "Exists" }]);
    each(&helm, |half, values, objects| {
        let wanted = if half == Tenant {
            &everywhere
        } else {
            &management
        };
        for (object, pod) in pods(objects) {
            let found = &pod["tolerations"];
            ensure!(found == wanted, "{values} {object}: {found}");
            let node = text(pod, "/priorityClassName") == "system-node-critical";
            ensure!(node == (half == Tenant), "{values} {object}");
            if values != "full" {
                ensure!(pod.get("nodeSelector").is_none(), "{values} {object}");
                ensure!(pod.get("affinity").is_none(), "{values} {object}");
            }
        }
        walk(&json!(objects), "", &mut |path, value| {
            let says = format!("{path}: {value}");
            assert!(
                half == Management || !says.contains("node-role.kubernetes.io"),
                "{values}: {says}"
            );
        });
        Ok(())
    })
}

/// A log's end would become a part of the Pod's status, which more people may read than logs.
#[test]
fn no_log_becomes_a_termination_message() -> Result<()> {
    let Some(helm) = Helm::find("chart: termination messages")? else {
        return Ok(());
    };
    each(&helm, |_, values, objects| {
        for (object, pod) in pods(objects) {
            for container in containers(pod) {
                let policy = text(container, "/terminationMessagePolicy");
                ensure!(policy == "File", "{values} {object}: {policy:?}");
            }
        }
        Ok(())
    })
}

#[test]
fn the_node_plugin_sees_of_its_node_what_it_needs() -> Result<()> {
    let Some(helm) = Helm::find("chart: paths of the Node")? else {
        return Ok(());
    };
    let objects = helm.of_values(Tenant, "default")?;
    let objects = &objects.objects;
    for (_, pod) in pods(objects) {
        let volumes = list(pod, "/volumes");
        let paths: Vec<&str> = volumes
            .iter()
            .map(|volume| text(volume, "/hostPath/path"))
            .collect();
        ensure!(paths == ITS_PATHS, "{paths:?}");
        for host in ["hostNetwork", "hostPID", "hostIPC"] {
            ensure!(pod.get(host).is_none(), "the node plugin has {host}");
        }
        for container in containers(pod) {
            for mount in list(container, "/volumeMounts") {
                let spreads = text(mount, "/mountPropagation") == "Bidirectional";
                let kubelet = text(mount, "/mountPath") == "/var/lib/kubelet";
                ensure!(spreads == kubelet, "{mount}");
            }
        }
    }
    Ok(())
}

/// An outage of Proxmox VE makes `/readyz` fail, never `/healthz`.
#[test]
fn no_pod_is_restarted_because_proxmox_is_away() -> Result<()> {
    let Some(helm) = Helm::find("chart: probes")? else {
        return Ok(());
    };
    let mut probed = BTreeSet::new();
    each(&helm, |_, values, objects| {
        for (object, pod) in pods(objects) {
            for container in containers(pod) {
                let name = text(container, "/name");
                ensure!(
                    container.get("startupProbe").is_none(),
                    "{values} {object} {name}"
                );
                if container.get("livenessProbe").is_some() {
                    let path = text(container, "/livenessProbe/httpGet/path");
                    ensure!(path == "/healthz", "{values} {object} {name}: {path}");
                    probed.insert(name.to_owned());
                }
            }
        }
        Ok(())
    })?;
    let programs = ["ccm", "credentials", "csi-controller", "csi-node"];
    ensure!(probed.iter().eq(programs), "{probed:?}");
    Ok(())
}

/// One at a time, unless a Lease says which one is active.
#[test]
fn two_run_only_where_one_is_elected() -> Result<()> {
    let Some(helm) = Helm::find("chart: replicas")? else {
        return Ok(());
    };
    for (replicas, strategy, budgets) in [(1, "Recreate", 0), (2, "RollingUpdate", 2)] {
        let sets = [
            format!("csi.replicas={replicas}"),
            format!("ccm.replicas={replicas}"),
        ];
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let objects = helm
            .rendered(Management, &with_sets(Management, &sets))?
            .objects;
        for deployment in of_kind(&objects, "Deployment") {
            let name = id(deployment);
            ensure!(deployment["spec"]["replicas"] == json!(replicas), "{name}");
            ensure!(
                text(deployment, "/spec/strategy/type") == strategy,
                "{name}"
            );
            let elects = list(deployment, "/spec/template/spec/containers")
                .iter()
                .flat_map(|container| list(container, "/args"))
                .any(|arg| arg == "--leader-elect");
            ensure!(elects == (replicas > 1), "{name}");
        }
        ensure!(of_kind(&objects, "PodDisruptionBudget").len() == budgets);
    }
    Ok(())
}
