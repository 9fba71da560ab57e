//! The operator's Secret as the kubelet mounts it: one file for each key.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use pve_runtime::swap;
use secrecy::{ExposeSecret, SecretString};

use crate::Trouble;

/// For which program it is: `csi` or `ccm`.
pub const USE: &str = "use";
/// What of the PVE clusters is the tenant's.
pub const POLICY: &str = "policy.yaml";
/// How they are reached, in our form or in that of the former drivers.
pub const CONFIG: &str = "config.yaml";
/// What the operator states of hosts and VMs that can't be asked.
pub const FENCES: &str = "fences.yaml";
/// How one PVE cluster is reached, in the place of `config.yaml`.
pub const SINGLE: [&str; 8] = [
    "url",
    "region",
    "token_id",
    "token_secret",
    "ca.crt",
    "fingerprint",
    "insecure",
    "provider",
];

/// A Secret holds 1 MiB.
const MOST_BYTES: u64 = 1 << 20;

/// The Secret's keys and what they hold, as at one moment.
#[derive(Clone, Default)]
pub struct Mounted(BTreeMap<&'static str, SecretString>);

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Mounted {
    /// Reads the folder. A key that is not known is refused before anything is read, and never named: it may be a secret
    /// that stands in the wrong place.
    pub fn read(folder: &Path) -> Result<Self, Trouble> {
        let read = swap::in_one_piece(folder, || read(&in_force(folder)));
        read.unwrap_or_else(|error| Err(failed("the Secret", &error)))
    }

    #[cfg(test)]
    pub(crate) fn put(&mut self, key: &'static str, text: &str) {
        self.0.insert(key, text.into());
    }

    /// What a key holds.
    pub fn find(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(ExposeSecret::expose_secret)
    }

    /// What a key of one line holds: an editor or `echo` leaves a line's end.
    pub fn line(&self, key: &str) -> Option<&str> {
        self.find(key).map(str::trim)
    }

    /// The first of these keys that is there.
    pub fn any(&self, keys: &[&'static str]) -> Option<&'static str> {
        keys.iter().find(|key| self.0.contains_key(**key)).copied()
    }
}

/// Where the keys are. The kubelet makes links of new keys after it has put a generation in force, and removes those of
/// former keys last (`atomic_writer.go`): meanwhile links in the folder are not those of the generation.
fn in_force(folder: &Path) -> PathBuf {
    let generation = std::fs::read_link(folder.join(swap::CURRENT));
    generation.map_or_else(|_| folder.to_owned(), |generation| folder.join(generation))
}

fn read(folder: &Path) -> Result<Mounted, Trouble> {
    let entries = std::fs::read_dir(folder).map_err(|error| failed("the Secret", &error))?;
    let mut keys = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| failed("the Secret", &error))?;
        let name = name.file_name();
        // The kubelet's own: `..data` and the folders of generations. No key begins so (`IsConfigMapKey`).
        if !name.as_encoded_bytes().starts_with(b"..") {
            keys.push(name.to_str().map_or_else(|| Err(unknown("")), known)?);
        }
    }
    let mut left = MOST_BYTES;
    let mut mounted = Mounted::default();
    for key in keys {
        let what = format!("the Secret's key {key}");
        let text = text(&folder.join(key), left).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => Trouble::Refused(format!("{what} is not text")),
            ErrorKind::InvalidInput => Trouble::Refused(format!("{what} is not a file")),
            ErrorKind::FileTooLarge => {
                Trouble::Refused(format!("{what} is larger than a Secret can be"))
            }
            _ => failed(&what, &error),
        })?;
        left = left.saturating_sub(u64::try_from(text.len()).unwrap_or(u64::MAX));
        mounted.0.insert(key, text.into());
    }
    Ok(mounted)
}

fn failed(what: &str, error: &io::Error) -> Trouble {
    Trouble::Failed(format!("{what} can't be read: {error}"))
}

fn all() -> impl Iterator<Item = &'static str> {
    [USE, POLICY, CONFIG, FENCES].into_iter().chain(SINGLE)
}

fn known(name: &str) -> Result<&'static str, Trouble> {
    all().find(|key| *key == name).ok_or_else(|| unknown(name))
}

/// It is shown only if it is one of the known ones written otherwise.
fn unknown(name: &str) -> Trouble {
    let folded = |text: &str| text.replace(['_', '-', '.'], "").to_ascii_lowercase();
    let meant = all().find(|key| folded(key) == folded(name));
    Trouble::Refused(if let Some(key) = meant {
        format!("the Secret's key {name} is not known, it is written {key}")
    } else {
        let keys: Vec<&str> = all().collect();
        let keys = keys.join(", ");
        format!("the Secret has a key that is not known, known are {keys}")
    })
}

/// The text of a regular file: a pipe may have no end.
fn text(path: &Path, most: u64) -> io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    let mut file = File::open(path)?.take(most.saturating_add(1));
    file.read_to_string(&mut text)?;
    if file.limit() == 0 {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

#[cfg(test)]
#[path = "secret_tests.rs"]
mod tests;
