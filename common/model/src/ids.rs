//! Names and numbers of Proxmox VE and Kubernetes, each with the only code that knows its grammar.

use std::fmt;
use std::str::FromStr;

/// A name or number from outside that does not fit its grammar. It names the kind, never the value,
/// so that it can be shown to anyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {0}")]
pub struct ParseIdError(pub &'static str);

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as it is written everywhere.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) { Ok(Self(text.to_owned())) } else { Err(ParseIdError($what)) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseIdError;

            fn try_from(text: String) -> Result<Self, ParseIdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn alnum_at_both_ends(text: &str, max: usize, inner: fn(char) -> bool) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    !text.is_empty()
        && text.len() <= max
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || inner(c))
}

string_id!(
    /// A PVE cluster as topology sees it: a Kubernetes label value of 1 to 63 characters.
    Region,
    "region",
    |t| alnum_at_both_ends(t, 63, |c| matches!(c, '-' | '_' | '.'))
);
string_id!(
    /// A hypervisor host: one DNS label of 1 to 63 characters (PVE: `pve-node`).
    PveNode,
    "PVE node name",
    |t| alnum_at_both_ends(t, 63, |c| c == '-')
);
string_id!(
    /// A PVE storage: at least 2 characters, a letter first (PVE: `pve-storage-id`).
    StorageId,
    "PVE storage id",
    |t| t.len() >= 2
        && t.starts_with(|c: char| c.is_ascii_alphabetic())
        && alnum_at_both_ends(t, 100, |c| matches!(c, '-' | '_' | '.'))
);
string_id!(
    /// A PVE resource pool, up to three levels divided by `/` (PVE: `pve-poolid`).
    PoolId,
    "PVE pool id",
    |t| t.len() <= 200
        && t.split('/').count() <= 3
        && t.split('/').all(|part| {
            !part.is_empty()
                && part != "."
                && part != ".."
                && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        })
);
string_id!(
    /// The name of a Kubernetes Node: a DNS-1123 subdomain of 1 to 253 characters.
    KubeNode,
    "Node name",
    |t| t.len() <= 253
        && t.split('.').all(|label| {
            alnum_at_both_ends(label, 63, |c| c == '-') && !label.chars().any(|c| c.is_ascii_uppercase())
        })
);

/// The number of a guest: 100 to 999 999 999 (PVE: `pve-vmid`). It is reused within minutes after a
/// guest is destroyed, so it is never an identity; [`Uuid`] is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "u32", into = "u32")]
pub struct VmId(u32);

impl VmId {
    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for VmId {
    type Error = ParseIdError;

    fn try_from(number: u32) -> Result<Self, ParseIdError> {
        if (100..=999_999_999).contains(&number) {
            Ok(Self(number))
        } else {
            Err(ParseIdError("VMID"))
        }
    }
}

impl From<VmId> for u32 {
    fn from(id: VmId) -> Self {
        id.0
    }
}

impl FromStr for VmId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let canonical =
            !text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
        if !canonical {
            return Err(ParseIdError("VMID"));
        }
        text.parse::<u32>()
            .map_err(|_| ParseIdError("VMID"))?
            .try_into()
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An SMBIOS system UUID in lower case, dashes at 8-4-4-4-12. All zeros and all ones mean "not set"
/// (SMBIOS 3.7, 7.2.1) and are refused.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Uuid(String);

impl Uuid {
    /// The UUID in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Uuid {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let lower = text.to_ascii_lowercase();
        let parts: Vec<&str> = lower.split('-').collect();
        let shaped = parts.iter().map(|p| p.len()).eq([8, 4, 4, 4, 12])
            && parts
                .iter()
                .all(|p| p.bytes().all(|b| b.is_ascii_hexdigit()));
        let unset = lower.bytes().all(|b| matches!(b, b'0' | b'-'))
            || lower.bytes().all(|b| matches!(b, b'f' | b'-'));
        if shaped && !unset {
            Ok(Self(lower))
        } else {
            Err(ParseIdError("SMBIOS UUID"))
        }
    }
}

impl TryFrom<String> for Uuid {
    type Error = ParseIdError;

    fn try_from(text: String) -> Result<Self, ParseIdError> {
        text.parse()
    }
}

impl From<Uuid> for String {
    fn from(id: Uuid) -> Self {
        id.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_their_grammar_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "a,b",
            "a?",
            "a%2f",
            "-a",
            "a\n",
            "ä",
            &"a".repeat(64),
        ] {
            assert!(bad.parse::<Region>().is_err(), "{bad:?}");
            assert!(bad.parse::<PveNode>().is_err(), "{bad:?}");
        }
        for bad in ["", "a", "1a", "a/b", "..", "a:b", "ab,", "ab-"] {
            assert!(bad.parse::<StorageId>().is_err(), "{bad:?}");
        }
        for bad in ["", "/", "a//b", "a/..", "a/b/c/d", "a b"] {
            assert!(bad.parse::<PoolId>().is_err(), "{bad:?}");
        }
        assert!("tenant-a/workers".parse::<PoolId>().is_ok());
        assert!("local-lvm".parse::<StorageId>().is_ok());
        assert!("Worker-A".parse::<KubeNode>().is_err());
        assert!("worker-0a.example.test".parse::<KubeNode>().is_ok());
    }

    #[test]
    fn vmid_has_one_spelling() {
        for bad in [
            "",
            "99",
            "0100",
            "+100",
            " 100",
            "1000000000",
            "1e3",
            "100 ",
        ] {
            assert!(bad.parse::<VmId>().is_err(), "{bad:?}");
        }
        assert_eq!("100".parse::<VmId>().unwrap().get(), 100);
    }

    #[test]
    fn uuid_is_compared_in_lower_case_and_unset_values_are_no_identity() {
        let upper: Uuid = "ABCDEF00-1111-2222-3333-444455556666".parse().unwrap();
        assert_eq!(
            upper,
            "abcdef00-1111-2222-3333-444455556666".parse().unwrap()
        );
        assert!(
            "00000000-0000-0000-0000-000000000000"
                .parse::<Uuid>()
                .is_err()
        );
        assert!(
            "ffffffff-ffff-ffff-ffff-ffffffffffff"
                .parse::<Uuid>()
                .is_err()
        );
        assert!(
            "abcdef0011112222333344445555666677"
                .parse::<Uuid>()
                .is_err()
        );
    }
}
