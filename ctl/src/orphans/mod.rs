//! `pvectl orphans`: disks that no `PersistentVolume` names, and `PersistentVolumes` whose disk is not there.

mod compare;
mod delete;
mod gone;
mod pvs;
mod scan;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pve_client::{Metrics, Writes};
use pve_model::topology::DEFAULT_DRIVER_NAME;
use pve_model::{Region, VmId, VolumeId};
use pve_region::Connection;
use pve_runtime::Config;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::compare::{Disk, Lone, compare};
use self::gone::Former;
use self::pvs::Pv;
use self::scan::{Asked, Scan};
use crate::admin::AdminArguments;
use crate::output::{Failure, Finished, Format, Outcome, within};
use crate::text;

/// No younger disk is deleted: its `PersistentVolume` may not be written yet.
const LEAST_AGE: Duration = Duration::from_mins(10);

/// Show disks of the tenant's owners that no `PersistentVolume` names, and `PersistentVolumes` whose disk is not there.
///
/// All storages of the config and all hosts of the PVE cluster are read, and all `PersistentVolumes` of the tenant. If any of it
/// can't be read, what is shown may not be all, which is said, and the exit code is 1. --delete deletes disks that are named
/// one by one.
#[derive(Debug, Args)]
pub(crate) struct OrphansArguments {
    /// The CSI controller's config, with policy.yaml beside it.
    #[arg(long, value_name = "FILE")]
    cloud_config: PathBuf,
    /// The policy file, if it does not lie beside the config.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Only this region of the config.
    #[arg(long)]
    region: Option<Region>,
    /// The kubeconfig of the tenant's cluster: it may list `PersistentVolumes`.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "tenant_gone",
        conflicts_with = "tenant_gone"
    )]
    kubeconfig: Option<PathBuf>,
    /// The name of the driver in the tenant's cluster.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_DRIVER_NAME)]
    driver_name: String,
    #[command(flatten)]
    end: EndArguments,
    #[command(flatten)]
    admin: AdminArguments,
    #[command(flatten)]
    deletion: DeletionArguments,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Of a tenant that is no more.
#[derive(Debug, Args)]
struct EndArguments {
    /// The tenant's API server is no more, nor are its VMs: no disk has a `PersistentVolume`. Believed only if its pool is
    /// seen to be empty and the VMs named by --vm are proved gone.
    #[arg(long, requires = "vm")]
    tenant_gone: bool,
    /// A VM that the tenant had, as <VMID> or <VMID>:<SMBIOS UUID>. May be given several times.
    #[arg(long, value_name = "VMID[:UUID]", requires = "tenant_gone")]
    vm: Vec<Former>,
    /// A guest that is certainly there, whoever's: PVE is asked for it to see whether it answers truly.
    #[arg(long, value_name = "VMID", requires = "tenant_gone")]
    control: Option<VmId>,
}

#[derive(Debug, Args)]
struct DeletionArguments {
    /// Delete the disks named by --id.
    #[arg(long, requires = "id", requires = "min_age")]
    delete: bool,
    /// The handle of a disk that is to be deleted, exactly as it was shown. May be given several times.
    #[arg(long, value_name = "HANDLE", requires = "delete")]
    id: Vec<VolumeId>,
    /// Delete no disk that is younger: a number with s, m, h or d; at least 10m.
    #[arg(long, value_name = "TIME", value_parser = age, requires = "delete")]
    min_age: Option<Duration>,
}

/// Does what the arguments say.
pub(crate) async fn run(arguments: &OrphansArguments, shutdown: CancellationToken) -> Finished {
    within(shutdown, search(arguments)).await
}

async fn search(arguments: &OrphansArguments) -> Result<Outcome, Failure> {
    let regions = arguments.regions().await?;
    if arguments.end.tenant_gone {
        for asked in &regions {
            gone::prove(asked, &arguments.end.vm, arguments.end.control).await?;
        }
    }
    let pvs = arguments.pvs().await?;
    let scan = Scan::of(&regions).await;
    let lone = compare(&scan.disks, &pvs, &scan.seen);
    if !arguments.deletion.delete {
        return Ok(told(&lone, &scan, arguments.output));
    }
    arguments.delete(&regions, (&pvs, &scan, &lone)).await
}

impl OrphansArguments {
    async fn regions(&self) -> Result<Vec<Asked>, Failure> {
        let config = Config::load(&self.cloud_config, self.policy.as_deref())?;
        let mut regions = Vec::new();
        for (region, settings) in config.regions {
            if self.region.as_ref().is_some_and(|only| *only != region) {
                continue;
            }
            let client = if self.admin.are_given() {
                self.admin.connect(&settings.endpoints).await?
            } else {
                let made =
                    Connection::new(&settings, None, &Metrics::default(), &Writes::default());
                made.map_err(|error| Failure::Refused(error.to_string()))?
                    .client
            };
            regions.push(Asked {
                region,
                policy: settings.policy,
                client,
            });
        }
        if regions.is_empty() {
            return Failure::refused("the config has no such region");
        }
        Ok(regions)
    }

    async fn pvs(&self) -> Result<Vec<Pv>, Failure> {
        let Some(kubeconfig) = &self.kubeconfig else {
            return Ok(Vec::new());
        };
        let listed = pvs::list(kubeconfig, &self.driver_name).await;
        listed.map_err(|why| {
            Failure::Failed(format!(
                "the tenant's PersistentVolumes can't be read, so that nothing is known of orphans: {why}"
            ))
        })
    }

