//! Drive strings of a VM's config (`scsi1: local-lvm:vm-9999-pvc-x,iothread=1,…`), losing nothing.
//!
//! PVE and other tools keep options in them that we don't know; a drive that is written back keeps all of them, in
//! their order. Grammar: `JSONSchema.pm: parse_property_string` (split at `,`, then at the first `=`).

use std::fmt;
use std::str::FromStr;

use pve_model::{Bytes, Wwn};

/// A string in which no volume is named, or an option twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a drive string: {0}")]
pub struct ParseDriveError(&'static str);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Item {
    key: Option<String>,
    value: String,
}

impl Item {
    fn parse(part: &str) -> Self {
        match part.split_once('=') {
            Some((key, value)) if !key.is_empty() => Self {
                key: Some(key.to_owned()),
                value: value.to_owned(),
            },
            _ => Self {
                key: None,
                value: part.to_owned(),
            },
        }
    }

    fn names_the_volume(&self) -> bool {
        match self.key.as_deref() {
            Some(key) => matches!(key, "file" | "volume"),
            None => !self.value.is_empty(),
        }
    }
}

/// One drive: the volume and its options in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Drive {
    volid: String,
    items: Vec<Item>,
}

impl Drive {
    /// A drive of this volume (`<storage>:<disk>`, without `,` and `=`) without options.
    pub fn new(volid: &str) -> Result<Self, ParseDriveError> {
        let drive: Self = volid.parse()?;
        if drive.items.len() == 1 && drive.volid == volid {
            Ok(drive)
        } else {
            Err(ParseDriveError("volume with options"))
        }
    }

    /// The whole volume id, e.g. `local:9999/vm-9999-pvc-x.raw`; `none` or a path where the VM has no volume there.
    pub fn volid(&self) -> &str {
        &self.volid
    }

    /// Whether this drive is of exactly this volume.
    pub fn is_of(&self, volid: &str) -> bool {
        self.volid == volid
    }

    /// An option's value.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.items
            .iter()
            .find(|item| item.key.as_deref() == Some(key))
            .map(|item| item.value.as_str())
    }

    /// Sets an option, in its place if it is there, else at the end. Neither part may hold a `,`, nor the key a `=`;
    /// the volume is not an option.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ParseDriveError> {
        if key.is_empty() || key.contains([',', '=']) || value.contains(',') {
            return Err(ParseDriveError("separator in an option"));
        }
        if matches!(key, "file" | "volume") {
            return Err(ParseDriveError("the volume is not an option"));
        }
        let found = self
            .items
            .iter_mut()
            .find(|i| i.key.as_deref() == Some(key));
        match found {
            Some(item) => value.clone_into(&mut item.value),
            None => self.items.push(Item {
                key: Some(key.to_owned()),
                value: value.to_owned(),
            }),
        }
        Ok(())
    }

    /// The WWN that the guest sees, if one is set.
    pub fn wwn(&self) -> Option<Wwn> {
        self.get("wwn")?.parse().ok()
    }

    /// The size that PVE noted: a number with K, M, G or T (1024-based), or bytes (`JSONSchema.pm` 1041).
    pub fn size(&self) -> Option<Bytes> {
        parse_size(self.get("size")?)
    }
}

