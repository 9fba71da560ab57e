//! Parameter checks with PVE's texts (`JSONSchema.pm`). Must not know endpoints.

use std::collections::BTreeMap;

use crate::fail::Fail;
use crate::{drive, options, units};

/// A parameter as it came: form and query give texts and arrays, JSON may give objects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw {
    Text(String),
    Array(Vec<String>),
    Object,
}

pub(crate) type RawParams = BTreeMap<String, Raw>;

/// What a parameter must be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Str,
    List,
    Int { min: i64, max: i64 },
    Bool,
    Vmid,
    Storage,
    Node,
    Enum(&'static [&'static str]),
    ContentSize,
    ResizeSize,
    ContentTypes,
    Digest,
    Drive,
    UnusedVolume,
    DnsName,
    ConfigId,
    Memory,
    HaSid,
}

/// One parameter of an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: Need,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Required,
    Optional,
}

/// A required parameter.
pub(crate) const fn req(name: &'static str, kind: Kind) -> Param {
    Param {
        name,
        kind,
        required: Need::Required,
    }
}

/// An optional parameter.
pub(crate) const fn opt(name: &'static str, kind: Kind) -> Param {
    Param {
        name,
        kind,
        required: Need::Optional,
    }
}

/// What may come besides the listed parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extra {
    Nothing,
    /// Every option of a VM's config.
    VmOptions,
    /// What an HA rule of the given type takes.
    HaRule,
}

pub(crate) const RULE_TYPES: &[&str] = &["node-affinity", "resource-affinity"];

/// The options of an HA rule besides the common ones depend on its type.
fn rule_option(name: &str, given: &RawParams) -> Option<Kind> {
    let Some(Raw::Text(kind)) = given.get("type") else {
        return None;
    };
    Some(match (kind.as_str(), name) {
        ("node-affinity" | "resource-affinity", "resources") | ("node-affinity", "nodes") => {
            Kind::List
        }
        ("node-affinity", "strict") => Kind::Bool,
        ("resource-affinity", "affinity") => Kind::Enum(&["positive", "negative"]),
        _ => return None,
    })
}

/// Checks all parameters and returns them as texts; lists given as arrays are joined with commas.
pub(crate) fn verify(
    list: &[Param],
    extra: Extra,
    given: &RawParams,
) -> Result<BTreeMap<String, String>, Fail> {
    let mut errors = BTreeMap::new();
    let mut values = BTreeMap::new();
    for (name, raw) in given {
        let known = list.iter().find(|p| p.name == name).map(|p| p.kind);
        let kind = known.or_else(|| match extra {
            Extra::Nothing => None,
            Extra::VmOptions => options::kind(name),
            Extra::HaRule => rule_option(name, given),
        });
        let Some(kind) = kind else {
            errors.insert(name.clone(), "property is not defined in schema and the schema does not allow additional properties".to_owned());
            continue;
        };
        match flatten(kind, raw).and_then(|text| check(kind, name, &text)) {
            Ok(text) => {
                values.insert(name.clone(), text);
            }
            Err(text) => {
                errors.insert(name.clone(), text);
            }
        }
    }
    for param in list
        .iter()
        .filter(|p| p.required == Need::Required && !given.contains_key(p.name))
    {
        errors.insert(
            param.name.to_owned(),
            "property is missing and it is not optional".to_owned(),
        );
    }
    if errors.is_empty() {
        Ok(values)
    } else {
        Err(Fail::params(errors))
    }
}

fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Int { .. } | Kind::Vmid => "integer",
        Kind::Bool => "boolean",
        _ => "string",
    }
}

fn flatten(kind: Kind, raw: &Raw) -> Result<String, String> {
    match raw {
        Raw::Text(text) => Ok(text.clone()),
        Raw::Array(items) if matches!(kind, Kind::List) => Ok(items.join(",")),
        Raw::Array(_) => Err(format!(
            "type check ('{}') failed - got ARRAY",
            type_name(kind)
        )),
        Raw::Object => Err(format!(
            "type check ('{}') failed - got HASH",
            type_name(kind)
        )),
    }
}

