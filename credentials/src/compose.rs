//! From the Secret's keys to the config and the policy that the drivers read. They are checked by what the drivers read
//! them with: what passes here is accepted there.

use std::collections::BTreeSet;
use std::fmt;

use pve_model::Region;
use pve_runtime::Config;
use pve_runtime::config::{CONFIG_FILE, FENCES_FILE, FenceFile, POLICY_FILE, Provider};
use secrecy::SecretString;

use crate::secret::{CONFIG, FENCES, Mounted, POLICY, SINGLE, USE};
use crate::{Files, Trouble, single};

/// For which program a Secret is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Use {
    /// The CSI controller.
    Csi,
    /// The cloud-controller-manager.
    Ccm,
}

/// What the operator of the management cluster says beside the Secret. It may repeat what stands there, never change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// For which program the Secret has to be.
    pub purpose: Use,
    /// How Nodes are to be named.
    pub provider: Option<Provider>,
    /// Which regions there are to be; empty: whatever there is.
    pub regions: BTreeSet<Region>,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Csi => "csi",
            Self::Ccm => "ccm",
        })
    }
}

/// The files that follow from a Secret: all of them, or the sentence why it is refused.
pub fn files(mounted: &Mounted, wanted: &Wanted) -> Result<Files, Trouble> {
    composed(mounted, wanted).map_err(Trouble::Refused)
}

fn composed(mounted: &Mounted, wanted: &Wanted) -> Result<Files, String> {
    purpose(mounted, wanted.purpose)?;
    let policy = mounted.find(POLICY).ok_or(
        "the Secret lacks the key policy.yaml: it says which pool, storages and PVE nodes are the tenant's",
    )?;
    let (text, config) = match (mounted.find(CONFIG), mounted.any(&SINGLE)) {
        (Some(_), Some(single)) => {
            return Err(format!(
                "the Secret has both config.yaml and the single key {single}: keep one form"
            ));
        }
        (Some(text), None) => {
            let config = Config::of_texts(text, policy).map_err(|error| error.to_string())?;
            (SecretString::from(text), config)
        }
        (None, Some(_)) => single::config(mounted, policy)?,
        (None, None) => {
            return Err(
                "the Secret lacks the key config.yaml, or in its place url, region, token_id and token_secret"
                    .to_owned(),
            );
        }
    };
    agrees(&config, wanted)?;
    let mut files = Files::from([
        (CONFIG_FILE.to_owned(), text),
        (POLICY_FILE.to_owned(), policy.into()),
    ]);
    if let Some(text) = mounted.find(FENCES) {
        FenceFile::of_text(text).map_err(|error| error.to_string())?;
        files.insert(FENCES_FILE.to_owned(), text.into());
    }
    Ok(files)
}

/// A Secret that was made for something else has other rights, and other programs read it.
fn purpose(mounted: &Mounted, wanted: Use) -> Result<(), String> {
    match mounted.line(USE) {
        Some(said) if said == wanted.to_string() => Ok(()),
        Some(said @ ("csi" | "ccm")) => Err(format!(
            "the Secret's key use says {said}, and --use {wanted}: it was made for the other program"
        )),
        Some(_) => Err("the Secret's key use must be csi or ccm".to_owned()),
        None => Err(format!(
            "the Secret lacks the key use: put {wanted} there if it was made for this program"
        )),
    }
}

fn agrees(config: &Config, wanted: &Wanted) -> Result<(), String> {
    let name = |provider| match provider {
        Provider::Default => "default",
        Provider::Capmox => "capmox",
    };
    if let Some(provider) = wanted.provider
        && provider != config.provider
    {
        return Err(format!(
            "--expect-provider says {}, and the Secret's config {}: the Secret decides, say the same or nothing",
            name(provider),
            name(config.provider)
        ));
    }
    let regions: BTreeSet<Region> = config.regions.keys().cloned().collect();
    if wanted.regions.is_empty() || wanted.regions == regions {
        return Ok(());
    }
    let list = |regions: &BTreeSet<Region>| {
        let names: Vec<&str> = regions.iter().map(Region::as_str).collect();
        names.join(", ")
    };
    Err(format!(
        "--expect-region says {}, and the Secret's config {}: the Secret decides, say the same or nothing",
        list(&wanted.regions),
        list(&regions)
    ))
}

#[cfg(test)]
#[path = "compose_tests.rs"]
mod tests;
