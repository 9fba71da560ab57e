//! Property strings (`key=value,…`): several parameters in one (`JSONSchema.pm` `parse_property_string`).

use std::collections::BTreeMap;

use crate::endpoints::Arg;
use crate::verify::{Errors, UNKNOWN, add, value as check_value};

/// `parse_property_string`: `key=value,…`; one key may stand without its name.
pub(crate) fn check(keys: &BTreeMap<String, Arg>, path: &str, text: &str) -> Result<(), String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut nameless = false;
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            let default = keys.iter().find(|(_, arg)| arg.key);
            let Some((name, arg)) = default else {
                return Err(
                    "value without key, but schema does not define a default key\n".to_owned(),
                );
            };
            if nameless || found.contains_key(name) {
                return Err(format!(
                    "duplicate key in comma-separated list property: {name}\n"
                ));
            }
            nameless = true;
            found.insert(name.clone(), normal(arg, part));
            continue;
        };
        if key.is_empty() || value.is_empty() {
            return Err("missing key in comma-separated list property\n".to_owned());
        }
        if found.contains_key(key) {
            return Err(format!(
                "duplicate key in comma-separated list property: {key}\n"
            ));
        }
        let Some(arg) = keys.get(key) else {
            found.insert(key.to_owned(), value.to_owned());
            continue;
        };
        if let Some(named) = &arg.names {
            if found.contains_key(named) {
                return Err(format!("key alias '{named}' is already defined\n"));
            }
            found.insert(named.clone(), key.to_owned());
        }
        let (name, arg) = match &arg.alias {
            Some(alias) if found.contains_key(alias) => {
                return Err(format!("key '{alias}' is already defined (via alias)\n"));
            }
            Some(alias) => (alias.as_str(), keys.get(alias).unwrap_or(arg)),
            None => (key, arg),
        };
        found.insert(name.to_owned(), normal(arg, value));
    }
    keys_fit(keys, &found, path)
}

/// Inside property strings booleans have more words.
fn normal(arg: &Arg, value: &str) -> String {
    let flag = match value.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => "1",
        "0" | "off" | "no" | "false" => "0",
        _ => value,
    };
    if arg.kind == "boolean" { flag } else { value }.to_owned()
}

fn keys_fit(
    keys: &BTreeMap<String, Arg>,
    found: &BTreeMap<String, String>,
    path: &str,
) -> Result<(), String> {
    let mut errors = Errors::new();
    for (name, arg) in keys.iter().filter(|(_, arg)| arg.alias.is_none()) {
        let full = format!("{path}.{name}");
        match found.get(name) {
            Some(text) => {
                check_value(arg, &full, text, &mut errors);
            }
            None if !arg.optional => {
                add(
                    &mut errors,
                    &full,
                    "property is missing and it is not optional",
                );
            }
            None => {}
        }
    }
    for name in found.keys().filter(|name| !keys.contains_key(*name)) {
        add(&mut errors, &format!("{path}.{name}"), UNKNOWN);
    }
    if errors.is_empty() {
        return Ok(());
    }
    let mut text = String::from("format error\n");
    for (name, error) in &errors {
        text.extend([name, ": ", error]);
        if !error.ends_with('\n') {
            text.push('\n');
        }
    }
    Err(text)
}
