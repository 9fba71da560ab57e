//! A YAML document as a tree that knows the path of each of its parts.
//!
//! Errors say where and what is wanted, never what was found: a misplaced secret stays one.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};

/// Stands in paths for a key that is not shown.
const HIDDEN: &str = "<key>";

/// Longest name of a file (`limits.h`: `PATH_MAX` with the zero at its end).
const PATH_MAX: usize = 4095;

/// A part of the document and where it stands.
#[derive(Clone)]
pub(super) struct Node<'a> {
    place: Place<'a>,
    value: &'a Value,
}

/// A mapping whose keys are all known.
pub(super) struct Keys<'a> {
    place: Place<'a>,
    map: &'a Map<String, Value>,
}

/// A path within a file.
#[derive(Clone)]
struct Place<'a> {
    file: &'a str,
    path: String,
}

/// Parses a document. Mappings with a key twice are refused.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    serde_saphyr::from_str(text).map_err(|error| {
        let place = error
            .location()
            .map(|at| format!("line {}, column {}: ", at.line(), at.column()))
            .unwrap_or_default();
        match error.without_snippet() {
            serde_saphyr::Error::DuplicateMappingKey { .. } => {
                format!("{place}the key stands twice in the same mapping")
            }
            _ => format!("{place}not well-formed YAML"),
        }
    })
}

// === impl Node ===

impl<'a> Node<'a> {
    /// The whole document; `file` is what errors call it.
    pub(super) fn root(file: &'a str, value: &'a Value) -> Self {
        let path = String::new();
        let place = Place { file, path };
        Self { place, value }
    }

    /// An error about this part.
    pub(super) fn refuse(&self, why: impl Display) -> String {
        self.place.refuse(why)
    }

    /// A mapping with no other keys than `known`.
    pub(super) fn keys(&self, known: &[&str]) -> Result<Keys<'a>, String> {
        let map = self.map()?;
        for key in map.keys() {
            if !known.contains(&key.as_str()) {
                return Err(self.place.unknown(key, known));
            }
        }
        let place = self.place.clone();
        Ok(Keys { place, map })
    }

    /// A mapping whose keys are names; each with the part behind it.
    pub(super) fn entries(&self) -> Result<Vec<(&'a str, Self)>, String> {
        let entry = |(key, value): (&'a String, &'a Value)| {
            let place = self.place.child(key);
            (key.as_str(), Self { place, value })
        };
        Ok(self.map()?.iter().map(entry).collect())
    }

    /// A list's members.
    pub(super) fn members(&self) -> Result<Vec<Self>, String> {
        let list = self
            .value
            .as_array()
            .ok_or_else(|| self.refuse("must be a list"))?;
        let member = |(index, value)| Self {
            place: self.place.member(index),
            value,
        };
        Ok(list.iter().enumerate().map(member).collect())
    }

    pub(super) fn is_list(&self) -> bool {
        self.value.is_array()
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(super) fn text(&self) -> Result<&'a str, String> {
        match self.value.as_str() {
            Some(text) if !text.is_empty() => Ok(text),
            Some(_) => Err(self.refuse("must not be empty")),
            None if self.value.is_number() || self.value.is_boolean() => {
                Err(self.refuse("must be a string: put it between quotes"))
            }
            None => Err(self.refuse("must be a string")),
        }
    }

    /// The name of a file, which errors may show.
    pub(super) fn file(&self) -> Result<&'a str, String> {
        let text = self.text()?;
        if is_hex_secret(text) || text.chars().any(char::is_control) || text.len() > PATH_MAX {
            return Err(self.refuse("must be the name of a file, and this looks like a secret"));
        }
        Ok(text)
    }

    /// A string of `T`'s grammar.
    pub(super) fn parsed<T: FromStr<Err: Display>>(&self) -> Result<T, String> {
        self.text()?.parse().map_err(|error| self.refuse(error))
    }

    pub(super) fn truth(&self) -> Result<bool, String> {
        self.value
            .as_bool()
            .ok_or_else(|| self.refuse("must be true or false"))
    }

    pub(super) fn number<T: TryFrom<u64>>(&self, wanted: &str) -> Result<T, String> {
        self.value
            .as_u64()
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| self.refuse(format_args!("must be {wanted}")))
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    fn map(&self) -> Result<&'a Map<String, Value>, String> {
        self.value
            .as_object()
            .ok_or_else(|| self.refuse("must be a mapping"))
    }
}

// === impl Keys ===

impl<'a> Keys<'a> {
    /// The part behind `key`; a key without a value counts as absent.
    pub(super) fn find(&self, key: &str) -> Option<Node<'a>> {
        let value = self.map.get(key).filter(|value| !value.is_null())?;
        let place = self.place.child(key);
        Some(Node { place, value })
    }

    pub(super) fn get(&self, key: &str) -> Result<Node<'a>, String> {
        self.find(key)
            .ok_or_else(|| self.refuse(key, "is required"))
    }

    /// The first of `keys` that is there, empty or not.
    pub(super) fn any<'k>(&self, keys: &[&'k str]) -> Option<&'k str> {
        keys.iter()
            .find(|key| self.map.contains_key(**key))
            .copied()
    }

    /// An error about `key`.
    pub(super) fn refuse(&self, key: &str, why: impl Display) -> String {
        self.place.child(key).refuse(why)
    }
}

// === impl Place ===

impl Place<'_> {
    fn child(&self, key: &str) -> Self {
        let key = if may_be_secret(key) { HIDDEN } else { key };
        let path = if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        };
        let file = self.file;
        Self { file, path }
    }

    /// An error about a key that is none of `known`. It is shown only if it is one of them written otherwise.
    fn unknown(&self, key: &str, known: &[&str]) -> String {
        let folded = |text: &str| text.replace('_', "").to_ascii_lowercase();
        let typed = folded(key);
        let near = |known: &&&str| {
            let known = folded(known);
            known == typed || typed.len() >= 3 && known.starts_with(&typed)
        };
        match known.iter().find(near) {
            Some(meant) => self
                .child(key)
                .refuse(format_args!("unknown key, it is written {meant}")),
            None => self
                .child(HIDDEN)
                .refuse(format_args!("unknown key, known are {}", known.join(", "))),
        }
    }

    fn member(&self, index: usize) -> Self {
        let path = format!("{}[{index}]", self.path);
        let file = self.file;
        Self { file, path }
    }

    fn refuse(&self, why: impl Display) -> String {
        let Self { file, path } = self;
        if path.is_empty() {
            format!("{file}: {why}")
        } else {
            format!("{file}: {path}: {why}")
        }
    }
}

/// Keys come from the file: what stands there by mistake may be a secret. PVE's token secrets are UUIDs.
fn may_be_secret(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.chars().all(plain) || key.len() > 100 || is_hex_secret(key)
}

/// Whether one part of a path, or a whole text, has as many hex digits as a UUID.
fn is_hex_secret(text: &str) -> bool {
    let hex = |part: &str| part.chars().filter(char::is_ascii_hexdigit).count();
    text.split('/').any(|part| hex(part) >= 32)
}
