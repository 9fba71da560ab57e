//! Checks parameters against what an endpoint declares, with PVE's texts (`JSONSchema.pm` `validate`). Must not know endpoints.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;

use crate::drive;
use crate::endpoints::{Arg, Endpoint, Format};
use crate::fail::Fail;
use crate::formats;
use crate::options::{self, Shape};
use crate::property_string;
use crate::schema::{self, Raw, RawParams};

pub(crate) type Errors = BTreeMap<String, String>;

pub(crate) const UNKNOWN: &str =
    "property is not defined in schema and the schema does not allow additional properties";
/// What stands between the items of a parameter that is an array.
pub(crate) const ITEMS: char = '\0';

/// Checks everything; the result holds each parameter as text, lists that came as arrays joined with commas.
pub(crate) fn verify(
    endpoint: &Endpoint,
    given: &RawParams,
) -> Result<BTreeMap<String, String>, Fail> {
    let mut errors = Errors::new();
    let mut values = BTreeMap::new();
    let of_type = match given.get("type") {
        Some(Raw::Text(kind)) => endpoint.types.get(kind),
        _ => None,
    };
    let find = |name: &String| endpoint.args.get(name).or_else(|| of_type?.get(name));
    for (name, raw) in given {
        let checked = match find(name) {
            Some(arg) => parameter(arg, name, raw, &mut errors),
            None if endpoint.vm && options::shape(name).is_some() => {
                vm_option(name, raw, &mut errors)
            }
            None => {
                add(&mut errors, name, UNKNOWN);
                None
            }
        };
        if let Some(text) = checked {
            values.insert(name.clone(), text);
        }
    }
    for (name, arg) in endpoint.args.iter().chain(of_type.into_iter().flatten()) {
        if !arg.optional && !given.contains_key(name) {
            add(
                &mut errors,
                name,
                "property is missing and it is not optional",
            );
        }
        if let Some(other) = &arg.requires
            && given.contains_key(name)
            && !given.contains_key(other)
        {
            let text = format!("missing property required by '{name}'");
            add(&mut errors, other, &text);
        }
    }
    if errors.is_empty() {
        Ok(values)
    } else {
        Err(Fail::params(errors))
    }
}

/// Several errors of one parameter are joined by a backslash and an `n` (PVE's quotes are single ones).
pub(crate) fn add(errors: &mut Errors, name: &str, text: &str) {
    errors
        .entry(name.to_owned())
        .and_modify(|old| *old = format!("{old}\\n{text}"))
        .or_insert_with(|| text.to_owned());
}

fn parameter(arg: &Arg, name: &str, raw: &Raw, errors: &mut Errors) -> Option<String> {
    if arg.kind == "array" {
        return array(arg, name, raw, errors);
    }
    let list = matches!(&arg.format, Some(Format::Named(format)) if format.ends_with("-list"));
    let text = match raw {
        Raw::Text(text) => text.clone(),
        Raw::Bool(flag) if arg.kind == "boolean" => u8::from(*flag).to_string(),
        Raw::Array(items) if list => items.join(","),
        other => {
            let kind = if arg.kind.is_empty() {
                "string"
            } else {
                &arg.kind
            };
            let text = format!("type check ('{kind}') failed - got {}", other.perl_type());
            add(errors, name, &text);
            return None;
        }
    };
    value(arg, name, &text, errors).then_some(text)
}

fn array(arg: &Arg, name: &str, raw: &Raw, errors: &mut Errors) -> Option<String> {
    let items = match raw {
        Raw::Text(text) => vec![text.clone()],
        Raw::Array(items) => items.clone(),
        Raw::Bool(_) | Raw::Object => {
            add(errors, name, "type check ('array') failed");
            return None;
        }
    };
    let mut fits = true;
    if let Some(item) = &arg.items {
        for (at, text) in items.iter().enumerate() {
            fits &= value(item, &format!("{name}[{at}]"), text, errors);
        }
    }
    fits.then(|| items.join(&ITEMS.to_string()))
}

/// Drives and memory have a normal form of their own; the rest is checked by the table.
fn vm_option(name: &str, raw: &Raw, errors: &mut Errors) -> Option<String> {
    let shape = options::shape(name)?;
    if let Shape::Plain(arg) = shape {
        return parameter(arg, name, raw, errors);
    }
    let Raw::Text(text) = raw else {
        let text = format!("type check ('string') failed - got {}", raw.perl_type());
        add(errors, name, &text);
        return None;
    };
    let checked = match shape {
        Shape::Drive => drive::Drive::parse(name, text)
            .map(|drive| drive.print())
            .map_err(|text| format!("invalid format - {text}")),
        Shape::Unused => schema::unused_volume(name, text),
        Shape::Memory | Shape::Plain(_) => schema::memory(name, text),
    };
    checked.map_err(|error| add(errors, name, &error)).ok()
}

/// `check_prop` of a plain value: type, format, pattern, length, range, enumeration; the first that fails is told.
pub(crate) fn value(arg: &Arg, path: &str, text: &str, errors: &mut Errors) -> bool {
    match verdict(arg, path, text) {
        Ok(()) => true,
        Err(error) => {
            add(errors, path, &error);
            false
        }
    }
}

