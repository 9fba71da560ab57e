//! Drive strings (`scsi1=local:9999/x.raw,backup=0`): schema per bus, normal form, sizes (`Drive.pm`, `JSONSchema.pm`).

use std::collections::BTreeMap;

use crate::units;

/// What a drive key's value must look like.
enum Rule {
    Flag,
    Size,
    Enum(&'static [&'static str]),
    Wwn,
    Serial,
    Number { min: u64 },
    Text { max: usize },
}

/// A bus with its number of slots.
pub(crate) const BUSES: [(&str, u32); 4] = [("scsi", 31), ("virtio", 16), ("sata", 6), ("ide", 4)];

/// Splits `scsi3` into bus and number; `None` if it is no slot of a drive.
pub(crate) fn slot(key: &str) -> Option<(&'static str, u32)> {
    BUSES.into_iter().find_map(|(bus, slots)| {
        let number = index(key.strip_prefix(bus)?)?;
        (number < slots).then_some((bus, number))
    })
}

/// A number as it stands in a key: digits without leading zero.
pub(crate) fn index(text: &str) -> Option<u32> {
    (text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0')))
        .then(|| text.parse().ok())?
}

pub(crate) fn is_unused(key: &str) -> bool {
    key.strip_prefix("unused")
        .and_then(index)
        .is_some_and(|n| n < 256)
}

fn rule(bus: &str, key: &str) -> Option<Rule> {
    let common = match key {
        "media" => Rule::Enum(&["cdrom", "disk"]),
        "cache" => Rule::Enum(&["none", "writethrough", "writeback", "unsafe", "directsync"]),
        "format" => Rule::Enum(&["raw", "qcow", "qed", "qcow2", "vmdk", "cloop"]),
        "size" => Rule::Size,
        "snapshot" | "backup" | "replicate" | "shared" | "detect_zeroes" => Rule::Flag,
        "rerror" => Rule::Enum(&["ignore", "report", "stop"]),
        "werror" => Rule::Enum(&["enospc", "ignore", "report", "stop"]),
        "aio" => Rule::Enum(&["native", "threads", "io_uring"]),
        "discard" => Rule::Enum(&["ignore", "on"]),
        "serial" => Rule::Serial,
        "import-from" => Rule::Text { max: 1024 },
        _ if key.starts_with("mbps") || key.starts_with("iops") || key.starts_with("bps") => {
            Rule::Number { min: 0 }
        }
        _ => return special(bus, key),
    };
    Some(common)
}

fn special(bus: &str, key: &str) -> Option<Rule> {
    Some(match (bus, key) {
        ("scsi" | "virtio", "iothread" | "ro")
        | ("scsi" | "sata" | "ide", "ssd")
        | ("scsi", "scsiblock") => Rule::Flag,
        ("scsi" | "sata" | "ide", "wwn") => Rule::Wwn,
        ("scsi", "queues") => Rule::Number { min: 2 },
        ("scsi", "product") => Rule::Text { max: 16 },
        ("scsi", "vendor") => Rule::Text { max: 8 },
        ("ide", "model") => Rule::Text { max: 120 },
        _ => return None,
    })
}

fn check(rule: &Rule, value: &str) -> Result<Option<String>, String> {
    let pattern = || Err("value does not match the regex pattern".to_owned());
    match rule {
        Rule::Flag => match value {
            "1" | "on" | "yes" | "true" => Ok(Some("1".to_owned())),
            "0" | "off" | "no" | "false" => Ok(Some("0".to_owned())),
            _ => Err(format!("type check ('boolean') failed - got '{value}'")),
        },
        Rule::Size => units::drive_size(value)
            .map(|size| Some(units::print_size(size)))
            .ok_or_else(|| {
                format!("invalid format - format error\nvalue '{value}' is no disk size\n")
            }),
        Rule::Enum(list) if !list.contains(&value) => Err(format!(
            "value '{value}' does not have a value in the enumeration '{}'",
            list.join(", ")
        )),
        Rule::Wwn => {
            let good = value
                .strip_prefix("0x")
                .is_some_and(|hex| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
            if good { Ok(None) } else { pattern() }
        }
        Rule::Serial if value.len() > 60 => Err("value may only be 60 characters long".to_owned()),
        Rule::Number { min } => match value.parse::<f64>() {
            Ok(number) if number >= f64::from(u32::try_from(*min).unwrap_or(0)) => Ok(None),
            Ok(_) => Err(format!("value must have a minimum value of {min}")),
            Err(_) => Err(format!("type check ('number') failed - got '{value}'")),
        },
        Rule::Text { max } if value.len() > *max => {
            Err(format!("value may only be {max} characters long"))
        }
        Rule::Text { .. } | Rule::Serial | Rule::Enum(_) => Ok(None),
    }
}

/// A parsed drive string: the volume (`file`) and its options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Drive {
    pub(crate) file: String,
    pub(crate) options: BTreeMap<String, String>,
}

impl Drive {
    /// Parses by the schema of the bus; the error is the text under `errors.<slot>` without `invalid format - `.
    pub(crate) fn parse(key: &str, text: &str) -> Result<Self, String> {
        let (bus, _) = slot(key).ok_or_else(|| "unknown drive".to_owned())?;
        let mut drive = Self::default();
        let mut errors = BTreeMap::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or(("file", part));
            let name = if name == "volume" { "file" } else { name };
            if (name == "file" && !drive.file.is_empty()) || drive.options.contains_key(name) {
                let text = if name == "file" && !part.contains('=') {
                    "value without key, but schema does not define a default key".to_owned()
                } else {
                    format!("duplicate key in comma-separated list property: {name}")
                };
                return Err(format!("{text}\n"));
            }
            if name == "file" {
                value.clone_into(&mut drive.file);
                continue;
            }
            match rule(bus, name).map(|rule| check(&rule, value)) {
                None => {
                    errors.insert(name.to_owned(), "property is not defined in schema and the schema does not allow additional properties".to_owned());
                }
                Some(Err(text)) => {
                    errors.insert(name.to_owned(), text);
                }
                Some(Ok(normal)) => {
                    drive
                        .options
                        .insert(name.to_owned(), normal.unwrap_or_else(|| value.to_owned()));
                }
            }
        }
        if drive.file.is_empty() {
            errors.insert(
                "file".to_owned(),
                "property is missing and it is not optional".to_owned(),
            );
        } else if !plausible_file(&drive.file) {
            errors.insert(
                "file".to_owned(),
                format!(
                    "invalid format - unable to parse volume ID '{}'\n",
                    drive.file
                ),
            );
        }
        if errors.is_empty() {
            return Ok(drive);
        }
        let mut lines = String::from("format error\n");
        for (name, text) in &errors {
            lines.extend([key, ".", name, ": ", text, "\n"]);
        }
        Err(lines)
    }

    /// Combinations that PVE refuses as a whole (`unable to parse drive options`).
    pub(crate) fn combines(&self) -> bool {
        let has = |key: &str| self.options.contains_key(key);
        let clash =
            |base: &str| has(base) && (has(&format!("{base}_rd")) || has(&format!("{base}_wr")));
        let orphan = ["mbps", "mbps_rd", "mbps_wr", "iops", "iops_rd", "iops_wr"]
            .iter()
            .any(|base| has(&format!("{base}_max")) && !has(base));
        !clash("mbps") && !clash("iops") && !orphan
    }

    pub(crate) fn is_cdrom(&self) -> bool {
        self.option("media") == Some("cdrom") || matches!(self.file.as_str(), "none" | "cdrom")
    }

    /// The volume's id; `None` for `none`, `cdrom` and paths.
    pub(crate) fn volid(&self) -> Option<&str> {
        (self.file.contains(':') && !self.file.starts_with('/')).then_some(self.file.as_str())
    }

    /// `storage:size` of an allocation within the config call: storage and GiB.
    pub(crate) fn allocation(&self) -> Option<(&str, f64)> {
        let (storage, size) = self.file.split_once(':')?;
        let digits = !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        digits.then(|| size.parse().ok().map(|size| (storage, size)))?
    }

    pub(crate) fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// The line as it stands in the config file: volume first, then the keys sorted.
    pub(crate) fn print(&self) -> String {
        let mut text = self.file.clone();
        for (key, value) in &self.options {
            text.extend([",", key, "=", value]);
        }
        text
    }
}

