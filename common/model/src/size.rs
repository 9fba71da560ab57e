//! Sizes in bytes with checked arithmetic. `i64` exists only at the protobuf edge.

use std::fmt;

/// A number of bytes.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// 1024 bytes: the unit of a bare number in `POST …/content`.
    pub const KIB: Self = Self(1 << 10);
    /// 1024 KiB: the unit that the driver always sends.
    pub const MIB: Self = Self(1 << 20);
    /// 1024 MiB.
    pub const GIB: Self = Self(1 << 30);

    /// `count` bytes.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The smallest multiple of `unit` that is not less than this, unless it would overflow or `unit` is 0.
    pub fn round_up(self, unit: Self) -> Option<Self> {
        self.0.checked_next_multiple_of(unit.0).map(Self)
    }

    /// How many whole units of `unit` hold this size (rounded up).
    pub fn units(self, unit: Self) -> u64 {
        self.0.div_ceil(unit.0.max(1))
    }

    /// The sum, unless it would overflow.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference, zero at least.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The size as protobuf carries it, unless it exceeds `i64`.
    pub fn to_i64(self) -> Option<i64> {
        i64::try_from(self.0).ok()
    }
}

impl TryFrom<i64> for Bytes {
    type Error = NegativeSize;

    fn try_from(count: i64) -> Result<Self, NegativeSize> {
        u64::try_from(count).map(Self).map_err(|_| NegativeSize)
    }
}

/// A size below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("size is negative")]
pub struct NegativeSize;

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [
            (1 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
        ];
        match UNITS
            .iter()
            .find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit))
        {
            Some((unit, name)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_up_and_never_overflows() {
        assert_eq!(Bytes::new(1).round_up(Bytes::MIB), Some(Bytes::MIB));
        assert_eq!(Bytes::MIB.round_up(Bytes::MIB), Some(Bytes::MIB));
        assert_eq!(Bytes::new(u64::MAX).round_up(Bytes::MIB), None);
        assert_eq!(Bytes::new(1_500_000_001).units(Bytes::MIB), 1431);
    }

    #[test]
    fn protobuf_sizes_keep_their_range() {
        assert_eq!(Bytes::try_from(-1), Err(NegativeSize));
        assert_eq!(Bytes::new(u64::MAX).to_i64(), None);
        assert_eq!(Bytes::try_from(i64::MAX).unwrap().to_i64(), Some(i64::MAX));
    }

    #[test]
    fn display_is_exact() {
        assert_eq!(Bytes::GIB.to_string(), "1 GiB");
        assert_eq!(Bytes::new(1_073_741_825).to_string(), "1073741825 bytes");
    }
}
