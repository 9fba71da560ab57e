//! Which version of Proxmox VE all nodes run.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// As `/version` names it: `9.2.11`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    text: String,
    major: u16,
}

impl Default for Version {
    fn default() -> Self {
        Self {
            text: "9.2.11".to_owned(),
            major: 9,
        }
    }
}

impl Version {
    /// The first number.
    pub(crate) const fn major(&self) -> u16 {
        self.major
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The first two numbers.
    pub(crate) fn release(&self) -> &str {
        self.text
            .rsplit_once('.')
            .map_or(&*self.text, |(release, _)| release)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u16>, _> = text.split('.').map(str::parse).collect();
        match numbers.as_deref() {
            Ok([major @ (8 | 9), _, _]) => Ok(Self {
                text: text.to_owned(),
                major: *major,
            }),
            _ => Err(format!(
                "'{text}' is no version of Proxmox VE 8 or 9, such as 8.4.1"
            )),
        }
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.text
    }
}
