//! Parameters as they come, and what names and numbers of PVE look like (`JSONSchema.pm`). Must not know endpoints.

use std::collections::BTreeMap;

/// A parameter as it came: form and query give texts and arrays, JSON may give objects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw {
    Text(String),
    /// `true` or `false` of a JSON body.
    Bool(bool),
    Array(Vec<String>),
    Object,
}

impl Raw {
    /// What Perl calls it.
    pub(crate) fn perl_type(&self) -> &'static str {
        match self {
            Self::Text(_) => "SCALAR",
            Self::Bool(_) => "JSON::PP::Boolean",
            Self::Array(_) => "ARRAY",
            Self::Object => "HASH",
        }
    }
}

/// The items of a list in one text: commas, semicolons and blanks separate (`split_list`).
pub(crate) fn list(text: &str) -> Vec<String> {
    text.split([',', ';', ' ', '\0'])
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

pub(crate) type RawParams = BTreeMap<String, Raw>;

pub(crate) fn storage_id(text: &str) -> bool {
    let edges = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    text.len() > 1
        && edges
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

pub(crate) fn node_name(text: &str) -> bool {
    let edges = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    edges && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

pub(crate) fn dns_name(text: &str) -> bool {
    !text.is_empty() && text.split('.').all(node_name)
}

pub(crate) fn config_id(text: &str) -> bool {
    text.len() > 1
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

pub(crate) fn ha_sid(text: &str) -> bool {
    let id = text
        .strip_prefix("vm:")
        .or_else(|| text.strip_prefix("ct:"))
        .unwrap_or(text);
    id.len() > 2 && id.bytes().all(|b| b.is_ascii_digit())
}

/// `unusedN`: a volume id, and nothing else.
pub(crate) fn unused_volume(name: &str, text: &str) -> Result<String, String> {
    let text = text.strip_prefix("file=").unwrap_or(text);
    match text.split_once(':') {
        Some((storage, rest)) if storage_id(storage) && !rest.is_empty() => Ok(text.to_owned()),
        _ => Err(format!(
            "invalid format - format error\n{name}.file: invalid format - unable to parse volume ID '{text}'\n\n"
        )),
    }
}

/// `memory`: whole MiB, at least 16; the result is the number alone.
pub(crate) fn memory(name: &str, text: &str) -> Result<String, String> {
    let value = text.strip_prefix("current=").unwrap_or(text);
    let nested = |error: &str| format!("invalid format - format error\n{name}.current: {error}\n");
    let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(nested(&format!(
            "type check ('integer') failed - got '{value}'"
        )));
    }
    if value.parse::<i64>().is_ok_and(|number| number < 16) {
        return Err(nested("value must have a minimum value of 16"));
    }
    Ok(value.to_owned())
}