fn plausible_file(file: &str) -> bool {
    if matches!(file, "none" | "cdrom") || file.starts_with('/') {
        return true;
    }
    file.split_once(':').is_some_and(|(storage, rest)| {
        let edges = storage.starts_with(|c: char| c.is_ascii_alphabetic())
            && storage.ends_with(|c: char| c.is_ascii_alphanumeric());
        storage.len() > 1
            && edges
            && !rest.is_empty()
            && storage
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_prints_with_sorted_keys_and_whole_units() {
        let drive = Drive::parse(
            "scsi1",
            "local:9999/x.raw,wwn=0x5056432d49443031,size=1024M,backup=0,ssd=on",
        )
        .unwrap();
        assert_eq!(
            drive.print(),
            "local:9999/x.raw,backup=0,size=1G,ssd=1,wwn=0x5056432d49443031"
        );
    }

    #[test]
    fn each_bus_has_its_own_keys() {
        let unknown =
            "property is not defined in schema and the schema does not allow additional properties";
        let error = Drive::parse("virtio1", "local:9999/x.raw,ssd=1").unwrap_err();
        assert_eq!(error, format!("format error\nvirtio1.ssd: {unknown}\n"));
        assert!(Drive::parse("scsi1", "local:9999/x.raw,ssd=1").is_ok());
        let error = Drive::parse("scsi1", "local:9999/x.raw,wwn=5056").unwrap_err();
        assert_eq!(
            error,
            "format error\nscsi1.wwn: value does not match the regex pattern\n"
        );
    }

    #[test]
    fn slots_end_where_pve_ends_them() {
        assert_eq!(slot("scsi30"), Some(("scsi", 30)));
        for none in ["scsi31", "scsi01", "scsihw", "virtio16", "scsi"] {
            assert_eq!(slot(none), None, "{none}");
        }
    }

    #[test]
    fn total_and_split_limits_exclude_each_other() {
        assert!(
            !Drive::parse("scsi1", "local:9999/x.raw,iops=100,iops_rd=5")
                .unwrap()
                .combines()
        );
    }
}
