//! Names and texts of the server: what they may hold.

use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Longest name, and longest text that is kept of what the server says.
const NAME_MAX: usize = 253;

/// A name as Kubernetes' API has them (`k8s.io/apimachinery/pkg/util/validation`: DNS subdomain): it can stand in a path
/// and on a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct Name(String);

/// A text for people, of printable ASCII and cut off where it is too long.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct Text(String);

// === impl Name ===

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let label = |label: &str| {
            let ends = [label.bytes().next(), label.bytes().next_back()];
            let inner = |byte| alphanumeric(byte) || byte == b'-';
            ends.into_iter().all(|end| end.is_some_and(alphanumeric)) && label.bytes().all(inner)
        };
        if text.len() <= NAME_MAX && text.split('.').all(label) {
            Ok(Self(text.to_owned()))
        } else {
            Err("is no name of Kubernetes".to_owned())
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

// === impl Text ===

impl Text {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        let printable = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
        Self(text.chars().take(NAME_MAX).map(printable).collect())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?.as_str()))
    }
}
