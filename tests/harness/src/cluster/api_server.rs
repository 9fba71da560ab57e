//! How an API server may differ from the usual one of a test.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

/// What is asked of the API server. By default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// What Pods may do in namespaces that don't say.
    pub pod_security: Option<PodSecurity>,
    /// Whether Pods reach it as Pods do, at the address of the Service `kubernetes`, port 443. It needs root.
    pub pods_reach_it: bool,
    /// Whether it writes down who asked for what: [`ControlPlane::audit_log`](super::ControlPlane::audit_log).
    pub audit: bool,
}

/// Levels of the Pod Security Standards: `privileged`, `baseline` or `restricted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodSecurity {
    /// What is beyond it is refused.
    pub enforce: &'static str,
    /// What is beyond it is warned of.
    pub warn: &'static str,
}

/// Where the API server listens, and where Services are.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) address: Ipv4Addr,
    pub(super) port: u16,
    /// The first address of `services`, which the Service `kubernetes` has.
    pub(super) service: Ipv4Addr,
    pub(super) services: String,
}

// === impl ServerOptions ===

impl ServerOptions {
    /// Flags of the API server, whose files are put into `folder`.
    pub(super) fn flags(self, folder: &Path, audit_log: &Path) -> Result<Vec<String>> {
        let mut flags = Vec::new();
        if let Some(levels) = self.pod_security {
            let path = folder.join("admission.yaml");
            std::fs::write(&path, levels.admission().to_string())?;
            flags.push(format!(
                "--admission-control-config-file={}",
                path.display()
            ));
        }
        if self.audit {
            let path = folder.join("audit.yaml");
            let policy = json!({
                "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
                "omitStages": ["RequestReceived"], "rules": [{ "level": "Metadata" }],
            });
            std::fs::write(&path, policy.to_string())?;
            flags.push(format!("--audit-policy-file={}", path.display()));
            flags.push(format!("--audit-log-path={}", audit_log.display()));
        }
        Ok(flags)
    }
}

// === impl PodSecurity ===

impl PodSecurity {
    /// The file of `--admission-control-config-file`.
    pub(super) fn admission(self) -> Value {
        json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AdmissionConfiguration",
            "plugins": [{
                "name": "PodSecurity",
                "configuration": {
                    "apiVersion": "pod-security.admission.config.k8s.io/v1",
                    "kind": "PodSecurityConfiguration",
                    "defaults": {
                        "enforce": self.enforce, "enforce-version": "latest",
                        "audit": self.warn, "audit-version": "latest",
                        "warn": self.warn, "warn-version": "latest",
                    },
                },
            }],
        })
    }
}

// === impl Access ===

impl Access {
    /// `free` is a free port of 127.0.0.1. Services that Pods reach are on loopback addresses of this process's own: nothing
    /// forwards them, so the API server itself listens on that of the Service `kubernetes`.
    pub(super) fn new(pods_reach_it: bool, free: u16) -> Self {
        if !pods_reach_it {
            return Self {
                address: Ipv4Addr::LOCALHOST,
                port: free,
                service: Ipv4Addr::new(10, 96, 0, 1),
                services: "10.96.0.0/16".to_owned(),
            };
        }
        let [high, low] = free.to_be_bytes();
        let service = Ipv4Addr::new(127, high, low, 1);
        Self {
            address: service,
            port: 443,
            service,
            services: format!("127.{high}.{low}.0/24"),
        }
    }
}
