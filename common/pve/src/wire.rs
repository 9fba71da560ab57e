//! Lenient reading of PVE's JSON: numbers come as strings and the reverse, booleans as 0, 1, "1" or true, names are
//! missing for seconds after a host starts, and new versions add fields. What can't be read is counted or an error,
//! never taken as absent.

use std::str::FromStr;

use serde_json::{Map, Value};

/// The entries of a list that could be read, and how many could not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// What could be read.
    pub entries: Vec<T>,
    /// Entries that are there but could not be read: with more than zero of them, nothing may be taken as absent.
    pub undecodable: usize,
}

/// `data` of a JSON answer.
pub(crate) fn data(body: &[u8]) -> Result<Value, String> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(mut object)) => object
            .remove("data")
            .ok_or_else(|| "answer without data".to_owned()),
        Ok(_) => Err("answer is not an object".to_owned()),
        Err(error) => Err(format!("answer is not json: {error}")),
    }
}

/// Reads each entry by itself.
pub(crate) fn listing<T>(
    data: &Value,
    read: impl Fn(Fields<'_>) -> Option<T>,
) -> Result<Listing<T>, String> {
    let Value::Array(values) = data else {
        return Err("data is not a list".to_owned());
    };
    let entries: Vec<T> = values
        .iter()
        .filter_map(|value| read(Fields(value.as_object()?)))
        .collect();
    let undecodable = values.len() - entries.len();
    Ok(Listing {
        entries,
        undecodable,
    })
}

/// The fields of one object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// The fields of `data`, which must be an object.
    pub(crate) fn of(data: &'a Value) -> Result<Self, String> {
        data.as_object()
            .map(Fields)
            .ok_or_else(|| "data is not an object".to_owned())
    }

    fn present(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// A string, or a number as PVE would print it.
    pub(crate) fn text(self, key: &str) -> Option<String> {
        scalar(self.present(key)?)
    }

    /// A name of a grammar of ours, which must be there.
    pub(crate) fn id<T: FromStr>(self, key: &str) -> Option<T> {
        self.text(key)?.parse().ok()
    }

    /// A name of a grammar of ours: `Some(None)` if it is not there, `None` if it does not fit.
    #[expect(clippy::option_option, reason = "missing and malformed are different")]
    pub(crate) fn optional_id<T: FromStr>(self, key: &str) -> Option<Option<T>> {
        match self.present(key) {
            None => Some(None),
            Some(value) => match scalar(value)? {
                text if text.is_empty() => Some(None),
                text => text.parse().ok().map(Some),
            },
        }
    }

    /// A whole number of zero or more.
    pub(crate) fn number(self, key: &str) -> Option<u64> {
        match self.present(key)? {
            Value::Number(number) => number.as_u64().or_else(|| rounded(number.as_f64()?)),
            Value::String(text) => {
                let text = text.trim();
                text.parse().ok().or_else(|| rounded(text.parse().ok()?))
            }
            _ => None,
        }
    }

    /// A boolean in any of PVE's spellings: `Some(None)` if it is not there, `None` if it is none of them.
    #[expect(clippy::option_option, reason = "missing and malformed are different")]
    pub(crate) fn optional_flag(self, key: &str) -> Option<Option<bool>> {
        match self.present(key) {
            None => Some(None),
            Some(value) => flag(value).map(Some),
        }
    }

    /// A boolean in any of PVE's spellings.
    pub(crate) fn flag(self, key: &str) -> Option<bool> {
        flag(self.present(key)?)
    }

    /// An object.
    pub(crate) fn object(self, key: &str) -> Option<Fields<'a>> {
        self.present(key)?.as_object().map(Fields)
    }
}

/// The nearest whole number of zero or more.
fn rounded(number: f64) -> Option<u64> {
    (number >= 0.0)
        .then(|| format!("{number:.0}").parse().ok())
        .flatten()
}

fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::Number(number) => number.as_f64().map(|number| number != 0.0),
        Value::String(text) => parse_flag(text),
        _ => None,
    }
}

/// The spellings inside a VM's config (`JSONSchema.pm` 1061).
pub(crate) fn parse_flag(text: &str) -> Option<bool> {
    match text {
        "1" | "on" | "yes" | "true" => Some(true),
        "0" | "off" | "no" | "false" | "" => Some(false),
        _ => None,
    }
}

/// A scalar as text: PVE stores everything as text and guesses the JSON type.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(if *flag { "1" } else { "0" }.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn types_that_pve_mixes_up_are_read() {
        let value = parse(
            r#"{"a":"12","b":12,"c":1.2e3,"d":"1","e":true,"f":0,"g":null,"h":"x","i":-1,"j":"on","k":"2.0","l":"-1.0","m":"inf","n":"NaN"}"#,
        );
        let fields = Fields::of(&value).unwrap();
        assert_eq!(
            ["a", "b", "c", "k", "h", "i"].map(|k| fields.number(k)),
            [Some(12), Some(12), Some(1200), Some(2), None, None]
        );
        assert_eq!(["g", "l", "m", "n"].map(|k| fields.number(k)), [None; 4]);
        assert_eq!(
            ["d", "e", "f", "g", "h", "j"].map(|k| fields.flag(k)),
            [Some(true), Some(true), Some(false), None, None, Some(true)]
        );
        assert_eq!(fields.text("b").unwrap(), "12");
    }

    #[test]
    fn no_list_is_not_an_empty_list_and_a_bad_entry_is_counted() {
        assert!(listing(&Value::Null, |f| f.text("a")).is_err());
        assert!(listing(&parse("{}"), |f| f.text("a")).is_err());
        let list = listing(
            &parse(r#"[{"a":"1"},{},7,{"a":[]},{"a":2,"new":{}}]"#),
            |f| f.text("a"),
        );
        let list = list.unwrap();
        assert_eq!(list.entries, ["1", "2"]);
        assert_eq!(list.undecodable, 3);
    }

    #[test]
    fn an_answer_without_data_is_no_answer() {
        for bad in ["", "null", "[]", "{}", "{\"data\":", "<html>"] {
            assert!(data(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(data(b"{\"data\":null}"), Ok(Value::Null));
    }

    proptest! {
        #[test]
        fn no_body_makes_the_reader_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = data(&body) {
                prop_assert!(listing(&value, |f| f.number("vmid")).is_ok() == value.is_array());
            }
        }
    }
}
