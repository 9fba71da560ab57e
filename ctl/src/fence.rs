//! `pvectl fence`: states that a host is off, or that a VM is gone, for a time.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use pve_model::{PveNode, Region};
use pve_runtime::Config;
use pve_runtime::config::{
    ConfigError, DEFAULT_TERM, FENCES_FILE, Fence, FenceFile, Fenced, MOST_FENCES,
};

use crate::output::Finished;
use crate::report;
use crate::store;

/// State that a PVE node is off, or that a VM is gone, so that what it could hold may be used elsewhere.
///
/// A PVE node that does not answer may still run its VMs, and each of them may write to any shared volume. The controller
/// therefore refuses to attach such a volume elsewhere. `pvectl fence pve3 --region r1` tells it that pve3 is off: until the
/// time is over, or pve3 answers, its VMs count as holders of no volume. If that is not true, two VMs write to one disk and
/// destroy what is on it. The statement is written to the fence file, which the controller reads whenever it needs it.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct FenceArguments {
    /// The PVE node that is off.
    #[arg(required_unless_present_any = ["gone", "list", "lift"], conflicts_with_all = ["gone", "list", "lift"])]
    pve_node: Option<PveNode>,
    /// The VM that is gone, as <VMID>:<SMBIOS UUID>: it does not exist any more, whoever has its VMID now.
    #[arg(long, value_name = "VMID:UUID", conflicts_with_all = ["list", "lift"])]
    gone: Option<Fenced>,
    /// Show what is stated.
    #[arg(long, conflicts_with = "lift")]
    list: bool,
    /// Take a statement back: a PVE node, or <VMID>:<UUID>.
    #[arg(long, value_name = "WHAT")]
    lift: Option<Fenced>,
    /// How long it holds: a number with s, m, h or d; at most 24h for a PVE node, 30d for a VM. Default: 1h.
    #[arg(long = "for", value_name = "TIME", value_parser = term, conflicts_with_all = ["list", "lift"])]
    term: Option<SignedDuration>,
    /// The region as the controller's config names it. Not needed with --cloud-config if that has one only.
    #[arg(long)]
    region: Option<Region>,
    /// Why, for the log.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["list", "lift"])]
    reason: Option<String>,
    /// Who states it, for the log.
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true)]
    by: Option<String>,
    /// The fence file. Default: fences.yaml, beside the config if that is named.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The controller's config: region and PVE node have to be named there.
    #[arg(long, value_name = "FILE")]
    cloud_config: Option<PathBuf>,
    /// How the answer looks.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// How an answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FenceError {
    /// What was asked for makes no sense or is not allowed.
    #[error("{0}")]
    Refused(String),
    /// The fence file or the config can't be used.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// A file could not be written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Runs the verb.
pub(crate) fn finish(arguments: &FenceArguments) -> Finished {
    match run(arguments) {
        Ok(text) => Finished::told(text, true),
        Err(error @ (FenceError::Refused(_) | FenceError::File(_))) => Finished::refused(&error),
        Err(error @ FenceError::Io { .. }) => Finished::failed(&error),
    }
}

/// Does what the arguments say; the text for standard output.
pub(crate) fn run(arguments: &FenceArguments) -> Result<String, FenceError> {
    let now = Timestamp::now();
    let path = arguments.path();
    let output = arguments.output;
    if arguments.list {
        let file = FenceFile::load(&path)?;
        return Ok(report::list(&path, &file, now, output));
    }
    let config = arguments.cloud_config.as_deref();
    let config = config.map(|path| Config::load(path, None)).transpose()?;
    if let Some(what) = &arguments.lift {
        let lifted = store::change(&path, |file| {
            let lifted = lift(file, what, arguments.region.as_ref())?;
            file.fences.retain(|fence| now < fence.until);
            Ok(lifted)
        })?;
        return Ok(report::lifted(&path, &lifted, now, output));
    }
    let fence = arguments.fence(config.as_ref(), now)?;
    store::change(&path, |file| add(file, fence.clone(), now))?;
    Ok(report::stated(&path, &fence, now, output))
}