fn check(kind: Kind, name: &str, text: &str) -> Result<String, String> {
    let done = || Ok(text.to_owned());
    let pattern = "value does not match the regex pattern";
    match kind {
        Kind::Int { min, max } => {
            let number = integer(text)?;
            if number < min {
                return Err(format!("value must have a minimum value of {min}"));
            }
            if number > max {
                return Err(format!("value must have a maximum value of {max}"));
            }
            done()
        }
        Kind::Bool => match text {
            "1" | "true" => Ok("1".to_owned()),
            "0" | "false" => Ok("0".to_owned()),
            _ => Err(format!("type check ('boolean') failed - got '{text}'")),
        },
        Kind::Vmid => {
            let number = integer(text)?;
            let good = (100..=999_999_999).contains(&number) && !text.starts_with('0');
            if good {
                done()
            } else {
                Err("invalid format - value does not look like a valid VM ID\n".to_owned())
            }
        }
        Kind::Storage if !storage_id(text) => Err(format!(
            "invalid format - storage ID '{text}' contains illegal characters\n"
        )),
        Kind::Node if !node_name(text) => {
            Err("invalid format - value does not look like a valid node name\n".to_owned())
        }
        Kind::Enum(list) if !list.contains(&text) => Err(format!(
            "value '{text}' does not have a value in the enumeration '{}'",
            list.join(", ")
        )),
        Kind::ContentSize if units::content_size(text).is_none() => Err(pattern.to_owned()),
        Kind::ResizeSize if units::resize_size(text).is_none() => Err(pattern.to_owned()),
        Kind::ContentTypes => content_types(text),
        Kind::Digest if text.len() > 64 => Err("value may only be 64 characters long".to_owned()),
        Kind::Drive => drive::Drive::parse(name, text)
            .map(|drive| drive.print())
            .map_err(|text| format!("invalid format - {text}")),
        Kind::UnusedVolume => unused_volume(name, text),
        Kind::DnsName if !dns_name(text) => {
            Err("invalid format - value does not look like a valid DNS name\n".to_owned())
        }
        Kind::ConfigId if !config_id(text) => Err(format!(
            "invalid format - invalid configuration ID '{text}'\n"
        )),
        Kind::Memory => memory(name, text),
        Kind::HaSid if !ha_sid(text) => {
            Err("invalid format - value does not look like a valid ha resource id\n".to_owned())
        }
        _ => done(),
    }
}

fn integer(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let good = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    good.then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| format!("type check ('integer') failed - got '{text}'"))
}

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

fn dns_name(text: &str) -> bool {
    !text.is_empty() && text.split('.').all(node_name)
}

fn config_id(text: &str) -> bool {
    text.len() > 1
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

fn ha_sid(text: &str) -> bool {
    let id = text
        .strip_prefix("vm:")
        .or_else(|| text.strip_prefix("ct:"))
        .unwrap_or(text);
    id.len() > 2 && id.bytes().all(|b| b.is_ascii_digit())
}

fn content_types(text: &str) -> Result<String, String> {
    let known = [
        "images", "rootdir", "vztmpl", "iso", "backup", "snippets", "import", "none",
    ];
    match text
        .split(',')
        .map(str::trim)
        .find(|item| !known.contains(item))
    {
        Some(bad) => Err(format!("invalid format - invalid content type '{bad}'\n")),
        None => Ok(text.to_owned()),
    }
}

fn unused_volume(name: &str, text: &str) -> Result<String, String> {
    let text = text.strip_prefix("file=").unwrap_or(text);
    match text.split_once(':') {
        Some((storage, rest)) if storage_id(storage) && !rest.is_empty() => Ok(text.to_owned()),
        _ => Err(format!(
            "invalid format - format error\n{name}.file: invalid format - unable to parse volume ID '{text}'\n\n"
        )),
    }
}

fn memory(name: &str, text: &str) -> Result<String, String> {
    let value = text.strip_prefix("current=").unwrap_or(text);
    let nested = |error: &str| format!("invalid format - format error\n{name}.current: {error}\n");
    match integer(value) {
        Err(error) => Err(nested(&error)),
        Ok(number) if number < 16 => Err(nested("value must have a minimum value of 16")),
        Ok(_) => Ok(value.to_owned()),
    }
}

/// What a parameter in a path must be.
pub(crate) fn path_kind(name: &str) -> Kind {
    match name {
        "vmid" => Kind::Vmid,
        "node" => Kind::Node,
        "storage" => Kind::Storage,
        _ => Kind::Str,
    }
}
