//! The named formats of parameters (`register_format`): what fits, and PVE's text for what does not. The texts end with a newline,
//! as `die` has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

type Verdict = Result<(), String>;

/// Checks a value against a named format; `-list` and `-opt` are its variants. Unknown names take everything.
pub(crate) fn check(format: &str, value: &str) -> Verdict {
    if let Some(item) = format.strip_suffix("-list") {
        let items = crate::schema::list(value);
        return items.iter().try_for_each(|value| one(item, value));
    }
    match format.strip_suffix("-opt") {
        Some(_) if value.is_empty() => Ok(()),
        Some(inner) => one(inner, value),
        None => one(format, value),
    }
}

fn one(format: &str, value: &str) -> Verdict {
    match format {
        "pve-userid" => user(value),
        "pve-storage-id" => storage_id(value),
        "pve-volume-id" => good(
            value
                .split_once(':')
                .is_some_and(|(storage, rest)| storage_id(storage).is_ok() && !rest.is_empty()),
            || format!("unable to parse volume ID '{value}'"),
        ),
        "pve-storage-content" => {
            let known = [
                "images", "rootdir", "vztmpl", "iso", "backup", "snippets", "import", "none",
            ];
            good(known.contains(&value), || {
                format!("invalid content type '{value}'")
            })
        }
        "pve-priv" => good(crate::older::in_some_version(value), || {
            format!("invalid privilege '{value}'")
        }),
        "pve-poolid" => pool(value),
        "pve-tokenid" => good(token(value), || {
            format!("value '{value}' does not look like a valid token ID")
        }),
        "pve-qm-bootdisk" => good(crate::drive::slot(value).is_some(), || {
            "invalid boot disk".to_owned()
        }),
        _ => named(format, value).or_else(|text| network(format, value, text)),
    }
}

fn looks(what: &str) -> String {
    format!("value does not look like a valid {what}")
}

fn word(value: &str, more: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    !value.is_empty() && value.chars().all(good)
}

/// Names and the like; the inner error is `None` for formats that are not among them.
fn named(format: &str, value: &str) -> Result<(), Option<String>> {
    let alone = |c: char| c.is_ascii_alphanumeric();
    let (fits, text) = match format {
        "pve-configid" => (
            crate::schema::config_id(value),
            format!("invalid configuration ID '{value}'"),
        ),
        "pve-groupid" => (
            word(value, ".-_"),
            format!("group name '{value}' contains invalid characters"),
        ),
        "pve-roleid" => (
            word(value, ".-_"),
            format!("role name '{value}' contains invalid characters"),
        ),
        "pve-realm" => (
            value.len() > 1
                && value.starts_with(|c: char| c.is_ascii_alphabetic())
                && word(value, ".-_"),
            "value does not look like a valid realm".to_owned(),
        ),
        "pve-storage-vgname" => (
            value.len() > 1
                && word(value, "-_.")
                && value.starts_with(alone)
                && value.ends_with(alone),
            format!("lvm name '{value}' contains illegal characters"),
        ),
        "pve-task-status-type" => (
            ["ok", "error", "warning", "unknown"].contains(&value.to_ascii_lowercase().as_str()),
            format!("invalid status '{value}'"),
        ),
        "urlencoded" => (
            value.is_empty() || word(value, "-%_.!~*'()"),
            format!("invalid urlencoded string: {value}"),
        ),
        _ => return looking(format, value),
    };
    if fits { Ok(()) } else { Err(Some(text)) }
}

/// Formats whose text is that a value does not look like one.
fn looking(format: &str, value: &str) -> Result<(), Option<String>> {
    let path = |rest: &str| !rest.is_empty() && !rest.starts_with([';', '(', ')']);
    let (fits, what) = match format {
        "pve-node" => (crate::schema::node_name(value), "node name".to_owned()),
        "pve-vmid" => (vmid(value), "VM ID".to_owned()),
        "pve-storage-path" => (
            value.strip_prefix('/').is_some_and(path),
            "absolute path".to_owned(),
        ),
        "pve-ha-resource-or-vm-id" => (crate::schema::ha_sid(value), "ha resource id".to_owned()),
        "pve-ha-resource-id" => (
            value.contains(':') && crate::schema::ha_sid(value),
            "ha resource id".to_owned(),
        ),
        "dns-name" => (crate::schema::dns_name(value), "DNS name".to_owned()),
        "email" => (email(value), "email address".to_owned()),
        "disk-size" => (
            crate::units::drive_size(value).is_some(),
            format!("disk size: {value}"),
        ),
        "mac-addr" => (mac(value), "unicast MAC address".to_owned()),
        _ => return Err(None),
    };
    if fits {
        Ok(())
    } else {
        Err(Some(looks(&what)))
    }
}

