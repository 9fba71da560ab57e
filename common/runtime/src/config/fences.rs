//! `fences.yaml`: what the operator states about hosts and VMs that can't be asked. `pvectl fence` writes it, the
//! controller reads it again whenever a decision needs it.
//!
//! A statement ends by itself: one that was forgotten must not let a volume into two VMs next year.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use pve_model::{PveNode, Region, Uuid, VmId};

use super::tree::Node;
use super::{ConfigError, File};

/// Read beside the config when no other file is named.
pub const FENCES_FILE: &str = "fences.yaml";
/// Statements in one file.
pub const MOST_FENCES: usize = 256;
/// How long one holds if nothing else is said.
pub const DEFAULT_TERM: SignedDuration = SignedDuration::from_hours(1);

const HEADER: &str = "# Written by `pvectl fence`: what the operator states about hosts and VMs that can't be asked.\nfences:";
/// How far the clocks of the operator's machine and the controller's may differ.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
const LONGEST_HOST: SignedDuration = SignedDuration::from_hours(24);
const LONGEST_GONE: SignedDuration = SignedDuration::from_hours(24 * 30);
const LONGEST_BY: usize = 64;
const LONGEST_REASON: usize = 200;

/// What a statement is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fenced {
    /// The host is off and its VMs run no more.
    Host(PveNode),
    /// The VM does not exist any more, whoever has its VMID now.
    Gone {
        /// The number that it had.
        vmid: VmId,
        /// Its identity.
        uuid: Uuid,
    },
}

/// One statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Of which PVE cluster.
    pub region: Region,
    /// What is stated.
    pub what: Fenced,
    /// When it was made.
    pub from: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// Who made it.
    pub by: String,
    /// Why, if it was said.
    pub reason: Option<String>,
}

/// All statements of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FenceFile {
    /// In the order of the file.
    pub fences: Vec<Fence>,
}

impl Fenced {
    /// The longest time for which it may be stated. A host is to come back; a VM that is gone stays so.
    pub const fn longest(&self) -> SignedDuration {
        match self {
            Self::Host(_) => LONGEST_HOST,
            Self::Gone { .. } => LONGEST_GONE,
        }
    }
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(pve_node) => write!(f, "{pve_node}"),
            Self::Gone { vmid, uuid } => write!(f, "{vmid}:{uuid}"),
        }
    }
}

/// `<vmid>:<uuid>`, else the name of a host.
impl FromStr for Fenced {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((vmid, uuid)) = text.split_once(':') else {
            let host = text.parse().map_err(|error| format!("{error}"))?;
            return Ok(Self::Host(host));
        };
        Ok(Self::Gone {
            vmid: vmid.parse().map_err(|error| format!("{error}"))?,
            uuid: uuid.parse().map_err(|error| format!("{error}"))?,
        })
    }
}

impl Fence {
    /// Whether it holds at that time. One that ends too far in the future holds at none, and none before it was stated: a
    /// clock that was set back brings nothing back.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.from.duration_since(now) <= SKEW
            && now < self.until
            && self.until.duration_since(now) <= self.what.longest() + SKEW
    }

    /// Says what is wrong with it, if anything is.
    pub fn check(&self) -> Result<(), String> {
        let term = self.until.duration_since(self.from);
        if term <= SignedDuration::ZERO {
            return Err("ends before it begins".to_owned());
        }
        if term > self.what.longest() {
            let hours = self.what.longest().as_hours();
            return Err(format!("holds for more than {hours} hours"));
        }
        let words = |text: &str, most| {
            let length = text.chars().count();
            length > 0 && length <= most && !text.chars().any(char::is_control)
        };
        if !words(&self.by, LONGEST_BY) {
            return Err(format!("by must be 1 to {LONGEST_BY} characters"));
        }
        if let Some(reason) = &self.reason
            && !words(reason, LONGEST_REASON)
        {
            return Err(format!("reason must be 1 to {LONGEST_REASON} characters"));
        }
        Ok(())
    }

    fn read(node: &Node<'_>) -> Result<Self, String> {
        let known = ["region", "host", "gone", "from", "until", "by", "reason"];
        let keys = node.keys(&known)?;
        let what: Fenced = match (keys.find("host"), keys.find("gone")) {
            (Some(host), None) => Fenced::Host(host.parsed()?),
            (None, Some(gone)) => match gone.parsed()? {
                what @ Fenced::Gone { .. } => what,
                Fenced::Host(_) => return Err(gone.refuse("must be <vmid>:<uuid>")),
            },
            _ => return Err(node.refuse("needs either host or gone")),
        };
        let fence = Self {
            region: keys.get("region")?.parsed()?,
            what,
            from: time(&keys.get("from")?)?,
            until: time(&keys.get("until")?)?,
            by: keys.get("by")?.text()?.to_owned(),
            reason: keys
                .find("reason")
                .map(|reason| reason.text().map(str::to_owned))
                .transpose()?,
        };
        fence.check().map_err(|why| node.refuse(why))?;
        Ok(fence)
    }
}

fn time(node: &Node<'_>) -> Result<Timestamp, String> {
    let text = node.text()?;
    text.parse()
        .map_err(|_| node.refuse("must be a time as 2026-12-01T06:00:00Z"))
}

impl FenceFile {
    /// Reads and checks a file; one that is not there states nothing.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let Some(file) = File::find(path)? else {
            return Ok(Self::default());
        };
        Self::of(&file.root()).map_err(ConfigError::Refused)
    }

    /// Checks the text of a file.
    pub fn of_text(text: &str) -> Result<Self, ConfigError> {
        let file = File::of(FENCES_FILE, text)?;
        Self::of(&file.root()).map_err(ConfigError::Refused)
    }

    fn of(root: &Node<'_>) -> Result<Self, String> {
        if root.is_null() {
            return Ok(Self::default());
        }
        let keys = root.keys(&["fences"])?;
        let Some(list) = keys.find("fences") else {
            return Ok(Self::default());
        };
        let members = list.members()?;
        if members.len() > MOST_FENCES {
            return Err(list.refuse(format!("holds more than {MOST_FENCES}")));
        }
        let fences: Result<Vec<Fence>, String> = members.iter().map(Fence::read).collect();
        Ok(Self { fences: fences? })
    }

    /// The statement that holds now about this, the one that ends last.
    pub fn find(&self, region: &Region, what: &Fenced, now: Timestamp) -> Option<&Fence> {
        let matching = self
            .fences
            .iter()
            .filter(|fence| fence.region == *region && fence.what == *what && fence.holds(now));
        matching.max_by_key(|fence| fence.until)
    }

    /// The file's text.
    pub fn to_yaml(&self) -> String {
        // JSON's strings are YAML's double-quoted ones.
        let quoted = |value: &str| serde_json::Value::from(value).to_string();
        let mut lines = vec![HEADER.to_owned()];
        for fence in &self.fences {
            let key = match fence.what {
                Fenced::Host(_) => "host",
                Fenced::Gone { .. } => "gone",
            };
            let pairs = [
                ("- region", Some(fence.region.to_string())),
                (key, Some(fence.what.to_string())),
                ("from", Some(fence.from.to_string())),
                ("until", Some(fence.until.to_string())),
                ("by", Some(fence.by.clone())),
                ("reason", fence.reason.clone()),
            ];
            for (key, value) in pairs {
                let indent = if key.starts_with('-') { "" } else { "  " };
                lines.extend(value.map(|value| format!("{indent}{key}: {}", quoted(&value))));
            }
        }
        // A key without a value is an empty list.
        lines.join("\n") + "\n"
    }
}