/// PVE's `disk-size`: digits, an optional fraction, an optional unit.
fn parse_size(text: &str) -> Option<Bytes> {
    let (number, unit) = match text.chars().last()? {
        'K' => (text.strip_suffix('K')?, 1_u64 << 10),
        'M' => (text.strip_suffix('M')?, 1 << 20),
        'G' => (text.strip_suffix('G')?, 1 << 30),
        'T' => (text.strip_suffix('T')?, 1 << 40),
        _ => (text, 1),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |t: &str| !t.is_empty() && t.len() <= 20 && t.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole = whole.parse::<u128>().ok()?.checked_mul(scale)?;
    let scaled = whole
        .checked_add(fraction.parse().ok()?)?
        .checked_mul(u128::from(unit))?;
    u64::try_from(scaled / scale).ok().map(Bytes::new)
}

impl FromStr for Drive {
    type Err = ParseDriveError;

    fn from_str(text: &str) -> Result<Self, ParseDriveError> {
        let items: Vec<Item> = text.split(',').map(Item::parse).collect();
        let mut volumes = items.iter().filter(|item| item.names_the_volume());
        let volid = match (volumes.next(), volumes.next()) {
            (Some(item), None) if !item.value.is_empty() => item.value.clone(),
            (Some(_), Some(_)) => return Err(ParseDriveError("two volumes")),
            _ => return Err(ParseDriveError("no volume")),
        };
        let twice = items.iter().enumerate().any(|(index, item)| {
            item.key.is_some()
                && items
                    .iter()
                    .skip(index + 1)
                    .any(|later| later.key == item.key)
        });
        if twice {
            return Err(ParseDriveError("an option twice"));
        }
        Ok(Self { volid, items })
    }
}

impl fmt::Display for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.items.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            if let Some(key) = &item.key {
                write!(f, "{key}=")?;
            }
            f.write_str(&item.value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drive(text: &str) -> Drive {
        text.parse().unwrap()
    }

    #[test]
    fn a_recorded_drive_keeps_what_we_do_not_know() {
        let text = "local-lvm:vm-9999-pvc-x,aio=io_uring,backup=0,future=1,size=10G,wwn=0x5c42a611aadbf50e";
        let mut read = drive(text);
        assert_eq!(read.to_string(), text);
        assert_eq!(read.wwn().unwrap().to_string(), "0x5c42a611aadbf50e");
        read.set("backup", "1").unwrap();
        read.set("ssd", "1").unwrap();
        assert_eq!(
            read.to_string(),
            "local-lvm:vm-9999-pvc-x,aio=io_uring,backup=1,future=1,size=10G,wwn=0x5c42a611aadbf50e,ssd=1"
        );
    }

    #[test]
    fn a_volume_is_compared_whole() {
        let read = drive("local:9999/vm-9999-pvc-10.raw,size=1G");
        assert!(read.is_of("local:9999/vm-9999-pvc-10.raw"));
        for other in [
            "local:9999/vm-9999-pvc-1",
            "9999/vm-9999-pvc-10.raw",
            "ocal:9999/vm-9999-pvc-10.raw",
        ] {
            assert!(!read.is_of(other), "{other}");
        }
    }

    #[test]
    fn sizes_are_read_in_every_unit_that_pve_writes() {
        let cases = [
            ("528K", Some(528 << 10)),
            ("1025M", Some(1025 << 20)),
            ("10G", Some(10 << 30)),
            ("2T", Some(2 << 40)),
            ("5368709121", Some(5_368_709_121)),
            ("1.5G", Some(3 << 29)),
            ("99999999999T", None),
            ("", None),
            ("-1G", None),
            ("1KB", None),
            ("1.G", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), bytes.map(Bytes::new), "{text}");
        }
    }

    #[test]
    fn the_key_of_the_volume_is_understood() {
        let keyed = drive("cache=none,file=local:9999/vm-9999-a.raw");
        assert_eq!(keyed.volid(), "local:9999/vm-9999-a.raw");
        assert_eq!(
            keyed.to_string(),
            "cache=none,file=local:9999/vm-9999-a.raw"
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for bad in [
            "",
            ",",
            "size=1G",
            "a:b,c:d",
            "a:b,ssd=1,ssd=0",
            "file=a:b,c:d",
            "file=",
        ] {
            assert!(bad.parse::<Drive>().is_err(), "{bad:?}");
        }
        let mut read = drive("a:b");
        for (key, value) in [
            ("ssd", "1,wwn=0x"),
            ("a=b", "1"),
            ("", "1"),
            ("file", "x:y"),
            ("a,b", "1"),
        ] {
            assert!(read.set(key, value).is_err(), "{key}={value}");
        }
        assert!(Drive::new("a:b,c=d").is_err());
        assert!(Drive::new("file=a:b").is_err());
    }

    proptest! {
        #[test]
        fn a_drive_string_comes_out_as_it_went_in(text in "[a-z:/0-9=,. %-]{0,60}") {
            if let Ok(read) = text.parse::<Drive>() {
                prop_assert_eq!(read.to_string(), text);
            }
        }

        #[test]
        fn any_drive_that_pve_could_hold_is_read_and_written_back(
            volid in "[a-z][a-z0-9]{1,8}:([0-9]{3}/)?vm-[0-9]{3}-[a-zA-Z0-9._-]{1,20}",
            options in proptest::collection::btree_map("[a-z][a-z_0-9]{0,12}", "[^,\\p{C}]{1,20}", 0..8),
        ) {
            prop_assume!(!options.contains_key("file") && !options.contains_key("volume"));
            let mut made = Drive::new(&volid).unwrap();
            for (key, value) in &options {
                made.set(key, value).unwrap();
            }
            let read: Drive = made.to_string().parse().unwrap();
            prop_assert_eq!(&read, &made);
            for (key, value) in &options {
                prop_assert_eq!(read.get(key), Some(value.as_str()));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}") {
            if let Ok(read) = text.parse::<Drive>() {
                prop_assert_eq!(&read.to_string(), &text);
                prop_assert!(read.size().is_none_or(|size| size.get() > 0 || text.contains("size=0")));
            }
        }
    }
}
