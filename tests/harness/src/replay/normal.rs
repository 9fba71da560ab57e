//! Which parts of an answer may differ from host to host and from run to run, and what stands in their place.

use std::sync::LazyLock;

use anyhow::Result;
use regex::Regex;
use serde_json::Value;

/// Keys whose values are never compared: times, ids of processes, sizes and load of the host, generated secrets.
const MASKED: &[&str] = &[
    "digest",
    "pid",
    "pstart",
    "starttime",
    "endtime",
    "uptime",
    "ctime",
    "vmgenid",
    "meta",
    "maxdisk",
    "disk",
    "mem",
    "maxmem",
    "cpu",
    "maxcpu",
    "memhost",
    "total",
    "used",
    "avail",
    "available",
    "free",
    "used_fraction",
    "ticket",
    "CSRFPreventionToken",
    "value_secret",
    "ssl_fingerprint",
    "level",
    "loadavg",
    "rootfs",
    "memory_info",
    "swap",
    "cpuinfo",
    "kversion",
    "current-kernel",
    "boot-info",
    "wait",
    "idle",
    "ksm",
    "pveversion",
    "netin",
    "netout",
    "diskread",
    "diskwrite",
    "localtime",
    "time",
    "upid_log",
    "expire_time",
    "creation-time",
    "snaptime",
];
/// Lists inside a string that PVE prints in the order of a hash.
const UNORDERED: &[&str] = &["content", "roles", "nodes", "resources"];

/// Patterns inside texts, in the order in which they are replaced.
const PATTERNS: &[(&str, &str)] = &[
    (
        r#"UPID:([^:\s"]+):[0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+:([^:\s"]*):([^:\s"]*):([^:\s"]*):?"#,
        "UPID:$1:$2:$3:$4",
    ),
    (
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "UUID",
    ),
    (r" at /\S+ line \d+", " at FILE line N"),
    (r"\.tmp\.\d+", ".tmp.N"),
    (r"\b[0-9a-f]{40}\b", "DIGEST"),
    (r"\b[0-9A-F]{2}(:[0-9A-F]{2}){5}\b", "MAC"),
    (r"ctime=\d+", "ctime=N"),
    (r"\b1[78]\d{8}\b", "TIME"),
];

static COMPILED: LazyLock<Result<Vec<(Regex, &'static str)>, regex::Error>> = LazyLock::new(|| {
    let compile = |(pattern, to): &(&str, &'static str)| Ok((Regex::new(pattern)?, *to));
    PATTERNS.iter().map(compile).collect()
});

/// A text with its changing parts replaced.
pub(super) fn text(text: &str) -> Result<String> {
    let patterns = COMPILED.as_ref().map_err(Clone::clone)?;
    let replaced = patterns.iter().fold(text.to_owned(), |text, (from, to)| {
        from.replace_all(&text, *to).into_owned()
    });
    Ok(replaced)
}

/// A JSON value in normal form: masked values replaced, lists sorted (PVE's have no order). Numbers and strings stay different.
pub(super) fn json(value: &Value, key: Option<&str>) -> Result<Value> {
    if key.is_some_and(|key| MASKED.contains(&key) || key.starts_with("pressure")) {
        return Ok(Value::from("…"));
    }
    Ok(match value {
        Value::String(list) if key.is_some_and(|key| UNORDERED.contains(&key)) => {
            let mut items: Vec<&str> = list.split(',').collect();
            items.sort_unstable();
            Value::from(items.join(","))
        }
        Value::String(other) => Value::from(text(other)?),
        Value::Array(items) => {
            let mut items = items
                .iter()
                .map(|item| json(item, None))
                .collect::<Result<Vec<_>>>()?;
            items.sort_by_cached_key(Value::to_string);
            Value::from(items)
        }
        Value::Object(map) => {
            // A row of `/pending` names the option beside its value.
            let named = map.get("key").and_then(Value::as_str);
            let masked = named.filter(|_| map.len() == 2 && map.contains_key("value"));
            let inner = |(name, value): (&String, &Value)| {
                let key = masked
                    .filter(|_| name == "value")
                    .filter(|key| MASKED.contains(key));
                Ok((name.clone(), json(value, key.or(Some(name)))?))
            };
            Value::Object(map.iter().map(inner).collect::<Result<_>>()?)
        }
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_must_differ_is_replaced() {
        let one = json!({"data": [{"key": "digest", "value": "a"}, {"key": "name", "value": "worker-a"}], "pid": 7});
        let two = json!({"data": [{"key": "name", "value": "worker-a"}, {"key": "digest", "value": "b"}], "pid": 8});
        assert_eq!(json(&one, None).unwrap(), json(&two, None).unwrap());
        let three = json!({"data": [{"key": "digest", "value": "a"}, {"key": "name", "value": "worker-b"}], "pid": 7});
        assert_ne!(json(&one, None).unwrap(), json(&three, None).unwrap());
        assert_ne!(
            json(&json!({"shared": 1}), None).unwrap(),
            json(&json!({"shared": "1"}), None).unwrap()
        );
    }

    #[test]
    fn a_upid_keeps_its_node_type_id_and_user() {
        let upid = "UPID:pve1:0000055C:0006FFA7:6B0E05F1:qmconfig:100:root@pam!full:";
        assert_eq!(text(upid).unwrap(), "UPID:pve1:qmconfig:100:root@pam!full");
        let other = "UPID:pve1:0000055D:0006FFA8:6B0E05F2:qmconfig:101:root@pam!full:";
        assert_ne!(text(upid).unwrap(), text(other).unwrap());
    }
}