impl FenceArguments {
    fn path(&self) -> PathBuf {
        let beside = self.cloud_config.as_deref().map(Path::parent);
        let folder = beside.flatten().unwrap_or(Path::new(""));
        let default = || folder.join(FENCES_FILE);
        self.file.clone().unwrap_or_else(default)
    }

    fn fence(&self, config: Option<&Config>, now: Timestamp) -> Result<Fence, FenceError> {
        let what = match (&self.pve_node, &self.gone) {
            (Some(pve_node), None) => Fenced::Host(pve_node.clone()),
            (None, Some(what @ Fenced::Gone { .. })) => what.clone(),
            _ => return refuse("--gone needs <VMID>:<UUID>"),
        };
        let region = region(self.region.as_ref(), config)?;
        if let (Fenced::Host(host), Some(config)) = (&what, config) {
            let policy = config.regions.get(&region).map(|region| &region.policy);
            if policy.is_none_or(|policy| !policy.pve_nodes.contains(host)) {
                return refuse(format!(
                    "the config does not name {host} in region {region}"
                ));
            }
        }
        let Some(by) = self.by.clone() else {
            return refuse("--by is needed: who states it");
        };
        let until = now.checked_add(self.term.unwrap_or(DEFAULT_TERM));
        let fence = Fence {
            region,
            what,
            from: now,
            until: until.or_else(|_| refuse("--for is too long"))?,
            by,
            reason: self.reason.clone(),
        };
        fence.check().map_err(FenceError::Refused)?;
        Ok(fence)
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, FenceError> {
    Err(FenceError::Refused(why.into()))
}

fn region(named: Option<&Region>, config: Option<&Config>) -> Result<Region, FenceError> {
    match (named, config) {
        (Some(region), Some(config)) if !config.regions.contains_key(region) => {
            refuse(format!("the config has no region {region}"))
        }
        (Some(region), _) => Ok(region.clone()),
        (None, Some(config)) => {
            let mut regions = config.regions.keys();
            match (regions.next(), regions.next()) {
                (Some(region), None) => Ok(region.clone()),
                _ => refuse("the config has several regions: --region is needed"),
            }
        }
        (None, None) => refuse("--region is needed, or --cloud-config with one region"),
    }
}

/// A statement takes the place of an earlier one about the same thing. What has ended is dropped.
fn add(file: &mut FenceFile, fence: Fence, now: Timestamp) -> Result<(), FenceError> {
    file.fences.retain(|old| {
        let same = old.region == fence.region && old.what == fence.what;
        now < old.until && !same
    });
    if file.fences.len() >= MOST_FENCES {
        return refuse(format!("the file holds {MOST_FENCES} statements already"));
    }
    file.fences.push(fence);
    Ok(())
}

/// Takes out what is stated about it, if that is clear.
fn lift(
    file: &mut FenceFile,
    what: &Fenced,
    region: Option<&Region>,
) -> Result<Vec<Fence>, FenceError> {
    let meant = |fence: &Fence| fence.what == *what && region.is_none_or(|r| fence.region == *r);
    let (lifted, kept): (Vec<_>, Vec<_>) = file.fences.drain(..).partition(meant);
    file.fences = kept;
    let several = |first: &Fence| lifted.iter().any(|fence| fence.region != first.region);
    match lifted.first() {
        None => refuse(format!("nothing is stated about {what}")),
        Some(first) if several(first) => refuse(format!(
            "{what} is fenced in several regions: --region is needed"
        )),
        Some(_) => Ok(lifted),
    }
}

/// `90s`, `30m`, `2h`, `1d`.
fn term(text: &str) -> Result<SignedDuration, String> {
    let wrong = || "must be a number with s, m, h or d, as 30m".to_owned();
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let number = text.strip_suffix(unit).unwrap_or_default();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let seconds: i64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86400,
        _ => return Err(wrong()),
    };
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let total = number.checked_mul(seconds).ok_or_else(wrong)?;
    if total == 0 {
        return Err("would end at once".to_owned());
    }
    Ok(SignedDuration::from_secs(total))
}

#[cfg(test)]
#[path = "fence_tests.rs"]
mod tests;
