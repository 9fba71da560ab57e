//! Who asked the API server for what, by its audit log.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::objects::text;

/// Accounts of the tenant's half, all of which are at work in a volume's life.
const AT_WORK: [&str; 5] = [
    "pve-ccm",
    "pve-csi-attacher",
    "pve-csi-node",
    "pve-csi-provisioner",
    "pve-csi-resizer",
];
/// The CSI controller's, which asks the tenant's API server only where it has to.
const SELDOM: &str = "pve-csi-controller";
/// How the sidecars call themselves.
const SIDECARS: [&str; 3] = ["csi-provisioner/", "csi-attacher/", "csi-resizer/"];

/// The sidecars never act as the kubeconfig's own user, every account is used, and none is refused what it asks for.
pub(crate) fn everyone_has_just_its_rights(log: &Path) -> Result<()> {
    let log = std::fs::read_to_string(log).context("the audit log")?;
    let mut used = BTreeSet::new();
    let mut refused = BTreeSet::new();
    // The last line may be half-written.
    for line in log.lines().filter(|line| line.ends_with('}')) {
        let event: Value = serde_json::from_str(line)?;
        let acted_as = text(&event, "/impersonatedUser/username");
        let who = if acted_as.is_empty() {
            text(&event, "/user/username")
        } else {
            acted_as
        };
        let agent = text(&event, "/userAgent");
        let is_sidecar = SIDECARS.iter().any(|name| agent.starts_with(name));
        ensure!(
            !is_sidecar || !acted_as.is_empty(),
            "{agent} asked as {who}: {line}"
        );
        let Some(account) = who.strip_prefix("system:serviceaccount:pve-cloud:") else {
            continue;
        };
        used.insert(account.to_owned());
        if event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            == Some(403)
        {
            let what = [text(&event, "/verb"), text(&event, "/requestURI")];
            refused.insert(format!("{account} {}", what.join(" ")));
        }
    }
    ensure!(refused.is_empty(), "refused: {refused:#?}");
    let others = used.iter().filter(|account| *account != SELDOM);
    ensure!(others.eq(&AT_WORK), "used were {used:?}");
    Ok(())
}
