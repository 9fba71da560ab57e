//! Query strings and bodies as pveproxy decodes them (`AnyEvent.pm:890-922`): `&` and `;` separate, a value ends at its first
//! unescaped `=`.

use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::schema::{Raw, RawParams};

pub(crate) fn unescape(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Decodes `a=1&b=2`; a repeated key becomes an array.
pub(crate) fn decode(text: &str) -> RawParams {
    let mut params = RawParams::new();
    for part in text.split(['&', ';']).filter(|part| !part.is_empty()) {
        let part = part.replace('+', " ");
        let mut pieces = part.split('=');
        let key = unescape(pieces.next().unwrap_or_default());
        let value = unescape(pieces.next().unwrap_or_default());
        add(&mut params, key, value);
    }
    params
}

fn add(params: &mut RawParams, key: String, value: String) {
    match params.remove(&key) {
        None => params.insert(key, Raw::Text(value)),
        Some(Raw::Array(mut list)) => {
            list.push(value);
            params.insert(key, Raw::Array(list))
        }
        Some(Raw::Text(first)) => params.insert(key, Raw::Array(vec![first, value])),
        Some(other) => params.insert(key, other),
    };
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(if *flag { "1" } else { "0" }.to_owned()),
        _ => None,
    }
}

/// Decodes a JSON object; the error is Perl's text.
pub(crate) fn decode_json(body: &[u8]) -> Result<RawParams, String> {
    let perl = |text: &str, line: u32| {
        format!("{text} at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line {line}.\n")
    };
    let map = match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => map,
        Ok(_) => return Err(perl("Not a HASH reference", 978)),
        Err(_) => {
            let text = String::from_utf8_lossy(body);
            let complaint = super::perl_json::complaint(&text);
            let other = "malformed UTF-8 character in JSON string".to_owned();
            return Err(perl(&complaint.unwrap_or(other), 934));
        }
    };
    let mut params = RawParams::new();
    for (key, value) in map {
        let raw = match &value {
            Value::Null => continue,
            Value::Array(items) => Raw::Array(items.iter().filter_map(scalar).collect()),
            Value::Object(_) => Raw::Object,
            Value::Bool(flag) => Raw::Bool(*flag),
            other => Raw::Text(scalar(other).unwrap_or_default()),
        };
        params.insert(key, raw);
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unescaped_equals_sign_or_semicolon_cuts_the_value() {
        let params = decode("scsi1=local-lvm:vm-1-x,size=1G&a=1;b=2");
        assert_eq!(params["scsi1"], Raw::Text("local-lvm:vm-1-x,size".into()));
        assert_eq!(params["b"], Raw::Text("2".into()));
        assert_eq!(
            decode("scsi1=x%2Csize%3D1G")["scsi1"],
            Raw::Text("x,size=1G".into())
        );
    }

    #[test]
    fn a_repeated_key_is_an_array() {
        assert_eq!(
            decode("a=1&a=2")["a"],
            Raw::Array(vec!["1".into(), "2".into()])
        );
    }
}