fn network(format: &str, value: &str, text: Option<String>) -> Verdict {
    if let Some(text) = text {
        return Err(format!("{text}\n"));
    }
    match format {
        "ip" => good(value.parse::<IpAddr>().is_ok(), || looks("IP address")),
        "ipv4" => good(value.parse::<Ipv4Addr>().is_ok(), || looks("IPv4 address")),
        "ipv6" => good(value.parse::<Ipv6Addr>().is_ok(), || looks("IPv6 address")),
        "CIDR" => good(cidr(value), || looks("CIDR network")),
        "address" => good(
            value.parse::<IpAddr>().is_ok() || crate::schema::dns_name(value),
            || looks(&format!("address: {value}")),
        ),
        "pve-storage-server" => good(
            value.parse::<IpAddr>().is_ok() || crate::schema::dns_name(value),
            || looks("server name or IP address"),
        ),
        _ => Ok(()),
    }
}

fn good(fits: bool, text: impl FnOnce() -> String) -> Verdict {
    if fits {
        Ok(())
    } else {
        Err(format!("{}\n", text()))
    }
}

/// `name@realm`.
pub(crate) fn user(value: &str) -> Verdict {
    let length = value.chars().count();
    if length < 3 {
        return Err(format!("user name '{value}' is too short\n"));
    }
    if length > 64 {
        return Err(format!("user name '{value}' is too long ({length} > 64)\n"));
    }
    let fits = value.rsplit_once('@').is_some_and(|(name, realm)| {
        !name.is_empty()
            && !name.contains([':', '/'])
            && !name.chars().any(char::is_whitespace)
            && named("pve-realm", realm).is_ok()
    });
    good(fits, || {
        format!("value '{value}' does not look like a valid user name")
    })
}

/// `user@realm!token`.
fn token(value: &str) -> bool {
    value
        .split_once('!')
        .is_some_and(|(name, id)| user(name).is_ok() && named("pve-realm", id).is_ok())
}

fn storage_id(value: &str) -> Verdict {
    if value.chars().count() < 2 {
        return Err(format!(
            "storage ID '{value}' cannot be shorter than 2 characters\n"
        ));
    }
    good(crate::schema::storage_id(value), || {
        format!("storage ID '{value}' contains illegal characters")
    })
}

fn pool(value: &str) -> Verdict {
    let parts: Vec<&str> = value.split('/').collect();
    if value.trim_end_matches('/').split('/').count() > 3 {
        return Err(format!(
            "pool name '{value}' nested too deeply (max levels = 3)\n"
        ));
    }
    good(
        parts.iter().all(|part| named("pve-groupid", part).is_ok()),
        || format!("pool name '{value}' contains invalid characters"),
    )
}

fn vmid(value: &str) -> bool {
    (3..=9).contains(&value.len())
        && !value.starts_with('0')
        && value.bytes().all(|b| b.is_ascii_digit())
}

fn email(value: &str) -> bool {
    value
        .split_once('@')
        .is_some_and(|(name, host)| !name.is_empty() && crate::schema::dns_name(host))
}

fn mac(value: &str) -> bool {
    let octets: Vec<&str> = value.split(':').collect();
    let hex = |octet: &&str| octet.len() == 2 && octet.bytes().all(|b| b.is_ascii_hexdigit());
    octets.len() == 6
        && octets.iter().all(hex)
        && u8::from_str_radix(octets.first().unwrap_or(&""), 16).is_ok_and(|first| first & 1 == 0)
}

fn cidr(value: &str) -> bool {
    value.split_once('/').is_some_and(|(address, bits)| {
        let most = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        bits.parse::<u8>().is_ok_and(|bits| bits <= most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_those_of_pve() {
        let text = |format: &str, value: &str| check(format, value).unwrap_err();
        assert_eq!(
            text("pve-storage-id", "x"),
            "storage ID 'x' cannot be shorter than 2 characters\n"
        );
        assert_eq!(text("pve-userid", "ab"), "user name 'ab' is too short\n");
        assert_eq!(
            text("pve-userid", "root"),
            "value 'root' does not look like a valid user name\n"
        );
        assert_eq!(
            text("pve-priv-list", "VM.Audit,VM.Watch"),
            "invalid privilege 'VM.Watch'\n"
        );
        assert_eq!(
            text("pve-poolid", "a/b/c/d"),
            "pool name 'a/b/c/d' nested too deeply (max levels = 3)\n"
        );
        for (format, value) in [
            ("pve-userid", "csi@pve"),
            ("pve-tokenid", "csi@pve!x1"),
            ("email-opt", ""),
            ("pve-vmid-list", "100,101"),
        ] {
            assert_eq!(check(format, value), Ok(()), "{format} {value}");
        }
    }
}