    async fn delete(
        &self,
        regions: &[Asked],
        (pvs, scan, lone): (&[Pv], &Scan, &Lone),
    ) -> Result<Outcome, Failure> {
        if !scan.unseen.is_empty() {
            return Failure::refused(format!("not all could be read: {}", scan.unseen.join("; ")));
        }
        if pvs.is_empty() && !self.end.tenant_gone {
            return Failure::refused(
                "the tenant's API server shows no PersistentVolume of the driver at all: no disk is deleted on the word of an empty list \
                 (--tenant-gone if the tenant is no more)",
            );
        }
        let min_age = self.deletion.min_age.unwrap_or(Duration::MAX);
        let now = jiff::Timestamp::now().as_second();
        let now = u64::try_from(now).map_err(|error| Failure::Failed(error.to_string()))?;
        let doomed = delete::choose(
            &self.deletion.id,
            (&lone.disks, pvs),
            regions,
            (now, min_age),
        )?;
        for doomed in &doomed {
            delete::unheld(doomed).await?;
        }
        let mut done = Vec::new();
        for doomed in &doomed {
            if let Err(error) = self.one(doomed).await {
                eprint!("{}", deleted(&done, self.output));
                return match error {
                    // It says that nothing was done.
                    Failure::Refused(why) if !done.is_empty() => Failure::failed(why),
                    error => Err(error),
                };
            }
            done.push(doomed.volume.clone());
        }
        Ok(Outcome {
            text: deleted(&done, self.output),
            lacking: None,
        })
    }

    /// PVs are read once more: one may have come since.
    async fn one(&self, doomed: &delete::Doomed<'_>) -> Result<(), Failure> {
        let disk = doomed.volume.to_string();
        let pvs = self.pvs().await?;
        if pvs.is_empty() && !self.end.tenant_gone {
            return Failure::failed("the tenant's API server shows no PersistentVolume any more");
        }
        if let Some(pv) = pvs.iter().find(|pv| compare::may_name(pv, &doomed.volume)) {
            return Failure::failed(format!("{disk}: the PersistentVolume {} has come", pv.name));
        }
        delete::delete(doomed).await
    }
}

fn deleted(done: &[VolumeId], output: Format) -> String {
    let handles: Vec<String> = done.iter().map(ToString::to_string).collect();
    match output {
        Format::Json => format!("{:#}\n", json!({ "deleted": handles })),
        Format::Table => {
            let lines: Vec<String> = handles
                .iter()
                .map(|handle| format!("deleted {handle}\n"))
                .collect();
            lines.concat()
        }
    }
}

fn told(lone: &Lone, scan: &Scan, output: Format) -> Outcome {
    let unclear: Vec<String> = lone
        .unclear
        .iter()
        .map(|(pv, why)| format!("{} ({}): {why}", pv.name, pv.handle))
        .collect();
    let complete = scan.unseen.is_empty();
    let lacking = (!complete).then(|| {
        format!(
            "what is shown may not be all, for not all could be read: {}",
            scan.unseen.join("; ")
        )
    });
    let text = match output {
        Format::Table => table(lone, &unclear, complete),
        Format::Json => {
            let document = json!({
                "complete": complete,
                "unread": scan.unseen,
                "disksWithoutVolume": lone.disks.iter().map(entry).collect::<Vec<_>>(),
                "volumesWithoutDisk": lone.pvs.iter().map(|pv| json!({ "name": pv.name, "handle": pv.handle })).collect::<Vec<_>>(),
                "unclear": unclear,
            });
            format!("{document:#}\n")
        }
    };
    Outcome { text, lacking }
}

fn handle(disk: &Disk) -> String {
    let handle = disk.handle().map(|handle| handle.to_string());
    handle.unwrap_or_else(|| format!("{} (no name of this driver's)", disk.found.describe()))
}

fn entry(disk: &Disk) -> Value {
    json!({
        "handle": disk.handle().map(|handle| handle.to_string()),
        "region": disk.region.as_str(),
        "volid": disk.found.volid,
        "host": disk.found.pve_node.as_ref().map(pve_model::PveNode::as_str),
        "bytes": disk.found.size,
        "made": disk.found.made,
    })
}

fn table(lone: &Lone, unclear: &[String], complete: bool) -> String {
    let mut rows: Vec<[String; 4]> = Vec::new();
    for disk in &lone.disks {
        let size = disk.found.size.map_or("?".to_owned(), |size| {
            format!("{} MiB", size.div_ceil(1 << 20))
        });
        let made = disk.found.made.and_then(|made| i64::try_from(made).ok());
        let made = made.and_then(|made| jiff::Timestamp::from_second(made).ok());
        let made = made.map_or("?".to_owned(), |made| made.to_string());
        rows.push(["disk without PV".to_owned(), handle(disk), size, made]);
    }
    for pv in &lone.pvs {
        rows.push([
            "PV without disk".to_owned(),
            pv.handle.clone(),
            pv.name.clone(),
            String::new(),
        ]);
    }
    for pv in unclear {
        rows.push([
            "unclear".to_owned(),
            pv.clone(),
            String::new(),
            String::new(),
        ]);
    }
    match (rows.is_empty(), complete) {
        (true, true) => "No orphans.\n".to_owned(),
        (true, false) => "No orphans in what could be read.\n".to_owned(),
        (false, _) => text::table(["what", "handle", "size or PV", "made"], &rows),
    }
}

/// `90s`, `30m`, `2h`, `1d`.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a number with s, m, h or d, as 24h".to_owned();
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86400,
        _ => return Err(wrong()),
    };
    let number: u64 = text
        .strip_suffix(unit)
        .unwrap_or_default()
        .parse()
        .map_err(|_| wrong())?;
    let age = Duration::from_secs(number.checked_mul(seconds).ok_or_else(wrong)?);
    if age < LEAST_AGE {
        return Err(
            "must be at least 10m: a PersistentVolume may come later than its disk".to_owned(),
        );
    }
    Ok(age)
}
