//! The World Wide Name by which the guest recognises a volume, whatever slot it sits in.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::ids::ParseIdError;
use crate::volume_id::VolumeId;

/// A 64-bit NAA identifier. First nibble 5 (IEEE registered): the Linux SCSI layer ranks 3 no higher than a T10
/// id, and 6 would mean 16 bytes (`drivers/scsi/scsi_lib.c: scsi_vpd_lun_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wwn(u64);

/// `PVC-ID` in ASCII: the head of the names that the former driver made from the slot number.
const SLOT_MADE_HEAD: u64 = 0x5056_432d_4944;

impl Wwn {
    /// The name of a volume: `5`, then the first 60 bits of SHA-256 over its handle.
    pub fn of(volume: &VolumeId) -> Self {
        let digest = Sha256::digest(volume.to_string().as_bytes());
        let head = digest
            .iter()
            .take(8)
            .fold(0_u64, |acc, byte| acc << 8 | u64::from(*byte));
        Self(0x5 << 60 | head >> 4)
    }

    /// Whether the former driver made this name from a slot number (`0x5056432d494430NN`). Two volumes carry the
    /// same one over time, so it identifies nothing by itself.
    pub const fn is_slot_made(self) -> bool {
        self.0 >> 16 == SLOT_MADE_HEAD
    }

    /// The link that udev makes for the disk in the guest.
    pub fn by_id_path(self) -> String {
        format!("/dev/disk/by-id/wwn-{self}")
    }

    /// What `/sys/block/<disk>/device/wwid` shows for the disk.
    pub fn sysfs_wwid(self) -> String {
        format!("naa.{:016x}", self.0)
    }

    /// Reads [`Wwn::by_id_path`] back.
    pub fn from_by_id_path(path: &str) -> Result<Self, ParseIdError> {
        path.strip_prefix("/dev/disk/by-id/wwn-")
            .ok_or(ParseIdError("device path"))?
            .parse()
    }
}

impl FromStr for Wwn {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        text.strip_prefix("0x")
            .filter(|hex| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .map(Self)
            .ok_or(ParseIdError("WWN"))
    }
}

impl fmt::Display for Wwn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wwn(handle: &str) -> Wwn {
        Wwn::of(&handle.parse().unwrap())
    }

    // `printf %s r1/pve1/local-lvm/vm-9999-pvc-1 | sha256sum`
    #[test]
    fn a_volume_keeps_the_name_that_its_handle_gives() {
        assert_eq!(
            wwn("r1/pve1/local-lvm/vm-9999-pvc-1").to_string(),
            "0x5c42a611aadbf50e"
        );
        assert_ne!(
            wwn("r1/pve1/local-lvm/vm-9999-pvc-1"),
            wwn("r1/pve1/local-lvm/vm-9999-pvc-10")
        );
        assert!(!wwn("r1/pve1/local-lvm/vm-9999-pvc-1").is_slot_made());
    }

    #[test]
    fn the_former_drivers_names_are_known_as_made_from_a_slot() {
        assert!("0x5056432d49443031".parse::<Wwn>().unwrap().is_slot_made());
        assert!("0x5056432d49443239".parse::<Wwn>().unwrap().is_slot_made());
    }

    #[test]
    fn paths_round_trip_and_nothing_else_parses() {
        let name = wwn("r1//rbd/vm-9999-pvc-1");
        assert_eq!(Wwn::from_by_id_path(&name.by_id_path()).unwrap(), name);
        for bad in [
            "0x5",
            "5056432d49443031",
            "0x+056432d49443031",
            "0x5056432d494430311",
            "",
        ] {
            assert!(bad.parse::<Wwn>().is_err(), "{bad}");
        }
        assert!(Wwn::from_by_id_path("/dev/sda").is_err());
    }
}
