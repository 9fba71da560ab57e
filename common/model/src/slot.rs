//! Where a drive sits in a VM's config: `scsi0`…`scsi30`, `virtio0`…`virtio15`, `sata`, `ide`.

use std::fmt;
use std::str::FromStr;

use crate::ids::ParseIdError;

/// The bus of a drive key, with the number of slots that PVE gives it (`Drive.pm`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bus {
    /// `scsi0` to `scsi30`.
    Scsi,
    /// `virtio0` to `virtio15`.
    VirtIo,
    /// `sata0` to `sata5`.
    Sata,
    /// `ide0` to `ide3`.
    Ide,
}

impl Bus {
    const ALL: [Self; 4] = [Self::Scsi, Self::VirtIo, Self::Sata, Self::Ide];

    const fn key(self) -> &'static str {
        match self {
            Self::Scsi => "scsi",
            Self::VirtIo => "virtio",
            Self::Sata => "sata",
            Self::Ide => "ide",
        }
    }

    /// How many slots the bus has.
    pub const fn slots(self) -> u8 {
        match self {
            Self::Scsi => 31,
            Self::VirtIo => 16,
            Self::Sata => 6,
            Self::Ide => 4,
        }
    }
}

/// One drive key of a VM's config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    bus: Bus,
    index: u8,
}

impl Slot {
    /// The slot, if the bus has one of this number.
    pub const fn new(bus: Bus, index: u8) -> Option<Self> {
        if index < bus.slots() {
            Some(Self { bus, index })
        } else {
            None
        }
    }

    /// `scsi0` to `scsi30` in order.
    pub fn all_scsi() -> impl Iterator<Item = Self> {
        (0..Bus::Scsi.slots()).map(|index| Self {
            bus: Bus::Scsi,
            index,
        })
    }

    /// The bus.
    pub const fn bus(self) -> Bus {
        self.bus
    }

    /// The number; on the `scsi` bus of a virtio-scsi controller it is the LUN that the guest sees.
    pub const fn index(self) -> u8 {
        self.index
    }
}

impl FromStr for Slot {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        Bus::ALL
            .into_iter()
            .find_map(|bus| {
                let digits = text.strip_prefix(bus.key())?;
                let canonical = digits == "0" || !digits.starts_with('0');
                let number = digits
                    .bytes()
                    .all(|b| b.is_ascii_digit())
                    .then(|| digits.parse().ok())??;
                Self::new(bus, number).filter(|_| canonical)
            })
            .ok_or(ParseIdError("drive slot"))
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.bus.key(), self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_one_spelling_and_the_limits_of_pve() {
        for slot in Slot::all_scsi() {
            assert_eq!(slot.to_string().parse::<Slot>().unwrap(), slot);
        }
        for bad in [
            "scsi31", "scsi", "scsi01", "scsi+1", "scsihw", "virtio16", "unused0", "ide4", "sata6",
            "net0",
        ] {
            assert!(bad.parse::<Slot>().is_err(), "{bad}");
        }
    }
}
