//! `pvectl probe`: a volume's whole life in a tenant's cluster, step by step, and nothing of it left behind.

mod cleanup;
mod disk;
mod job;
mod manifest;
mod report;
mod steps;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pve_model::topology::DEFAULT_DRIVER_NAME;
use tokio_util::sync::CancellationToken;

use self::disk::Pve;
use self::manifest::Run;
use self::steps::Probe;
use crate::cluster::{Name, Reach, ReachError};
use crate::output::{Finished, Format};
use crate::text::duration;

/// Show that volumes of a StorageClass work: make one, write to it, read it back in another Pod, delete it.
///
/// It makes a claim of the class and a Pod that writes to it, then a Pod that reads it back, and deletes all of it. With
/// --cloud-config it looks on Proxmox VE, too, that the disk is there in the name of its owner, and gone in the end. Whatever
/// happens, it removes what it made, and what an earlier probe that was killed has left in the namespace.
///
/// Exit codes: 0 every step went well, 1 one did not, 2 wrong usage, 64 the kubeconfig or the config is refused.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ProbeArguments {
    #[command(flatten)]
    reach: Reach,
    /// The class of the volume.
    #[arg(long, value_name = "NAME")]
    storage_class: Name,
    /// Where claim and Pods are made. The Pods are allowed by the Pod Security Standard `restricted`.
    #[arg(long, value_name = "NAME", default_value = "default")]
    namespace: Name,
    /// The image of the Pods: with a shell, yes, head, sync and cmp, as busybox has them.
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = "docker.io/library/busybox:1.37"
    )]
    image: String,
    /// The size of the volume.
    #[arg(long, value_name = "SIZE", default_value = "64Mi", value_parser = size)]
    size: String,
    /// Name of the CSI driver.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DRIVER_NAME)]
    driver_name: String,
    /// The controller's config, to look on Proxmox VE, too.
    #[arg(long, value_name = "FILE")]
    cloud_config: Option<PathBuf>,
    /// The policy file; by default `policy.yaml` beside the config.
    #[arg(long, value_name = "FILE", requires = "cloud_config")]
    policy: Option<PathBuf>,
    /// When it gives up. To clean up it takes up to 90 s more.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Only print a Job for the management cluster that does it, with what it needs to read the Secret.
    #[arg(long, requires = "kubeconfig_secret", conflicts_with_all = ["kubeconfig", "cloud_config"])]
    print_job: bool,
    /// The image of that Job.
    #[arg(long, value_name = "IMAGE", default_value = concat!("ghcr.io/pve-cloud/pvectl:", env!("CARGO_PKG_VERSION")))]
    job_image: String,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Does what the arguments say. When `shutdown` is cancelled it only cleans up.
pub(crate) async fn run(arguments: &ProbeArguments, shutdown: CancellationToken) -> Finished {
    if arguments.print_job {
        return match job::manifest(arguments) {
            Some(text) => Finished::told(text, true),
            None => Finished::refused(&"--print-job needs --kubeconfig-secret"),
        };
    }
    let config = arguments.cloud_config.as_deref();
    let pve = config.map(|path| Pve::load(path, arguments.policy.as_deref()));
    let pve = match pve.transpose() {
        Ok(pve) => pve,
        Err(error) => return Finished::refused(&error),
    };
    let cluster = match arguments.reach.reached().await {
        Ok(reached) => reached.cluster,
        Err(error @ (ReachError::Missing(..) | ReachError::Unknown(..))) => {
            eprintln!("pvectl: {error}");
            return Finished::told(String::new(), false);
        }
        Err(error) => return Finished::refused(&error),
    };
    let run = Run::new(arguments);
    let report = Probe::new(cluster, arguments, pve, run)
        .run(&shutdown)
        .await;
    let good = report.is_good();
    let text = match arguments.output {
        Format::Table => report.text(),
        Format::Json => report.json(),
    };
    Finished::told(text, good)
}

/// A number of MiB or GiB.
fn size(text: &str) -> Result<String, String> {
    let number = text.strip_suffix("Mi").or_else(|| text.strip_suffix("Gi"));
    let digits = |number: &str| number.len() <= 6 && number.bytes().all(|b| b.is_ascii_digit());
    match number {
        Some(number) if digits(number) && number.parse::<u32>().is_ok_and(|n| n > 0) => {
            Ok(text.to_owned())
        }
        _ => Err("must be a number with Mi or Gi, as 64Mi".to_owned()),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