fn verdict(arg: &Arg, path: &str, text: &str) -> Result<(), String> {
    kind(&arg.kind, text)?;
    match &arg.format {
        Some(Format::Named(format)) => formats::check(format, text),
        Some(Format::Nested(keys)) => property_string::check(keys, path, text),
        None => Ok(()),
    }
    .map_err(|error| format!("invalid format - {error}"))?;
    if arg
        .pattern
        .as_ref()
        .is_some_and(|pattern| !matches(pattern, text))
    {
        return Err("value does not match the regex pattern".to_owned());
    }
    let length = text.chars().count();
    if let Some(longest) = arg.longest.filter(|most| length > *most) {
        return Err(format!("value may only be {longest} characters long"));
    }
    if let Some(shortest) = arg.shortest.filter(|least| length < *least) {
        return Err(format!("value must be at least {shortest} characters long"));
    }
    if let Ok(number) = text.parse::<f64>() {
        if let Some(max) = arg.max.filter(|max| number > *max) {
            return Err(format!("value must have a maximum value of {max}"));
        }
        if let Some(min) = arg.min.filter(|min| number < *min) {
            return Err(format!("value must have a minimum value of {min}"));
        }
    }
    if !arg.values.is_empty() && !arg.values.iter().any(|value| value == text) {
        return Err(format!(
            "value '{text}' does not have a value in the enumeration '{}'",
            arg.values.join(", ")
        ));
    }
    Ok(())
}

fn kind(kind: &str, text: &str) -> Result<(), String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let fits = match kind {
        "integer" => number(digits),
        "number" => {
            digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
                && digits.parse::<f64>().is_ok()
        }
        "boolean" => matches!(text, "0" | "1"),
        _ => true,
    };
    if fits {
        Ok(())
    } else {
        Err(format!("type check ('{kind}') failed - got '{text}'"))
    }
}

/// Whether the whole text matches. A pattern that cannot be compiled matches nothing; a test sees to it that there is none.
fn matches(pattern: &str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<BTreeMap<String, Option<Regex>>>> =
        LazyLock::new(Mutex::default);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled
        .entry(pattern.to_owned())
        .or_insert_with(|| Regex::new(&format!("^(?:{pattern})$")).ok())
        .as_ref()
        .is_some_and(|regex| regex.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints;

    fn errors(method: &str, template: &str, given: &[(&str, &str)]) -> Errors {
        let endpoint = endpoints::find(method, template).unwrap();
        let raw = |(name, text): &(&str, &str)| ((*name).to_owned(), Raw::Text((*text).to_owned()));
        match verify(endpoint, &given.iter().map(raw).collect()) {
            Err(Fail::Json { errors, .. }) => errors,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parameters_are_refused_with_the_texts_of_pve() {
        let content = "/nodes/{node}/storage/{storage}/content";
        let got = errors(
            "POST",
            content,
            &[
                ("node", "pve1"),
                ("storage", "x"),
                ("vmid", "99"),
                ("size", "1T"),
                ("filename", "a"),
                ("format", "foo"),
                ("bogus", "1"),
            ],
        );
        assert_eq!(
            got["storage"],
            "invalid format - storage ID 'x' cannot be shorter than 2 characters\n"
        );
        assert_eq!(
            got["vmid"],
            "invalid format - value does not look like a valid VM ID\n"
        );
        assert_eq!(got["size"], "value does not match the regex pattern");
        assert_eq!(got["bogus"], UNKNOWN);
        assert!(got["format"].starts_with("value 'foo' does not have a value in the enumeration"));
        let got = errors(
            "POST",
            "/access/users",
            &[
                ("userid", "a@pve"),
                ("password", "short"),
                ("enable", "true"),
                ("expire", "-1"),
            ],
        );
        assert_eq!(got["password"], "value must be at least 8 characters long");
        assert_eq!(got["enable"], "type check ('boolean') failed - got 'true'");
        assert_eq!(got["expire"], "value must have a minimum value of 0");
    }

    #[test]
    fn property_strings_are_checked_key_by_key() {
        let config = "/nodes/{node}/qemu/{vmid}/config";
        let at = [("node", "pve1"), ("vmid", "100")];
        let got = |name: &'static str, text: &'static str| {
            errors("PUT", config, &[at[0], at[1], (name, text)])[name].clone()
        };
        assert_eq!(
            got("agent", "2"),
            "invalid format - format error\nagent.enabled: type check ('boolean') failed - got '2'\n"
        );
        assert_eq!(
            got("agent", "1,type=nope"),
            "invalid format - format error\nagent.type: value 'nope' does not have a value in the enumeration 'virtio, isa'\n"
        );
        assert_eq!(
            got("agent", "1,bogus=1"),
            format!("invalid format - format error\nagent.bogus: {UNKNOWN}\n")
        );
        assert!(
            got("lock", "bogus").starts_with(
                "value 'bogus' does not have a value in the enumeration 'backup, clone"
            )
        );
        let endpoint = endpoints::find("PUT", config).unwrap();
        let mut fine: RawParams = [
            ("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0"),
            ("agent", "enabled=on"),
            ("node", "pve1"),
            ("vmid", "100"),
        ]
        .map(|(name, text)| (name.to_owned(), Raw::Text(text.to_owned())))
        .into();
        assert!(verify(endpoint, &fine).is_ok());
        fine.insert("onboot".to_owned(), Raw::Bool(true));
        assert_eq!(verify(endpoint, &fine).unwrap()["onboot"], "1");
        fine.insert("name".to_owned(), Raw::Bool(true));
        assert!(verify(endpoint, &fine).is_err());
    }
}
