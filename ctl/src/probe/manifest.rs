//! The objects that a probe makes.

use rand::Rng as _;
use serde_json::{Value, json};

use super::ProbeArguments;
use super::cleanup::CLEANUP;
use crate::cluster::Name;

/// What every object of a probe begins with.
pub(super) const PREFIX: &str = "pvectl-probe-";
/// By this label they are found.
pub(super) const LABEL: &str = "app.kubernetes.io/managed-by=pvectl-probe";

/// Nobody: the Pod needs no rights, and a namespace may forbid more.
const USER: u32 = 65532;
/// What is written: one MiB of a line that no other run has.
const BYTES: u32 = 1 << 20;

/// One probe.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Of all its objects, as a label.
    pub(super) id: String,
    class: Name,
    image: String,
    size: String,
    seconds: u64,
}

/// Which Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It writes and reads its own.
    Writer,
    /// It reads what the other wrote.
    Reader,
}

impl Run {
    pub(super) fn new(arguments: &ProbeArguments) -> Self {
        let id: u64 = rand::rng().random();
        Self {
            id: format!("{id:016x}"),
            class: arguments.storage_class.clone(),
            image: arguments.image.clone(),
            size: arguments.size.clone(),
            seconds: (arguments.timeout + CLEANUP).as_secs(),
        }
    }

    /// A selector of this run's objects.
    pub(super) fn selector(&self) -> String {
        format!("{LABEL},pvectl.proxmox.sinextra.dev/run={}", self.id)
    }

    pub(super) fn claim_name(&self) -> String {
        format!("{PREFIX}{}", self.id)
    }

    pub(super) fn pod_name(&self, role: Role) -> String {
        let end = match role {
            Role::Writer => "write",
            Role::Reader => "read",
        };
        format!("{PREFIX}{}-{end}", self.id)
    }

    pub(super) fn claim(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": self.meta(&self.claim_name()),
            "spec": {
                "storageClassName": self.class,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": self.size } },
            },
        })
    }

    pub(super) fn pod(&self, role: Role) -> Value {
        let line = format!("yes \"$0\" | head -c {BYTES}");
        let script = match role {
            Role::Writer => format!("{line} > /data/probe; sync; {line} | cmp - /data/probe"),
            Role::Reader => format!("{line} | cmp - /data/probe"),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self.meta(&self.pod_name(role)),
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": USER,
                    "runAsGroup": USER,
                    "fsGroup": USER,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": "probe",
                    "image": self.image,
                    "command": ["/bin/sh", "-euc", script, self.id],
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    "resources": {
                        "requests": { "cpu": "10m", "memory": "32Mi" },
                        "limits": { "cpu": "1", "memory": "64Mi" },
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                }],
                "volumes": [{
                    "name": "data",
                    "persistentVolumeClaim": { "claimName": self.claim_name() },
                }],
            },
        })
    }

    fn meta(&self, name: &str) -> Value {
        json!({
            "name": name,
            "labels": {
                "app.kubernetes.io/managed-by": "pvectl-probe",
                "pvectl.proxmox.sinextra.dev/run": self.id,
            },
            "annotations": { "pvectl.proxmox.sinextra.dev/seconds": self.seconds.to_string() },
        })
    }
}
