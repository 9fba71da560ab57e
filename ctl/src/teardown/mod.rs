//! `pvectl teardown`: frees the disks of a tenant that goes away, while its control plane and the driver still run.

mod plan;
mod report;
mod rounds;
mod switch;

use std::time::Duration;

use clap::Args;
use pve_model::topology::DEFAULT_DRIVER_NAME;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::report::{Outcome, Report};
use self::rounds::Teardown;
use crate::cluster::{ASKED_ANNOTATION, Cluster, Reach, ReachError, Reached};
use crate::output::{Finished, Format};
use crate::text::duration;

/// Delete the volumes of a tenant that goes away, so that no disk of its stays on Proxmox VE.
///
/// It tells the controller to make no new disks (an annotation on the tenant's CSIDriver), deletes the claims of this driver
/// and then the Pods that hold them, and waits until the driver has detached and deleted what was theirs. Volumes whose
/// reclaim policy is Retain stay. Control plane, driver, cloud-controller-manager and VMs have to run meanwhile:
/// docs/teardown.md tells the order. The data is lost.
///
/// By hand it deletes only with --yes. As a hook it deletes only if the Secret with the kubeconfig has the annotation
/// pve-cloud/teardown: "true"; else both only look.
///
/// Exit codes: 0 nothing stays but what is retained, 1 something else stays or the API server can't be asked, 2 wrong usage,
/// 64 the kubeconfig is refused.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct TeardownArguments {
    #[command(flatten)]
    reach: Reach,
    /// Name of the CSI driver whose volumes are meant.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DRIVER_NAME)]
    driver_name: String,
    /// When it ends at the latest, whatever is left.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    timeout: Duration,
    /// The time that each Pod has to end. Once it is over, Pods on Nodes that are not there or not ready are taken out of the
    /// API.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pod_grace: Duration,
    /// How long it goes on after it has told the controller to make no new disks, and after it has last seen a claim without
    /// a volume: one may be in creation. csi-provisioner waits for 3 minutes.
    #[arg(long, value_name = "TIME", default_value = "210s", value_parser = duration)]
    settle: Duration,
    /// For a hook that comes before an uninstallation: exit code 0 even if something stays. An uninstallation is no proof
    /// that the tenant goes away: it also undoes an installation that failed.
    #[arg(long, conflicts_with_all = ["kubeconfig", "yes", "dry_run", "undo"])]
    hook: bool,
    /// By hand: delete. Without it, it only tells what it would delete.
    #[arg(long, conflicts_with_all = ["dry_run", "undo"])]
    yes: bool,
    /// Only tell what would be deleted first.
    #[arg(long)]
    dry_run: bool,
    /// Only take back the word to the controller: it makes new disks again.
    #[arg(long, conflicts_with = "dry_run")]
    undo: bool,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Does what the arguments say, until `shutdown` at the latest.
pub(crate) async fn run(arguments: &TeardownArguments, shutdown: CancellationToken) -> Finished {
    let begin = Instant::now();
    let mut report = match arguments.reach.reached().await {
        Ok(reached) if arguments.undo => undo(&reached.cluster, &arguments.driver_name).await,
        Ok(Reached { cluster, asked }) => {
            let teardown = Teardown::new(cluster, arguments, begin);
            let teardown = teardown.only_looking(arguments.unasked(asked));
            teardown.run(&shutdown).await
        }
        Err(error) if error.is_refusal() && !arguments.hook => return Finished::refused(&error),
        Err(error) if error.is_refusal() => Report::bare(Outcome::Refused, &error),
        Err(error @ ReachError::Missing(..)) => Report::bare(Outcome::NoKubeconfig, &error),
        Err(error) => Report::bare(Outcome::Unreachable, &error),
    };
    report.seconds = begin.elapsed().as_secs();
    let text = match arguments.output {
        Format::Table => report.text(),
        Format::Json => report.json(),
    };
    Finished::told(text, arguments.hook || report.outcome.is_good())
}

impl TeardownArguments {
    /// Why it only looks, and how it would act.
    fn unasked(&self, asked: bool) -> Option<String> {
        match &self.reach.kubeconfig_secret {
            _ if self.dry_run || self.yes => None,
            Some(secret) if self.hook => (!asked).then(|| {
                let (namespace, name) = (&secret.namespace, &secret.name);
                format!(
                    "nothing was deleted, as the Secret {namespace}/{name} does not say that the tenant goes away; \
                     if it does: kubectl annotate secret --namespace {namespace} {name} {ASKED_ANNOTATION}=true"
                )
            }),
            _ => Some("nothing was deleted: that takes --yes".to_owned()),
        }
    }
}

async fn undo(cluster: &Cluster, driver: &str) -> Report {
    match switch::turn_off(cluster, driver).await {
        Ok(true) => Report::undone(),
        Ok(false) => Report::bare(Outcome::UnknownDriver, &"there is no such CSIDriver"),
        Err(error) => Report::bare(Outcome::Unreachable, &error),
    }
}
